"""What a client and a server said to each other, and assertions about it.

A recording kept in a file is a cassette: written once, compared from then on, with what differs from run to run (ids,
times, versions) made equal first.
"""

import datetime
import difflib
import json
import os
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from dovetail.protocol.channel import Headers
from dovetail.protocol.recording import FORMAT, Frame, Heading, Tap, To, frame, line, read_lines
from dovetail.wire.shape import UNSET

WRITE: Final = "DOVETAIL_RECORD"

_SHOWN: Final = 200
_SOME: Final = "…"
_IDS: Final = frozenset({"progressToken", "requestId", "io.modelcontextprotocol/subscriptionId"})
_WHO: Final = frozenset(
    {"clientInfo", "serverInfo", "io.modelcontextprotocol/clientInfo", "io.modelcontextprotocol/serverInfo"}
)

Message = dict[str, Any]


class Tapped(Protocol):
    """A client, with or without `await`."""

    taps: list[Tap]

    @property
    def name(self) -> str:
        """What its server is called."""
        ...


@contextmanager
def record(client: Tapped, *, states: bool = False) -> Generator["Traffic"]:
    """Record what a client says and hears while the context lasts; of one that is not open yet, the opening too.

    states: keep the `requestState` of servers, which is masked otherwise.
    """
    traffic = Traffic(client.name, states=states)
    client.taps.append(traffic.note)
    try:
        yield traffic
    finally:
        if traffic.note in client.taps:
            client.taps.remove(traffic.note)


class Traffic:
    """Frames in the order they were sent or came."""

    def __init__(self, server: str = "", *, states: bool = False) -> None:
        self.frames: list[Frame] = []
        self.heading = Heading(
            recording=FORMAT,
            began=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            server=server,
        )
        self._states = states
        self._began = time.monotonic()

    def note(self, to: To, data: bytes, headers: Headers = ()) -> None:
        """Take in what travels."""
        at = round(time.monotonic() - self._began, 6)
        self.frames.append(frame(at, to, data, headers, states=self._states))

    # Looking

    def sent(self, method: str | None = None, **params: Any) -> list[Message]:
        """Messages to the server: of a method, with at least these parameters."""
        return [one for one in self._messages("server") if _is(one, method, params)]

    def received(self, method: str | None = None, **params: Any) -> list[Message]:
        """Requests and notices of the server: of a method, with at least these parameters."""
        return [one for one in self._messages("client") if "method" in one and _is(one, method, params)]

    def answers(self, method: str, **params: Any) -> list[Message]:
        """The server's responses to requests of a method, with at least these parameters."""
        asked = [one["id"] for one in self.sent(method, **params) if "id" in one]
        return [one for one in self._messages("client") if "method" not in one and one.get("id") in asked]

    def _messages(self, to: To) -> Iterator[Message]:
        for one in self.frames:
            if one.to == to:
                yield from (part for part in _listed(one.message) if isinstance(part, dict))

    # Asserting

    def assert_sent(self, method: str, *, times: int | None = None, **params: Any) -> None:
        """Fail unless the client sent this, at least once or exactly so many times."""
        __tracebackhide__ = True
        self._assert("sent", self._messages("server"), method, params, times)

    def assert_received(self, method: str, *, times: int | None = None, **params: Any) -> None:
        """Fail unless the server sent this request or notice, at least once or exactly so many times."""
        __tracebackhide__ = True
        self._assert("received", self._messages("client"), method, params, times)

    def assert_not_sent(self, method: str, **params: Any) -> None:
        """Fail if the client sent this."""
        __tracebackhide__ = True
        self._assert("sent", self._messages("server"), method, params, 0)

    def _assert(
        self, verb: str, messages: Iterator[Message], method: str, params: dict[str, Any], times: int | None
    ) -> None:
        __tracebackhide__ = True
        seen = [*messages]
        found = sum(_is(one, method, params) for one in seen)
        if found == times or (times is None and found):
            return
        wish = "" if times is None else f" {times} times"
        told = "\n".join(f"  {_brief(one)}" for one in seen if "method" in one) or "  nothing"
        raise AssertionError(
            f"{_brief({'method': method, 'params': params})} was {verb} {found} times"
            f"{', not' + wish if wish else ''}; what was {verb}:\n{told}"
        )

    # Cassettes

    def assert_equal(self, path: str | Path, *, volatile: Collection[str] = ()) -> None:
        """Fail unless the cassette holds the same messages; with DOVETAIL_RECORD=1 or --mcp-record it is written.

        volatile: names of members whose values are not compared, besides ids, times and versions.
        """
        __tracebackhide__ = True
        place = Path(path)
        found = self._steady(frozenset(volatile))
        if os.environ.get(WRITE):
            place.parent.mkdir(parents=True, exist_ok=True)
            heading = Heading(recording=FORMAT, server=self.heading.server)
            place.write_bytes(b"".join(map(line, (heading, *found))))
            return
        if not place.exists():
            raise AssertionError(f"there is no cassette {place}; write it with --mcp-record, or {WRITE}=1")
        kept = [one for one in read_lines(place.read_bytes().splitlines()) if isinstance(one, Frame)]
        if kept != found:
            raise AssertionError(f"the traffic is not that of {place}:\n{_difference(kept, found)}")

    def save(self, path: str | Path) -> None:
        """Write the recording as it is."""
        Path(path).write_bytes(b"".join(map(line, (self.heading, *self.frames))))

    def _steady(self, volatile: frozenset[str]) -> list[Frame]:
        steady = _Steady(volatile)
        return [
            Frame(at=0, to=one.to, message=steady.message(one.to, one.message), text=one.text) for one in self.frames
        ]


