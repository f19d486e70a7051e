"""From a result to the value a caller wants: structured content if there is any, else text, else the blocks."""

import contextlib
from base64 import b64decode
from typing import Any

import msgspec

from dovetail.errors import InvalidParams, NotFound, ResultError, ToolError, clip
from dovetail.protocol.speaking import says_missing
from dovetail.wire.content import ResourceContents, TextContent
from dovetail.wire.incoming import decode_text
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.shape import UNSET
from dovetail.wire.tools import CallToolResult


def value_of(result: CallToolResult, *, wraps: bool | None) -> Any:
    """The value; ToolError if the tool failed.

    An object that holds only `result` stands for what it holds if that is the custom (`wraps`), or, where nobody knows
    (None), if the text says so.
    """
    if result.is_error:
        raise tool_error(result)
    structured = result.structured_content
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if structured is not UNSET and structured is not None:
        if wraps is False or not _boxed(structured) or not (wraps or _told(texts, structured["result"])):
            return structured
        return structured["result"]
    if structured is None:
        return None
    if len(texts) != len(result.content):
        return result.content
    return texts[0] if len(texts) == 1 else None if not texts else "\n".join(texts)


def _boxed(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and "result" in value


def _told(texts: list[str], value: Any) -> bool:
    """Whether these texts say the value, as a whole or an item each."""
    if type(value) is list and len(texts) == len(value) and all(map(_says, texts, value)):
        return True
    return len(texts) == 1 and _says(texts[0], value)


def _says(text: str, value: Any) -> bool:
    if type(value) is str:
        return text == value
    try:
        return decode_text(text) == value
    except ResultError:
        return False


def value_as(result: CallToolResult, kind: Any, *, wraps: bool | None) -> Any:
    """The value as a given type; ResultError if it does not fit. Text is read as JSON where the type needs that.

    A type that has room for a `result` is first tried with the whole object.
    """
    value = value_of(result, wraps=wraps)
    if value is not result.structured_content and _boxed(result.structured_content) and _has_room(kind):
        with contextlib.suppress(msgspec.ValidationError, ValueError, TypeError):
            return _into(result.structured_content, kind)
    try:
        return _into(value, kind)
    except (msgspec.ValidationError, ValueError, TypeError) as exc:
        if isinstance(value, str) and result.structured_content is UNSET:
            try:
                return _into(decode_text(value), kind)
            except (msgspec.ValidationError, ValueError, TypeError, ResultError):
                pass
        raise ResultError(f"the result is no {getattr(kind, '__name__', kind)}: {clip(str(exc), 300)}") from None


def _has_room(kind: Any) -> bool:
    if kind in (Any, object):
        return False
    named = {name for one in getattr(kind, "__mro__", ()) for name in getattr(one, "__annotations__", ())}
    return not named or "result" in named


def _into(value: Any, kind: Any) -> Any:
    validate = getattr(kind, "model_validate", None)  # pydantic's models, without importing it
    return validate(value) if validate is not None else msgspec.convert(value, kind)


def tool_error(result: CallToolResult) -> ToolError:
    """The exception an error result stands for, in the tool's own words."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    error = ToolError("\n".join(texts) or "the tool failed without saying why")
    error.result = result
    return error


def says_unknown(result: CallToolResult, tool: str) -> NotFound | None:
    """The exception for an error result that says there is no such tool: some servers answer so."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if len(texts) == 1 and says_missing("tools/call", texts[0]) and tool in texts[0]:
        return NotFound(InvalidParams.code, texts[0])
    return None


def contents_of(result: ReadResourceResult) -> Any:
    """What a resource holds: text or bytes; a list where it has several parts."""
    parts = [_part(one) for one in result.contents]
    return parts[0] if len(parts) == 1 else parts


def _part(contents: ResourceContents) -> str | bytes:
    if contents.blob is None:
        return contents.text or ""
    try:
        return b64decode(contents.blob, validate=True)
    except ValueError:
        raise ResultError(f"the contents of {clip(contents.uri)} are not base64") from None
