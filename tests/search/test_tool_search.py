"""Test servers that list search tools instead of all tools: listing, access, middleware, results and tasks."""

import json
from typing import Annotated, Any, Literal

import pytest

from dovetail import Client, Context, Server, ToolAnnotations, ToolError, testing
from dovetail.auth import BearerAuth, Principal, StaticTokenVerifier
from dovetail.errors import Forbidden, NotFound, RemoteError, ToolNotFound
from dovetail.extensions import TaskConfig
from dovetail.middleware import CallNext, Exchange

Era = Literal["handshake", "stateless"]
NAMES = ["search_tools", "describe_tool", "call_tool"]
TOKENS = StaticTokenVerifier({"ada": Principal("ada", scopes=["write"]), "bob": Principal("bob")})


@pytest.fixture(params=["handshake", "stateless"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


def create_app(**options: Any) -> Server:
    app = Server("big", search=True, **options)
    for number in range(200):
        app.add_tool(lambda: "filler", name=f"filler_{number}", description=f"Do the thing number {number}.")

    @app.tool(read_only=True)
    def find_flight(city: str, seats: int = 1) -> dict[str, Any]:
        """Find a flight to a city."""
        return {"city": city, "seats": seats}

    @app.tool(scopes=["write"])
    def delete_flight(id: int) -> str:
        """Delete a flight."""
        return f"deleted {id}"

    return app


async def search(client: Client, query: str) -> list[str]:
    return [found["name"] for found in json.loads((await client.call_tool("search_tools", {"query": query})).text)]


async def test_a_tool_is_found_described_and_called(era: Era) -> None:
    async with Client(create_app(), protocol_version=era) as client:
        assert [tool.name for tool in await client.list_tools()] == NAMES
        assert (await search(client, "flight to a city"))[0] == "find_flight"
        described = json.loads((await client.call_tool("describe_tool", {"name": "find_flight"})).text)
        assert described["annotations"]["readOnlyHint"] is True
        assert described["inputSchema"]["required"] == ["city"]
        call = {"name": "find_flight", "arguments": {"city": "Oslo"}}
        assert (await client.call_tool("call_tool", call)).data == {"city": "Oslo", "seats": 1}
        assert (await client.call_tool("find_flight", {"city": "Oslo"})).data == {"city": "Oslo", "seats": 1}


async def test_wrong_arguments_are_reported_as_in_a_direct_call(era: Era) -> None:
    async with Client(create_app(), protocol_version=era) as client:
        direct = await client.call_tool("find_flight", {"city": "Oslo", "seats": "many"})
        indirect = await client.call_tool(
            "call_tool", {"name": "find_flight", "arguments": {"city": "Oslo", "seats": "many"}}
        )
        assert indirect.is_error
        assert indirect.content == direct.content
        for arguments in ({"name": "nothing"}, {"name": "call_tool"}, {"name": "search_tools"}, {}, {"name": 3}):
            with pytest.raises(RemoteError):
                await client.call_tool("call_tool", arguments)
        assert (await client.call_tool("describe_tool", {"name": "nothing"})).is_error


async def test_an_unknown_tool_is_answered_with_a_similar_name_that_the_caller_sees(era: Era) -> None:
    app = create_app(auth=TOKENS)
    async with (
        testing.serve(app, transport="http") as url,
        Client(url, auth=BearerAuth("bob"), protocol_version=era) as bob,
    ):
        await bob.list_tools()
        for name, hint in (
            ("fnd_flight", "Did you mean 'find_flight'?"),
            ("delete_fligt", "Did you mean 'find_flight'?"),  # bob does not see delete_flight
            ("zzz", "Use search_tools to find names."),
        ):
            for call in ((name, {}), ("call_tool", {"name": name})):
                with pytest.raises(NotFound) as caught:
                    await bob.call_tool(*call)
                assert caught.value.message == f"Unknown tool: {name}. {hint}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("call_unknown", "Unknown tool: find_fligt. Did you mean 'find_flight'?"),
        ("raise_other_name", "Unknown tool: find_fligt"),
        ("raise_own_name", "Unknown tool: raise_own_name"),
    ],
)
async def test_an_error_inside_a_tool_gets_no_suggestion_for_the_tool(era: Era, name: str, message: str) -> None:
    app = create_app()

    @app.tool
    async def call_unknown(ctx: Context) -> str:
        return (await ctx.call_tool("find_fligt")).text

    @app.tool
    def raise_other_name() -> None:
        raise ToolNotFound("find_fligt")

    @app.tool
    def raise_own_name() -> None:
        raise ToolNotFound("raise_own_name")

    async with Client(app, protocol_version=era) as client:
        for call in ((name, {}), ("call_tool", {"name": name})):
            with pytest.raises(NotFound) as caught:
                await client.call_tool(*call)
            assert caught.value.message == message


