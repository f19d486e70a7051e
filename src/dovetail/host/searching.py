"""Searching: three tools that stand for all the others, where those would take too much of a conversation.

What they find is called by the name it is found under; policy and consent see that tool, not the one that carries it.
"""

import json
from typing import Any, Final

from dovetail.errors import InvalidParams
from dovetail.host.catalog import Catalog
from dovetail.host.names import exposed, full
from dovetail.host.offers import Manifest, Offered
from dovetail.wire.codec import plain
from dovetail.wire.content import TextContent
from dovetail.wire.shape import replace
from dovetail.wire.tools import CallToolResult, Tool, ToolAnnotations

SERVER: Final = "host"
SEARCH, DESCRIBE, CALL = "search_tools", "describe_tool", "call_tool"

_MOST: Final = 50
_SHORT: Final = 200

_NAME: Final = {"type": "string", "description": "The name of a tool, as search_tools found it."}
_LOOKS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)

TOOLS: Final = (
    Tool(
        name=SEARCH,
        description="Find tools by what they do. Returns names and short descriptions, best first.",
        input_schema={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Words for what is to be done."},
                "limit": {"type": "integer", "minimum": 1, "maximum": _MOST, "default": 10},
            },
            "required": ["query"],
        },
        annotations=_LOOKS,
    ),
    Tool(
        name=DESCRIBE,
        description="The whole definition of a tool: what it does and which arguments it takes.",
        input_schema={"type": "object", "properties": {"name": _NAME}, "required": ["name"]},
        annotations=_LOOKS,
    ),
    Tool(
        name=CALL,
        description="Call a tool that search_tools found, with the arguments describe_tool tells of.",
        input_schema={
            "type": "object",
            "properties": {"name": _NAME, "arguments": {"type": "object", "description": "Its arguments."}},
            "required": ["name"],
        },
    ),
)


# By every name they may be called.
OWN: Final = {spelling(SERVER, tool.name): tool.name for tool in TOOLS for spelling in (full, exposed)}


def searching(catalog: Catalog) -> Catalog:
    """The catalog with the three tools in place of its own."""
    found = Catalog.of({SERVER: Manifest(tools=TOOLS)})
    return replace(found, resources=catalog.resources, templates=catalog.templates, prompts=catalog.prompts)


def looked_up(catalog: Catalog, tool: str, arguments: Any) -> CallToolResult:
    """What searching or describing brings."""
    if tool == SEARCH:
        limit = arguments.get("limit")
        number = limit if type(limit) is int and 0 < limit <= _MOST else 10
        found = catalog.search(str(arguments.get("query", "")), number)
        return _said([{"name": one.exposed, "description": _brief(one)} for one in found])
    one = catalog.find(str(arguments.get("name")))
    if one is None:
        text = "There is no tool of this name; search_tools finds names."
        return CallToolResult(content=[TextContent(text=text)], is_error=True)
    return _said(plain(replace(one.declaration, name=one.exposed)))


def inner_call(arguments: Any) -> tuple[str, dict[str, Any]]:
    """The tool that is meant, and its arguments."""
    name, told = arguments.get("name"), arguments.get("arguments")
    if type(name) is not str or not (told is None or type(told) is dict):
        raise InvalidParams("Invalid params: call_tool takes a name and arguments")
    return name, told or {}


def _brief(one: Offered) -> str:
    text = " ".join((one.declaration.description or one.declaration.title or "").split())
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _said(value: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=json.dumps(value, ensure_ascii=False))])
