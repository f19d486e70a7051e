"""The search tools in the catalog of a host, and the names of the host's own tools."""

from collections.abc import Mapping
from typing import Any, Final

from dovetail.host.catalog import Catalog
from dovetail.host.catalog_item import ServerDefinitions
from dovetail.host.qualified_names import make_full_name, make_model_name
from dovetail.search import tool_search
from dovetail.search.tool_search import SEARCH_TOOLS
from dovetail.wire.base import replace
from dovetail.wire.tools import CallToolResult, Tool

HOST_SERVER_NAME: Final = "host"

# The keys are the full names and the model names of the search tools.
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


def run_search_tool(catalog: Catalog, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
    """Run `search_tools` or `describe_tool` for the tools of a catalog and return the result."""

    def search(text: str, limit: int) -> list[Tool]:
        return [replace(entry.definition, name=entry.model_name) for entry in catalog.search(text, limit)]

    def find(name: str) -> Tool | None:
        entry = catalog.find(name)
        return None if entry is None else replace(entry.definition, name=entry.model_name)

    return tool_search.run_search_tool(tool, arguments, search, find)