class _Steady:
    """Makes two runs of the same conversation equal."""

    def __init__(self, volatile: frozenset[str]) -> None:
        self._volatile = volatile
        self._numbers: dict[To, dict[Any, int]] = {"server": {}, "client": {}}  # of requests, by whom they go to

    def message(self, to: To, message: Any) -> Any:
        if isinstance(message, list):
            return [self.message(to, one) for one in message]
        if not isinstance(message, dict):
            return message
        asked: To = to if "method" in message else ("client" if to == "server" else "server")
        numbers = self._numbers[asked]
        if "method" in message and "id" in message:
            numbers.setdefault(message["id"], len(numbers) + 1)
        steady = {name: self._value(name, value) for name, value in message.items()}
        if "id" in message:
            steady["id"] = numbers.get(message["id"], message["id"])
        return steady

    def _value(self, name: str, value: Any) -> Any:
        if name in self._volatile:
            return _SOME
        if name in _IDS:
            return self._number(value)
        if name in _WHO and isinstance(value, dict) and "version" in value:
            value = value | {"version": _SOME}
        if isinstance(value, dict):
            return {inner: self._value(inner, one) for inner, one in value.items()}
        if isinstance(value, list):
            return [self._value("", one) for one in value]
        return value

    def _number(self, id: Any) -> Any:
        for numbers in self._numbers.values():
            if isinstance(id, int | str) and id in numbers:
                return numbers[id]
        return id


def _listed(message: Any) -> list[Any]:
    if message is UNSET:
        return []
    return message if isinstance(message, list) else [message]


def _is(message: Message, method: str | None, params: dict[str, Any]) -> bool:
    if method is not None and message.get("method") != method:
        return False
    return _holds(message.get("params") or {}, params)


def _holds(found: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; objects may hold more."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(name in found and _holds(found[name], value) for name, value in wanted.items())
    return found == wanted


def _brief(message: Message) -> str:
    params = {name: value for name, value in (message.get("params") or {}).items() if name != "_meta"}
    text = f"{message.get('method')} {json.dumps(params, ensure_ascii=False)}" if params else f"{message.get('method')}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + _SOME


def _difference(kept: list[Frame], found: list[Frame]) -> str:
    lines = difflib.unified_diff(_pretty(kept), _pretty(found), "cassette", "traffic", lineterm="", n=4)
    return "\n".join(lines)


def _pretty(frames: list[Frame]) -> list[str]:
    lines: list[str] = []
    for one in frames:
        lines.append(f"to the {one.to}:")
        body = (
            one.text if one.message is UNSET else json.dumps(one.message, indent=1, ensure_ascii=False, sort_keys=True)
        )
        lines += [f"  {part}" for part in (body or "").splitlines()]
    return lines
