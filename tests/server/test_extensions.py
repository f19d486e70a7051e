"""Test what extensions add to a server: methods, result types, a lifespan, and nothing if there is no extension."""

import asyncio
import functools
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import CallToolResult, Context, Server, TextContent
from dovetail import Client as RealClient
from dovetail.errors import (
    InternalError,
    InvalidParams,
    MethodNotFound,
    MissingClientCapability,
    RemoteError,
    ToolError,
)
from dovetail.extensions import Extension, ExtensionSubscription, Params, Result
from dovetail.middleware import CallNext, Exchange, ResponseCache
from dovetail.server.server import get_dispatcher
from dovetail.types import ServerCapabilities
from dovetail.wire.methods import REQUESTS
from server.direct_client import LATEST_HANDSHAKE, NEWEST, Client, text

HELLO, SAY = "com.example/hello", "com.example/hello/say"
DECLARED = {"extensions": {HELLO: {}}}


class SayResult(Result):
    text: str


class LaterResult(Result):
    ticket: str


async def say(params: Params, exchange: Exchange) -> SayResult:
    return SayResult(text="hello")


def hello(identifier: str = HELLO, name: str = SAY) -> Extension:
    extension = Extension(identifier)
    extension.method(name)(say)
    return extension


def postpone(extension: Extension, *, always: bool = False) -> Extension:
    """Answer calls of the tool `slow` with a ticket."""
    extension.add_result_type("tools/call", "later", LaterResult)

    @extension.middleware
    async def give_ticket(exchange: Exchange, call_next: CallNext) -> object:
        is_accepted = extension.get_client_settings(exchange) is not None and exchange.caller.is_stateless
        if exchange.params.get("name") == "slow" and (always or is_accepted):
            return LaterResult(ticket="T1")
        return await call_next(exchange)

    return extension


def add_slow(app: Server) -> Server:
    @app.tool
    async def slow() -> str:
        return "done"

    return app


# The table of requests


def test_a_server_without_extensions_uses_the_table_of_the_protocol() -> None:
    assert get_dispatcher(Server("plain")).requests is REQUESTS
    assert get_dispatcher(Server("plain", extensions=[])).requests is REQUESTS


def test_extensions_do_not_change_the_table_of_the_protocol() -> None:
    app = Server("greeter", extensions=[hello()])
    assert all(SAY in table for table in get_dispatcher(app).requests.values())
    assert not any(SAY in table for table in REQUESTS.values())


def test_the_server_loads_extensions_only_if_it_has_some() -> None:
    program = "import sys, dovetail; dovetail.Server('s'); dovetail.Client; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not [name for name in run.stdout.split() if name.startswith("dovetail.") and "extension" in name]


# Names


def test_two_extensions_cannot_add_the_same_method() -> None:
    with pytest.raises(ValueError, match=SAY):
        Server("greeter", extensions=[hello(), hello("com.example/other")])


def test_two_extensions_cannot_add_the_same_result_type() -> None:
    extensions = [postpone(Extension(HELLO)), postpone(Extension("com.example/other"))]
    with pytest.raises(ValueError, match="later"):
        Server("greeter", extensions=extensions)


def test_two_extensions_cannot_handle_the_same_notification() -> None:
    async def heard(params: Params, exchange: Exchange) -> None: ...

    extensions = [Extension(HELLO), Extension("com.example/other")]
    for extension in extensions:
        extension.notification("notifications/heard")(heard)
    with pytest.raises(ValueError, match="notifications/heard"):
        Server("greeter", extensions=extensions)


def test_an_extension_is_declared_once() -> None:
    with pytest.raises(ValueError, match=HELLO):
        Server("greeter", extensions=[hello()], capabilities=ServerCapabilities(extensions={HELLO: {"a": 1}}))


def test_other_extensions_can_still_be_declared() -> None:
    capabilities = ServerCapabilities(extensions={"com.example/declared": {"a": 1}})
    app = Server("greeter", extensions=[hello()], capabilities=capabilities)
    declared = get_dispatcher(app).capabilities().extensions
    assert declared == {"com.example/declared": {"a": 1}, HELLO: {}}


