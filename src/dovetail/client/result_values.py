"""Convert the result of a tool call or a resource to the value that callers get, and error results to exceptions."""

from base64 import b64decode
from typing import Any

import msgspec

from dovetail.error_context import clip
from dovetail.errors import InvalidParams, InvalidResult, NotFound, ToolError
from dovetail.protocol.client_messages import is_not_found_message
from dovetail.wire.base import UNSET
from dovetail.wire.content import ResourceContents, TextContent
from dovetail.wire.raw_message import decode_text
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.tool_value import get_value, is_marked, is_result_object
from dovetail.wire.tools import CallToolResult


def extract_value(result: CallToolResult, *, is_wrapped: bool | None) -> Any:
    """Return the value of a tool result. Raise ToolError if the result is an error."""
    if result.is_error:
        raise build_tool_error(result)
    return get_value(result.structured_content, result.content, result.meta, is_wrapped=is_wrapped)


def convert_value(result: CallToolResult, target_type: Any, *, is_wrapped: bool | None) -> Any:
    """Convert the value of a result to the target type, and parse text as JSON if needed.

    If neither the schema nor the text says whether the value is wrapped, the type decides. Raise InvalidResult if the
    value does not match.
    """
    value = extract_value(result, is_wrapped=is_wrapped)
    candidates = [value]
    structured = result.structured_content
    is_unknown = is_wrapped is None and is_result_object(structured) and not is_marked(result.meta)
    if is_unknown and target_type not in (Any, object):
        is_whole = value is structured
        candidates.append(structured["result"] if is_whole else structured)
        if is_whole and not _has_result_field(target_type):
            candidates.reverse()
    for candidate in candidates[:-1]:
        try:
            return _convert(candidate, target_type)
        except (msgspec.ValidationError, ValueError, TypeError):
            pass  # If all candidates fail, the last error is reported.
    try:
        return _convert(candidates[-1], target_type)
    except (msgspec.ValidationError, ValueError, TypeError) as exc:
        if isinstance(value, str) and result.structured_content is UNSET:
            try:
                return _convert(decode_text(value), target_type)
            except (msgspec.ValidationError, ValueError, TypeError, InvalidResult):
                pass
        raise InvalidResult(
            f"the result cannot be converted to {getattr(target_type, '__name__', target_type)}: {clip(str(exc), 300)}"
        ) from None


def _has_result_field(target_type: Any) -> bool:
    field_names = {
        name for base in getattr(target_type, "__mro__", ()) for name in getattr(base, "__annotations__", ())
    }
    return not field_names or "result" in field_names


def _convert(value: Any, target_type: Any) -> Any:
    # Only pydantic models have this method, so this code does not need to import pydantic.
    validate = getattr(target_type, "model_validate", None)
    return validate(value) if validate is not None else msgspec.convert(value, target_type)


def build_tool_error(result: CallToolResult) -> ToolError:
    """Return the exception for an error result. The text of the result becomes the message of the exception."""
    error = ToolError(result.text or "the tool failed without a message")
    error.result = result
    return error


def find_unknown_tool_error(result: CallToolResult, tool: str) -> NotFound | None:
    """Return an exception if an error result means that the tool is unknown. Otherwise return None."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if len(texts) == 1 and is_not_found_message("tools/call", texts[0]) and tool in texts[0]:
        return NotFound(InvalidParams.code, texts[0])
    return None


def extract_contents(result: ReadResourceResult) -> Any:
    """Return the contents of a resource as a string or bytes. If the resource has several parts, return a list."""
    parts = [decode_contents(contents) for contents in result.contents]
    return parts[0] if len(parts) == 1 else parts


def decode_contents(contents: ResourceContents) -> str | bytes:
    """Return one part of a resource as a string or bytes."""
    if contents.blob is None:
        return contents.text or ""
    try:
        return b64decode(contents.blob, validate=True)
    except ValueError:
        raise InvalidResult(f"the contents of {clip(contents.uri)} are not valid base64") from None
