"""Messages that a client receives: the envelope is decoded, the body stays bytes until its type is known.

More forgiving than `codec`: a server's slip must not cost its user the answer, so unknown members, duplicate names and
broken UTF-8 pass. What could exhaust this side (depth, members) does not.
"""

import re
from typing import Any, Final, TypeVar

import msgspec

from dovetail.error_context import clip
from dovetail.errors import InvalidResult, ParseError
from dovetail.wire.base import UNSET, Struct, UnsetType
from dovetail.wire.jsonrpc import RequestId

# An empty list takes 64 bytes where its text takes three. Counted only in messages worth the count.
MAX_MEMBERS: Final = 1_000_000
_MAX_UNCHECKED_BYTES: Final = 1024 * 1024
_SLICE_BYTES: Final = 64 * 1024
_NO_BACKSLASH: Final = re.compile(rb"[^\\]")
_PEEK_BYTES: Final = 256
_INTEGER_ID: Final = re.compile(r"[0-9]{1,15}")
_LEADING_ID: Final = re.compile(rb'"id"\s*:\s*"?([0-9]{1,15})(?:\.0+)?(?![0-9.])')
_TRAILING_ID: Final = re.compile(rb'"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*"?([0-9]{1,15})"?\s*\}\s*$')
_BODY_MEMBER: Final = re.compile(rb'"(?:result|error)"\s*:')

T = TypeVar("T")


class ErrorObject(Struct, omit_defaults=True):
    """The error of a response; servers have been seen to leave out its message."""

    code: int
    message: str = ""
    data: Any = None


class RawMessage(Struct, omit_defaults=True):
    """One message; `result` and `params` are still text."""

    id: RequestId | None = None
    method: str | None = None
    params: msgspec.Raw | UnsetType = UNSET  # msgspec cannot read a Raw that may be None
    result: msgspec.Raw | UnsetType = UNSET
    error: ErrorObject | None = None

    @property
    def is_response(self) -> bool:
        """Whether it is a response."""
        return self.method is None and (self.result is not UNSET or self.error is not None)

    def encode(self) -> bytes:
        """The message as it came, less what nobody reads."""
        return b'{"jsonrpc":"2.0",' + msgspec.json.encode(self)[1:]


_message_decoder: Final = msgspec.json.Decoder(RawMessage)
_batch_decoder: Final = msgspec.json.Decoder(list[RawMessage])
_json_decoder: Final = msgspec.json.Decoder()


def read_messages(data: bytes | str) -> list[RawMessage]:
    """The message in these bytes, or the messages of a batch; ParseError if there is none."""
    if len(data) > _MAX_UNCHECKED_BYTES:
        _refuse_members(data)
    try:
        return _decode_messages(data)
    except UnicodeDecodeError:
        return read_messages(data.decode("utf-8", "replace")) if isinstance(data, bytes) else []


def _decode_messages(data: bytes | str) -> list[RawMessage]:
    try:
        return [_message_decoder.decode(data)]
    except msgspec.MsgspecError as exc:
        head = data[:64].lstrip()
        if head[:1] in (b"[", "["):
            return _decode_batch(data)
        raise ParseError(clip(str(exc), 200)) from None
    except RecursionError:
        raise ParseError("nested too deeply") from None


def _decode_batch(data: bytes | str) -> list[RawMessage]:
    try:
        return _batch_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise ParseError(clip(str(exc), 200)) from None


def find_answered_ids(data: bytes) -> list[int]:
    """Which requests these bytes mean to answer though they are no valid response, as far as that can be read.

    Ids are read as a server in haste writes them: 1.0 and "1" are 1 here. What is large is only glanced at: read whole,
    it could take twenty times its size.
    """
    if len(data) > _MAX_UNCHECKED_BYTES:
        return _peek_id(data)
    try:
        value = _json_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _peek_id(data)
    items: list[Any] = value if type(value) is list else [value]
    return [id for id in map(_parse_id, items) if id is not None]


def _parse_id(message: Any) -> int | None:
    if type(message) is not dict or "method" in message or not message.keys() & {"jsonrpc", "result", "error"}:
        return None
    id: Any = message.get("id")
    if type(id) is str:
        return int(id) if _INTEGER_ID.fullmatch(id) else None
    return int(id) if type(id) in (int, float) and id == id // 1 and abs(id) < 2**53 else None


def _peek_id(data: bytes) -> list[int]:
    """The id of what is no JSON but looks like a response: before what it holds, or at the very end."""
    head = data[:_PEEK_BYTES]
    body_match = _BODY_MEMBER.search(head)
    if body_match is None or b'"method"' in head[: body_match.start()]:
        return []
    id_match = _LEADING_ID.search(head, 0, body_match.start()) or _TRAILING_ID.search(data[-_PEEK_BYTES:])
    return [int(id_match[1])] if id_match is not None else []


def _refuse_members(data: bytes | str) -> None:
    text = data if isinstance(data, bytes) else data.encode()
    if text.count(b",") >= MAX_MEMBERS and _exceeds_members(text):
        raise ParseError(f"more than {MAX_MEMBERS} members")


def _exceeds_members(data: bytes) -> bool:
    """Whether there are too many commas outside of strings; in slices, so that their pieces take little memory."""
    commas = quotes = start = 0
    in_string = False
    while start < len(data) and commas < MAX_MEMBERS and quotes <= 4 * MAX_MEMBERS:  # a member has two strings at most
        boundary = _NO_BACKSLASH.search(data, start + _SLICE_BYTES)  # never between a backslash and what it escapes
        end = boundary.end() if boundary is not None else len(data)
        pieces = data[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        commas += b"".join(pieces[in_string::2]).count(b",")
        quotes += len(pieces) - 1
        in_string ^= len(pieces) % 2 == 0
        start = end
    return start < len(data) or commas >= MAX_MEMBERS or quotes > 4 * MAX_MEMBERS


def decode_body(raw: Any, target_type: type[T], label: str) -> T:
    """A result or parameters as their type; InvalidResult names the place that does not fit."""
    if raw is UNSET:
        raw = b"{}"
    try:
        return _get_decoder(target_type).decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        try:
            return msgspec.convert(to_plain(raw), target_type)  # broken UTF-8 is mended there
        except (msgspec.MsgspecError, RecursionError):
            raise InvalidResult(f"{label} is not what the protocol promises: {clip(str(exc), 300)}") from None


def copy_value(value: T) -> T:
    """An equal value that shares nothing with it: whoever changes the one does not change the other."""
    return _get_decoder(type(value)).decode(msgspec.json.encode(value))


def to_plain(raw: Any) -> Any:
    """A raw body as dicts, lists, strings and numbers."""
    if raw is UNSET:
        return {}
    try:
        return _json_decoder.decode(raw)
    except UnicodeDecodeError:
        return _json_decoder.decode(bytes(raw).decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise InvalidResult(f"not JSON: {clip(str(exc), 300)}") from None


def decode_text(text: str) -> Any:
    """JSON within a text; InvalidResult if it is none."""
    return to_plain(text.encode("utf-8", "replace"))


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _get_decoder(target_type: Any) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(target_type)
    if decoder is None:
        decoder = _decoders[target_type] = msgspec.json.Decoder(target_type)
    return decoder
