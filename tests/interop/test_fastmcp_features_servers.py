"""Test rows of fastmcp_features.csv about servers, tools, resources, prompts and the context."""

import asyncio
import base64
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import httpx
import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

import mcp_types as types
from fastmcp import Context as FastContext
from fastmcp import FastMCP
from fastmcp.exceptions import ResourceError as FastResourceError
from fastmcp.exceptions import ToolError as FastToolError
from fastmcp.prompts import Message
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier as FastTokenVerifier
from fastmcp.server.dependencies import get_context as get_fast_context
from fastmcp.tools import ToolResult
from fastmcp.tools import tool as fast_tool
from fastmcp.utilities.types import Audio as FastAudio
from fastmcp.utilities.types import File as FastFile
from fastmcp.utilities.types import Image as FastImage
from mcp import MCPError as SdkError
from pydantic import Field
from starlette.responses import PlainTextResponse

from dovetail import (
    Audio,
    CacheHint,
    CallToolResult,
    Context,
    File,
    Image,
    Server,
    TextContent,
    ToolAnnotations,
    ToolError,
    get_context,
    tool,
)
from dovetail.auth import StaticTokenVerifier
from dovetail.errors import MCPError, RemoteError, ResourceNotFound
from interop.fastmcp_pairs import call, connect, create_pair, get_prompt, greet, leave, list_tools, read

pytestmark = [
    pytest.mark.interop,
    # fastmcp warns about its own dependencies.
    pytest.mark.filterwarnings("ignore::Warning"),
]


# Servers


async def test_components() -> None:
    for app in create_pair(instructions="Greets people."):
        app.tool(greet)
        app.resource("note://today")(lambda: "buy tea")
        app.prompt(leave)
        assert (await call(app, "greet", {"name": "Ada"})).content[0].text == "Hello, Ada!"
        assert [part.text for part in await read(app, "note://today")] == ["buy tea"]
        assert [message.content.text for message in await get_prompt(app, "leave", {"name": "Ada"})] == ["Bye, Ada!"]
        async with connect(app) as client:
            assert client.instructions == "Greets people."


async def test_cache_hints() -> None:
    fast = FastMCP("x", cache_ttl=300, cache_scope="public")
    app = Server("x", cache_hints=CacheHint(300_000, "public"))
    for server in (fast, app):
        server.tool(greet)
    async with connect(fast) as client:
        results = [await client.list_tools_mcp()]
    async with connect(app) as client:
        results.append(await client.list_tools_page())
    assert [(result.ttl_ms, result.cache_scope) for result in results] == [(300_000, "public")] * 2


async def test_routes() -> None:
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


# Tools


async def test_tool_decorator() -> None:
    class FastShop:
        @fast_tool()
        def count(self, item: str) -> int:
            return len(item)

    class Shop:
        @tool
        def count(self, item: str) -> int:
            return len(item)

    fast, app = create_pair()
    fast.add_tool(FastShop().count)
    app.include(Shop())
    for server in (fast, app):
        server.tool(greet)
        server.tool()(leave)
        server.tool(name="hail", description="Hail somebody.", meta={"owner": "ada"})(greet)
        assert await list_tools(server) == ["count", "greet", "hail", "leave"]
        assert (await call(server, "count", {"item": "tea"})).structured_content == {"result": 3}
        async with connect(server) as client:
            hail = {item.name: item for item in await client.list_tools()}["hail"]
        assert (hail.description, hail.meta["owner"]) == ("Hail somebody.", "ada")


def price(
    item: Annotated[str, "What to look up"],
    amount: Annotated[int, Field(ge=1, le=9)] = 1,
    currency: Literal["EUR", "USD"] = "EUR",
) -> float:
    """Price of an item.

    Args:
        currency: The currency to use.
    """
    return 2.5 * amount


PRICE_PROPERTIES = {
    "item": {"type": "string", "description": "What to look up"},
    "amount": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
    "currency": {"type": "string", "enum": ["EUR", "USD"], "default": "EUR", "description": "The currency to use."},
}


async def test_arguments() -> None:
    for app in create_pair():
        app.tool(price)
        async with connect(app) as client:
            (definition,) = await client.list_tools()
        assert definition.description == "Price of an item."
        assert definition.input_schema["properties"] == PRICE_PROPERTIES
        assert definition.input_schema["required"] == ["item"]
        assert (await call(app, "price", {"item": "tea", "amount": "3"})).structured_content == {"result": 7.5}
        for arguments in ({"item": "tea", "amount": 0}, {"amount": 2}, {"item": "tea", "amuont": 2}):
            assert (await call(app, "price", arguments)).is_error


