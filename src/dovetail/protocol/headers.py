"""Mirrored headers: write values of the body into `Mcp-*` headers, and check that the two agree.

Knows schemas only as far as `x-mcp-header` goes, and nothing of HTTP beyond names and values. Invariant: what
`encode_value` writes, `decode_value` reads back unchanged, and a header that disagrees with its body never passes.
"""

import re
from base64 import b64encode
from binascii import a2b_base64
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

from dovetail.error_context import clip
from dovetail.errors import HeaderMismatch
from dovetail.wire.base import Struct

ANNOTATION: Final = "x-mcp-header"
PARAM_PREFIX: Final = b"mcp-param-"

# The integers a double holds exactly. spec: streamable-http#schema-extension
MAX_SAFE_INTEGER: Final = 2**53 - 1

# No message repeats more of a value than this.
_MAX_SHOWN_CHARS: Final = 64

_SENTINEL_PREFIX: Final = "=?base64?"
_SENTINEL_SUFFIX: Final = "?="
_LEGAL_VALUE: Final = re.compile(r"[\t -~]*")
# Compiled by the first tool that mirrors arguments in headers.
_FIELD_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_INTEGER: Final = r"(-?[0-9]{1,16})(?:\.0+)?"

_PRIMITIVES: Final = ("string", "integer", "boolean")
# Keywords whose value maps free names to schemas, and keywords whose value is data and holds no schema at all.
_SCHEMA_MAP_KEYWORDS: Final = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
)
_DATA_KEYWORDS: Final = frozenset(("default", "const", "enum", "examples"))


class HeaderPath(Struct, frozen=True):
    """One annotated property: the header that mirrors it, lower case, and where its value stands in the arguments."""

    header: bytes
    path: tuple[str, ...]
    type: Literal["string", "integer", "boolean"]


def encode_value(text: str) -> str:
    """Write a value so that it survives as a header: as it is where that is safe, in base64 otherwise.

    Raises:
        ValueError: the text holds a lone surrogate and has no UTF-8 form.
    """
    # An inner tab would be legal, but intermediaries may rewrite it. spec: streamable-http#value-encoding
    if text.isascii() and text.isprintable() and text == text.strip() and not _is_sentinel(text):
        return text
    return _SENTINEL_PREFIX + b64encode(text.encode()).decode("ascii") + _SENTINEL_SUFFIX


def decode_value(raw: bytes | str, *, header: str = "a mirrored header") -> str:
    """Read a header's value back; `header` is the name used in the message of a refusal.

    Raises:
        HeaderMismatch: characters no header may hold, or base64 that is not exactly that of a UTF-8 text.
    """
    text = raw if isinstance(raw, str) else raw.decode("latin-1")
    text = text.strip(" \t")
    if not _LEGAL_VALUE.fullmatch(text):
        raise HeaderMismatch(f"Header mismatch: {header} contains invalid characters")
    return _decode_sentinel(text, header) if _is_sentinel(text) else text


def _is_sentinel(text: str) -> bool:
    return text.startswith(_SENTINEL_PREFIX) and text.endswith(_SENTINEL_SUFFIX)


def _decode_sentinel(text: str, header: str) -> str:
    payload = text[len(_SENTINEL_PREFIX) : -len(_SENTINEL_SUFFIX)].encode("ascii")
    try:
        value = a2b_base64(payload)
        # One text, one spelling: the decoder skips stray characters and bits, and others may read them otherwise.
        # In the shortest sentinel the marks overlap, so that a reader could take it for either form.
        if b64encode(value) != payload or len(text) < len(_SENTINEL_PREFIX) + len(_SENTINEL_SUFFIX):
            raise ValueError
        return value.decode()
    except ValueError:
        raise HeaderMismatch(f"Header mismatch: {header} is not the base64 of a UTF-8 text") from None


def compile_header_paths(schema: Mapping[str, Any]) -> tuple[HeaderPath, ...]:
    """Compile the `x-mcp-header` annotations of a tool's input schema.

    Raises:
        ValueError: an annotation breaks a rule.
    """
    # One broken annotation spoils the tool. spec: streamable-http#schema-extension
    rows: dict[bytes, HeaderPath] = {}
    for path, node in _iter_schemas(schema):
        if ANNOTATION in node:
            row = _parse_annotation(path, node)
            if row.header in rows:
                raise ValueError(f"{_describe_property(path)}: {ANNOTATION} names {row.header.decode()} a second time")
            rows[row.header] = row
    return tuple(rows.values())


