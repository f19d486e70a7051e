"""Recorded messages between a client and a server, with assertions about them.

A cassette is a recording in a file. The first run writes the cassette, and later runs are compared with it. Values that
differ from run to run (IDs, times, versions) are normalized first.
"""

import datetime
import difflib
import json
import os
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dovetail.client.client import Client, get_session
from dovetail.client.sync_client import SyncClient, get_client
from dovetail.protocol.interfaces.client_transport import Headers
from dovetail.protocol.interfaces.message_tap import Receiver, Recorder
from dovetail.recording.recording_format import Frame, create_frame, create_header, encode_line, read_frames
from dovetail.storage import replace_file, write_private_file
from dovetail.wire.base import UNSET

RECORD_ENV_VAR: Final = "DOVETAIL_RECORD_CASSETTES"

_MAX_BRIEF_CHARS: Final = 200
_PLACEHOLDER: Final = "…"
_ID_FIELDS: Final = frozenset({"progressToken", "requestId", "io.modelcontextprotocol/subscriptionId"})
_INFO_FIELDS: Final = frozenset(
    {"clientInfo", "serverInfo", "io.modelcontextprotocol/clientInfo", "io.modelcontextprotocol/serverInfo"}
)

Message = dict[str, Any]


@contextmanager
def record_traffic(client: Client | SyncClient, *, include_request_state: bool = False) -> Generator["Traffic"]:
    """Record the messages of a client while the context is open. The client may already be connected.

    Args:
        client: The client to record.
        include_request_state: Whether to record the `requestState` of servers. By default, it is masked.
    """
    traffic = Traffic(client.name, _include_request_state=include_request_state)
    recorder = get_recorder(traffic)
    recorders = get_session(get_client(client) if isinstance(client, SyncClient) else client).recorders
    recorders.append(recorder)
    try:
        yield traffic
    finally:
        if recorder in recorders:
            recorders.remove(recorder)


def get_recorder(traffic: "Traffic") -> Recorder:
    """Return the function that adds a message to a recording."""
    return traffic._record  # pyright: ignore[reportPrivateUsage]


class Traffic:
    """The recorded messages between a client and a server."""

    def __init__(self, _server: str = "", *, _include_request_state: bool = False) -> None:
        self.frames: list[Frame] = []
        started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._header = create_header(_server, started_at)
        self._include_request_state = _include_request_state
        self._started_at = time.monotonic()

    def _record(self, to: Receiver, data: bytes, headers: Headers = ()) -> None:
        elapsed = round(time.monotonic() - self._started_at, 6)
        self.frames.append(create_frame(elapsed, to, data, headers, keep_request_state=self._include_request_state))

    def sent(self, method: str | None = None, **params: object) -> list[Message]:
        """Return the client's messages with this method and these parameters. Other parameters are ignored.

        Args:
            method: The method of the messages. If None, all messages are returned.
        """
        return [message for message in self._messages("server") if _matches(message, method, params)]

    def received(self, method: str | None = None, **params: object) -> list[Message]:
        """Return the server's requests and notifications with this method and these parameters.

        Other parameters are ignored.

        Args:
            method: The method of the messages. If None, all messages are returned.
        """
        return [
            message for message in self._messages("client") if "method" in message and _matches(message, method, params)
        ]

    def responses(self, method: str, **params: object) -> list[Message]:
        """Return the responses to requests with this method and these parameters. Other parameters are ignored."""
        request_ids = [message["id"] for message in self.sent(method, **params) if "id" in message]
        return [
            message
            for message in self._messages("client")
            if "method" not in message and message.get("id") in request_ids
        ]

    def _messages(self, to: Receiver) -> Iterator[Message]:
        for frame in self.frames:
            if frame.to == to:
                yield from (message for message in _as_list(frame.message) if isinstance(message, dict))

    def assert_sent(self, method: str, *, times: int | None = None, **params: object) -> None:
        """Raise AssertionError unless the client sent a message with this method and these parameters.

        Args:
            times: The exact number of such messages. If None, at least one is required.
        """
        __tracebackhide__ = True
        self._assert_count("sent", self._messages("server"), method, params, times)

    def assert_received(self, method: str, *, times: int | None = None, **params: object) -> None:
        """Raise AssertionError unless the server sent a request or notification with this method and these parameters.

        Args:
            times: The exact number of such messages. If None, at least one is required.
        """
        __tracebackhide__ = True
        self._assert_count("received", self._messages("client"), method, params, times)

    def assert_not_sent(self, method: str, **params: object) -> None:
        """Raise AssertionError if the client sent a message with this method and these parameters."""
        __tracebackhide__ = True
        self._assert_count("sent", self._messages("server"), method, params, 0)

    def _assert_count(
        self, verb: str, messages: Iterator[Message], method: str, params: dict[str, object], times: int | None
    ) -> None:
        __tracebackhide__ = True
        all_messages = [*messages]
        count = sum(_matches(message, method, params) for message in all_messages)
        if count == times or (times is None and count):
            return
        expected = "" if times is None else f" {times} times"
        summary = (
            "\n".join(f"  {_format_brief(message)}" for message in all_messages if "method" in message) or "  nothing"
        )
        raise AssertionError(
            f"the message {_format_brief({'method': method, 'params': params})} was {verb} {count} "
            f"times{', not' + expected if expected else ''}. All messages {verb}:\n{summary}"
        )

    def assert_matches(self, path: str | Path, *, ignore: Collection[str] = ()) -> None:
        """Raise AssertionError unless the messages equal the messages in the cassette at `path`.

        If --mcp-record or DOVETAIL_RECORD_CASSETTES=1 is set, this method writes the cassette instead.

        Args:
            path: The file of the cassette.
            ignore: Names of additional fields to skip. IDs, times and versions are always skipped.
        """
        __tracebackhide__ = True
        cassette = Path(path)
        frames = self._normalize_frames(frozenset(ignore))
        if os.environ.get(RECORD_ENV_VAR):
            cassette.parent.mkdir(parents=True, exist_ok=True)
            heading = create_header(self._header.server)
            content = b"".join(map(encode_line, (heading, *frames)))
            # A cassette is an ordinary file of the project, so it gets the default file mode.
            replace_file(cassette.resolve(), content, mode=None)
            return
        if not cassette.exists():
            raise AssertionError(f"cassette {cassette} not found. Record it with --mcp-record or {RECORD_ENV_VAR}=1")
        recorded = [
            entry for entry in read_frames(cassette.read_bytes().splitlines(), cassette) if isinstance(entry, Frame)
        ]
        if recorded != frames:
            raise AssertionError(f"the messages differ from the cassette {cassette}:\n{_format_diff(recorded, frames)}")

    def save(self, path: str | Path) -> None:
        """Write the recording to a file without normalizing its values."""
        write_private_file(Path(path), b"".join(map(encode_line, (self._header, *self.frames))))

    def _normalize_frames(self, volatile: frozenset[str]) -> list[Frame]:
        normalizer = _Normalizer(volatile)
        return [
            Frame(at=0, to=frame.to, message=normalizer.normalize(frame.to, frame.message), text=frame.text)
            for frame in self.frames
        ]