async def test_several_servers_can_use_one_extension() -> None:
    extension = hello()
    for name in ("a", "b"):
        client = Client(Server(name, extensions=[extension]))
        assert (await client.request(SAY))["text"] == "hello"


# Mounted servers


async def test_the_extensions_of_a_mounted_server_are_not_passed_through() -> None:
    inner = add_slow(Server("inner", extensions=[postpone(hello())]))
    outer = Server("outer")
    outer.mount(inner)
    assert get_dispatcher(outer).capabilities().extensions is None
    client = Client(outer, capabilities=DECLARED)
    with pytest.raises(MethodNotFound):
        await get_dispatcher(outer).handle(client.exchange(SAY))
    result = await client.request("tools/call", {"name": "slow", "arguments": {}})
    assert result["content"][0]["text"] == "done"


@pytest.mark.parametrize("prefix", ["", "x"])
async def test_a_mounted_server_does_not_get_the_notifications_of_its_extensions(prefix: str) -> None:
    received: list[str] = []
    inner, outer = Extension(HELLO), Extension("com.example/outer")

    @inner.notification("notifications/inner")
    async def receive_inside(params: Params, exchange: Exchange) -> None:
        received.append("inner")

    @outer.notification("notifications/outer")
    async def receive_outside(params: Params, exchange: Exchange) -> None:
        received.append("outer")

    app, mounted = Server("app", extensions=[outer]), Server("mounted", extensions=[inner])
    app.mount(mounted, prefix=prefix)
    client = Client(app, LATEST_HANDSHAKE)
    for method in ("notifications/inner", "notifications/outer"):
        get_dispatcher(app).receive_notification(client.exchange(method))
    for _ in range(10):
        await asyncio.sleep(0)
    assert received == ["outer"]


async def test_a_server_with_mounted_servers_keeps_its_extensions() -> None:
    outer = Server("outer", extensions=[hello()])
    outer.mount(add_slow(Server("inner")))
    assert (await Client(outer).request(SAY))["text"] == "hello"


# Result types


async def test_an_extension_can_add_a_result_type() -> None:
    app = add_slow(Server("app", extensions=[postpone(Extension(HELLO))]))
    result = await Client(app, capabilities=DECLARED).request("tools/call", {"name": "slow", "arguments": {}})
    assert (result["resultType"], result["ticket"]) == ("later", "T1")


@pytest.mark.parametrize(
    ("revision", "capabilities"), [(NEWEST, {}), (LATEST_HANDSHAKE, {}), (LATEST_HANDSHAKE, DECLARED)]
)
async def test_other_clients_get_an_ordinary_result(revision: str, capabilities: dict[str, Any]) -> None:
    app = add_slow(Server("app", extensions=[postpone(Extension(HELLO))]))
    client = Client(app, revision, capabilities=capabilities)
    result = await client.request("tools/call", {"name": "slow", "arguments": {}})
    assert result["content"][0]["text"] == "done"