def _iter_schemas(root: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Every schema within a schema; the path is None where a keyword other than `properties` was crossed."""
    queue: deque[tuple[tuple[str, ...] | None, Any]] = deque([((), root)])
    while queue:
        path, node = queue.popleft()
        if isinstance(node, Mapping):
            schema = cast("Mapping[str, Any]", node)
            yield path, schema
            for keyword, value in schema.items():
                queue.extend(_iter_subschemas(path, keyword, value))


def _iter_subschemas(
    path: tuple[str, ...] | None, keyword: str, value: Any
) -> Iterator[tuple[tuple[str, ...] | None, Any]]:
    if keyword in _DATA_KEYWORDS:
        return
    if keyword in _SCHEMA_MAP_KEYWORDS and isinstance(value, Mapping):
        for name, schema in cast("Mapping[str, Any]", value).items():
            yield (*path, name) if keyword == "properties" and path is not None else None, schema
    elif isinstance(value, list):
        for schema in cast("list[Any]", value):
            yield None, schema
    else:
        yield None, value


def _parse_annotation(path: tuple[str, ...] | None, node: Mapping[str, Any]) -> HeaderPath:
    name, json_type = node[ANNOTATION], node.get("type")
    if not path:
        raise ValueError(f"{ANNOTATION} {_quote_name(name)} is not on a property reached through `properties` alone")
    if not isinstance(name, str) or not re.fullmatch(_FIELD_NAME, name):
        raise ValueError(
            f"{_describe_property(path)}: {ANNOTATION} {_quote_name(name)} is not an HTTP field-name token"
        )
    # A list of types, or a union with null, is refused too: other clients hide a tool that has one.
    if json_type not in _PRIMITIVES:
        raise ValueError(f"{_describe_property(path)}: {ANNOTATION} needs the type string, integer or boolean")
    return HeaderPath(PARAM_PREFIX + name.lower().encode("ascii"), path, json_type)


def _describe_property(path: tuple[str, ...] | None) -> str:
    return f"property '{clip('.'.join(path or ()), _MAX_SHOWN_CHARS)}'"


def _quote_name(name: Any) -> str:
    return f"'{clip(name, _MAX_SHOWN_CHARS)}'" if isinstance(name, str) else f"of type {type(name).__name__}"


def check_param_headers(
    paths: Sequence[HeaderPath], arguments: Mapping[str, Any], headers: Mapping[bytes, bytes]
) -> None:
    """Compare the arguments of a call with the headers that mirror them; header names are lower case.

    Raises:
        HeaderMismatch: a header is missing, malformed, not expected, or says something else than the body.
    """
    # A null counts as no value. spec: streamable-http#server-behavior-for-custom-headers
    for row in paths:
        raw, value = headers.get(row.header), _get_value(row.path, arguments)
        name = row.header.decode("ascii")
        if value is None:
            if raw is not None:
                raise HeaderMismatch(f"Header mismatch: {name} is given, but the body has no such value")
        elif raw is None:
            raise HeaderMismatch(f"Header mismatch: {name} is missing, but the body has a value for it")
        else:
            _compare(name, decode_value(raw, header=name), value)


def build_param_headers(paths: Sequence[HeaderPath], arguments: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """The headers that mirror these arguments; a value that is absent or null has none.

    Raises:
        ValueError: a value cannot be mirrored, being no string, boolean or safe integer.
    """
    mirrored: list[tuple[bytes, bytes]] = []
    for row in paths:
        value = _get_value(row.path, arguments)
        if value is not None:
            text = _format_value(row.header.decode("ascii"), value)
            mirrored.append((row.header, encode_value(text).encode("ascii")))
    return mirrored


def _get_value(path: tuple[str, ...], arguments: Mapping[str, Any]) -> Any:
    value: Any = arguments
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Any]", value).get(name)
    return value


def _compare(name: str, text: str, value: Any) -> None:
    try:
        expected = _format_value(name, value)
    except ValueError as fault:
        raise HeaderMismatch(f"Header mismatch: {fault}") from None
    # Integers are compared as numbers. spec: streamable-http#server-validation
    number = None if isinstance(value, str | bool) else re.fullmatch(_INTEGER, text)
    if text != expected and (number is None or int(number[1]) != int(expected)):
        raise HeaderMismatch(
            f"Header mismatch: {name} says '{clip(text, _MAX_SHOWN_CHARS)}', "
            f"the body '{clip(expected, _MAX_SHOWN_CHARS)}'"
        )


def _format_value(name: str, value: Any) -> str:
    """The text of a JSON value in a header, before encoding."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    # JSON does not tell 42 from 42.0; a schema's integer admits both.
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        if abs(value) > MAX_SAFE_INTEGER:
            raise ValueError(f"{name} cannot mirror an integer beyond 2^53 - 1")
        return str(int(value))
    raise ValueError(f"{name} can only mirror a string, an integer or a boolean")
