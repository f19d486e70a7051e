"""Search tools for servers with many tools.

If the tool definitions would use too many tokens, the tool list contains only three search tools. The model searches
for a tool, and then calls the tool with `call_tool`. Access rules, middleware, policy and consent apply to the called
tool, not to `call_tool`. Servers, gateways and hosts all use this module.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from dovetail.error_context import suggest_match
from dovetail.errors import InvalidParams, ToolNotFound
from dovetail.protocol.exchange import IncomingExchange
from dovetail.search.search_index import SearchIndex
from dovetail.server.dispatch.parts import Handlers, Position, ServerPart
from dovetail.wire.base import Result
from dovetail.wire.codec import to_plain
from dovetail.wire.content import TextContent
from dovetail.wire.tools import CallToolResult, ListToolsResult, Tool, ToolAnnotations

SEARCH_TOOL, DESCRIBE_TOOL, CALL_TOOL = "search_tools", "describe_tool", "call_tool"

_MAX_RESULTS: Final = 50
_MAX_BRIEF_CHARS: Final = 200
_MAX_CACHED_INDEXES: Final = 8  # Callers with different rights see different tools, so each group needs an index.

_NAME_SCHEMA: Final = {"type": "string", "description": "The name of a tool, as returned by search_tools."}
_FIND_NAMES: Final = f"Use {SEARCH_TOOL} to find names."
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
SEARCH_TOOL_NAMES: Final = frozenset(tool.name for tool in SEARCH_TOOLS)


class ListedTool(NamedTuple):
    """A search tool. It has the same interface as a registered tool."""

    declaration: Tool


_LISTED_TOOLS: Final = {tool.name: ListedTool(tool) for tool in SEARCH_TOOLS}


class ToolSearch(ServerPart):
    """Replaces the tool list of a server with the search tools, and handles calls of the search tools."""

    position = Position.LISTS

    def __init__(
        self,
        list_tools: Callable[[IncomingExchange], Awaitable[Mapping[str, Tool]]],
        build_page: Callable[[IncomingExchange, "Mapping[str, ListedTool]", str, type[Result]], bytes],
    ) -> None:
        self._list_tools = list_tools  # Returns the tools that a caller may see, by their public names.
        self._build_page = build_page
        self._cached_indexes: list[tuple[list[Tool], SearchIndex]] = []  # The most recently used index is last.

    def wrap(self, handlers: Handlers) -> Handlers:
        """Return handlers that list and run the search tools. Middleware wraps the returned handlers."""
        call_tool, list_tools = handlers["tools/call"], handlers["tools/list"]

        async def handle_call(exchange: IncomingExchange) -> Any:
            name = exchange.params.get("name")
            if name not in (SEARCH_TOOL, DESCRIBE_TOOL):
                try:
                    return await call_tool(exchange)
                except ToolNotFound as exc:
                    await self._add_suggestion(exc, str(name), exchange)
                    raise
            tools = await self._list_tools(exchange)
            definitions, index = await self._get_index(tools)

            def search(text: str, limit: int) -> list[Tool]:
                return [definitions[position] for position in index.search(text, limit)]

            return run_search_tool(name, read_arguments(exchange.params), search, tools.get)

        async def handle_list(exchange: IncomingExchange) -> Any:
            if not await self._list_tools(exchange):
                return await list_tools(exchange)
            return self._build_page(exchange, _LISTED_TOOLS, "tools", ListToolsResult)

        return {**handlers, "tools/call": handle_call, "tools/list": handle_list}

    def rewrite(self, handlers: Handlers) -> Handlers:
        """Return handlers that replace a call of `call_tool` with the inner call."""
        call_tool = handlers["tools/call"]

        async def handle_call(exchange: IncomingExchange) -> Any:
            if exchange.params.get("name") != CALL_TOOL:
                return await call_tool(exchange)
            original_params, skips_param_headers = exchange.params, exchange.skips_param_headers
            name, arguments = parse_inner_call(read_arguments(original_params))
            if name in SEARCH_TOOL_NAMES:
                raise ToolNotFound(name)
            exchange.params = original_params | {"name": name, "arguments": arguments}
            exchange.skips_param_headers = True
            try:
                return await call_tool(exchange)
            finally:
                exchange.params, exchange.skips_param_headers = original_params, skips_param_headers

        return {**handlers, "tools/call": handle_call}

    async def _add_suggestion(self, error: ToolNotFound, name: str, exchange: IncomingExchange) -> None:
        """Add a similar name to an error, because the client has no list of names. The caller must see this name.

        An error that a tool of this server raised is not changed, for example if the tool has called an unknown tool.
        """
        if error.message != ToolNotFound(name).message:
            return
        tools = await self._list_tools(exchange)
        if name not in tools:
            error.message += suggest_match(name, tools) or f". {_FIND_NAMES}"
            error.args = (error.message,)

    async def _get_index(self, tools: Mapping[str, Tool]) -> tuple[list[Tool], SearchIndex]:
        definitions = [*tools.values()]
        for cached_definitions, index in self._cached_indexes:
            if cached_definitions == definitions:
                return definitions, index
        # A gateway names a tool `server__tool`. The index limits the text that it reads from each server.
        servers = [name.partition("__")[0] if "__" in name else "" for name in tools]
        # Use a thread, because building an index of thousands of tools would block other requests for too long.
        index = await asyncio.to_thread(SearchIndex, definitions, servers)
        self._cached_indexes = [*self._cached_indexes[1 - _MAX_CACHED_INDEXES :], (definitions, index)]
        return definitions, index


def run_search_tool(
    name: str,
    arguments: Mapping[str, Any],
    search: Callable[[str, int], Iterable[Tool]],
    find: Callable[[str], Tool | None],
) -> CallToolResult:
    """Run `search_tools` or `describe_tool` and return the result.

    Args:
        search: A function of a text and a maximum number. It returns the matching tools, best first.
        find: A function that returns the tool with a name, or None.
    """
    if name == SEARCH_TOOL:
        limit = arguments.get("limit")
        max_results = limit if type(limit) is int and 0 < limit <= _MAX_RESULTS else 10
        matches = search(str(arguments.get("query", "")), max_results)
        return _to_result([{"name": tool.name, "description": _format_brief(tool)} for tool in matches])
    tool = find(str(arguments.get("name")))
    if tool is None:
        text = f"Unknown tool. {_FIND_NAMES}"
        return CallToolResult(content=[TextContent(text=text)], is_error=True)
    return _to_result(to_plain(tool))


def read_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in the parameters of a tool call."""
    arguments = params.get("arguments") or {}
    if type(arguments) is not dict:
        raise InvalidParams("Invalid params: arguments must be an object")
    return arguments


def parse_inner_call(arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of the tool that `call_tool` should call."""
    name, inner_arguments = arguments.get("name"), arguments.get("arguments")
    if type(name) is not str or not (inner_arguments is None or type(inner_arguments) is dict):
        raise InvalidParams("Invalid params: call_tool requires the name of a tool, and `arguments` must be an object")
    return name, inner_arguments or {}


def _format_brief(tool: Tool) -> str:
    text = " ".join((tool.description or tool.title or "").split())
    return text if len(text) <= _MAX_BRIEF_CHARS else f"{text[: _MAX_BRIEF_CHARS - 1]}…"


def _to_result(value: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=json.dumps(value, ensure_ascii=False))])
