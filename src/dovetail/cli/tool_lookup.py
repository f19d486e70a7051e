"""Find a tool by its name, also on a server that lists search tools instead of all its tools."""

from collections.abc import Mapping
from typing import Final

import click

from dovetail.cli.tool_arguments import suggest_names
from dovetail.client.client import Client
from dovetail.errors import InvalidResult, ProtocolError
from dovetail.server.tool_search import DESCRIBE_TOOL, SEARCH_TOOL, SEARCH_TOOL_NAMES
from dovetail.wire.codec import convert, decode
from dovetail.wire.tools import Tool

FIND_HINT: Final = f"To find names, call {SEARCH_TOOL} query=WORDS on the same target"


def has_tool_search(tools: Mapping[str, Tool]) -> bool:
    """Return whether a server with these listed tools has other tools, which it does not list."""
    return tools.keys() >= SEARCH_TOOL_NAMES


async def find_tool(client: Client, name: str, tools: Mapping[str, Tool]) -> Tool | None:
    """Return the tool with this name, or None. `tools` are the tools that the server lists."""
    if name in tools or not has_tool_search(tools):
        return tools.get(name)
    result = await client.call_tool(DESCRIBE_TOOL, {"name": name})
    if result.is_error:
        return None
    try:
        return convert(decode(result.text.encode()), Tool)
    except ProtocolError as exc:
        raise InvalidResult(f"the result of {DESCRIBE_TOOL} is not a tool: {exc}") from None


async def get_tool(client: Client, name: str) -> Tool:
    """Return the tool with this name. Raise UsageError if the name is unknown."""
    tools = {tool.name: tool for tool in await client.list_tools()}
    tool = await find_tool(client, name, tools)
    if tool is None:
        raise build_unknown_error(name, tools)
    return tool


def build_unknown_error(name: str, tools: Mapping[str, Tool]) -> click.UsageError:
    """Return the error for a tool that the server does not have. `tools` are the tools that the server lists."""
    hint = f". {FIND_HINT}" if has_tool_search(tools) else suggest_names(name, tools)
    return click.UsageError(f"unknown tool {name!r}{hint}")