@pytest.mark.parametrize(
    ("revision", "capabilities"), [(NEWEST, {}), (LATEST_HANDSHAKE, {}), (LATEST_HANDSHAKE, DECLARED)]
)
async def test_an_added_result_type_is_never_sent_to_other_clients(
    revision: str, capabilities: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = add_slow(Server("app", extensions=[postpone(Extension(HELLO), always=True)]))
    client = Client(app, revision, capabilities=capabilities)
    with pytest.raises(InternalError):
        await get_dispatcher(app).handle(client.exchange("tools/call", {"name": "slow", "arguments": {}}))
    assert any(record.exc_info and "later" in str(record.exc_info[1]) for record in caplog.records)


async def test_the_middleware_of_the_server_sees_the_added_result() -> None:
    seen: list[object] = []

    async def watch(exchange: Exchange, call_next: CallNext) -> object:
        seen.append(await call_next(exchange))
        return CallToolResult(content=[TextContent(text="replaced")])

    app = add_slow(Server("app", extensions=[postpone(Extension(HELLO))], middleware=[watch]))
    result = await Client(app, capabilities=DECLARED).request("tools/call", {"name": "slow", "arguments": {}})
    assert seen == [LaterResult(ticket="T1", result_type="later")]
    assert result["content"][0]["text"] == "replaced"


async def test_middleware_of_an_extension_is_notified_of_changes() -> None:
    changes: list[str] = []

    class Watch:
        async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
            return await call_next(exchange)

        def on_change(self, method: str, uri: str | None) -> None:
            changes.append(method)

    extension = Extension(HELLO)
    extension.middleware(Watch())
    app = Server("app", extensions=[extension])
    app.notify_tools_changed()
    assert changes == ["notifications/tools/list_changed"]


# The lifespan


def with_lifespan(events: list[str], name: str) -> Extension:
    extension = Extension(f"com.example/{name}")

    @extension.lifespan
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        events.append(f"open {name}")
        yield
        events.append(f"close {name}")

    return extension


async def test_the_lifespan_of_an_extension_is_inside_that_of_the_server() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        events.append("open server")
        yield "value"
        events.append("close server")

    app = Server("app", lifespan=lifespan, extensions=[with_lifespan(events, "a")])

    @app.tool
    async def read(ctx: Context) -> str:
        return ctx.lifespan

    await app.start()
    result = await Client(app).request("tools/call", {"name": "read", "arguments": {}})
    assert result["content"][0]["text"] == "value"
    await app.stop()
    assert events == ["open server", "open a", "close a", "close server"]


async def test_a_server_without_a_lifespan_opens_those_of_its_extensions() -> None:
    events: list[str] = []
    app = Server("app", extensions=[with_lifespan(events, "a"), with_lifespan(events, "b")])
    await app.start()
    assert events == ["open a", "open b"]
    await app.stop()
    assert events[2:] == ["close b", "close a"]


async def test_a_lifespan_that_fails_fails_the_start() -> None:
    extension = Extension(HELLO)

    @extension.lifespan
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    with pytest.raises(RuntimeError, match="no database"):
        await Server("app", extensions=[extension]).start()


async def test_cached_results_of_an_extension_follow_the_access_rules() -> None:
    extension, is_visible = Extension(HELLO), True
    extension.middleware(ResponseCache(["secret"], shared=True))
    app = Server("x", extensions=[extension])

    @app.tool(visible_to=lambda principal: is_visible)
    async def secret() -> str:
        return "secret"

    client = Client(app)
    assert text(await client.call("secret")) == "secret"
    is_visible = False
    with pytest.raises(InvalidParams):
        await client.call("secret")


async def test_a_read_of_a_function_does_not_get_an_added_result_type() -> None:
    extension, settings = Extension(HELLO), []

    @extension.middleware
    async def look(exchange: Exchange, call_next: CallNext) -> object:
        settings.append((exchange.method, extension.get_client_settings(exchange)))
        return await call_next(exchange)

    app = Server("x", extensions=[extension])
    app.add_resource(lambda: "text", "x:inner")

    @app.tool
    async def read(ctx: Context) -> str:
        return (await ctx.read_resource("x:inner")).contents[0].text or ""

    await Client(app, NEWEST, capabilities=DECLARED).call("read")
    assert settings == [("tools/call", {}), ("resources/read", None)]


def test_an_extension_that_was_refused_can_still_change() -> None:
    refused = hello("com.example/other")
    with pytest.raises(ValueError, match=SAY):
        Server("x", extensions=[hello(), refused])
    refused.method("com.example/other/say")(say)


async def test_an_extension_of_a_running_server_is_closed_with_its_last_user() -> None:
    events: list[str] = []
    extension = Extension(HELLO)

    @extension.lifespan
    @asynccontextmanager
    async def run() -> AsyncIterator[None]:
        events.append("open")
        yield
        events.append("closed")

    app = add_slow(Server("x"))
    async with RealClient(app) as client:
        assert await client.call("slow") == "done"
        get_dispatcher(app).add_extension(extension)
        assert await client.call("slow") == "done"
    assert events == ["open", "closed"]


# Subscriptions


class TopicParams(Params):
    topic: str


def with_topics(extension: Extension, closed: list[str]) -> Extension:
    async def watch(topics: list[str]) -> AsyncGenerator[tuple[str, Params], None]:
        try:
            for topic in topics:
                yield "notifications/com.example/hello", TopicParams(topic=topic)
            if "broken" in topics:
                raise ValueError("broken")
            await asyncio.Event().wait()
        finally:
            closed.append("closed")

    @extension.subscription("helloTopics")
    async def subscribe(requested: Any, exchange: Exchange) -> ExtensionSubscription:
        topics = [topic for topic in requested if topic != "secret"]
        return ExtensionSubscription(accepted=topics, notifications=watch(topics))

    return extension


async def test_an_extension_adds_a_field_to_the_filter_of_a_subscription() -> None:
    closed: list[str] = []
    app = add_slow(Server("x", extensions=[with_topics(Extension(HELLO), closed)]))
    client = Client(app)
    params = {"notifications": {"helloTopics": ["a", "secret", "b"], "toolsListChanged": True}}
    request = asyncio.ensure_future(client.run(client.exchange("subscriptions/listen", params, id="s")))
    async with asyncio.timeout(10):
        while len(client.said) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    acknowledged, *notices = client.said
    assert acknowledged["params"]["notifications"] == {"toolsListChanged": True, "helloTopics": ["a", "b"]}
    meta = {"io.modelcontextprotocol/subscriptionId": "s"}
    assert [notice["params"] for notice in notices] == [{"_meta": meta, "topic": topic} for topic in ("a", "b")]
    await app.stop()
    assert (await request)["_meta"] | meta == (await request)["_meta"]
    assert closed == ["closed"]


async def test_a_subscription_ends_if_its_extension_fails() -> None:
    closed: list[str] = []
    app = add_slow(Server("x", extensions=[with_topics(Extension(HELLO), closed)]))
    await Client(app).request("subscriptions/listen", {"notifications": {"helloTopics": ["broken"]}})
    assert closed == ["closed"]
    await app.stop()


async def test_a_subscription_can_require_the_extension() -> None:
    app = add_slow(Server("x", extensions=[with_topics(Extension(HELLO, requires_client=True), [])]))
    with pytest.raises(MissingClientCapability):
        await Client(app).request("subscriptions/listen", {"notifications": {"helloTopics": []}})
    await app.stop()


def test_a_field_of_a_subscription_has_a_new_name() -> None:
    extension = with_topics(Extension(HELLO), [])
    for name in ("helloTopics", "toolsListChanged"):
        with pytest.raises(ValueError, match=name):
            extension.subscription(name)(say)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_running_server_opens_the_lifespan_of_an_added_extension(in_thread: bool) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        events.append("open server")
        yield "value"
        events.append("close server")

    app = add_slow(Server("x", lifespan=lifespan))

    @app.tool
    async def read(ctx: Context) -> str:
        return ctx.lifespan

    async with RealClient(app) as client:
        assert await client.call("slow") == "done"
        for name in ("a", "b"):
            add = functools.partial(get_dispatcher(app).add_extension, with_lifespan(events, name))
            if in_thread:
                await asyncio.to_thread(add)
            else:
                add()
        # The loop opens what a thread added in its next iteration. A quick thread may end before that.
        await asyncio.sleep(0)
        assert await client.call("read") == "value"
        assert events == ["open server", "open a", "open b"]
    assert events[3:] == ["close b", "close a", "close server"]


async def test_a_lifespan_that_is_added_while_the_server_starts_is_opened() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        get_dispatcher(app).add_extension(with_lifespan(events, "a"))
        await asyncio.sleep(0)
        yield

    app = Server("x", lifespan=lifespan)
    await app.start()
    assert events == ["open a"]
    await app.stop()
    assert events == ["open a", "close a"]


async def test_a_server_that_stops_while_it_opens_an_added_lifespan_closes_all() -> None:
    events: list[str] = []
    is_opening, may_open = asyncio.Event(), asyncio.Event()
    extension = Extension(HELLO)

    @extension.lifespan
    @asynccontextmanager
    async def open_slowly() -> AsyncIterator[None]:
        is_opening.set()
        await may_open.wait()
        yield
        events.append("close extension")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        events.append("close server")

    app = Server("x", lifespan=lifespan)
    await app.start()
    get_dispatcher(app).add_extension(extension)
    await is_opening.wait()
    stopping = asyncio.create_task(app.stop())
    await asyncio.sleep(0)
    may_open.set()
    await stopping
    assert events == ["close extension", "close server"]


async def test_a_request_fails_if_an_added_lifespan_cannot_open() -> None:
    extension = Extension(HELLO)

    @extension.lifespan
    @asynccontextmanager
    async def fail() -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    app = add_slow(Server("x"))
    async with RealClient(app) as client:
        assert await client.call("slow") == "done"
        get_dispatcher(app).add_extension(extension)
        with pytest.raises(RemoteError) as caught:
            await client.call("slow")
    assert caught.value.code == InternalError.code


HEARD = "notifications/com.example/hello/heard"


class HeardParams(Params):
    listener_count: int


def announcer() -> Server:
    app = Server("announcer")

    @app.tool
    async def announce(ctx: Context) -> str:
        """Send a notification from an async function."""
        await ctx.notify(HEARD, HeardParams(listener_count=3))
        return "announced"

    @app.tool
    def announce_in_thread(ctx: Context) -> str:
        """Send a notification from a thread."""
        ctx.wait(ctx.notify(HEARD, {"listenerCount": 3}))
        return "announced"

    @app.tool
    async def announce_nested(ctx: Context) -> CallToolResult:
        """Send a notification from a nested call."""
        return await ctx.call_tool("announce")

    @app.tool
    async def announce_progress(ctx: Context) -> None:
        """Send a notification that is not one of an extension."""
        await ctx.notify("notifications/progress", {"progressToken": 1, "progress": 1})

    @app.tool
    async def announce_request(ctx: Context) -> None:
        """Send a name that is not one of a notification."""
        await ctx.notify("com.example/hello/heard")

    return app


async def collect_heard(target: Server, tool: str, era: str) -> list[tuple[str, Any]]:
    heard: list[tuple[str, Any]] = []
    async with RealClient(
        target,
        protocol_version="stateless" if era == "stateless" else "handshake",
        notification_handler=lambda method, params: heard.append((method, params)),
    ) as client:
        await client.call(tool)
    return heard


@pytest.mark.parametrize("era", ["stateless", "handshake"])
@pytest.mark.parametrize("tool", ["announce", "announce_in_thread", "announce_nested"])
async def test_a_tool_sends_a_notification_of_an_extension(tool: str, era: str) -> None:
    assert await collect_heard(announcer(), tool, era) == [(HEARD, {"listenerCount": 3})]


@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_a_notification_of_a_tool_passes_through_a_mount(era: str) -> None:
    outer = Server("outer")
    outer.mount(announcer())
    assert await collect_heard(outer, "announce", era) == [(HEARD, {"listenerCount": 3})]


@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_a_mounted_client_handles_the_notifications_of_its_server(era: str) -> None:
    heard: list[str] = []
    outer = Server("outer")
    outer.mount(RealClient(announcer(), notification_handler=lambda method, params: heard.append(method)))
    assert await collect_heard(outer, "announce", era) == []
    assert heard == [HEARD]


@pytest.mark.parametrize("tool", ["announce_progress", "announce_request"])
async def test_a_tool_cannot_send_other_notifications(tool: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ToolError):
        await collect_heard(announcer(), tool, "stateless")
    assert "ValueError" in caplog.text
