"""Decode the messages that a client receives. The parameters or result stay encoded until their type is known.

This module is more lenient than `codec`, because a client should not lose a result over a small mistake of the server.
It accepts unknown members, duplicate names and invalid UTF-8. It limits the depth and the number of members.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from dovetail.error_context import clip
from dovetail.errors import InvalidResult, ParseError
from dovetail.wire.base import UNSET, Result, Struct, UnsetType
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.jsonrpc import RequestId

# An empty list is only three bytes of JSON but takes 64 bytes in memory, so the number of members is limited.
MAX_MEMBERS: Final = 1_000_000
_MAX_UNCHECKED_BYTES: Final = 1024 * 1024
_SLICE_BYTES: Final = 64 * 1024
_NO_BACKSLASH: Final = re.compile(rb"[^\\]")
_PEEK_BYTES: Final = 256
_INTEGER_ID: Final = re.compile(r"[0-9]{1,15}")
_LEADING_ID: Final = re.compile(rb'"id"\s*:\s*"?([0-9]{1,15})(?:\.0+)?(?![0-9.])')
_TRAILING_ID: Final = re.compile(rb'"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*"?([0-9]{1,15})"?\s*\}\s*$')
_BODY_MEMBER: Final = re.compile(rb'"(?:result|error)"\s*:')

# A result that asks for input contains this text, but a server may write some characters as escapes.
_INPUT_REQUIRED_MARKER: Final = b'"input_required"'
_ASCII_ESCAPE: Final = b"\\u00"
_ESCAPED_LETTER: Final = re.compile(rb"\\u00[5-7]")

T = TypeVar("T")


class ErrorObject(Struct, omit_defaults=True):
    """The error of a response. Some servers leave out the message."""

    code: int
    message: str = ""
    data: Any = None


class RawMessage(Struct, omit_defaults=True):
    """One message whose `result` and `params` are not decoded yet."""

    id: RequestId | None = None
    method: str | None = None
    params: msgspec.Raw | UnsetType = UNSET  # The default is UNSET, because msgspec cannot decode an optional Raw.
    result: msgspec.Raw | UnsetType = UNSET
    error: ErrorObject | None = None

    @property
    def is_response(self) -> bool:
        """Return whether the message is a response."""
        return self.method is None and (self.result is not UNSET or self.error is not None)

    def encode(self) -> bytes:
        """Encode the message again, without unknown fields."""
        return b'{"jsonrpc":"2.0",' + msgspec.json.encode(self)[1:]


_message_decoder: Final = msgspec.json.Decoder(RawMessage)
_batch_decoder: Final = msgspec.json.Decoder(list[RawMessage])
_json_decoder: Final = msgspec.json.Decoder()
_members_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_messages(data: bytes | str) -> list[RawMessage]:
    """Decode one message or a batch of messages. Raise ParseError if the data is invalid."""
    if len(data) > _MAX_UNCHECKED_BYTES:
        _refuse_members(data)
    try:
        return [_message_decoder.decode(data)]
    except UnicodeDecodeError:
        return _read_repaired(data)
    except msgspec.MsgspecError as exc:
        head = data[:64].lstrip()
        if head[:1] in (b"[", "["):
            return _read_batch(data)
        raise ParseError(clip(str(exc), 200)) from None
    except RecursionError:
        raise ParseError("the JSON is nested too deeply") from None


def _read_batch(data: bytes | str) -> list[RawMessage]:
    try:
        return _batch_decoder.decode(data)
    except UnicodeDecodeError:
        return _read_repaired(data)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise ParseError(clip(str(exc), 200)) from None


def _read_repaired(data: bytes | str) -> list[RawMessage]:
    return read_messages(data.decode("utf-8", "replace")) if isinstance(data, bytes) else []


def find_answered_ids(data: bytes) -> list[int]:
    """Return the request IDs that can be found in an invalid response.

    The search accepts 1.0 and "1" as the ID 1. In large data, only the start and the end are searched,
    because decoding all of it could take twenty times its size in memory.
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
    head = data[:_PEEK_BYTES]
    body_match = _BODY_MEMBER.search(head)
    if body_match is None or b'"method"' in head[: body_match.start()]:
        return []
    id_match = _LEADING_ID.search(head, 0, body_match.start()) or _TRAILING_ID.search(data[-_PEEK_BYTES:])
    return [int(id_match[1])] if id_match is not None else []


