"""Write values of a request body into `Mcp-*` headers, and check that the headers match the body.

`decode_value` returns exactly the text that `encode_value` received. A header that differs from the body is always
rejected. The only schema keyword that this module uses is `x-mcp-header`.
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
VERSION_HEADER: Final = b"mcp-protocol-version"
METHOD_HEADER: Final = b"mcp-method"
NAME_HEADER: Final = b"mcp-name"
SESSION_HEADER: Final = b"mcp-session-id"
LAST_EVENT_HEADER: Final = b"last-event-id"

# JavaScript represents integers up to this one exactly. spec: streamable-http#schema-extension
MAX_SAFE_INTEGER: Final = 2**53 - 1

# Error messages show at most this many characters of a value.
_MAX_SHOWN_CHARS: Final = 64

_SENTINEL_PREFIX: Final = "=?base64?"
_SENTINEL_SUFFIX: Final = "?="
_LEGAL_VALUE: Final = re.compile(r"[\t -~]*")
# These patterns are compiled on first use, because few tools send arguments in headers.
FIELD_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # This pattern matches the name of a header. RFC 9110, section 5.6.2
_INTEGER: Final = r"(-?[0-9]{1,16})(?:\.0+)?"

_PRIMITIVES: Final = ("string", "integer", "boolean")
# schema keywords whose value is an object with one schema per name
_SCHEMA_MAP_KEYWORDS: Final = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
)
_DATA_KEYWORDS: Final = frozenset(("default", "const", "enum", "examples"))


class HeaderPath(Struct, frozen=True):
    """An HTTP header that repeats a tool argument. `path` is the path of the argument."""

    header: bytes
    path: tuple[str, ...]
    type: Literal["string", "integer", "boolean"]


def encode_value(text: str) -> str:
    """Encode a text as a header value. Safe text stays unchanged, and other text becomes base64.

    Raises:
        ValueError: The text contains a lone surrogate, which has no UTF-8 form.
    """
    # Tabs are allowed, but proxies may change them. spec: streamable-http#value-encoding
    if text.isascii() and text.isprintable() and text == text.strip() and not _is_sentinel(text):
        return text
    return _SENTINEL_PREFIX + b64encode(text.encode()).decode("ascii") + _SENTINEL_SUFFIX


def decode_value(raw: bytes | str, *, header: str = "a mirrored header") -> str:
    """Decode a header value. `header` is the header name for error messages.

    Raises:
        HeaderMismatch: The value contains invalid characters, or base64 that does not decode to UTF-8 text.
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
        # Base64 decoders treat invalid characters differently, so only the standard encoding is accepted.
        # The length is checked, because the prefix and the suffix of a very short value could overlap.
        if b64encode(value) != payload or len(text) < len(_SENTINEL_PREFIX) + len(_SENTINEL_SUFFIX):
            raise ValueError
        return value.decode()
    except ValueError:
        raise HeaderMismatch(f"Header mismatch: {header} must be UTF-8 text in base64") from None


def compile_header_paths(schema: Mapping[str, Any]) -> tuple[HeaderPath, ...]:
    """Return the header paths for the `x-mcp-header` annotations in a tool's input schema.

    Raises:
        ValueError: An annotation is invalid.
    """
    # One invalid annotation makes the whole tool invalid. spec: streamable-http#schema-extension
    rows: dict[bytes, HeaderPath] = {}
    for path, node in _iter_schemas(schema):
        if ANNOTATION in node:
            row = _parse_annotation(path, node)
            if row.header in rows:
                raise ValueError(
                    f"{_describe_property(path)}: another property already has the {ANNOTATION} {row.header.decode()}"
                )
            rows[row.header] = row
    return tuple(rows.values())


def read_header_paths(schema: Mapping[str, Any]) -> tuple[HeaderPath, ...]:
    """Return the header paths of a tool of another server, or no paths if an annotation is invalid.

    Clients must not use a tool with an invalid annotation, so no client sends these headers.
    """
    try:
        return compile_header_paths(schema)
    except ValueError:
        return ()


