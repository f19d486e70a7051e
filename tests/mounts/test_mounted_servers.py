"""Test mounted servers: everything is served live under a prefix, with its own lifespan and middleware."""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import (
    ArgTransform,
    Client,
    Context,
    EmbeddedResource,
    RemoteError,
    ResourceLink,
    Server,
    ToolError,
    Transform,
)
from dovetail import ResourceContents as Contents
from support.list_capabilities import ONLY_TOOLS
from support.mentions import mentions, values


def inner(name: str = "inner", **options: Any) -> Server:
    app = Server(name, **options)

    @app.tool(tags=["public"])
    async def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @app.tool(tags=["admin"])
    async def wipe() -> str:
        return "gone"

    @app.tool
    async def links() -> list[Any]:
        return [
            ResourceLink(uri="note:1", name="one"),
            EmbeddedResource(resource=Contents(uri="note:1", text="note 1")),
            ResourceLink(uri="https://example.com/", name="elsewhere"),
        ]

    @app.tool
    async def ask(ctx: Context) -> str:
        return await ctx.elicit("Which?", str)

    @app.resource("note:all")
    def notes() -> str:
        return "all"

    @app.resource("note:{number}", tags=["public"])
    def note(number: int) -> str:
        return f"note {number}"

    @app.prompt
    def greet(kind: str) -> str:
        return f"be {kind}"

    @app.completion("greet", "kind")
    def kinds(value: str) -> list[str]:
        return [f"{value}!"]

    return app


