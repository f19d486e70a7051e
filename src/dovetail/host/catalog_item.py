"""The tools, resources and prompts of one server, and the entries of a host's catalog."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from dovetail.protocol.limits import BYTES_PER_TOKEN
from dovetail.wire.base import Struct, replace
from dovetail.wire.codec import encode
from dovetail.wire.prompts import Prompt
from dovetail.wire.raw_message import copy_value
from dovetail.wire.resources import Resource, ResourceTemplate
from dovetail.wire.tools import Tool

# This number is an estimate for English text and JSON. Each model counts tokens differently.

Definition: TypeAlias = Tool | Resource | ResourceTemplate | Prompt


class ServerDefinitions(Struct, frozen=True, kw_only=True):
    """The tools, resources, templates and prompts of one server."""

    tools: Sequence[Tool] = ()  # the tools of the server
    resources: Sequence[Resource] = ()  # the resources of the server
    resource_templates: Sequence[ResourceTemplate] = ()  # the resource templates of the server
    prompts: Sequence[Prompt] = ()  # the prompts of the server


class CatalogEntry(Struct, frozen=True, kw_only=True):
    """One tool, resource, template or prompt of a host."""

    server: str  # the name of the server
    name: str  # the name or URI that the server uses
    full_name: str  # the name in the host, such as "server.tool"
    model_name: str  # the name that models see
    definition: Any  # the definition that the server sent
    tokens: int = 0  # the estimated number of tokens of the definition


def copy_entries(entries: tuple[CatalogEntry, ...]) -> tuple[CatalogEntry, ...]:
    """Copy entries and their definitions, so that the caller may change the definitions."""
    return tuple(replace(entry, definition=copy_value(entry.definition)) for entry in entries)


def estimate_tokens(definition: Definition) -> int:
    """Estimate how many tokens a definition needs."""
    if isinstance(definition, Tool):
        model_view: Any = (definition.name, definition.description or "", definition.input_schema)
    else:
        model_view = definition
    return -(-len(encode(model_view)) // BYTES_PER_TOKEN)


def get_item_name(definition: Definition) -> str:
    """Return the name or URI that the server itself uses for an item."""
    match definition:
        case Resource():
            return definition.uri
        case ResourceTemplate():
            return definition.uri_template
        case _:
            return definition.name
