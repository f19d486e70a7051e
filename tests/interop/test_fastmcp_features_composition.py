"""Test rows of fastmcp_features.csv about visibility, search, transforms, mounts and proxies."""

import asyncio
import json
from typing import Any

import httpx
import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

from fastmcp import Context as FastContext
from fastmcp import FastMCP
from fastmcp.server import create_proxy
from fastmcp.server.transforms import PromptsAsTools, ResourcesAsTools, ToolTransform
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools.tool_transform import ArgTransformConfig, ToolTransformConfig
from starlette.responses import PlainTextResponse

from dovetail import ArgTransform, Client, Context, ImageContent, Server, Transform
from dovetail.errors import NotFound
from interop.fastmcp_pairs import call, connect, create_pair, greet, leave, list_tools, read

pytestmark = [
    pytest.mark.interop,
    # fastmcp warns about its own dependencies.
    pytest.mark.filterwarnings("ignore::Warning"),
]


# Visibility


async def test_tags() -> None:
    for app in create_pair():
        app.tool(greet, tags={"kind"})
        app.tool(leave)
        app.disable(tags={"kind"})
        assert await list_tools(app) == ["leave"]
        app.enable(tags={"kind"})
        assert await list_tools(app) == ["greet", "leave"]


async def test_disabled_names() -> None:
    fast, app = create_pair()
    for server in (fast, app):
        server.tool(greet)
        server.tool(leave)
        server.resource("note://today", name="today")(lambda: "buy tea")
        server.resource("note://logo", name="logo")(lambda: b"GIF89a")
    fast.disable(names={"greet", "note://today"})
    app.disable("greet", "note://today")
    for server in (fast, app):
        assert await list_tools(server) == ["leave"]
        async with connect(server) as client:
            assert [str(item.uri) for item in await client.list_resources()] == ["note://logo"]
    assert (await call(fast, "greet", {"name": "Ada"})).is_error
    with pytest.raises(NotFound):
        await call(app, "greet", {"name": "Ada"})


async def test_allowlists() -> None:
    """fastmcp has a list of what is allowed on the server itself, dovetail only on a mount."""
    (fast, app), outer = create_pair(), Server("outer")
    for server in (fast, app):
        server.tool(greet, tags={"kind"})
        server.tool(leave)
    fast.enable(tags={"kind"}, only=True)
    outer.mount(app, tags=["kind"])
    assert await list_tools(fast) == await list_tools(outer) == ["greet"]
    with pytest.raises(TypeError):
        app.enable(tags={"kind"}, only=True)


async def test_removed_items() -> None:
    fast, app = create_pair()
    for server in (fast, app):
        server.tool(greet)
        server.tool(leave)
    fast.local_provider.remove_tool("greet")
    app.remove_tool("greet")
    assert await list_tools(fast) == await list_tools(app) == ["leave"]


# Search


async def test_search() -> None:
    fast: Any = FastMCP("x")
    app: Any = Server("x", search=True)
    for server in (fast, app):
        server.tool(greet)
        server.tool(leave, tags={"admin"})
        server.disable(tags={"admin"})
    fast.add_transform(BM25SearchTransform())
    assert await list_tools(fast) == ["call_tool", "search_tools"]
    assert await list_tools(app) == ["call_tool", "describe_tool", "search_tools"]
    for server in (fast, app):
        results = await call(server, "search_tools", {"query": "greet somebody, say goodbye"})
        text = str(results.content[0].text)
        assert "greet" in text
        assert "leave" not in text
        arguments = {"name": "greet", "arguments": {"name": "Ada"}}
        assert (await call(server, "call_tool", arguments)).content[0].text == "Hello, Ada!"
    hidden = {"name": "leave", "arguments": {"name": "Ada"}}
    assert (await call(fast, "call_tool", hidden)).is_error
    with pytest.raises(NotFound):
        await call(app, "call_tool", hidden)


# Items as tools


def _read_day(day: str) -> str:
    return f"note of {day}"


def _create_pair_with_item_tools() -> tuple[Any, Any]:
    fast, app = FastMCP("x"), Server("x", resource_tools=True, prompt_tools=True)
    for server in (fast, app):
        server.resource("note://today", name="today")(lambda: "buy tea")
        server.resource("note://logo", name="logo", mime_type="image/gif")(lambda: b"GIF89a")
        server.resource("note://days/{day}", name="day")(_read_day)
        server.prompt(greet)
    fast.add_transform(ResourcesAsTools(fast))
    fast.add_transform(PromptsAsTools(fast))
    return fast, app


