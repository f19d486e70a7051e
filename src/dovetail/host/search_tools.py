"""Three search tools, which replace all other tools if the definitions of those tools would use too many tokens.

The model calls a tool by the name that it found. Policy and consent apply to that tool, not to `call_tool`.
"""

import json
from typing import Any, Final

from dovetail.errors import InvalidParams
from dovetail.host.catalog import Catalog
from dovetail.host.catalog_item import CatalogEntry, ServerDefinitions
from dovetail.host.qualified_names import make_full_name, make_model_name
from dovetail.wire.base import replace
from dovetail.wire.codec import to_plain
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult, Tool, ToolAnnotations

HOST_SERVER_NAME: Final = "host"
SEARCH_TOOL, DESCRIBE_TOOL, CALL_TOOL = "search_tools", "describe_tool", "call_tool"

_MAX_RESULTS: Final = 50
_MAX_BRIEF_CHARS: Final = 200

_NAME_SCHEMA: Final = {"type": "string", "description": "The name of a tool, as returned by search_tools."}
_READ_ONLY_ANNOTATIONS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)

SEARCH_TOOLS: Final = (
    Tool(
        name=SEARCH_TOOL,
        description="Find tools by what they do. Returns names and short descriptions, best first.",
        input_schema={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Words that describe the task."},
                "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_RESULTS, "default": 10},
            },
            "required": ["query"],
        },
        annotations=_READ_ONLY_ANNOTATIONS,
    ),
    Tool(
        name=DESCRIBE_TOOL,
        description="Get the full definition of a tool: what it does and which arguments it takes.",
        input_schema={"type": "object", "properties": {"name": _NAME_SCHEMA}, "required": ["name"]},
        annotations=_READ_ONLY_ANNOTATIONS,
    ),
    Tool(
        name=CALL_TOOL,
        description="Call a tool that search_tools returned. describe_tool shows its arguments.",
        input_schema={
            "type": "object",
            "properties": {
                "name": _NAME_SCHEMA,
                "arguments": {"type": "object", "description": "The arguments of the tool."},
            },
            "required": ["name"],
        },
    ),
)


# The keys are full names and model names of the search tools.
SEARCH_TOOL_BY_NAME: Final = {
    spelling(HOST_SERVER_NAME, tool.name): tool.name
    for tool in SEARCH_TOOLS
    for spelling in (make_full_name, make_model_name)
}

LOAD_SKILL_TOOL: Final = "load_skill"
# The full name and the model name of the tool with which an agent loads skills.
SKILL_TOOL_NAMES: Final = (
    make_full_name(HOST_SERVER_NAME, LOAD_SKILL_TOOL),
    make_model_name(HOST_SERVER_NAME, LOAD_SKILL_TOOL),
)


def create_search_catalog(catalog: Catalog) -> Catalog:
    """Return a copy of a catalog with three search tools instead of all tools."""
    search_catalog = Catalog.from_servers({HOST_SERVER_NAME: ServerDefinitions(tools=SEARCH_TOOLS)})
    return replace(
        search_catalog,
        resources=catalog.resources,
        resource_templates=catalog.resource_templates,
        prompts=catalog.prompts,
    )


def run_search_tool(catalog: Catalog, tool: str, arguments: Any) -> CallToolResult:
    """Run `search_tools` or `describe_tool` and return the result."""
    if tool == SEARCH_TOOL:
        limit = arguments.get("limit")
        max_results = limit if type(limit) is int and 0 < limit <= _MAX_RESULTS else 10
        matches = catalog.search(str(arguments.get("query", "")), max_results)
        return _to_result([{"name": entry.model_name, "description": _format_brief(entry)} for entry in matches])
    entry = catalog.find(str(arguments.get("name")))
    if entry is None:
        text = "Unknown tool. Use search_tools to find names."
        return CallToolResult(content=[TextContent(text=text)], is_error=True)
    return _to_result(to_plain(replace(entry.definition, name=entry.model_name)))


def parse_inner_call(arguments: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of the tool that `call_tool` should call."""
    name, inner_arguments = arguments.get("name"), arguments.get("arguments")
    if type(name) is not str or not (inner_arguments is None or type(inner_arguments) is dict):
        raise InvalidParams("Invalid params: call_tool requires the name of a tool, and `arguments` must be an object")
    return name, inner_arguments or {}


def _format_brief(entry: CatalogEntry) -> str:
    text = " ".join((entry.definition.description or entry.definition.title or "").split())
    return text if len(text) <= _MAX_BRIEF_CHARS else f"{text[: _MAX_BRIEF_CHARS - 1]}…"


def _to_result(value: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=json.dumps(value, ensure_ascii=False))])