@dataclass
class Parcel:
    weight: float
    fragile: bool


async def test_return_values() -> None:
    fast, app = create_pair()

    @fast.tool(name="by_hand")
    def fast_by_hand() -> ToolResult:
        return ToolResult(content="two", structured_content={"n": 2}, meta={"tag": "x"})

    @app.tool
    def by_hand() -> CallToolResult:
        return CallToolResult(content=[TextContent(text="two")], structured_content={"n": 2}, meta={"tag": "x"})

    fast.tool(lambda: [FastImage(data=b"GIF89a", format="gif"), "text"], name="media")
    app.add_tool(lambda: [Image(b"GIF89a"), "text"], name="media")
    fast.tool(lambda: FastAudio(data=b"OggS", format="ogg"), name="sound")
    app.add_tool(lambda: Audio(b"OggS"), name="sound")
    fast.tool(lambda: FastFile(data=b"a,b", format="csv"), name="table")
    app.add_tool(lambda: File(b"a,b", name="table.csv"), name="table")

    def pack() -> Parcel:
        return Parcel(0.5, True)

    def count() -> int:
        return 3

    for server in (fast, app):
        server.tool(pack)
        server.tool(count)
        parcel = await call(server, "pack")
        assert parcel.structured_content == {"weight": 0.5, "fragile": True}
        assert json.loads(parcel.content[0].text) == {"weight": 0.5, "fragile": True}
        assert (await call(server, "count")).structured_content == {"result": 3}
        by_hand_result = await call(server, "by_hand")
        assert by_hand_result.content[0].text == "two"
        assert by_hand_result.structured_content == {"n": 2}
        assert by_hand_result.meta["tag"] == "x"
        image, text = (await call(server, "media")).content
        assert (image.mime_type, base64.b64decode(image.data), text.text) == ("image/gif", b"GIF89a", "text")
        assert [part.type for part in (await call(server, "sound")).content] == ["audio"]
        assert [part.type for part in (await call(server, "table")).content] == ["resource"]


async def test_output_schemas() -> None:
    schema = {"type": "object", "properties": {"data": {"type": "string"}}}
    for app in create_pair():
        app.tool(lambda: {"data": "x"}, name="own", output_schema=schema)
        app.tool(price)
        async with connect(app) as client:
            schemas = {item.name: item.output_schema for item in await client.list_tools()}
        assert schemas["own"] == schema
        assert schemas["price"]["properties"] == {"result": {"type": "number"}}


async def test_tool_errors() -> None:
    def refuse(error: type[Exception]) -> str:
        raise error("too old")

    def crash() -> str:
        raise RuntimeError("the password is swordfish")

    fast, app = create_pair()
    fast.tool(lambda: refuse(FastToolError), name="refuse")
    app.add_tool(lambda: refuse(ToolError), name="refuse")
    for server in (fast, app):
        server.tool(crash)
        refusal = await call(server, "refuse")
        assert (refusal.is_error, refusal.content[0].text) == (True, "too old")
    assert "swordfish" in (await call(fast, "crash")).content[0].text
    assert "swordfish" not in (await call(app, "crash")).content[0].text


async def test_timeouts() -> None:
    async def wait() -> str:
        await asyncio.sleep(60)
        return "done"

    for app in create_pair():
        app.tool(wait, timeout=0.05)
        assert (await call(app, "wait")).is_error


async def test_annotations() -> None:
    fast, app = create_pair()
    fast.tool(greet, annotations=types.ToolAnnotations(title="Greet", read_only_hint=True, open_world_hint=False))
    app.tool(greet, annotations=ToolAnnotations(title="Greet", read_only_hint=True, open_world_hint=False))
    app.tool(leave, read_only=True, open_world=False)
    for server in (fast, app):
        async with connect(server) as client:
            for definition in await client.list_tools():
                hints = definition.annotations
                assert (hints.read_only_hint, hints.open_world_hint) == (True, False)


