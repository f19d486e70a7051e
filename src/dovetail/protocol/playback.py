"""A recording spoken again: what a server answered once, it answers again to whoever asks the same.

Turns are what a recording says about requests: each with its answer and the notices in between. Playback is a server
made of them; it changes nothing, so it promises no news.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from dovetail.protocol.recording import MASK, Frame, masked
from dovetail.wire.meta import PROGRESS_TOKEN, PROTOCOL_VERSION
from dovetail.wire.revisions import NEWEST, stateless
from dovetail.wire.shape import UNSET, Struct

Message = dict[str, Any]

OPENING: Final = ("initialize", "server/discover")
# What says nothing that could be compared, or is answered by anyone alike.
IDLE: Final = ("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "subscriptions/listen")
_TOLD: Final = ("notifications/progress", "notifications/message")
_STATE: Final = "requestState"
_MISSING: Final = -32602


class Turn(Struct, kw_only=True):
    """One request of a client, and what came of it."""

    method: str
    params: dict[str, Any]
    token: Any = None
    revision: str | None = None
    answer: Message | None = None
    notices: list[Message]


def turns(parts: Iterable[Any]) -> list[Turn]:
    """The requests to the server, in their order."""
    found: list[Turn] = []
    pending: dict[tuple[int | None, str], Turn] = {}
    for part in _frames(parts):
        for message in _within(part):
            id = _id(message)
            key = (part.exchange, id)
            if part.to == "server" and "method" in message and message.get("id") is not None:
                turn = _turn(message)
                found.append(turn)
                pending[key] = turn
            elif part.to == "client" and message.get("method") in _TOLD:
                here = {one: turn for one, turn in pending.items() if one[0] == part.exchange}
                _tell(message, here or pending)
            elif part.to == "client" and "method" not in message and (asked := _asked(key, pending)) is not None:
                pending.pop(asked).answer = message
    return found


def _asked(key: tuple[int | None, str], pending: Iterable[tuple[int | None, str]]) -> tuple[int | None, str] | None:
    """Which request an answer is to: one of the same exchange, or the only one of its id, whose stream was resumed."""
    if key in pending:
        return key
    others = [one for one in pending if one[1] == key[1]]
    return others[0] if len(others) == 1 else None


def _id(message: Message) -> str:
    return json.dumps(message.get("id"))


def messages(parts: Iterable[Any]) -> Iterator[tuple[str, Message]]:
    """Every message of a recording, and who it is for."""
    for part in _frames(parts):
        yield from ((part.to, one) for one in _within(part))


def _frames(parts: Iterable[Any]) -> Iterator[Frame]:
    return (part for part in parts if isinstance(part, Frame) and part.message is not UNSET)


def _within(part: Frame) -> list[Message]:
    whole: list[Any] = part.message if isinstance(part.message, list) else [part.message]
    return [one for one in whole if isinstance(one, dict)]


def given_answers(parts: Iterable[Any], method: str) -> list[Any]:
    """What a client answered to the server's own requests of a method, in their order."""
    asked: dict[str, None] = {}
    found: list[Any] = []
    for to, message in messages(parts):
        id = _id(message)
        if to == "client" and message.get("method") == method:
            asked[id] = None
        elif to == "server" and "method" not in message and id in asked:
            found.append(message.get("result"))
    return found


def revision_of(found: Iterable[Turn]) -> str:
    """The revision that was spoken."""
    named: str | None = None
    for turn in found:
        result = (turn.answer or {}).get("result")
        if turn.method == "initialize" and isinstance(result, dict):
            return str(result.get("protocolVersion"))
        named = named or turn.revision
    return named or NEWEST


def _turn(message: Message) -> Turn:
    params = _object(message.get("params"))
    meta = _object(params.pop("_meta", None))
    return Turn(
        method=str(message["method"]),
        params=params,
        token=meta.get(PROGRESS_TOKEN),
        revision=meta.get(PROTOCOL_VERSION),
        notices=[],
    )


def _object(value: Any) -> dict[str, Any]:
    """What the protocol has as an object; what stands there instead says nothing."""
    return dict(value) if isinstance(value, dict) else {}


def _tell(message: Message, pending: Mapping[Any, Turn]) -> None:
    """A notice belongs to the request whose token it carries, or else to the oldest one that waits."""
    token = _object(message.get("params")).get(PROGRESS_TOKEN)
    for turn in pending.values():
        if turn.token == token or message["method"] != _TOLD[0]:
            turn.notices.append(message)
            return


