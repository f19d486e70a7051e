"""The value of a tool result: its structured content, or else its text, or else its content blocks.

Servers wrap structured content that is not an object as `{"result": value}`. An object with only this field is
unwrapped if the output schema or the result is marked. Without a mark, it is unwrapped only if the text of the result
is the inner value. The text of an object that a tool returned is the whole object.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.errors import InvalidResult
from dovetail.wire.base import UNSET
from dovetail.wire.content import ContentBlock, TextContent
from dovetail.wire.raw_message import decode_text


def join_texts(content: Sequence[ContentBlock]) -> str:
    """Return the text of all text blocks, separated by newlines."""
    return "\n".join(block.text for block in content if isinstance(block, TextContent))


def get_value(
    structured: Any, content: Sequence[ContentBlock], meta: Mapping[str, Any] | None, *, is_wrapped: bool | None
) -> Any:
    """Return the value of a tool result.

    `is_wrapped` is True if the output schema says that the value is wrapped, and None if the schema is unknown or does
    not say.
    """
    texts = [block.text for block in content if isinstance(block, TextContent)]
    if structured is not UNSET and structured is not None:
        if (
            is_wrapped is False
            or not is_result_object(structured)
            or not (is_wrapped or is_marked(meta) or _match_value(texts, structured["result"]))
        ):
            return structured
        return structured["result"]
    if structured is None:
        return None
    if len(texts) != len(content):
        return content
    return texts[0] if len(texts) == 1 else None if not texts else "\n".join(texts)


def is_result_object(value: Any) -> bool:
    """Return whether a value is an object with the single field `result`."""
    return type(value) is dict and len(value) == 1 and "result" in value


def is_marked(meta: Mapping[str, Any] | None) -> bool:
    """Return whether `_meta` of a result says that its value is wrapped."""
    mark: Any = (meta or {}).get("fastmcp")
    return type(mark) is dict and mark.get("wrap_result") is True


def _match_value(texts: list[str], value: Any) -> bool:
    """Return whether the text of a result contains the same value as the structured content."""
    if value is None and not texts:
        return True
    if type(value) is list and len(texts) == len(value) and all(map(_matches_value, texts, value)):
        return True
    return len(texts) == 1 and _matches_value(texts[0], value)


def _matches_value(text: str, value: Any) -> bool:
    if text == value:
        return True
    try:
        return decode_text(text) == value
    except InvalidResult:
        return False