async def test_resources_as_tools() -> None:
    fast, app = _create_pair_with_item_tools()
    for server in (fast, app):
        assert await list_tools(server) == ["get_prompt", "list_prompts", "list_resources", "read_resource"]
        items = json.loads((await call(server, "list_resources")).content[0].text)
        assert [item.get("uri") for item in items] == ["note://today", "note://logo", None]
        assert [item.get("uri_template") for item in items] == [None, None, "note://days/{day}"]
        for uri, text in {"note://today": "buy tea", "note://days/monday": "note of monday"}.items():
            assert (await call(server, "read_resource", {"uri": uri})).content[0].text == text


async def test_binary_resources_as_tools() -> None:
    """The model sees an image of dovetail, and base64 text of fastmcp."""
    fast, app = _create_pair_with_item_tools()
    assert (await call(fast, "read_resource", {"uri": "note://logo"})).content[0].text == "R0lGODlh"
    assert (await call(app, "read_resource", {"uri": "note://logo"})).content == [
        ImageContent(data="R0lGODlh", mime_type="image/gif")
    ]


async def test_prompts_as_tools() -> None:
    contents: list[Any] = []
    for server in _create_pair_with_item_tools():
        (prompt,) = json.loads((await call(server, "list_prompts")).content[0].text)
        assert prompt["name"] == "greet"
        assert [(item["name"], item["required"]) for item in prompt["arguments"]] == [("name", True)]
        result = await call(server, "get_prompt", {"name": "greet", "arguments": {"name": "Ada"}})
        (message,) = json.loads(result.content[0].text)["messages"]
        assert message["role"] == "user"
        contents.append(message["content"])
    assert contents == ["Hello, Ada!", {"type": "text", "text": "Hello, Ada!"}]


# Transforms


def search(query: str, limit: int = 20) -> list[str]:
    """Search the notes."""
    return [query] * limit


async def test_transforms() -> None:
    """dovetail changes tools when it mounts their server."""
    fast, app, outer = FastMCP("x"), Server("x"), Server("outer")
    fast.tool(search)
    app.tool(search)
    fast_arguments = {
        "query": ArgTransformConfig(name="subject", description="What it is about"),
        "limit": ArgTransformConfig(hide=True, default=1),
    }
    fast_config = ToolTransformConfig(name="find", description="Find one note.", arguments=fast_arguments)
    fast.add_transform(ToolTransform({"search": fast_config}))
    arguments = {
        "query": ArgTransform(name="subject", description="What it is about"),
        "limit": ArgTransform(value=1),
    }
    transform = Transform(name="find", description="Find one note.", arguments=arguments)
    outer.mount(app, transforms={"search": transform})
    for server in (fast, outer):
        async with connect(server) as client:
            (definition,) = await client.list_tools()
        assert (definition.name, definition.description) == ("find", "Find one note.")
        assert definition.input_schema["properties"] == {
            "subject": {"type": "string", "description": "What it is about"}
        }
        assert (await call(server, "find", {"subject": "rain"})).structured_content == {"result": ["rain"]}


def test_fields_of_transforms() -> None:
    """Transforms of fastmcp can change more."""
    assert {"name", "title", "description", "tags", "meta", "enabled"} <= set(ToolTransformConfig.model_fields)
    assert set(Transform.__struct_fields__) == {"name", "title", "description", "hide", "arguments"}
    assert {"name", "description", "default", "hide", "required", "examples"} <= set(ArgTransformConfig.model_fields)
    assert set(ArgTransform.__struct_fields__) == {"name", "description", "value"}


# Mounts


async def test_mounts() -> None:
    names: list[list[str]] = []
    for (inner, app), uri in zip(
        zip(create_pair(), create_pair(), strict=True), ("note://in/today", "in+note://today"), strict=True
    ):
        outer: Any = app
        inner.tool(greet)
        inner.resource("note://today", name="today")(lambda: "buy tea")
        inner.prompt(leave)
        outer.mount(inner, "in")
        async with connect(outer) as client:
            tools, prompts = await client.list_tools(), await client.list_prompts()
        names.append([item.name for item in (*tools, *prompts)])
        assert [part.text for part in await read(outer, uri)] == ["buy tea"]
    assert names == [["in_greet", "in_leave"]] * 2


