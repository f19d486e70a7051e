"""Decode and encode JSON, with limits on depth, size and numbers.

Reading is strict: what two readers could understand differently (duplicate names, NaN, a byte order mark, broken
UTF-8, lone surrogates) or what exists only to hurt (endless depth, members, digits) is refused as a ParseError.
The common message passes on a few counts made by C code; only a suspicious one is looked at closely.
"""

import re
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from dovetail.error_context import clip
from dovetail.errors import InvalidParams, ParseError

MAX_DEPTH: Final = 64  # Go's and Rust's JSON readers stop at 10 000 and 128; no MCP message needs ten.
MAX_MEMBERS: Final = 50_000
MAX_DIGITS: Final = 40  # A 128 bit integer has 39.

_MAX_REASON_CHARS: Final = 512  # some reasons repeat the value
_MIN_BYTES_PER_MEMBER: Final = (
    1024  # bytes to a member from which on looking at members is cheaper than saying them again
)
_MAX_INTEGER: Final = 10**MAX_DIGITS - 1

# Possessive, because a matcher that remembers where it could turn back needs a hundred bytes for each one it reads.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_UP_TO_COMMA: Final = re.compile(rb'(?:[^",]++|"(?:[^"\\]++|\\.)*+")*+,', re.DOTALL)
_COUNTING_TABLE: Final = bytes.maketrans(b"123456789[", b"000000000{")  # what is only counted looks the same
_TOO_MANY_DIGITS: Final = b"0" * (MAX_DIGITS + 1)

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder()
_format_json: Final = msgspec.json.format

encode: Final = _encoder.encode
as_raw: Final = msgspec.Raw  # what is encoded already, within something that is not
encode_canonical: Final = msgspec.json.Encoder(order="deterministic").encode  # equal values, equal bytes

T = TypeVar("T")


def decode(data: bytes) -> Any:
    """One JSON value, or ParseError. Reading it any other way would give the same value."""
    is_large = len(data) > MAX_MEMBERS
    separators = _count_separators(data) if is_large else 0
    # Before reading: a body of nothing but members would take thirty times its size.
    if separators >= MAX_MEMBERS:
        _refuse_members(data)
    try:
        value = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ParseError(f"Parse error: {_reason(exc)}") from None
    if is_large:
        _check_large(data, value, separators)
        return value
    normalized = data.translate(_COUNTING_TABLE)
    # First, because what follows goes down as deep as the value does.
    if normalized.count(b"{") > MAX_DEPTH:
        _refuse_depth(value)
    # A name given twice is dropped by the reader: what is said again in the same bytes has none, and in other bytes a
    # dropped name shows by its missing colon; only `\u` could smuggle one back in.
    reencoded = encode(value)
    if reencoded != data and (data.count(b":") != reencoded.count(b":") or b"\\u" in data):
        _refuse_duplicates(data)
    if _TOO_MANY_DIGITS in normalized:
        _refuse_digits(data)
    return value


def _check_large(data: bytes, value: Any, separators: int) -> None:
    """The same in fewer passes: most of a large message is a few long texts, and its members are quickly looked at."""
    counts = _scan_members(value, len(data) // _MIN_BYTES_PER_MEMBER)
    if counts is None:
        _refuse_depth(value)
    separator_count, has_short_numbers = counts or (_count_separators(encode(value)), False)
    if separator_count != separators:  # a name given twice was dropped
        _refuse_duplicates(data)
    if not has_short_numbers and _TOO_MANY_DIGITS in data.translate(_COUNTING_TABLE):
        _refuse_digits(data)


def _count_separators(data: bytes) -> int:
    """How many commas and colons stand between members: one layout puts a blank after each, the other none."""
    try:
        return len(_format_json(data, indent=0)) - len(_format_json(data, indent=-1))
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise ParseError(f"Parse error: {_reason(exc)}") from None


def _scan_members(value: Any, max_members: int) -> tuple[int, bool] | None:
    """How many commas and colons it takes to say a value, and whether all its numbers are surely short.

    None if it has too many members for looking at each to be worth it. An integer has the digits it was written with,
    a float may have lost some.
    """
    separators, has_short_numbers = 0, True
    members: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        has_short_numbers = has_short_numbers and not any(map(_may_be_long, members))
        containers = [item for item in members if type(item) in (dict, list)]
        if not containers:
            return separators, has_short_numbers
        members = []
        for item in containers:
            colons = len(item) if type(item) is dict else 0
            separators += max(0, len(item) - 1) + colons
            members += item.values() if colons else item
        max_members -= len(members)
        if max_members < 0:
            return None
    raise ParseError(f"Parse error: nested deeper than {MAX_DEPTH}")


def _may_be_long(item: Any) -> bool:
    return type(item) is float or (type(item) is int and abs(item) > _MAX_INTEGER)


def convert(value: Any, target_type: type[T], *, label: str = "params") -> T:
    """Decoded JSON as a typed value, or InvalidParams with the place that does not fit."""
    try:
        return msgspec.convert(value, target_type)
    except msgspec.ValidationError as exc:
        raise InvalidParams(f"Invalid {label}: {_reason(exc)}") from None


def to_plain(value: Any) -> Any:
    """A typed value as dicts, lists, strings and numbers, spelled as on the wire."""
    return msgspec.to_builtins(value, str_keys=True)


def _reason(exc: Exception) -> str:
    match exc:
        case RecursionError():
            return "nested too deeply"
        case UnicodeDecodeError():
            return "not UTF-8"
        case _:
            return clip(str(exc), _MAX_REASON_CHARS)


def _refuse_duplicates(data: bytes) -> None:
    import json  # only for its pairs hook, only for messages that need it

    def check_pairs(pairs: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ParseError("Parse error: a name occurs twice in one object")

    json.loads(data, object_pairs_hook=check_pairs)


def _refuse_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if type(item) is dict:
                inner += item.values()
            elif type(item) is list:
                inner += item
        level = [item for item in inner if type(item) in (dict, list)]
        if not level:
            return
    raise ParseError(f"Parse error: nested deeper than {MAX_DEPTH}")


def _refuse_members(data: bytes) -> None:
    if has_more_members(data, MAX_MEMBERS):
        raise ParseError(f"Parse error: more than {MAX_MEMBERS} members")


def has_more_members(data: bytes, limit: int) -> bool:
    """Whether a JSON text has more members and items than this."""
    # Each match goes on where the last one ended: searching for the next would be quadratic in a broken string.
    matches = iter(_UP_TO_COMMA.scanner(data).match, None)  # pyright: ignore[reportAttributeAccessIssue]
    return next(islice(matches, limit - 1, None), None) is not None


def _refuse_digits(data: bytes) -> None:
    if _TOO_MANY_DIGITS in _STRING.sub(b"", data).translate(_COUNTING_TABLE):
        raise ParseError(f"Parse error: a number of more than {MAX_DIGITS} digits")
