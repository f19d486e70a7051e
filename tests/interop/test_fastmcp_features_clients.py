"""Test rows of fastmcp_features.csv about clients."""

import asyncio
import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

import mcp_types as types
from fastmcp import Client as FastClient
from fastmcp import Context as FastContext
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError as FastToolError
from fastmcp.server.middleware import Middleware as FastMiddleware
from mcp import MCPError as SdkError

from dovetail import (
    CacheHint,
    Client,
    Context,
    Server,
    ToolError,
)
from dovetail.errors import RequestTimeout
from interop.fastmcp_pairs import MODES, call, connect, connect_in_era, create_pair, greet, list_tools

pytestmark = [
    pytest.mark.interop,
    # fastmcp warns about its own dependencies.
    pytest.mark.filterwarnings("ignore::Warning"),
]

# Connections


@pytest.mark.parametrize(("era", "version"), [("handshake", "2025-11-25"), ("stateless", "2026-07-28")])
async def test_negotiation(era: str, version: str) -> None:
    for app in create_pair(instructions="Greets people."):
        app.tool(greet)
        async with connect_in_era(app, era) as client:
            assert client.protocol_version == version
            assert (client.server_info.name, client.instructions) == ("x", "Greets people.")
            assert client.server_capabilities.tools is not None
            await client.list_tools()


async def test_connections() -> None:
    fast, app = create_pair()
    fast_client, client = FastClient(fast), Client(app)
    async with fast_client, client:
        assert fast_client.is_connected()
        assert client.is_connected
    assert not fast_client.is_connected()
    assert not client.is_connected


async def test_client_cache() -> None:
    """A client of fastmcp caches lists if you ask for it. A client of dovetail also caches resources, by default."""
    requests: list[str] = []

    class Count(FastMiddleware):
        async def on_list_tools(self, context: Any, call_next: Any) -> Any:
            requests.append("tools/list")
            return await call_next(context)

        async def on_read_resource(self, context: Any, call_next: Any) -> Any:
            requests.append("resources/read")
            return await call_next(context)

    async def count(exchange: Any, call_next: Any) -> Any:
        requests.append(exchange.method)
        return await call_next(exchange)

    fast = FastMCP("x", cache_ttl=300, middleware=[Count()])
    app = Server("x", cache_hints=CacheHint(300_000), middleware=[count])
    counts: list[tuple[int, int]] = []
    for server, options in ((fast, {}), (fast, {"cache": True}), (app, {}), (app, {"cache": False})):
        if not requests:
            for item in (fast, app):
                item.tool(greet)
                item.resource("note://today", name="today")(lambda: "buy tea")
        requests.clear()
        async with connect(server, **options) as client:
            for _ in range(2):
                await client.list_tools()
                await client.read_resource("note://today")
        counts.append((requests.count("tools/list"), requests.count("resources/read")))
    assert counts == [(2, 2), (1, 2), (1, 1), (2, 2)]


# Calls


@dataclass
class Weather:
    temperature: float
    at: datetime
    station: UUID


def measure() -> Weather:
    return Weather(1.5, datetime(2026, 1, 2), UUID(int=1))


async def test_results_of_calls() -> None:
    for app in create_pair():
        app.tool(greet)
        assert await list_tools(app) == ["greet"]
        result = await call(app, "greet", {"name": "Ada"})
        assert (result.is_error, result.content[0].text) == (False, "Hello, Ada!")


async def test_typed_results() -> None:
    """fastmcp makes a class from the output schema. dovetail converts to the type that you pass."""
    fast, app = create_pair()
    for server in (fast, app):
        server.tool(measure)
    async with FastClient(fast) as client:
        data: Any = (await client.call_tool("measure")).data
    assert (data.temperature, data.at, data.station) == (1.5, datetime(2026, 1, 2), UUID(int=1))
    async with Client(app) as client:
        assert await client.call("measure", into=Weather) == measure()
        assert isinstance(await client.call("measure"), dict)


