"""Decode and encode JSON, with limits on depth, size and numbers.

Decoding is strict. `decode` rejects JSON that two parsers could read differently, for example with duplicate names,
NaN, a byte order mark, invalid UTF-8 or lone surrogates. It also rejects JSON that is built to exhaust the reader, with
too many levels, members or digits. Most messages pass after a few counts in C code. Only suspicious messages are
checked in detail.
"""

import re
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from dovetail.error_context import clip
from dovetail.errors import InvalidParams, ParseError

# Real MCP messages have fewer than ten levels. For comparison, a common JSON parser in Rust allows 128.
MAX_DEPTH: Final = 64
MAX_MEMBERS: Final = 50_000
MAX_DIGITS: Final = 40  # A 128-bit integer has 39 digits.

_MAX_REASON_CHARS: Final = 512  # Error messages are cut, because they may contain a long invalid value.
# If the members are at least this long on average, it is faster to count them than to encode the message again.
_MIN_BYTES_PER_MEMBER: Final = 1024
_MAX_INTEGER: Final = 10**MAX_DIGITS - 1

# These patterns are compiled when they are first used, because most messages do not need them.
# Possessive quantifiers prevent backtracking, which would take much memory.
_STRING_PATTERN: Final = rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_UP_TO_COMMA_PATTERN: Final = rb'(?s)(?:[^",]++|"(?:[^"\\]++|\\.)*+")*+,'
_DIGITS_TO_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
# These patterns find the name of the invalid field in an error message of msgspec.
_MISSING_FIELD_PATTERN: Final = r"Object missing required field `([^`]+)`"
_MISMATCH_PATH_PATTERN: Final = r"`\$([^`]*)`$"
_TOO_MANY_DIGITS: Final = b"0" * (MAX_DIGITS + 1)
# To find long numbers quickly, only every tenth character is read.
# A number with too many digits has this many consecutive digits among these characters.
_SAMPLE_STEP: Final = 10
_DIGIT_SAMPLE: Final = b"0" * (len(_TOO_MANY_DIGITS) // _SAMPLE_STEP)


def _encode_text(value: Any) -> str:
    """Encode an object of a subclass of str, such as a principal, as its text."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encoder: Final = msgspec.json.Encoder(enc_hook=_encode_text)
_decoder: Final = msgspec.json.Decoder()
_format_json: Final = msgspec.json.format

encode: Final = _encoder.encode
as_raw: Final = msgspec.Raw  # `as_raw` wraps JSON that is already encoded.
# `encode_canonical` creates the same bytes for equal values.
encode_canonical: Final = msgspec.json.Encoder(enc_hook=_encode_text, order="deterministic").encode

T = TypeVar("T")


def decode(data: bytes) -> Any:
    """Decode one JSON value. Raise ParseError if the JSON is invalid."""
    is_large = len(data) > MAX_MEMBERS
    separators = _count_separators(data) if is_large else 0
    # Count the members before the message is decoded, because small members take thirty times their size in memory.
    if separators >= MAX_MEMBERS:
        _refuse_members(data)
    try:
        value = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ParseError(f"Parse error: {_reason(exc)}") from None
    if is_large:
        _check_large(data, value, separators)
        return value
    # The depth is checked first, because the checks after it use recursion.
    # `replace` finds brackets faster than `count`.
    if len(data) - len(data.replace(b"{", b"").replace(b"[", b"")) > MAX_DEPTH:
        _refuse_depth(value)
    # The decoder drops duplicate names, so a message with a duplicate name has fewer colons after encoding.
    # Escapes such as \u003a also change the number of colons, so messages with escapes need the full check.
    reencoded = encode(value)
    if reencoded != data and (data.count(b":") != reencoded.count(b":") or b"\\u" in data):
        _refuse_duplicates(data)
    # `in` would be slower, because for bytes it first tries to read a number.
    if data[::_SAMPLE_STEP].translate(_DIGITS_TO_ZEROS).find(_DIGIT_SAMPLE) >= 0:
        _refuse_digits(data)
    return value


def _check_large(data: bytes, value: Any, separators: int) -> None:
    counts = _scan_members(value, len(data) // _MIN_BYTES_PER_MEMBER)
    if counts is None:
        _refuse_depth(value)
    separator_count, has_short_numbers = counts or (_count_separators(encode(value)), False)
    if separator_count != separators:  # A name occurs twice, and the decoder kept one.
        _refuse_duplicates(data)
    if not has_short_numbers:
        _refuse_digits(data)


def _count_separators(data: bytes) -> int:
    try:
        return len(_format_json(data, indent=0)) - len(_format_json(data, indent=-1))
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise ParseError(f"Parse error: {_reason(exc)}") from None


def _scan_members(value: Any, max_members: int) -> tuple[int, bool] | None:
    """Count the commas and colons in the JSON text of a value. Also return whether all numbers are short.

    Return None if the value has too many members to visit each. A float counts as long, because it may have lost
    digits.
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
    raise ParseError(f"Parse error: the JSON is nested deeper than {MAX_DEPTH}")


def _may_be_long(item: Any) -> bool:
    return type(item) is float or (type(item) is int and abs(item) > _MAX_INTEGER)


def convert(value: Any, target_type: type[T], *, label: str = "params", field: str = "") -> T:
    """Convert decoded JSON to a type. Raise InvalidParams with the path of the first mismatch."""
    try:
        return msgspec.convert(value, target_type)
    except msgspec.ValidationError as exc:
        path = _find_path(str(exc), field) if field or label == "params" else ""
        data = {"field": clip(path, _MAX_REASON_CHARS)} if path else None
        raise InvalidParams(f"Invalid {label}: {_reason(exc)}", data) from None


def _find_path(message: str, field: str) -> str:
    missing, path = re.match(_MISSING_FIELD_PATTERN, message), re.search(_MISMATCH_PATH_PATTERN, message)
    inner_path = (path[1] if path else "") + (f".{missing[1]}" if missing else "")
    return f"{field}{inner_path}".removeprefix(".")


def to_plain(value: Any) -> Any:
    """Convert a typed value to dicts, lists, strings and numbers, with the field names of the protocol."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_text)


def _reason(exc: Exception) -> str:
    match exc:
        case RecursionError():
            return "the JSON is nested too deeply"
        case UnicodeDecodeError():
            return "the JSON is not UTF-8"
        case _:
            return clip(str(exc), _MAX_REASON_CHARS)


def _refuse_duplicates(data: bytes) -> None:
    import json  # This import is here because few messages need this check.

    def check_pairs(pairs: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ParseError("Parse error: an object contains the same name twice")

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
    raise ParseError(f"Parse error: the JSON is nested deeper than {MAX_DEPTH}")


def _refuse_members(data: bytes) -> None:
    if has_more_members(data, MAX_MEMBERS):
        raise ParseError(f"Parse error: the JSON has more than {MAX_MEMBERS} members")


def has_more_members(data: bytes, limit: int) -> bool:
    """Return whether a JSON text has more than `limit` members and items."""
    # `match` continues at the end of the previous match. `search` would be slow in an unterminated string.
    matches = iter(re.compile(_UP_TO_COMMA_PATTERN).scanner(data).match, None)  # pyright: ignore[reportAttributeAccessIssue]
    return next(islice(matches, limit - 1, None), None) is not None


def _refuse_digits(data: bytes) -> None:
    if _TOO_MANY_DIGITS not in data.translate(_DIGITS_TO_ZEROS):
        return
    if _TOO_MANY_DIGITS in re.sub(_STRING_PATTERN, b"", data).translate(_DIGITS_TO_ZEROS):
        raise ParseError(f"Parse error: a number has more than {MAX_DIGITS} digits")