async def test_change_notices() -> None:
    """dovetail sends a notice for each change of the server. fastmcp sends notices only for changes of one session."""
    fast, app = create_pair()
    methods: list[str] = []

    async def note(message: Any) -> None:
        methods.append(message.method)

    for server in (fast, app):
        server.tool(leave)

    @fast.tool
    async def change_server() -> None:
        fast.tool(greet)
        fast.disable(names={"greet"})
        fast.enable(names={"greet"})
        fast.local_provider.remove_tool("greet")

    @fast.tool
    async def change_session(ctx: FastContext) -> None:
        await ctx.disable_components(names={"leave"}, components={"tool"})

    async with connect(fast, mode="legacy", message_handler=note) as client:
        await client.call_tool("change_server")
        await client.list_tools()
        assert methods == []
        await client.call_tool("change_session")
        await client.list_tools()
        assert methods == ["notifications/tools/list_changed"]
    async with connect(app) as client, client.listen(tools=True) as subscription:
        changes = aiter(subscription)
        for change in (
            lambda: app.tool(greet),
            lambda: app.disable("greet"),
            lambda: app.enable("greet"),
            lambda: app.remove_tool("greet"),
        ):
            change()
            assert (await anext(changes)).kind == "tools"
    assert await list_tools(app) == ["leave"]


async def test_versions() -> None:
    """Only fastmcp has several versions of one item."""
    fast, app = create_pair()
    for version in ("1", "2"):
        fast.tool(greet, version=version)
        fast.resource("note://today", name="today", version=version)(lambda: "buy tea")
        fast.prompt(greet, version=version)
    assert await list_tools(fast) == ["greet"]
    async with connect(fast) as client:
        assert [str(item.uri) for item in await client.list_resources()] == ["note://today"]
        assert [item.name for item in await client.list_prompts()] == ["greet"]
    app.tool(greet, version="1")
    app.resource("note://today", version="1")(lambda: "buy tea")
    app.prompt(greet, version="1")
    with pytest.raises(ValueError, match="greet"):
        app.tool(greet, version="2")
    with pytest.raises(ValueError, match="note://today"):
        app.resource("note://today", version="2")(lambda: "buy tea")
    with pytest.raises(ValueError, match="greet"):
        app.prompt(greet, version="2")


async def test_duplicate_names() -> None:
    fast, app = create_pair()
    for server in (fast, app):
        server.tool(greet)
        server.resource("note://today")(lambda: "buy tea")
        server.prompt(greet)
    fast.tool(leave, name="greet")
    assert (await call(fast, "greet", {"name": "Ada"})).content[0].text == "Bye, Ada!"
    with pytest.raises(ValueError, match="greet"):
        app.tool(leave, name="greet")
    with pytest.raises(ValueError, match="note://today"):
        app.resource("note://today")(lambda: "buy milk")
    with pytest.raises(ValueError, match="greet"):
        app.prompt(leave, name="greet")


# Resources


async def test_resources() -> None:
    for app in create_pair():
        app.resource("note://text", mime_type="text/plain")(lambda: "buy tea")
        app.resource("note://logo", mime_type="image/gif")(lambda: b"GIF89a")
        async with connect(app) as client:
            resources = {str(item.uri): item for item in await client.list_resources()}
        assert {uri: item.mime_type for uri, item in resources.items()} == {
            "note://text": "text/plain",
            "note://logo": "image/gif",
        }
        (logo,) = await read(app, "note://logo")
        assert (base64.b64decode(logo.blob), logo.mime_type) == (b"GIF89a", "image/gif")


def describe(city: str, days: int = 1) -> str:
    return f"{city} {days}"


@pytest.mark.parametrize(
    ("template", "plain_template", "uri", "text"),
    [
        ("city://{city}", "city://{city}", "city://Oslo", "Oslo 1"),
        ("city://{city}/{days}", "city://{city}/{days}", "city://Oslo/3", "Oslo 3"),
        ("city://{city}{?days}", "city://{city}{?days}", "city://Oslo?days=3", "Oslo 3"),
        ("city://all/{city*}", "city://all/{+city}", "city://all/no/Oslo", "no/Oslo 1"),
    ],
)
async def test_templates(template: str, plain_template: str, uri: str, text: str) -> None:
    fast, app = create_pair()
    fast.resource(template)(describe)
    app.resource(plain_template)(describe)
    for server in (fast, app):
        assert [part.text for part in await read(server, uri)] == [text]
        with pytest.raises((SdkError, MCPError)):
            await read(server, uri.replace("Oslo", "..%2F..%2FOslo"))


