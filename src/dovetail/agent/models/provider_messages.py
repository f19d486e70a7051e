"""Helpers for adapters, which convert tool names and content to the format that a provider accepts."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from dovetail.host.catalog_item import CatalogEntry
from dovetail.host.qualified_names import make_model_name
from dovetail.protocol.redaction import mask_text, strip_url
from dovetail.wire.base import UNSET
from dovetail.wire.codec import to_plain
from dovetail.wire.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)
from dovetail.wire.sampling import SamplingMessage
from dovetail.wire.tools import Tool

_VALID_ALIAS: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolAliases:
    """Translates between the names of tools and the names that a provider accepts."""

    def __init__(self) -> None:
        self._name_by_alias: dict[str, str] = {}

    def to_alias(self, name: str) -> str:
        """Return the provider's name for a tool."""
        alias = name if _VALID_ALIAS.fullmatch(name) else make_model_name("", name)
        self._name_by_alias[alias] = name
        return alias

    def to_name(self, alias: str) -> str:
        """Return the MCP name of a tool. `alias` is the provider's name for the tool."""
        return self._name_by_alias.get(alias, alias)

    def to_entries(self, tools: Iterable[Tool]) -> list[CatalogEntry]:
        """Return the tool definitions in the provider's format."""
        return [
            CatalogEntry(
                server="", name=tool.name, full_name=tool.name, model_name=self.to_alias(tool.name), definition=tool
            )
            for tool in tools
        ]


def get_blocks(message: SamplingMessage) -> Sequence[Any]:
    return message.content if isinstance(message.content, list) else [message.content]


def format_content(content: Iterable[ContentBlock]) -> str:
    """Format the content of a tool result as text, without images."""
    return "\n".join(text for block in content if (text := _format_block(block)) is not None)


def get_images(content: Iterable[ContentBlock]) -> list[ImageContent]:
    return [block for block in content if isinstance(block, ImageContent)]


def format_result(result: ToolResultContent) -> str:
    """Format a tool result as text. If the result has no content, use its structured content."""
    text = format_content(result.content)
    if not text and result.structured_content is not UNSET:
        return json.dumps(to_plain(result.structured_content), ensure_ascii=False)
    return text


def build_tool_call(
    id: str,
    fallback_name: str,
    parse: Callable[[], tuple[str, dict[str, Any]]],
    aliases: ToolAliases,
    invalid_calls: dict[str, str],
) -> ToolUseContent:
    """Create a tool call of a model. If its arguments cannot be parsed, add the reason to `invalid_calls`."""
    try:
        name, arguments = parse()
    except ValueError as exc:
        name, arguments = fallback_name, {}
        invalid_calls[id] = str(exc)
    return ToolUseContent(id=id, name=aliases.to_name(name), input=arguments)


def describe_failure(exc: Exception) -> str:
    """Return a text about an error of the provider's client. If the provider did not respond, the text has its URL."""
    request = None if getattr(exc, "response", None) is not None else getattr(exc, "request", None)
    return mask_text(str(exc)) if request is None else f"{mask_text(str(exc))} ({strip_url(str(request.url))})"


def _format_block(block: ContentBlock) -> str | None:
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return None
        case AudioContent():
            return f"[a sound, {block.mime_type}]"
        case ResourceLink():
            return f"[{block.name}: {block.uri}]"
        case EmbeddedResource():
            resource = block.resource
            return (
                resource.text or "" if resource.blob is None else f"[{resource.uri}, {resource.mime_type or 'bytes'}]"
            )