def _iter_schemas(root: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Yield a schema and all its subschemas with their paths.

    A schema under another keyword than `properties` has the path None.
    """
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
        raise ValueError(
            f"{ANNOTATION} {_quote_name(name)} must be on a property, not in an array or under a keyword such as anyOf"
        )
    if not isinstance(name, str) or not re.fullmatch(FIELD_NAME, name):
        raise ValueError(
            f"{_describe_property(path)}: {ANNOTATION} {_quote_name(name)} is not a valid HTTP header name"
        )
    # Unions with null are not allowed, because other clients hide such tools.
    if json_type not in _PRIMITIVES:
        raise ValueError(f'{_describe_property(path)}: {ANNOTATION} requires the type "string", "integer" or "boolean"')
    return HeaderPath(PARAM_PREFIX + name.lower().encode("ascii"), path, json_type)


def _describe_property(path: tuple[str, ...] | None) -> str:
    return f"property '{clip('.'.join(path or ()), _MAX_SHOWN_CHARS)}'"


def _quote_name(name: Any) -> str:
    return f"'{clip(name, _MAX_SHOWN_CHARS)}'" if isinstance(name, str) else f"of type {type(name).__name__}"


def check_param_headers(
    paths: Sequence[HeaderPath], arguments: Mapping[str, Any], headers: Mapping[bytes, bytes]
) -> None:
    """Check that the headers of a tool call match its arguments. Header names are in lower case.

    Raises:
        HeaderMismatch: A header is missing, malformed, unexpected, or differs from the body.
    """
    # An argument that is null counts as missing.
    # spec: streamable-http#server-behavior-for-custom-headers
    for row in paths:
        raw, value = headers.get(row.header), _get_value(row.path, arguments)
        name = row.header.decode("ascii")
        if value is None:
            if raw is not None:
                raise HeaderMismatch(f"Header mismatch: the header {name} has a value, but the body has none")
        elif raw is None:
            raise HeaderMismatch(f"Header mismatch: the header {name} is missing, but the body has a value")
        else:
            _compare(name, decode_value(raw, header=name), value)


def build_param_headers(paths: Sequence[HeaderPath], arguments: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """Build the headers for the arguments of a tool call. Arguments that are missing or null have no header.

    Raises:
        ValueError: A value is not a string, a boolean or a safe integer.
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
    # Integers are compared as numbers and not as text. spec: streamable-http#server-validation
    number = None if isinstance(value, str | bool) else re.fullmatch(_INTEGER, text)
    if text != expected and (number is None or int(number[1]) != int(expected)):
        raise HeaderMismatch(
            f"Header mismatch: {name} is '{clip(text, _MAX_SHOWN_CHARS)}', but the body has "
            f"'{clip(expected, _MAX_SHOWN_CHARS)}'"
        )


def _format_value(name: str, value: Any) -> str:
    """Format a JSON value as the text of a header, before `encode_value` encodes the text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    # In JSON, 42 and 42.0 are the same number, and the schema type integer accepts both.
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        if abs(value) > MAX_SAFE_INTEGER:
            raise ValueError(f"the header {name} cannot contain an integer larger than 2^53 - 1")
        return str(int(value))
    raise ValueError(f"the header {name} can only contain a string, an integer or a boolean")


def check_mirrored_header(header: bytes, headers: Mapping[bytes, bytes], value: Any) -> None:
    """Raise HeaderMismatch if a header differs from the value in the body. spec: streamable-http#server-validation"""
    header_value = headers.get(header)
    # Usually, the header and the body contain the same plain text, which needs no decoding.
    is_same = type(value) is str and header_value == value.encode()
    if is_same and value.isascii() and value.isprintable() and not value.startswith("=?"):
        return
    name = header.decode("ascii")
    if header_value is None:
        raise HeaderMismatch(f"Header mismatch: the header {name} is required")
    text = decode_value(header_value, header=name) if header == NAME_HEADER else header_value.decode("latin-1")
    if text != value:
        raise HeaderMismatch(f"Header mismatch: {name} is '{clip(text, 64)}', but the body has a different value")