async def test_changes_of_mounted_servers() -> None:
    for inner, app in zip(create_pair(), create_pair(), strict=True):
        outer: Any = app
        outer.mount(inner, "in")
        assert await list_tools(outer) == []
        inner.tool(greet)
        assert await list_tools(outer) == ["in_greet"]


async def test_conflicts_of_mounts() -> None:
    for first, second, app in zip(create_pair(), create_pair(), create_pair(), strict=True):
        outer: Any = app
        first.tool(lambda: "first", name="who")
        second.tool(lambda: "second", name="who")
        outer.mount(first)
        outer.mount(second)
        assert (await call(outer, "who")).content[0].text == "first"
        outer.tool(lambda: "outer", name="who")
        assert (await call(outer, "who")).content[0].text == "outer"


async def test_tags_of_mounts() -> None:
    fast_inner, inner = create_pair()
    fast, app = create_pair()
    for server in (fast_inner, inner):
        server.tool(greet, tags={"public"})
        server.tool(leave)
    fast.mount(fast_inner, "in")
    fast.enable(tags={"public"}, only=True)
    app.mount(inner, "in", tags=["public"])
    assert await list_tools(fast) == await list_tools(app) == ["in_greet"]


async def test_routes_of_mounts() -> None:
    """Routes of a mounted server get its prefix, but not in fastmcp."""
    fast_inner, fast, inner, app = FastMCP("inner"), FastMCP("x"), Server("inner"), Server("x")

    @fast_inner.custom_route("/status", methods=["GET"])
    async def fast_status(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    @inner.route("/status")
    def status() -> str:
        return "ok"

    fast.mount(fast_inner, "in")
    app.mount(inner, "in")
    codes: list[tuple[int, int]] = []
    for web in (fast.http_app(), app.asgi(public_url="http://localhost")):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://localhost") as http:
            codes.append(((await http.get("/status")).status_code, (await http.get("/in/status")).status_code))
    assert codes == [(200, 404), (404, 200)]


# Proxies


async def test_proxies() -> None:
    for (inner, app), mount in zip(zip(create_pair(), create_pair(), strict=True), (create_proxy, Client), strict=True):
        target: Any = inner
        outer: Any = app
        inner.tool(greet)
        outer.mount(mount(target), "far")
        assert await list_tools(outer) == ["far_greet"]
        assert (await call(outer, "far_greet", {"name": "Ada"})).content[0].text == "Hello, Ada!"
        if isinstance(outer, Server):
            await outer.stop()


@pytest.mark.parametrize("outer_version", ["handshake", "stateless"])
@pytest.mark.parametrize("inner_version", ["handshake", "stateless"])
async def test_questions_through_proxies(outer_version: str, inner_version: str) -> None:
    """A question of fastmcp reaches the user only if both connections use a handshake."""
    fast_inner, inner = create_pair()
    modes = {"handshake": "legacy", "stateless": "auto"}

    @fast_inner.tool(name="ask")
    async def fast_ask(ctx: FastContext) -> str:
        await ctx.report_progress(1, 2)
        answer: Any = await ctx.elicit("City?", str)
        return answer.data

    @inner.tool
    async def ask(ctx: Context) -> str:
        await ctx.progress(1, 2)
        return await ctx.elicit("City?", str)

    async def answer(*_: Any) -> dict[str, str]:
        return {"value": "Oslo"}

    fast, app = create_pair()
    fast.mount(create_proxy(fast_inner, mode=modes[inner_version]), "in")
    app.mount(Client(inner, protocol_version=inner_version), "in")
    progress: list[float] = []

    async def note(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async with connect(fast, mode=modes[outer_version], elicitation_handler=answer) as client:
        result = await client.call_tool("in_ask", progress_handler=note, raise_on_error=False)
        assert result.is_error == ("stateless" in (outer_version, inner_version))
    progress.clear()
    async with connect(app, protocol_version=outer_version, elicitation_handler=answer) as client:
        result = await client.call_tool("in_ask", progress_handler=note)
        assert result.content[0].text == "Oslo"
        await asyncio.sleep(0)
    assert 1 in progress
    await app.stop()
