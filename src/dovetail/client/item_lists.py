"""The lists of a server, selected by the kind of their items."""

from collections.abc import Mapping
from typing import Any, Final

from dovetail.protocol.item_kinds import ItemKind
from dovetail.wire.lifecycle import ServerCapabilities

# The attribute that identifies an item.
KEY_ATTRIBUTES: Final[Mapping[ItemKind, str]] = {
    "tool": "name",
    "prompt": "name",
    "resource": "uri",
    "resource template": "uri_template",
}


async def list_by_kind(client: Any, kind: ItemKind, capabilities: ServerCapabilities) -> list[Any]:
    """Return all items of one kind. If the server does not support this kind, return an empty list."""
    match kind:
        case "tool":
            return await client.list_tools() if capabilities.tools is not None else []
        case "prompt":
            return await client.list_prompts() if capabilities.prompts is not None else []
        case "resource":
            return await client.list_resources() if capabilities.resources is not None else []
        case "resource template":
            return await client.list_resource_templates() if capabilities.resources is not None else []
