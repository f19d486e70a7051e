"""Find a tool by its name, also on a server that lists search tools instead of all its tools."""

from collections.abc import Iterable, Mapping
from typing import Final

import click

from dovetail.cli.tool_arguments import suggest_names
from dovetail.client.client import Client
from dovetail.error_context import suggest_match
from dovetail.errors import ProtocolError
from dovetail.schemas.reader import as_object, get_mapping, get_required
from dovetail.search.tool_search import DESCRIBE_TOOL, SEARCH_TOOL, SEARCH_TOOLS
from dovetail.wire.codec import convert, decode
from dovetail.wire.tools import Tool

FIND_HINT: Final = f"To find names, call {SEARCH_TOOL} query=WORDS on the same target"


def has_tool_search(tools: Mapping[str, Tool]) -> bool:
    """Return whether a server has more tools than the ones that it lists."""
    # Another server can have tools with these names, so also compare the arguments.
    return all(
        tool.name in tools and _list_arguments(tools[tool.name]) == _list_arguments(tool) for tool in SEARCH_TOOLS
    )


def _list_arguments(tool: Tool) -> tuple[set[str], set[str]]:
    """Return the names of all arguments of a tool, and the names of the required arguments."""
    schema = as_object(tool.input_schema)
    return set(get_mapping(schema)), set(get_required(schema))


async def find_tool(client: Client, name: str, tools: Mapping[str, Tool]) -> Tool | None:
    """Return the tool with this name, or None. `tools` are the tools that the server lists."""
    if name in tools or not has_tool_search(tools):
        return tools.get(name)
    result = await client.call_tool(DESCRIBE_TOOL, {"name": name})
    if result.is_error:
        return None
    try:
        return convert(decode(result.text.encode()), Tool)
    except ProtocolError:
        return None


async def get_tool(client: Client, name: str) -> Tool:
    """Return the tool with this name. Raise UsageError if the name is unknown."""
    tools = {tool.name: tool for tool in await client.list_tools()}
    tool = await find_tool(client, name, tools)
    if tool is None:
        raise build_unknown_error(name, tools)
    return tool


def build_unknown_error(
    name: str, tools: Mapping[str, Tool], other_names: Iterable[str] | None = None
) -> click.UsageError:
    """Return the error for a name that the server does not have.

    Args:
        name: The unknown name.
        tools: The tools that the server lists.
        other_names: The names of its prompts and resources, or None if the name can only be a tool.
    """
    names = [*tools, *(other_names or ())]
    hint = f"{suggest_match(name, names) or '.'} {FIND_HINT}" if has_tool_search(tools) else suggest_names(name, names)
    return click.UsageError(f"unknown {'tool' if other_names is None else 'name'} {name!r}{hint}")
