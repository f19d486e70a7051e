"""What a client receives: the envelope read, the body left as it came until someone knows its type.

More forgiving than `codec`: a server's slip must not cost its user the answer, so unknown members, duplicate names and
broken UTF-8 pass. What could exhaust this side (depth, members) does not.
"""

import re
from typing import Any, Final, TypeVar

import msgspec

from dovetail.errors import ParseError, ResultError, clip
from dovetail.wire.jsonrpc import Id
from dovetail.wire.shape import UNSET, Struct, UnsetType

# An empty list takes 64 bytes where its text takes three. Counted only in messages worth the count.
MAX_MEMBERS: Final = 1_000_000
_SMALL: Final = 1024 * 1024
_SLICE: Final = 64 * 1024
_NO_BACKSLASH: Final = re.compile(rb"[^\\]")
_GLIMPSE: Final = 256
_WHOLE: Final = re.compile(r"[0-9]{1,15}")
_ID: Final = re.compile(rb'"id"\s*:\s*"?([0-9]{1,15})(?:\.0+)?(?![0-9.])')
_LAST: Final = re.compile(rb'"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*"?([0-9]{1,15})"?\s*\}\s*$')
_HELD: Final = re.compile(rb'"(?:result|error)"\s*:')

T = TypeVar("T")


class Failure(Struct, omit_defaults=True):
    """The error of a response; servers have been seen to leave out its message."""

    code: int
    message: str = ""
    data: Any = None


class Incoming(Struct, omit_defaults=True):
    """One message; `result` and `params` are still text."""

    id: Id | None = None
    method: str | None = None
    params: msgspec.Raw | UnsetType = UNSET  # msgspec cannot read a Raw that may be None
    result: msgspec.Raw | UnsetType = UNSET
    error: Failure | None = None

    @property
    def answers(self) -> bool:
        """Whether it is a response."""
        return self.method is None and (self.result is not UNSET or self.error is not None)

    def encoded(self) -> bytes:
        """The message as it came, less what nobody reads."""
        return b'{"jsonrpc":"2.0",' + msgspec.json.encode(self)[1:]


_one: Final = msgspec.json.Decoder(Incoming)
_several: Final = msgspec.json.Decoder(list[Incoming])
_any: Final = msgspec.json.Decoder()


def read(data: bytes | str) -> list[Incoming]:
    """The message in these bytes, or the messages of a batch; ParseError if there is none."""
    if len(data) > _SMALL:
        _refuse_members(data)
    try:
        return _read(data)
    except UnicodeDecodeError:
        return read(data.decode("utf-8", "replace")) if isinstance(data, bytes) else []


def _read(data: bytes | str) -> list[Incoming]:
    try:
        return [_one.decode(data)]
    except msgspec.MsgspecError as exc:
        head = data[:64].lstrip()
        if head[:1] in (b"[", "["):
            return _batch(data)
        raise ParseError(clip(str(exc), 200)) from None
    except RecursionError:
        raise ParseError("nested too deeply") from None


def _batch(data: bytes | str) -> list[Incoming]:
    try:
        return _several.decode(data)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise ParseError(clip(str(exc), 200)) from None


def answered(data: bytes) -> list[int]:
    """Which requests these bytes mean to answer though they are no valid response, as far as that can be read.

    Ids are read as a server in haste writes them: 1.0 and "1" are 1 here. What is large is only glanced at: read whole,
    it could take twenty times its size.
    """
    if len(data) > _SMALL:
        return _glimpsed(data)
    try:
        found = _any.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _glimpsed(data)
    items: list[Any] = found if type(found) is list else [found]
    return [id for id in map(_meant, items) if id is not None]


def _meant(message: Any) -> int | None:
    if type(message) is not dict or "method" in message or not message.keys() & {"jsonrpc", "result", "error"}:
        return None
    id: Any = message.get("id")
    if type(id) is str:
        return int(id) if _WHOLE.fullmatch(id) else None
    return int(id) if type(id) in (int, float) and id == id // 1 and abs(id) < 2**53 else None


def _glimpsed(data: bytes) -> list[int]:
    """The id of what is no JSON but looks like a response: before what it holds, or at the very end."""
    head = data[:_GLIMPSE]
    held = _HELD.search(head)
    if held is None or b'"method"' in head[: held.start()]:
        return []
    found = _ID.search(head, 0, held.start()) or _LAST.search(data[-_GLIMPSE:])
    return [int(found[1])] if found is not None else []


def _refuse_members(data: bytes | str) -> None:
    text = data if isinstance(data, bytes) else data.encode()
    if text.count(b",") >= MAX_MEMBERS and _beyond(text):
        raise ParseError(f"more than {MAX_MEMBERS} members")


def _beyond(data: bytes) -> bool:
    """Whether there are too many commas outside of strings; in slices, so that their pieces take little memory."""
    commas = quotes = start = 0
    inside = False
    while start < len(data) and commas < MAX_MEMBERS and quotes <= 4 * MAX_MEMBERS:  # a member has two strings at most
        whole = _NO_BACKSLASH.search(data, start + _SLICE)  # never between a backslash and what it escapes
        end = whole.end() if whole is not None else len(data)
        pieces = data[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        commas += b"".join(pieces[inside::2]).count(b",")
        quotes += len(pieces) - 1
        inside ^= len(pieces) % 2 == 0
        start = end
    return start < len(data) or commas >= MAX_MEMBERS or quotes > 4 * MAX_MEMBERS


def body(raw: Any, kind: type[T], what: str) -> T:
    """A result or parameters as their type; ResultError names the place that does not fit."""
    if raw is UNSET:
        raw = b"{}"
    try:
        return _decoder(kind).decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        try:
            return msgspec.convert(plain(raw), kind)  # broken UTF-8 is mended there
        except (msgspec.MsgspecError, RecursionError):
            raise ResultError(f"{what} is not what the protocol promises: {clip(str(exc), 300)}") from None


def copied(value: T) -> T:
    """An equal value that shares nothing with it: whoever changes the one does not change the other."""
    return _decoder(type(value)).decode(msgspec.json.encode(value))


def plain(raw: Any) -> Any:
    """A raw body as dicts, lists, strings and numbers."""
    if raw is UNSET:
        return {}
    try:
        return _any.decode(raw)
    except UnicodeDecodeError:
        return _any.decode(bytes(raw).decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise ResultError(f"not JSON: {clip(str(exc), 300)}") from None


def decode_text(text: str) -> Any:
    """JSON within a text; ResultError if it is none."""
    return plain(text.encode("utf-8", "replace"))


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    known = _decoders.get(kind)
    if known is None:
        known = _decoders[kind] = msgspec.json.Decoder(kind)
    return known