class Playback:
    """A server that says what was recorded."""

    def __init__(self, parts: Iterable[Any], *, loose: bool = False) -> None:
        self._turns = [turn for turn in turns(parts) if turn.answer is not None]
        if not self._turns:
            raise ValueError("the recording holds no answer of a server")
        self._loose = loose
        self._next: dict[str, int] = {}
        self._by_key: dict[str, list[Turn]] = {}
        for turn in self._turns:
            self._by_key.setdefault(_key(turn.method, turn.params), []).append(turn)
        self.revision = revision_of(self._turns)
        opened = self._opened()
        meta: Mapping[str, Any] = opened.get("_meta") or {}
        self.server: Mapping[str, Any] = opened.get("serverInfo") or meta.get(_WHO) or {}
        self.instructions: str | None = opened.get("instructions")

    def _opened(self) -> Mapping[str, Any]:
        method = "server/discover" if stateless(self.revision) else "initialize"
        for turn in self._turns:
            result = (turn.answer or {}).get("result")
            if turn.method == method and isinstance(result, dict):
                return result
        return {}

    def link(self, write: Callable[[bytes], None]) -> "Speaking":
        """One connection to it."""
        return Speaking(self, write)

    def answers(self, message: Message) -> Iterator[Message]:
        """What is said to a request, notices first."""
        turn = _turn(message)
        same: Message = {"jsonrpc": "2.0", "id": message.get("id")}
        if turn.method in OPENING:
            yield same | self._opening(turn.method)
        elif turn.method in IDLE[:-1]:
            yield same | {"result": {}}
        elif turn.method != IDLE[-1]:
            found = self._found(turn)
            if found is None:
                yield same | {"error": {"code": _MISSING, "message": self._unknown(turn)}}
                return
            yield from (_retold(one, turn.token) for one in found.notices)
            yield same | {name: part for name, part in (found.answer or {}).items() if name in ("result", "error")}

    def _opening(self, method: str) -> Message:
        if stateless(self.revision) != (method == "server/discover"):
            return {"error": {"code": -32601, "message": "Method not found"}}
        result = dict(self._opened()) or {"supportedVersions": [self.revision], "resultType": "complete"}
        able: dict[str, Any] = dict(result.get("capabilities") or self._capabilities())
        return {"result": result | {"capabilities": {name: _still(one) for name, one in able.items()}}}

    def _capabilities(self) -> dict[str, Any]:
        names = {turn.method.partition("/")[0] for turn in self._turns}
        return {name: {} for name in ("tools", "resources", "prompts") if name in names}

    def _found(self, turn: Turn) -> Turn | None:
        key = _key(turn.method, turn.params)
        known = self._by_key.get(key)
        if known is None:
            asked = masked(_question(turn.params))
            known = [one for one in self._turns if one.method == turn.method and alike(_question(one.params), asked)]
        if not known and self._loose:
            known = [one for one in self._turns if one.method == turn.method and _name(one) == _name(turn)]
        if not known:
            return None
        place = self._next.get(key, 0)
        self._next[key] = place + 1
        return known[min(place, len(known) - 1)]

    def _unknown(self, turn: Turn) -> str:
        known = sorted({f"{one.method} {_name(one)}".strip() for one in self._turns if one.method not in OPENING})
        told = f"{turn.method} {_name(turn)}".strip()
        if told in known:
            return f"The recording holds {told}, but with other arguments"
        return f"The recording does not hold {told}; there are {', '.join(known[:20])}"


_WHO: Final = "io.modelcontextprotocol/serverInfo"


class Speaking:
    """One connection: takes whole messages, and writes the answers."""

    def __init__(self, playback: Playback, write: Callable[[bytes], None]) -> None:
        self._playback = playback
        self._write = write

    def receive(self, data: bytes) -> None:
        """A message of the client."""
        message = json.loads(data)
        for one in message if isinstance(message, list) else [message]:
            if "method" in one and "id" in one:
                for answer in self._playback.answers(one):
                    self._write(json.dumps(answer, ensure_ascii=False).encode())

    async def close(self, grace: float = 0.0) -> None:
        """There is nothing to end."""


def _key(method: str, params: Mapping[str, Any]) -> str:
    """What makes two requests the same question."""
    return f"{method} {json.dumps(_question(params), sort_keys=True)}"


def _question(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != _STATE and value not in ({}, None)}


def alike(recorded: Any, now: Any) -> bool:
    """Whether a value is as it was recorded; what was masked then may be anything."""
    if recorded in (MASK, now):
        return True
    if isinstance(recorded, str) and isinstance(now, str) and MASK in recorded:
        return re.fullmatch(".*".join(map(re.escape, recorded.split(MASK))), now, re.DOTALL) is not None
    if isinstance(recorded, dict) and isinstance(now, dict):
        return recorded.keys() == now.keys() and all(alike(recorded[name], now[name]) for name in recorded)
    if isinstance(recorded, list) and isinstance(now, list):
        return len(recorded) == len(now) and all(map(alike, recorded, now))
    return False


def has_mask(value: Any) -> bool:
    """Whether something in a value was masked when it was recorded."""
    if isinstance(value, dict):
        return any(map(has_mask, value.values()))
    return any(map(has_mask, value)) if isinstance(value, list) else isinstance(value, str) and MASK in value


def _name(turn: Turn) -> str:
    return str(turn.params.get("name") or turn.params.get("uri") or "")


def _retold(notice: Message, token: Any) -> Message:
    params = _object(notice.get("params"))
    if notice["method"] == _TOLD[0]:
        params[PROGRESS_TOKEN] = token
    return {"jsonrpc": "2.0", "method": notice["method"], "params": params}


def _still(capability: Any) -> Any:
    """A capability without the promise to tell of changes."""
    if not isinstance(capability, dict):
        return capability
    return {name: value for name, value in capability.items() if name not in ("listChanged", "subscribe")}
