"""Tools that list and read the resources and prompts of a server, for hosts that only know tools.

Each tool sends a request to its own server, so access rules and middleware apply as for a direct request.
"""

from collections.abc import Mapping
from typing import Any, Protocol, Unpack

from dovetail.error_context import clip
from dovetail.errors import PromptNotFound, ResourceNotFound, ToolError
from dovetail.server.context import Context
from dovetail.server.items.item_options import ToolOptions
from dovetail.wire.codec import to_plain
from dovetail.wire.content import AudioContent, EmbeddedResource, ImageContent, ResourceContents, TextContent


class AddTool(Protocol):
    """Registers a function as a tool."""

    def __call__(self, function: Any, **options: Unpack[ToolOptions]) -> None: ...


def add_resource_tools(add_tool: AddTool) -> None:
    """Add the tools `list_resources` and `read_resource`."""
    add_tool(_list_resources, name="list_resources", read_only=True)
    add_tool(_read_resource, name="read_resource", read_only=True)


def add_prompt_tools(add_tool: AddTool) -> None:
    """Add the tools `list_prompts` and `get_prompt`."""
    add_tool(_list_prompts, name="list_prompts", read_only=True)
    add_tool(_get_prompt, name="get_prompt", read_only=True)


async def _list_resources(ctx: Context) -> list[dict[str, str]]:
    """List the resources. Replace the parts of a uri_template in braces to get the URI of a resource."""
    resources = [
        _describe(uri=resource.uri, name=resource.name, description=resource.description, mime_type=resource.mime_type)
        for resource in await ctx.list_resources()
    ]
    templates = [
        _describe(
            uri_template=template.uri_template,
            name=template.name,
            description=template.description,
            mime_type=template.mime_type,
        )
        for template in await ctx.list_resource_templates()
    ]
    return resources + templates


async def _read_resource(uri: str, ctx: Context) -> list[TextContent | ImageContent | AudioContent | EmbeddedResource]:
    """Read a resource by its URI.

    Args:
        uri: The URI, as returned by list_resources.
    """
    try:
        result = await ctx.read_resource(uri)
    except ResourceNotFound:
        raise ToolError(f"unknown resource {clip(uri)}. Use list_resources to find URIs") from None
    return [_to_content(part) for part in result.contents]


async def _list_prompts(ctx: Context) -> list[dict[str, Any]]:
    """List the prompts with their arguments."""
    return [
        _describe(name=prompt.name, description=prompt.description)
        | {
            "arguments": [
                _describe(name=argument.name, description=argument.description) | {"required": bool(argument.required)}
                for argument in prompt.arguments or ()
            ]
        }
        for prompt in await ctx.list_prompts()
    ]


async def _get_prompt(name: str, ctx: Context, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Get the messages of a prompt.

    Args:
        name: The name, as returned by list_prompts.
        arguments: The arguments of the prompt, by name.
    """
    try:
        result = await ctx.get_prompt(name, arguments)
    except PromptNotFound:
        raise ToolError(f"unknown prompt {clip(name)}. Use list_prompts to find names") from None
    messages = [
        {"role": message.role, "content": to_plain(message.content)}  # the content as the protocol sends it
        for message in result.messages
    ]
    return _describe(description=result.description) | {"messages": messages}


def _describe(**fields: str | None) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _to_content(part: ResourceContents) -> TextContent | ImageContent | AudioContent | EmbeddedResource:
    media_type = part.mime_type or ""
    if part.blob is None:
        return TextContent(text=part.text or "")
    if media_type.startswith("image/"):
        return ImageContent(data=part.blob, mime_type=media_type)
    if media_type.startswith("audio/"):
        return AudioContent(data=part.blob, mime_type=media_type)
    return EmbeddedResource(resource=part)