class _Normalizer:
    """Replaces values that change from run to run, such as IDs."""

    def __init__(self, volatile: frozenset[str]) -> None:
        self._volatile = volatile
        # Maps each request ID to a number, separately for each receiver.
        self._numbers: dict[Receiver, dict[Any, int]] = {"server": {}, "client": {}}

    def normalize(self, to: Receiver, message: Any) -> Any:
        if isinstance(message, list):
            return [self.normalize(to, item) for item in message]
        if not isinstance(message, dict):
            return message
        request_to: Receiver = to if "method" in message else ("client" if to == "server" else "server")
        numbers = self._numbers[request_to]
        if "method" in message and "id" in message:
            numbers.setdefault(message["id"], len(numbers) + 1)
        normalized = {name: self._normalize_value(name, value) for name, value in message.items()}
        if "id" in message:
            normalized["id"] = numbers.get(message["id"], message["id"])
        return normalized

    def _normalize_value(self, name: str, value: Any) -> Any:
        if name in self._volatile:
            return _PLACEHOLDER
        if name in _ID_FIELDS:
            return self._normalize_id(value)
        if name in _INFO_FIELDS and isinstance(value, dict) and "version" in value:
            value = value | {"version": _PLACEHOLDER}
        if isinstance(value, dict):
            return {inner: self._normalize_value(inner, item) for inner, item in value.items()}
        if isinstance(value, list):
            return [self._normalize_value("", item) for item in value]
        return value

    def _normalize_id(self, id: Any) -> Any:
        for numbers in self._numbers.values():
            if isinstance(id, int | str) and id in numbers:
                return numbers[id]
        return id


def _as_list(message: Any) -> list[Any]:
    if message is UNSET:
        return []
    return message if isinstance(message, list) else [message]


def _matches(message: Message, method: str | None, params: dict[str, object]) -> bool:
    if method is not None and message.get("method") != method:
        return False
    return _contains(message.get("params") or {}, params)


def _contains(actual: Any, expected: Any) -> bool:
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(name in actual and _contains(actual[name], value) for name, value in expected.items())
    return actual == expected


def _format_brief(message: Message) -> str:
    params = {name: value for name, value in (message.get("params") or {}).items() if name != "_meta"}
    text = f"{message.get('method')} {json.dumps(params, ensure_ascii=False)}" if params else f"{message.get('method')}"
    return text if len(text) <= _MAX_BRIEF_CHARS else text[: _MAX_BRIEF_CHARS - 1] + _PLACEHOLDER


def _format_diff(recorded: list[Frame], actual: list[Frame]) -> str:
    lines = difflib.unified_diff(
        _format_frames(recorded), _format_frames(actual), "cassette", "traffic", lineterm="", n=4
    )
    return "\n".join(lines)


def _format_frames(frames: list[Frame]) -> list[str]:
    lines: list[str] = []
    for frame in frames:
        lines.append(f"to the {frame.to}:")
        body = (
            frame.text
            if frame.message is UNSET
            else json.dumps(frame.message, indent=1, ensure_ascii=False, sort_keys=True)
        )
        lines += [f"  {text_line}" for text_line in (body or "").splitlines()]
    return lines
