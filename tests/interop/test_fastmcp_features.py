"""Test rows of docs/fastmcp-features.md. Each test does the same with fastmcp and with dovetail."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

from fastmcp import Client as FastClient
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError as FastToolError
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier as FastTokenVerifier
from fastmcp.server.sessions import UserSession
from fastmcp.server.transforms import PromptsAsTools, ResourcesAsTools
from fastmcp.server.transforms.search import BM25SearchTransform
from starlette.responses import PlainTextResponse

from dovetail import Client, Context, Server
from dovetail.auth import StaticTokenVerifier

pytestmark = [
    pytest.mark.interop,
    # fastmcp warns about its own dependencies.
    pytest.mark.filterwarnings("ignore::Warning"),
]
PAGE = Path(__file__).parents[2] / "docs" / "fastmcp-features.md"


def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


def leave(name: str) -> str:
    """Say goodbye."""
    return f"Bye, {name}!"


async def _list_tools(app: Any) -> list[str]:
    create: Any = FastClient if isinstance(app, FastMCP) else Client
    async with create(app) as client:
        return sorted(tool.name for tool in await client.list_tools())


def test_page_counts_its_rows():
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| .+ \| (same|better|different|no) \| .+ \|$", text, re.MULTILINE)
    for word in ("same", "better", "different", "no"):
        assert re.search(rf"^\| {word} \| .+ \| {rows.count(word)} \|$", text, re.MULTILINE)


async def test_duplicates_and_versions():
    fast = FastMCP("x")
    fast.tool(greet, version="1")
    fast.tool(greet, version="2")
    assert await _list_tools(fast) == ["greet"]
    app = Server("x")
    app.add_tool(greet, version="1")
    with pytest.raises(ValueError, match="greet"):
        app.add_tool(greet, version="2")


async def test_tags():
    fast, app = FastMCP("x"), Server("x")
    fast.tool(greet, tags={"kind"})
    fast.tool(leave)
    fast.disable(tags={"kind"})
    app.add_tool(greet, tags={"kind"})
    app.add_tool(leave)
    app.disable(tags={"kind"})
    assert await _list_tools(fast) == await _list_tools(app) == ["leave"]


async def test_pages():
    fast, app = FastMCP("x", list_page_size=1), Server("x", page_size=1)
    for function in (greet, leave):
        fast.tool(function)
        app.add_tool(function)
    assert await _list_tools(fast) == await _list_tools(app) == ["greet", "leave"]
    async with Client(app) as client:
        assert len((await client.list_tools_page()).tools) == 1


async def test_search():
    fast, app = FastMCP("x"), Server("x", search=True)
    for function in (greet, leave):
        fast.tool(function)
        app.add_tool(function)
    fast.add_transform(BM25SearchTransform())
    assert await _list_tools(fast) == ["call_tool", "search_tools"]
    assert await _list_tools(app) == ["call_tool", "describe_tool", "search_tools"]
    arguments = {"name": "greet", "arguments": {"name": "Ada"}}
    async with FastClient(fast) as fast_client, Client(app) as client:
        assert "greet" in str((await fast_client.call_tool("search_tools", {"query": "greet somebody"})).content)
        assert "greet" in (await client.call_tool("search_tools", {"query": "greet somebody"})).text
        assert (await fast_client.call_tool("call_tool", arguments)).content[0].text == "Hello, Ada!"
        assert (await client.call_tool("call_tool", arguments)).text == "Hello, Ada!"


async def test_resources_and_prompts_as_tools():
    fast, app = FastMCP("x"), Server("x", resource_tools=True, prompt_tools=True)
    fast.resource("note://today")(lambda: "buy tea")
    fast.prompt(greet)
    fast.add_transform(ResourcesAsTools(fast))
    fast.add_transform(PromptsAsTools(fast))
    app.add_resource(lambda: "buy tea", "note://today", name="today")
    app.add_prompt(greet)
    tools = ["get_prompt", "list_prompts", "list_resources", "read_resource"]
    assert await _list_tools(fast) == await _list_tools(app) == tools


async def test_mounts():
    fast_inner, fast, inner, app = FastMCP("inner"), FastMCP("x"), Server("inner"), Server("x")
    fast_inner.tool(greet)
    inner.add_tool(greet)
    fast.mount(fast_inner, namespace="in")
    app.mount(inner, "in")
    assert await _list_tools(fast) == await _list_tools(app) == ["in_greet"]


async def test_timeouts():
    async def wait() -> str:
        await asyncio.sleep(60)
        return "done"

    fast, app = FastMCP("x"), Server("x")
    fast.tool(wait, timeout=0.05)
    app.add_tool(wait, timeout=0.05)
    async with FastClient(fast) as fast_client, Client(app) as client:
        with pytest.raises(FastToolError):
            await fast_client.call_tool("wait")
        assert (await client.call_tool("wait")).is_error


async def test_state_of_a_user_needs_a_login():
    async def fast_remember(session: UserSession) -> str:
        await session.set("a", 1)
        return "done"

    async def remember(ctx: Context) -> str:
        await ctx.user_state.set("a", 1)
        return "done"

    fast, app = FastMCP("x"), Server("x")
    fast.tool(fast_remember)
    app.add_tool(remember)
    async with FastClient(fast) as fast_client, Client(app) as client:
        with pytest.raises(FastToolError):
            await fast_client.call_tool("fast_remember")
        assert (await client.call_tool("remember")).is_error


async def test_routes():
    fast = FastMCP("x", auth=FastTokenVerifier(tokens={"secret": {"client_id": "ada", "scopes": []}}))
    app = Server("x", auth=StaticTokenVerifier({"secret": "ada"}))

    @fast.custom_route("/status", methods=["GET"])
    async def fast_status(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    @app.route("/status")
    def status() -> str:
        return "ok"

    codes: list[int] = []
    for web in (fast.http_app(), app.asgi(public_url="http://localhost")):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://localhost") as http:
            codes.append((await http.get("/status")).status_code)
    assert codes == [200, 401]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://localhost") as http:
        assert (await http.get("/status", headers={"authorization": "Bearer secret"})).text == "ok"