async def test_access_rules_apply(era: Era) -> None:
    app = create_app(auth=TOKENS)
    async with testing.serve(app, transport="http") as url:
        async with Client(url, auth=BearerAuth("bob"), protocol_version=era) as bob:
            assert "delete_flight" not in await search(bob, "delete flight")
            assert (await bob.call_tool("describe_tool", {"name": "delete_flight"})).is_error
            with pytest.raises(Forbidden, match="write"):
                await bob.call_tool("call_tool", {"name": "delete_flight", "arguments": {"id": 1}})
        async with Client(url, auth=BearerAuth("ada"), protocol_version=era) as ada:
            assert (await search(ada, "delete flight"))[0] == "delete_flight"
            call = {"name": "delete_flight", "arguments": {"id": 1}}
            assert (await ada.call_tool("call_tool", call)).text == "deleted 1"


async def test_disabled_tools_are_not_found() -> None:
    app = create_app()
    app.disable("find_flight")
    async with Client(app) as client:
        assert "find_flight" not in await search(client, "flight")
        with pytest.raises(RemoteError):
            await client.call_tool("call_tool", {"name": "find_flight", "arguments": {"city": "Oslo"}})
        app.enable("find_flight")
        assert "find_flight" in await search(client, "flight")


async def test_middleware_sees_the_tool_that_is_called() -> None:
    app = create_app()
    seen: list[object] = []

    @app.middleware
    async def note(exchange: Exchange, call_next: CallNext) -> object:
        seen.append((exchange.method, exchange.params.get("name")))
        return await call_next(exchange)

    async with Client(app) as client:
        await client.list_tools()
        await search(client, "flight")
        await client.call_tool("call_tool", {"name": "find_flight", "arguments": {"city": "Oslo"}})
    assert seen[-3:] == [("tools/list", None), ("tools/call", "search_tools"), ("tools/call", "find_flight")]


async def test_a_tool_may_ask_the_user(era: Era) -> None:
    app = create_app()

    @app.tool
    async def book(ctx: Context) -> str:
        """Book a seat."""
        return f"{await ctx.elicit('How many?', int)} seats"

    async with Client(app, elicitation_handler=lambda _: {"value": 3}, protocol_version=era) as client:
        assert (await client.call_tool("call_tool", {"name": "book"})).text == "3 seats"


async def test_arguments_that_headers_mirror() -> None:
    app = create_app()

    @app.tool
    def area(region: Annotated[str, {"x-mcp-header": "Region"}]) -> str:
        """Show an area."""
        return region

    async with testing.serve(app, transport="http") as url, Client(url) as client:
        call = {"name": "area", "arguments": {"region": "north"}}
        assert (await client.call_tool("call_tool", call)).text == "north"


async def test_a_long_call_becomes_a_task() -> None:
    app = create_app()

    @app.tool(task=TaskConfig(after=0.01))
    async def report(ctx: Context) -> str:
        """Write a report."""
        return "done"

    async with Client(app) as client:
        assert (await client.call_tool("call_tool", {"name": "report"})).text == "done"


async def test_tools_of_mounted_servers_are_found() -> None:
    shop, app = Server("shop", search=True), Server("outer", search=True)
    shop.add_tool(lambda: "3", name="stock", description="How many there are.")
    app.mount(shop, "shop")
    async with Client(app) as client:
        assert await search(client, "stock") == ["shop_stock"]
        assert (await client.call_tool("call_tool", {"name": "shop_stock"})).text == "3"
    outer = Server("plain")
    outer.mount(shop)
    async with Client(outer) as client:
        assert [tool.name for tool in await client.list_tools()] == ["stock"]