async def test_errors_of_calls() -> None:
    def fail(error: type[Exception]) -> str:
        raise error("too old")

    fast, app = create_pair()
    fast.tool(lambda: fail(FastToolError), name="fail")
    app.tool(lambda: fail(ToolError), name="fail")
    async with FastClient(fast) as client:
        with pytest.raises(FastToolError):
            await client.call_tool("fail")
    async with Client(app) as client:
        with pytest.raises(ToolError):
            await client.call("fail")
    for server in (fast, app):
        assert (await call(server, "fail")).is_error


async def test_timeouts_of_calls() -> None:
    async def wait() -> str:
        await asyncio.sleep(60)
        return "done"

    for app, error in zip(create_pair(), (SdkError, RequestTimeout), strict=True):
        app.tool(wait)
        with pytest.raises(error):
            await call(app, "wait", timeout=0.05)


async def test_metadata_of_calls() -> None:
    fast, app = create_pair()

    @fast.tool(name="trace")
    def fast_trace(ctx: FastContext) -> str:
        context: Any = ctx.request_context
        return context.meta["trace"]

    @app.tool
    def trace(ctx: Context) -> str:
        return str(ctx.meta["trace"])

    for server in (fast, app):
        assert (await call(server, "trace", meta={"trace": "abc"})).content[0].text == "abc"


async def test_raw_results() -> None:
    fast, app = create_pair()
    for server in (fast, app):
        server.tool(greet)
        server.resource("note://logo", name="logo", mime_type="image/gif")(lambda: b"GIF89a")
        server.prompt(greet)
    async with FastClient(fast) as client:
        fast_results: list[Any] = [
            await client.call_tool_mcp("greet", {"name": "Ada"}),
            await client.read_resource_mcp("note://logo"),
            await client.get_prompt_mcp("greet", {"name": "Ada"}),
        ]
    async with Client(app) as client:
        results: list[Any] = [
            await client.call_tool("greet", {"name": "Ada"}),
            await client.read_resource("note://logo"),
            await client.get_prompt("greet", {"name": "Ada"}),
        ]
        raw = await client.request("tools/call", {"name": "greet", "arguments": {"name": "Ada"}})
    assert raw["content"][0]["text"] == "Hello, Ada!"
    for tool_result, contents, prompt in (fast_results, results):
        assert tool_result.content[0].text == "Hello, Ada!"
        (part,) = contents.contents
        assert (base64.b64decode(part.blob), part.mime_type) == (b"GIF89a", "image/gif")
        (message,) = prompt.messages
        assert (message.role, message.content.text) == ("user", "Hello, Ada!")


async def test_arguments_of_prompts() -> None:
    """A client of fastmcp writes other values as JSON. A client of dovetail sends text, as in the protocol."""
    fast, app = create_pair()

    def add(numbers: list[int]) -> str:
        return str(sum(numbers))

    for server in (fast, app):
        server.prompt(add)
    async with FastClient(fast) as client:
        result: Any = await client.get_prompt("add", {"numbers": [1, 2]})
        assert result.messages[0].content.text == "3"
    async with Client(app) as client:
        result = await client.get_prompt("add", {"numbers": "[1, 2]"})
        assert result.messages[0].content.text == "3"


# Change notices


async def test_notices_at_clients() -> None:
    """A handler of fastmcp gets all notices of a session. dovetail has subscriptions, in every protocol version."""
    fast, app = create_pair()
    methods: list[str] = []

    async def note(message: Any) -> None:
        methods.append(message.method)

    @fast.tool
    async def change(ctx: FastContext) -> str:
        await ctx.send_notification(types.ToolListChangedNotification())
        await ctx.send_notification(types.ResourceListChangedNotification())
        return "changed"

    app.tool(greet)
    app.resource("note://today", name="today")(lambda: "buy tea")
    async with connect_in_era(fast, "handshake", message_handler=note) as client:
        await client.call_tool("change")
        await client.list_tools()
    assert methods == ["notifications/tools/list_changed", "notifications/resources/list_changed"]
    for era in MODES:
        async with connect_in_era(app, era) as client, client.listen(uris=["note://today"], tools=True) as changes:
            app.notify_tools_changed()
            app.notify_resource_updated("note://today")
            stream = aiter(changes)
            assert {(await anext(stream)).kind for _ in range(2)} == {"tools", "resource"}