@pytest.fixture(params=["2025-06-18", "2026-07-28"])
def revision(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_everything_under_a_prefix(revision: str) -> None:
    app = Server("outer")
    app.mount(inner(), "in")
    async with Client(app, protocol_version=revision, elicitation_handler=lambda _: {"value": "this"}) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert names == ["in_add", "in_wipe", "in_links", "in_ask"]
        assert await client.call("in_add", a=1) == 2
        assert await client.call("in_ask") == "this"
        link, embedded, elsewhere = (await client.call_tool("in_links")).content
        assert link.uri == "in+note:1"  # pyright: ignore[reportAttributeAccessIssue]
        assert embedded.resource.uri == "in+note:1"  # pyright: ignore[reportAttributeAccessIssue]
        assert elsewhere.uri == "https://example.com/"  # pyright: ignore[reportAttributeAccessIssue]
        assert [one.uri for one in await client.list_resources()] == ["in+note:all"]
        assert [one.uri_template for one in await client.list_resource_templates()] == ["in+note:{number}"]
        result = await client.read_resource("in+note:7")
        assert (result.contents[0].text, result.contents[0].uri) == ("note 7", "in+note:7")
        assert [one.name for one in await client.list_prompts()] == ["in_greet"]
        assert "be kind" in str(await client.get_prompt("in_greet", {"kind": "kind"}))
        assert (await client.complete("kind", "x", prompt="in_greet")).values == ["x!"]
        for wrong in ("add", "in_nothing", "in_", "other_add"):
            with pytest.raises(RemoteError, match=values(wrong)):
                await client.call(wrong)
        with pytest.raises(RemoteError):
            await client.read("note:7")


async def test_several_and_nested_and_the_servers_own_first() -> None:
    deep = Server("deep")
    deep.mount(inner("a"), "a")
    app = Server("outer")
    app.add_tool(lambda: "own", name="add")
    app.mount(deep, "deep")
    app.mount(inner("b"))  # without a prefix
    async with Client(app) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert names[0] == "add"
        assert {"deep_a_add", "wipe"} < set(names)
        assert len(names) == len(set(names))
        assert await client.call("add") == "own"
        assert await client.call("deep_a_add", a=2) == 3
        assert await client.call("wipe") == "gone"
        assert await client.read("deep+a+note:7") == "note 7"


async def test_what_comes_later_shows(revision: str) -> None:
    app, child = Server("outer"), inner()
    unmount = app.mount(child, "in")
    async with (
        Client(app, protocol_version=revision) as client,
        client.listen(tools=True, uris=["in+note:1"]) as changes,
    ):
        feed = aiter(changes)
        child.add_tool(lambda: 5, name="five")
        assert (await anext(feed)).kind == "tools"
        assert await client.call("in_five") == 5
        child.disable("five")
        assert (await anext(feed)).kind == "tools"
        with pytest.raises(RemoteError):
            await client.call("in_five")
        child.notify_resource_updated("note:1")
        change = await anext(feed)
        assert (change.kind, change.uri) == ("resource", "in+note:1")
        app.mount(Server("second", capabilities=ONLY_TOOLS), "second")
        assert (await anext(feed)).kind in ("tools", "resources", "prompts")
        unmount()
        with pytest.raises(RemoteError):
            await client.call("in_add", a=1)


async def test_lifespans_and_middleware_are_its_own() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        steps.append("entered")
        yield "pool"
        steps.append("left")

    def around(name: str) -> Any:
        async def step(exchange: Any, call_next: Any) -> Any:
            if exchange.method != "tools/call":
                return await call_next(exchange)
            steps.append(f"{name} before {exchange.params['name']}")
            result = await call_next(exchange)
            steps.append(f"{name} after {exchange.params['name']}")
            return result

        return step

    child = Server("child", lifespan=lifespan, middleware=[around("child")])

    @child.tool
    async def state(ctx: Context) -> str:
        return ctx.lifespan

    app = Server("outer", middleware=[around("outer")])
    app.mount(child, "in")
    async with Client(app) as client:
        assert await client.call("in_state") == "pool"
        assert await client.call("in_state") == "pool"
    await app.stop()
    once = ["outer before in_state", "child before state", "child after state", "outer after in_state"]
    assert steps == ["entered", *once, *once, "left"]


async def test_transforms(revision: str) -> None:
    app = Server("outer")
    transforms = {
        "add": Transform(
            name="increase",
            title="Increase",
            description="Add ten.",
            arguments={"a": ArgTransform(name="number", description="What to increase."), "b": ArgTransform(value=10)},
        ),
        "wipe": Transform(hide=True),
        "note:all": Transform(description="All of them."),
        "greet": Transform(arguments={"kind": ArgTransform(name="manner")}),
    }
    app.mount(inner(), "in", transforms=transforms)
    async with Client(app, protocol_version=revision) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert set(tools) == {"in_increase", "in_links", "in_ask"}
        tool = tools["in_increase"]
        assert (tool.title, tool.description) == ("Increase", "Add ten.")
        assert tool.input_schema["properties"] == {"number": {"type": "integer", "description": "What to increase."}}
        assert tool.input_schema["required"] == ["number"]
        assert await client.call("in_increase", number=5) == 15
        for arguments in ({"number": 5, "b": 1}, {"a": 5}):
            with pytest.raises(ToolError, match="Invalid arguments"):
                await client.call("in_increase", **arguments)
        for gone in ("in_add", "in_wipe"):
            with pytest.raises(RemoteError, match=gone):
                await client.call(gone)
        assert (await client.list_resources())[0].description == "All of them."
        prompt = await client.get_prompt("in_greet", {"manner": "good"})
        assert "be good" in str(prompt)
        assert (await client.complete("manner", "x", prompt="in_greet")).values == ["x!"]


async def test_only_what_has_a_tag() -> None:
    app = Server("outer")
    app.mount(inner(), tags=["public"])
    async with Client(app) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add"]
        assert await client.call("add", a=1) == 2
        with pytest.raises(RemoteError):
            await client.call("wipe")
        assert await client.list_resources() == []
        assert await client.read("note:7") == "note 7"


async def test_pages_of_what_is_mounted() -> None:
    app = Server("outer", page_size=2)
    app.mount(inner(), "in")
    async with Client(app) as client:
        page = await client.list_tools_page()
        assert len(page.tools) == 2
        assert len((await client.list_tools_page(page.next_cursor)).tools) == 2
        assert len(await client.list_tools()) == 4


async def test_a_question_is_sealed_with_the_outer_servers_secrets() -> None:
    """Two workers of one server, each with what is mounted on it: one asks, the other hears the answer."""

    def worker() -> Server:
        app = Server("outer", secret_keys=["s" * 16])
        app.mount(inner(), "in")
        return app

    async with (
        Client(worker(), elicitation_handler=lambda _: {}) as one,
        Client(worker(), elicitation_handler=lambda _: {}) as other,
    ):
        pending: Any = await one.call_tool("in_ask", allow_input_required=True)
        (key,) = pending.input_requests
        result = await other.resume(pending, {key: {"action": "accept", "content": {"value": "that"}}})
        assert "that" in str(result.content)


async def test_mistakes() -> None:
    app = Server("outer")
    for prefix in ("a_b", "1a", "a b", "a/b"):
        with pytest.raises(ValueError, match="prefix"):
            app.mount(inner(), prefix)
    with pytest.raises(TypeError, match="tags="):
        app.mount(inner(), tags="public")


UNFIT: list[tuple[dict[str, Transform], str]] = [
    ({"ad": Transform(hide=True)}, values("ad", "add")),
    ({"add": Transform(arguments={"c": ArgTransform(name="d")})}, values("add", "c")),
    ({"greet": Transform(arguments={"kynd": ArgTransform(name="d")})}, values("greet", "kynd", "kind")),
    ({"add": Transform(name="wipe")}, values("add", "wipe")),
]


@pytest.mark.parametrize(("transforms", "words"), UNFIT)
async def test_transforms_that_do_not_fit_are_refused(transforms: dict[str, Transform], words: str) -> None:
    between, app = Server("between"), Server("outer")
    between.mount(inner())
    for target in (inner(), between):
        with pytest.raises(ValueError, match=words):
            app.mount(target, transforms=transforms)
    async with Client(app) as client:
        assert client.server_capabilities.tools is None


@pytest.mark.parametrize(("transforms", "words"), UNFIT)
async def test_of_a_server_elsewhere_the_log_tells_once(
    transforms: dict[str, Transform], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, between = Server("outer"), Server("between")
    between.mount(Client(inner()))
    app.mount(between, transforms=transforms)
    async with Client(app, cache=False) as client:
        for _ in range(2):
            assert "links" in {tool.name for tool in await client.list_tools()}
    told = [one.getMessage() for one in caplog.records if mentions(one.getMessage(), "outer")]
    assert len(told) == 1
    assert re.search(words, told[0])
    await app.stop()


async def test_what_took_a_name_has_it_in_lists_and_in_calls() -> None:
    app = Server("outer")
    app.mount(Client(inner()), transforms={"add": Transform(name="wipe")})
    async with Client(app) as client:
        (tool,) = [tool for tool in await client.list_tools() if tool.name == "wipe"]
        assert tool.description == "Add two numbers."
        assert await client.call("wipe", a=1) == 2
    await app.stop()


async def test_two_may_change_names() -> None:
    app = Server("outer")
    app.mount(inner(), transforms={"add": Transform(name="wipe"), "wipe": Transform(name="add")})
    async with Client(app) as client:
        assert await client.call("add") == "gone"


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ({"add": {"name": "plus"}}, values("add", "Transform(...)", "dict")),
        ({"add": Transform(arguments={"a": {"name": "x"}})}, values("a", "add")),  # pyright: ignore[reportArgumentType]
        ([Transform()], "transforms"),
        ({"add": Transform(name="x"), "wipe": Transform(name="x")}, "'x'"),
    ],
)
async def test_an_invalid_transform_is_refused(transforms: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Server("outer").mount(inner(), transforms=transforms)


@pytest.mark.parametrize("distant", [False, True], ids=["local", "distant"])
async def test_disabling_by_tag_means_what_is_mounted_too(distant: bool) -> None:
    app, below = Server("outer"), inner()
    app.mount(Client(below) if distant else below, "far")
    async with Client(app) as client:
        app.disable(tags=["admin", "nope"])
        assert "far_wipe" not in [tool.name for tool in await client.list_tools()]
        with pytest.raises(RemoteError, match="far_wipe"):
            await client.call("far_wipe")
        assert await client.call("far_add", a=1) == 2
        app.disable(tags=["public"])
        with pytest.raises(RemoteError):
            await client.read("far+note:1")
        app.enable(tags=["admin", "public"])
        assert "far_wipe" in [tool.name for tool in await client.list_tools()]
        assert await client.call("far_wipe") == "gone"
        assert await client.read("far+note:1") == "note 1"
    await app.stop()
    await below.stop()


async def test_listeners_hear_that_a_tag_of_something_mounted_was_disabled() -> None:
    app = Server("outer")
    app.mount(inner(), "far")
    async with Client(app) as client, client.listen() as changes:
        app.disable(tags=["admin"])
        heard = {(await anext(aiter(changes))).kind for _ in range(3)}
    assert heard == {"tools", "resources", "prompts"}


@pytest.mark.parametrize("distant", [False, True], ids=["local", "distant"])
async def test_disabling_by_name_means_what_is_mounted_too(distant: bool) -> None:
    app, below = Server("outer"), inner()
    app.mount(Client(below) if distant else below, "far")
    names = ("far_wipe", "far+note:all", "far+note:{number}", "far_greet")
    async with Client(app) as client:
        app.disable(*names)
        assert "far_wipe" not in [tool.name for tool in await client.list_tools()]
        assert (
            await client.list_resources() == await client.list_resource_templates() == await client.list_prompts() == []
        )
        with pytest.raises(RemoteError, match="far_wipe"):
            await client.call("far_wipe")
        for uri in ("far+note:all", "far+note:1"):
            with pytest.raises(RemoteError):
                await client.read(uri)
        with pytest.raises(RemoteError):
            await client.get_prompt("far_greet", {"kind": "x"})
        assert await client.call("far_add", a=1) == 2
        app.enable(*names)
        assert await client.call("far_wipe") == "gone"
        assert await client.read("far+note:1") == "note 1"
        assert len(await client.list_prompts()) == 1
    with pytest.raises(ValueError, match=values("near_wipe")):
        app.disable("near_wipe")
    await app.stop()
    await below.stop()


@pytest.mark.parametrize("distant", [False, True], ids=["local", "distant"])
async def test_a_rule_that_matches_nothing_mounted_is_reported_once(
    distant: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app, below = Server("outer"), inner()
    app.mount(Client(below) if distant else below, "far")
    app.restrict("far_wipe", "far+note:7", "far+note:{n}", "far_wype", "wipe", scopes=["admin"])
    async with Client(app) as client:
        for _ in range(2):
            await client.list_tools()
    (told,) = [one.getMessage() for one in caplog.records if mentions(one.getMessage(), "far_wype")]
    assert mentions(told, "far_wype", "far_wipe", "wipe")
    await app.stop()
    await below.stop()


async def test_a_lost_server_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    app = Server("outer")
    app.mount(Client("http://127.0.0.1:9/mcp"), "gone")
    app.mount(inner(), "in")
    async with Client(app) as client:
        for _ in range(2):
            assert len(await client.list_tools()) == 4
            await client.list_resources()
    told = [one for one in caplog.records if one.levelno >= logging.WARNING and one.name == "dovetail"]
    assert len(told) == 1
    await app.stop()
