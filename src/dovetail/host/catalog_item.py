"""What servers offer: one server's lists, and one thing of them with its names in the host."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from dovetail.wire.base import Struct
from dovetail.wire.codec import encode
from dovetail.wire.prompts import Prompt
from dovetail.wire.resources import Resource, ResourceTemplate
from dovetail.wire.tools import Tool

BYTES_PER_TOKEN: Final = 4  # a rule of thumb for English and JSON; each maker counts in its own way

Definition: TypeAlias = Tool | Resource | ResourceTemplate | Prompt


class Manifest(Struct, frozen=True, kw_only=True):
    """What one server offers, as it listed it."""

    tools: Sequence[Tool] = ()
    resources: Sequence[Resource] = ()
    resource_templates: Sequence[ResourceTemplate] = ()
    prompts: Sequence[Prompt] = ()


class CatalogEntry(Struct, frozen=True, kw_only=True):
    """One thing of one server."""

    server: str
    name: str  # at home: a name, or a URI
    full_name: str  # the host's spelling: "server.tool"
    model_name: str  # what a model sees
    definition: Any
    tokens: int = 0  # what its definition takes of a conversation, roughly


def estimate_tokens(definition: Definition) -> int:
    """What a definition takes of a conversation, roughly."""
    if isinstance(definition, Tool):
        model_view: Any = (definition.name, definition.description or "", definition.input_schema)
    else:
        model_view = definition
    return -(-len(encode(model_view)) // BYTES_PER_TOKEN)


def get_item_name(definition: Definition) -> str:
    """What it is called at home: a name, or a URI."""
    match definition:
        case Resource():
            return definition.uri
        case ResourceTemplate():
            return definition.uri_template
        case _:
            return definition.name