def _refuse_members(data: bytes | str) -> None:
    text = data if isinstance(data, bytes) else data.encode()
    if text.count(b",") >= MAX_MEMBERS and _exceeds_members(text):
        raise ParseError(f"the JSON has more than {MAX_MEMBERS} members")


def _exceeds_members(data: bytes) -> bool:
    """Return whether a JSON text has too many commas outside strings. To save memory, the text is read in slices."""
    commas = quotes = start = 0
    in_string = False
    # Each member adds at most four quotes: two for the name and two for a string value.
    while start < len(data) and commas < MAX_MEMBERS and quotes <= 4 * MAX_MEMBERS:
        # A slice must not separate a backslash from the character after it.
        boundary = _NO_BACKSLASH.search(data, start + _SLICE_BYTES)
        end = boundary.end() if boundary is not None else len(data)
        pieces = data[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        commas += b"".join(pieces[in_string::2]).count(b",")
        quotes += len(pieces) - 1
        in_string ^= len(pieces) % 2 == 0
        start = end
    return start < len(data) or commas >= MAX_MEMBERS or quotes > 4 * MAX_MEMBERS


def decode_body(raw: Any, target_type: type[T], label: str) -> T:
    """Decode an encoded result or encoded parameters to a type. Raise InvalidResult with the path of the first
    mismatch.
    """
    if raw is UNSET:
        raw = b"{}"
    try:
        return (_decoders.get(target_type) or _create_decoder(target_type)).decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        try:
            return msgspec.convert(to_plain(raw), target_type)  # `to_plain` repairs invalid UTF-8.
        except (msgspec.MsgspecError, RecursionError):
            raise InvalidResult(f"{label} does not match the protocol: {clip(str(exc), 300)}") from None


def may_ask_for_input(raw: bytes) -> bool:
    """Check an encoded result quickly. Return False if the result certainly does not ask for input."""
    return _INPUT_REQUIRED_MARKER in raw or (_ASCII_ESCAPE in raw and _ESCAPED_LETTER.search(raw) is not None)


def decode_input_required(raw: Any, method: str) -> InputRequiredResult | None:
    """Decode a result that asks for input. Return None for any other result.

    Raise InvalidResult if the result has nothing to ask and nothing to send back. A client that repeats its request for
    such a result would send the same request again and again.
    """
    if isinstance(raw, bytes) and not may_ask_for_input(raw):
        return None
    label = f"the result of {method}"
    if decode_body(raw, Result, label).result_type != "input_required":
        return None
    # spec: mrtr#inputrequiredresult
    result = decode_body(raw, InputRequiredResult, label)
    if not result.input_requests and result.request_state is None:
        raise InvalidResult(f"{label} asks for input, but has no inputRequests and no requestState")
    return result


def drop_repeated_members(raw: bytes) -> bytes:
    """Remove repeated names from an encoded JSON object, because parsers treat repeated names differently."""
    try:
        return msgspec.json.encode(_members_decoder.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(to_plain(raw))


def set_members(raw: bytes, members: Mapping[str, Any]) -> bytes:
    """Set members of an encoded JSON object. All other members stay as they are."""
    try:
        return msgspec.json.encode({**_members_decoder.decode(raw), **members})
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode({**to_plain(raw), **members})


def copy_value(value: T) -> T:
    """Return a deep copy of a value."""
    value_type = type(value)
    return (_decoders.get(value_type) or _create_decoder(value_type)).decode(msgspec.json.encode(value))


def to_plain(raw: Any) -> Any:
    """Decode an encoded result or encoded parameters to dicts, lists, strings and numbers."""
    if raw is UNSET:
        return {}
    try:
        return _json_decoder.decode(raw)
    except UnicodeDecodeError:
        return _json_decoder.decode(bytes(raw).decode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise InvalidResult(f"invalid JSON: {clip(str(exc), 300)}") from None


def decode_text(text: str) -> Any:
    """Decode a string that contains JSON. Raise InvalidResult if it is invalid."""
    return to_plain(text.encode("utf-8", "replace"))


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _create_decoder(target_type: Any) -> msgspec.json.Decoder[Any]:
    decoder = _decoders[target_type] = msgspec.json.Decoder(target_type)
    return decoder