async def test_callers_with_different_tools_get_their_own_results() -> None:
    app = Server("x", search=True, auth=TOKENS)
    app.add_tool(lambda: "a", name="open_door", description="Open the door.")
    app.add_tool(lambda: "a", name="open_safe", description="Open the safe.", visible_to=lambda who: who == "ada")
    for _ in range(2):
        async with testing.connect(app, principal="ada") as client:
            assert sorted(await search(client, "open")) == ["open_door", "open_safe"]
        async with testing.connect(app, principal="bob") as client:
            assert await search(client, "open") == ["open_door"]


def test_names_of_search_tools_are_reserved() -> None:
    with pytest.raises(ValueError, match="call_tool"):
        Server("x", search=True).add_tool(lambda: "x", name="call_tool")


async def test_a_server_without_tools_lists_none() -> None:
    app = Server("x", search=True)
    app.resource("a://b")(lambda: "x")
    async with Client(app) as client:
        assert await client.list_tools() == []


def create_readable(**options: Any) -> Server:
    app = Server("x", **options)

    @app.resource("notes://today", description="Notes of today.")
    def today() -> str:
        return "buy tea"

    @app.resource("pixel://{color}", mime_type="image/png")
    def pixel(color: str) -> bytes:
        return color.encode()

    @app.prompt
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"Say hello to {name}"

    return app


async def test_resources_as_tools(era: Era) -> None:
    async with Client(create_readable(resource_tools=True), protocol_version=era) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert tools.keys() == {"list_resources", "read_resource"}
        assert all(tool.annotations == ToolAnnotations(read_only_hint=True) for tool in tools.values())
        listed = (await client.call_tool("list_resources")).data
        assert listed == [
            {"uri": "notes://today", "name": "today", "description": "Notes of today."},
            {"uri_template": "pixel://{color}", "name": "pixel", "mime_type": "image/png"},
        ]
        assert (await client.call_tool("read_resource", {"uri": "notes://today"})).text == "buy tea"
        (image,) = (await client.call_tool("read_resource", {"uri": "pixel://red"})).content
        assert (image.type, image.mime_type, image.data) == ("image", "image/png", "cmVk")
        unknown = await client.call_tool("read_resource", {"uri": "notes://never"})
        assert unknown.is_error
        assert "notes://never" in unknown.text


async def test_prompts_as_tools(era: Era) -> None:
    async with Client(create_readable(prompt_tools=True), protocol_version=era) as client:
        assert {tool.name for tool in await client.list_tools()} == {"list_prompts", "get_prompt"}
        assert (await client.call_tool("list_prompts")).data == [
            {
                "name": "greet",
                "description": "Greet somebody.",
                "arguments": [{"name": "name", "required": True}],
            }
        ]
        result = await client.call_tool("get_prompt", {"name": "greet", "arguments": {"name": "Ada"}})
        assert result.data == {
            "description": "Greet somebody.",
            "messages": [{"role": "user", "content": {"type": "text", "text": "Say hello to Ada"}}],
        }
        for arguments in ({"name": "none"}, {"name": "greet"}):
            with pytest.raises(ToolError):
                await client.call("get_prompt", **arguments)


async def test_items_as_tools_follow_access_rules_and_pages() -> None:
    app = Server("x", auth=TOKENS, resource_tools=True, prompt_tools=True, search=True, page_size=2)
    for number in range(5):
        app.add_resource(lambda: "text", f"notes://{number}")
    app.add_resource(lambda: "secret", "notes://secret", scopes=["write"])
    async with testing.connect(app, principal=Principal("bob")) as bob:
        listed = json.loads((await bob.call_tool("call_tool", {"name": "list_resources"})).text)
        assert [item["uri"] for item in listed] == [f"notes://{number}" for number in range(5)]
        assert (await bob.call_tool("list_prompts")).data == []
        with pytest.raises(RemoteError, match="write"):
            await bob.call_tool("read_resource", {"uri": "notes://secret"})
    async with testing.connect(app, principal=Principal("ada", scopes=["write"])) as ada:
        assert (await ada.call_tool("read_resource", {"uri": "notes://secret"})).text == "secret"