async def test_resource_errors() -> None:
    fast, app = create_pair()

    def crash() -> str:
        raise RuntimeError("the password is swordfish")

    def refuse() -> str:
        raise FastResourceError("not here")

    def miss() -> str:
        raise ResourceNotFound("note://missing")

    fast.resource("note://missing")(refuse)
    app.resource("note://missing")(miss)
    for server in (fast, app):
        server.resource("note://crash")(crash)
    with pytest.raises(SdkError, match="not here"):
        await read(fast, "note://missing")
    with pytest.raises(RemoteError) as missing:
        await read(app, "note://missing")
    assert missing.value.code == types.INVALID_PARAMS
    with pytest.raises(SdkError, match="swordfish"):
        await read(fast, "note://crash")
    with pytest.raises(MCPError) as caught:
        await read(app, "note://crash")
    assert "swordfish" not in str(caught.value)


# Prompts


async def test_prompts() -> None:
    def plan(numbers: list[int], city: str = "Oslo") -> str:
        """Plan a trip.

        Args:
            city: Where to.
        """
        return f"{sum(numbers)} days in {city}"

    fast, app = create_pair()
    fast.prompt(lambda: [Message("Hello"), Message("Hi", role="assistant")], name="talk")
    app.prompt(lambda: ["Hello", {"role": "assistant", "content": "Hi"}], name="talk")
    for server in (fast, app):
        server.prompt(plan)
        (message,) = await get_prompt(server, "plan", {"numbers": "[1, 2]"})
        assert (message.role, message.content.text) == ("user", "3 days in Oslo")
        talk = await get_prompt(server, "talk")
        assert [(item.role, item.content.text) for item in talk] == [("user", "Hello"), ("assistant", "Hi")]
        async with connect(server) as client:
            definition = {item.name: item for item in await client.list_prompts()}["plan"]
        numbers, city = definition.arguments
        assert definition.description == "Plan a trip."
        assert (numbers.name, bool(numbers.required)) == ("numbers", True)
        assert (city.name, bool(city.required), city.description) == ("city", False, "Where to.")


# Input of the user in resources and prompts


async def test_elicit_in_resources_and_prompts() -> None:
    """fastmcp asks only in handshake connections."""
    fast, app = create_pair()

    async def fast_ask(ctx: FastContext) -> str:
        answer: Any = await ctx.elicit("City?", str)
        return answer.data

    async def ask(ctx: Context) -> str:
        return await ctx.elicit("City?", str)

    async def answer(*_: Any) -> dict[str, str]:
        return {"value": "Oslo"}

    for server, function in ((fast, fast_ask), (app, ask)):
        server.resource("note://city")(function)
        server.prompt(function, name="city")

    async def read_both(**options: Any) -> list[str]:
        server: Any = fast if "mode" in options else app
        async with connect(server, elicitation_handler=answer, **options) as client:
            contents: Any = await client.read_resource("note://city")
            prompt = await client.get_prompt("city")
            parts = contents if server is fast else contents.contents
            return [parts[0].text, prompt.messages[0].content.text]

    assert await read_both(mode="legacy") == ["Oslo", "Oslo"]
    with pytest.raises(SdkError):
        await read_both(mode="auto")
    for version in ("handshake", "stateless"):
        assert await read_both(protocol_version=version) == ["Oslo", "Oslo"]


# Context


async def test_context() -> None:
    fast, app = create_pair()

    async def fast_log() -> None:
        await get_fast_context().info("saved")

    async def log() -> None:
        await get_context().info("saved")

    @fast.tool(name="save")
    async def fast_save(ctx: FastContext) -> list[str]:
        await fast_log()
        contents = (await ctx.read_resource("note://today")).contents
        prompt: Any = await ctx.get_prompt("greet", {"name": "Ada"})
        return [str(contents[0].content), prompt.messages[0].content.text]

    @app.tool
    async def save(ctx: Context) -> list[str]:
        await log()
        note = await ctx.read_resource("note://today")
        prompt: Any = await ctx.get_prompt("greet", {"name": "Ada"})
        return [note.text, prompt.messages[0].content.text]

    for server in (fast, app):
        server.resource("note://today")(lambda: "buy tea")
        server.prompt(greet)
        assert (await call(server, "save")).structured_content == {"result": ["buy tea", "Hello, Ada!"]}
        async with connect(server) as client:
            (definition,) = await client.list_tools()
        assert definition.input_schema["properties"] == {}
    with pytest.raises(RuntimeError):
        get_fast_context()
    with pytest.raises(RuntimeError):
        get_context()
