"""Test mounting a remote server, with both eras on both sides, in memory and over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, ClientLimits, Context, RemoteError, ResourceLink, Server, ToolError, testing
from dovetail.auth import Principal
from dovetail.client.client import mount_client
from dovetail.errors import NotFound, RateLimited, Unauthorized
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.server.server import get_dispatcher
from support.fake_service import run_pending_callbacks, wait_until
from support.scripted_server import (
    SUBSCRIPTION,
    ErrorReply,
    Messages,
    ScriptedServer,
    create_notification,
    serve_on_socket,
)

LISTEN = "subscriptions/listen"
OLD, NEW = "2025-06-18", "2026-07-28"
ERAS = [(above, below) for above in (OLD, NEW) for below in (OLD, NEW)]
IDS = [f"{above[:4]} before {below[:4]}" for above, below in ERAS]
PATIENCE = 10.0


def far() -> Server:
    app = Server("far", debug=True)
    app.stopped = asyncio.Event()  # pyright: ignore[reportAttributeAccessIssue]

    @app.tool
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.tool
    async def numbers() -> list[int]:
        return [1, 2]

    @app.tool
    async def work(ctx: Context) -> str:
        await ctx.progress(1, 2, "half")
        await ctx.info("on the way")
        return "done"

    @app.tool
    async def ask(ctx: Context) -> str:
        name = await ctx.elicit("Name?", str)
        age = await ctx.elicit("Age?", int)
        return f"{name} {age}"

    @app.tool
    async def hang(ctx: Context) -> None:
        await ctx.progress(1)
        try:
            await asyncio.Event().wait()
        finally:
            app.stopped.set()  # pyright: ignore[reportAttributeAccessIssue]

    @app.tool
    async def fail() -> None:
        raise ToolError("not today")

    @app.tool
    async def who(ctx: Context) -> str:
        return str(ctx.meta.get("com.example/who"))

    @app.tool
    async def point() -> ResourceLink:
        return ResourceLink(uri="note:1", name="one")

    @app.resource("note:{number}")
    def note(number: int) -> str:
        return f"note {number}"

    @app.prompt
    def greet(kind: str) -> str:
        return f"be {kind}"

    @app.completion("greet", "kind")
    def kinds(value: str) -> list[str]:
        return [f"{value}!"]

    return app


@pytest.fixture(params=ERAS, ids=IDS)
def eras(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@asynccontextmanager
async def gateway(eras: tuple[str, str], **options: Any) -> AsyncIterator[tuple[Client, Server, Server]]:
    """A client of a server on which a remote one is mounted, each speaking its own revision."""
    above, below = eras
    behind = far()
    app = Server("near")
    app.mount(Client(behind, protocol_version=below), "far")
    async with Client(app, protocol_version=above, **options) as client:
        yield client, app, behind
    await app.stop()


def bare(value: Any) -> Any:
    """A handshake server puts what is no object under `result`, and its schema says so: that is passed on."""
    return value["result"] if isinstance(value, dict) else value


async def test_everything_it_offers(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, _):
        assert "far_add" in {tool.name for tool in await client.list_tools()}
        assert bare(await client.call("far_add", a=1, b=2)) == 3
        assert bare(await client.call("far_numbers")) == [1, 2]
        (block,) = (await client.call_tool("far_point")).content
        assert isinstance(block, ResourceLink)
        assert block.uri == "far+note:1"
        assert await client.read(block.uri) == "note 1"
        assert [one.uri_template for one in await client.list_resource_templates()] == ["far+note:{number}"]
        assert [one.name for one in await client.list_prompts()] == ["far_greet"]
        prompt = await client.get_prompt("far_greet", {"kind": "kind"})
        assert "be kind" in str(prompt.messages)
        assert (await client.complete("kind", "x", prompt="far_greet")).values == ["x!"]


async def test_refusals_are_passed_on(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, _):
        with pytest.raises(ToolError, match="not today"):
            await client.call("far_fail")
        with pytest.raises(RemoteError, match="far_nothing"):
            await client.call("far_nothing")
        with pytest.raises(RemoteError, match="nothing"):
            await client.call("nothing")
        with pytest.raises(NotFound if eras[0] == OLD else RemoteError, match=r"far\+note:x"):
            await client.read("far+note:x")


async def test_missing_credentials_of_a_mounted_server_keep_their_code() -> None:
    script = ScriptedServer("handshake", {"tools/call": ErrorReply(-32003, "log in first")})
    app = Server("near")
    async with serve_on_socket(script) as at, asyncio.timeout(PATIENCE):
        app.mount(Client(at), "far")
        async with Client(app, protocol_version="handshake") as client:
            with pytest.raises(Unauthorized) as refused:
                await client.call_tool("far_x")
    assert isinstance(refused.value, RemoteError)
    assert (refused.value.code, refused.value.message) == (-32003, "log in first")


async def test_progress_logs_and_meta(eras: tuple[str, str]) -> None:
    heard: list[Any] = []
    logs: list[Any] = []
    async with gateway(eras, log_handler=logs.append) as (client, _, _):
        result = await client.call_tool("far_work", progress_handler=lambda *told: heard.append(told))
        assert "done" in str(result.content)
        assert heard == [(1, 2, "half")]
        assert [one.data for one in logs] == ["on the way"]
        result = await client.call_tool("far_who", meta={"com.example/who": "ada"})
        assert "ada" in str(result.content)


async def test_questions_reach_the_caller(eras: tuple[str, str]) -> None:
    asked: list[str] = []

    def elicit(question: Any) -> Any:
        asked.append(question.message)
        return {"value": "Ada" if question.message == "Name?" else 36}

    async with gateway(eras, elicitation_handler=elicit) as (client, _, _):
        assert bare(await client.call("far_ask")) == "Ada 36"
        assert asked == ["Name?", "Age?"]
        assert bare(await client.call("far_add", a=1)) == 2


async def test_a_caller_who_cannot_be_asked(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, _):
        with pytest.raises((RemoteError, ToolError)):
            await client.call("far_ask")
        assert bare(await client.call("far_add", a=1)) == 2


async def test_cancellation(eras: tuple[str, str]) -> None:
    begun = asyncio.Event()
    async with gateway(eras) as (client, _, behind), asyncio.timeout(PATIENCE):
        call = asyncio.create_task(client.call_tool("far_hang", progress_handler=lambda *_: begun.set()))
        await begun.wait()
        call.cancel()
        await behind.stopped.wait()  # pyright: ignore[reportAttributeAccessIssue]


async def test_changes_are_heard(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, behind), asyncio.timeout(PATIENCE):
        await client.list_tools()
        async with client.listen() as changes:
            behind.add_tool(lambda: 1, name="later")
            async for change in changes:
                if change.kind == "tools":
                    break
        assert "far_later" in {tool.name for tool in await client.list_tools()}


async def test_a_server_whose_changes_are_heard_no_more_is_listened_to_again(caplog: pytest.LogCaptureFixture) -> None:
    def listen(message: dict[str, Any]) -> Any:
        return ErrorReply(-32603, "not now") if script.count(LISTEN) == 1 else holding(message)

    def holding(message: dict[str, Any]) -> Any:
        meta = {SUBSCRIPTION: message["id"]}
        wanted = message["params"]["notifications"]
        agreed = create_notification("notifications/subscriptions/acknowledged", notifications=wanted, _meta=meta)
        return Messages([agreed])

    script = ScriptedServer("stateless", {LISTEN: listen})
    async with serve_on_socket(script) as at, asyncio.timeout(PATIENCE):
        client = Client(at, name="it", limits=ClientLimits(max_reconnect_delay=0.0))
        forwarding, heard = mount_client(client), list[str]()
        forwarding.watch_changes(lambda notice, _: heard.append(notice))
        await forwarding.start()
        await wait_until(lambda: [one for one in caplog.records if one.levelname == "WARNING"])
        await forwarding.start()
        await wait_until(lambda: len(heard) >= 3)
        assert heard[:3] == [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
        await forwarding.stop()


async def test_a_server_that_tells_of_no_changes_is_not_asked_again_and_again() -> None:
    script = ScriptedServer("stateless", {LISTEN: ErrorReply(-32601, "unknown")})
    async with serve_on_socket(script) as at, asyncio.timeout(PATIENCE):
        client = Client(at, name="it", limits=ClientLimits(max_reconnect_delay=0.0))
        forwarding = mount_client(client)
        forwarding.watch_changes(lambda *_: None)
        for _ in range(5):
            await forwarding.start()
            await client.list_tools()
            await run_pending_callbacks()
        assert script.count(LISTEN) == 1
        await forwarding.stop()


async def test_a_resource_that_changes_far_away() -> None:
    wanted: dict[str, Any] = {"tools": False, "prompts": False, "resources": False, "uris": ["far+note:1"]}
    for below in (OLD, NEW):
        async with gateway((NEW, below)) as (client, _, behind), client.listen(**wanted) as changes:
            behind.notify_resource_updated("note:1")
            async with asyncio.timeout(PATIENCE):
                assert (await anext(aiter(changes))).uri == "far+note:1"


async def wait_for_subscribers(server: Server, uri: str, count: int) -> None:
    """Wait until a number of listeners of a server are subscribed to a resource."""
    updated = "notifications/resources/updated"
    async with asyncio.timeout(PATIENCE):
        while True:
            by_loop = get_dispatcher(server).registry.subscriptions._listeners_by_loop  # pyright: ignore[reportPrivateUsage]
            listeners = [listener for entry in by_loop.values() for listener in entry.listeners]
            if sum(listener.is_subscribed(updated, uri) for listener in listeners) == count:
                return
            await asyncio.sleep(0.005)


async def test_a_handshake_session_hears_of_a_resource_far_away() -> None:
    for below in (OLD, NEW):
        async with gateway((OLD, below)) as (client, _, behind), asyncio.timeout(PATIENCE):
            async with client.listen(tools=False, prompts=False, resources=False, uris=["far+note:1"]) as changes:
                feed = aiter(changes)
                news = asyncio.ensure_future(anext(feed))
                while not news.done():  # the server far away is told a moment later
                    behind.notify_resource_updated("note:1")
                    await asyncio.wait([news], timeout=0.02)
                assert news.result().uri == "far+note:1"
            await wait_for_subscribers(behind, "note:1", 0)  # the subscription ends with that of the session


async def test_questions_find_their_caller_among_many(eras: tuple[str, str]) -> None:
    """Calls of one caller at once: each question is answered, none is lost."""
    async with gateway(
        eras, elicitation_handler=lambda question: {"value": "x" if question.message == "Name?" else 1}
    ) as (
        client,
        *_,
    ):
        assert [bare(one) for one in await asyncio.gather(*(client.call("far_ask") for _ in range(3)))] == ["x 1"] * 3


async def test_over_http(eras: tuple[str, str]) -> None:
    above, below = eras
    logs: list[Any] = []
    async with testing.connect(far(), transport="http", protocol_version=below) as inner:
        app = Server("near")
        app.mount(inner, "far")
        async with testing.connect(
            app,
            transport="http",
            protocol_version=above,
            elicitation_handler=lambda q: {"value": "A" if q.message == "Name?" else 1},
            log_handler=logs.append,
        ) as client:
            assert bare(await client.call("far_add", a=1)) == 2
            calls = [client.call_tool("far_work") for _ in range(5)]
            assert all("done" in str(one.content) for one in await asyncio.gather(*calls))
            assert [one.data for one in logs] == ["on the way"] * 5


async def test_a_ticket_is_good_for_one_request_of_one_kind() -> None:
    async with gateway((NEW, OLD), elicitation_handler=lambda _: {}) as (client, _, _):
        pending: Any = await client.call_tool("far_ask", allow_input_required=True)
        (key,) = pending.input_requests
        answer = {key: {"action": "accept", "content": {"value": "Ada"}}}
        forged = type(pending).load(pending.dump().replace(b"far_ask", b"far_who"))
        with pytest.raises(RemoteError, match="requestState"):
            await client.resume(forged, answer)
        pending2: Any = await client.resume(pending, answer)
        with pytest.raises(RemoteError, match="requestState"):
            await client.resume(pending, answer)
        result = await client.resume(pending2, {key: {"action": "accept", "content": {"value": 3}}})
        assert "Ada 3" in str(result.content)


async def test_a_server_that_is_not_there_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    app = Server("near")
    app.add_tool(lambda: 1, name="one")
    app.mount(Client("http://127.0.0.1:9/mcp"), "gone")
    async with Client(app) as client:
        assert [tool.name for tool in await client.list_tools()] == ["one"]
        assert await client.call("one") == 1
        with pytest.raises(RemoteError, match="gone_x"):
            await client.call("gone_x")
    await app.stop()
    assert "127.0.0.1" in caplog.text


async def test_a_request_is_never_sent_to_the_client_that_opened_the_connection() -> None:
    """A handshake server on one pipe does not say whose request its question belongs to."""
    begun = asyncio.Event()
    asked: list[Any] = []
    app = Server("near")
    one = Client(app, protocol_version=OLD, elicitation_handler=asked.append)
    other = Client(app, protocol_version=OLD, elicitation_handler=asked.append)
    async with testing.serve(far(), transport="tcp") as target, one, other, asyncio.timeout(PATIENCE):
        app.mount(Client(target, protocol_version=OLD), "far")
        hanging = asyncio.create_task(one.call_tool("far_hang", progress_handler=lambda *_: begun.set()))
        await begun.wait()
        with pytest.raises((RemoteError, ToolError)):
            await other.call("far_ask")
        hanging.cancel()
        await app.stop()
    assert asked == []


@pytest.mark.parametrize("below", [OLD, NEW])
async def test_a_client_that_is_shared_answers_only_what_it_asks_for_itself(below: str) -> None:
    def answering(name: str) -> Any:
        return lambda question: {"value": name if question.message == "Name?" else 1}

    class Shared:
        def __mountable__(self) -> Any:
            return mount_client(inner, is_shared=True)

    inner = Client(far(), protocol_version=below, elicitation_handler=answering("host"))
    app = Server("near")
    app.mount(Shared(), "far")
    async with Client(app, elicitation_handler=answering("caller")) as client, asyncio.timeout(PATIENCE):
        assert bare(await client.call("far_ask")) == "caller 1"
        assert bare(await inner.call("ask")) == "host 1"
        assert bare(await client.call("far_ask")) == "caller 1"
    await app.stop()


async def call_far_tool(client: Client) -> Any:
    return (await client.call_tool("far_add", {"a": 1, "b": 2})).structured_content["result"]


def add_own_tool(app: Server) -> None:
    @app.tool(name="far_add")
    async def _own(a: int, b: int) -> int:
        return 7


async def test_a_tool_that_is_added_comes_before_a_mounted_one_that_was_called() -> None:
    app = Server("gate")
    app.mount(Client(far(), protocol_version=NEW), "far")
    async with Client(app, protocol_version=NEW) as client:
        assert await call_far_tool(client) == 3
        add_own_tool(app)
        assert await call_far_tool(client) == 7
        app.remove_tool("far_add")
        assert await call_far_tool(client) == 3


@pytest.mark.parametrize("change", ["unmount", "disable", "disable tag", "restrict"])
async def test_a_mounted_tool_that_was_called_can_be_withdrawn(change: str) -> None:
    app = Server("gate")
    app.add_tool(lambda: "own", name="own")  # a server without any tools does not have the method
    unmount = app.mount(Client(far(), protocol_version=NEW), "far")
    async with Client(app, protocol_version=NEW) as client:
        assert await call_far_tool(client) == 3
        match change:
            case "unmount":
                unmount()
            case "disable":
                app.disable("far_add")
            case "disable tag":
                app.disable("far_add", tags=["other"])
            case _:
                app.restrict("far_add", visible_to=lambda _: False)
        # Without any tool, the server does not have the method.
        with pytest.raises(RemoteError if change == "unmount" else NotFound):
            await call_far_tool(client)


def log_exchange(principal: Principal, name: str, received: list[Any]) -> IncomingExchange:
    caller = Caller(NEW, is_stateless=True, principal=principal, log_level=0)
    exchange = IncomingExchange(1, "tools/call", {"name": name, "arguments": {}}, {}, caller)
    exchange.origin = principal

    async def emit(data: bytes) -> None:
        received.append(data)

    exchange.emit = emit
    return exchange


@pytest.mark.parametrize("is_same", [True, False])
async def test_a_log_message_reaches_no_caller_if_it_can_belong_to_another_ones_call(*, is_same: bool) -> None:
    """A handshake server sends log messages without naming the request that they belong to."""

    def call(message: Any) -> Any:
        result = {"content": []}
        if message["params"]["name"] == "first":
            return result
        return Messages([create_notification("notifications/message", level="info", data="late"), result])

    received: list[Any] = []
    async with serve_on_socket(ScriptedServer("handshake", {"tools/call": call})) as target:
        app = Server("near")
        app.mount(Client(target), "far")
        dispatcher = get_dispatcher(app)
        await dispatcher.handle(log_exchange(Principal("ada"), "far_first", []))
        await dispatcher.handle(log_exchange(Principal("ada" if is_same else "bob"), "far_second", received))
        await app.stop()
    assert [b"late" in one for one in received] == ([True] if is_same else [])


async def test_a_rate_limit_of_a_mounted_server_keeps_its_code_and_delay() -> None:
    script = ScriptedServer("stateless", {"tools/call": ErrorReply(429, "slow down", {"retryAfterMs": 1500})})
    async with serve_on_socket(script) as target:
        app = Server("near")
        app.mount(Client(target), "far")
        async with Client(app) as client:
            with pytest.raises(RateLimited) as caught:
                await client.call_tool("far_x")
            assert caught.value.retry_after == 1.5
        await app.stop()


@pytest.mark.parametrize("above", [OLD, NEW])
async def test_a_mounted_server_that_asks_for_nothing_is_called_once(above: str) -> None:
    script = ScriptedServer("stateless", {"tools/call": {"resultType": "input_required"}})
    async with serve_on_socket(script) as target:
        app = Server("near")
        app.mount(Client(target), "far")
        async with Client(app, protocol_version=above) as client:
            with pytest.raises(RemoteError) as caught:
                await client.call_tool("far_x")
            assert caught.value.code == -32603
        await app.stop()
    assert script.count("tools/call") == 1
