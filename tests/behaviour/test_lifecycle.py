"""Test the lifecycle of a handshake session, and that the stateless era keeps no state."""

import asyncio
import json
from typing import Any

from behaviour.manifest import requirement
from dovetail import Context, Icon, Server
from dovetail.errors import NotSupported
from support.controlled_server import ControlledServer, call_params, expect_error, text
from support.driver import CLIENT, HANDSHAKE, Peer, connect
from support.raw_http import TIMEOUT_S


@requirement("life.initialize")
async def test_initialize_tells_who_the_server_is_and_what_it_can(revision: str, transport: str) -> None:
    app = ControlledServer(
        version="3.1",
        title="The Stage",
        description="for tests",
        website_url="https://example.com",
        icons=[Icon(src="https://example.com/i.png")],
        instructions="Be kind.",
    ).app
    async with connect(app, transport, revision) as peer:
        told = peer.initialize_result
        assert told["protocolVersion"] == revision
        assert told["instructions"] == "Be kind."
        assert told["capabilities"]["tools"] == {"listChanged": True}
        assert "resources" not in told["capabilities"]
        assert "prompts" not in told["capabilities"]
        assert "completions" not in told["capabilities"]
        info = told["serverInfo"]
        assert (info["name"], info["version"]) == ("stage", "3.1")
        old, older = revision == "2025-06-18", revision in ("2024-11-05", "2025-03-26")
        assert ("title" in info) is not older
        for name in ("description", "websiteUrl", "icons"):
            assert (name in info) is not (old or older), name


@requirement("life.initialize-params")
async def test_initialize_with_wrong_params_opens_nothing(revision: str, transport: str) -> None:
    good = {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}
    async with connect(ControlledServer().app, transport, revision, handshake=False) as peer:
        for wrong in (
            {},
            {name: value for name, value in good.items() if name != "protocolVersion"},
            {name: value for name, value in good.items() if name != "clientInfo"},
            {name: value for name, value in good.items() if name != "capabilities"},
            good | {"protocolVersion": 20251125},
            good | {"capabilities": []},
            good | {"clientInfo": {"name": "x"}},
            good | {"clientInfo": "x"},
        ):
            exc = await expect_error(peer.request("initialize", wrong))
            assert exc.code == -32602, wrong
            assert exc.status_code == (400 if transport == "http" else None), wrong
        await peer.open()
        assert await peer.request("tools/list")


@requirement("life.first")
async def test_nothing_but_ping_is_served_before_initialize(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision, handshake=False) as peer:
        assert await peer.request("ping") == {}
        for method in ("tools/list", "logging/setLevel", "shutdown"):
            exc = await expect_error(peer.request(method))
            assert exc.code == -32600
            assert "initialize" in exc.message
        await peer.open()
        assert await peer.request("tools/list")


@requirement("life.again")
async def test_a_second_initialize_starts_over(revision: str, transport: str) -> None:
    stage = ControlledServer()
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}
    async with connect(stage.app, transport, revision) as peer:
        exc = await expect_error(peer.request("initialize", params | {"clientInfo": 3}))
        assert exc.code == -32602
        assert await peer.request("tools/list")  # the session goes on
        assert (await peer.request("initialize", params))["protocolVersion"] == revision
        stage.app.notify_tools_changed()
        assert await peer.request("ping") == {}
        assert peer.notifications == []  # the new session is not ready yet
        await peer.notify("notifications/initialized")
        assert await peer.request("ping") == {}
        stage.app.notify_tools_changed()
        await peer.next_notification("notifications/tools/list_changed")


@requirement("life.initialized-first")
async def test_a_session_hears_of_changes_only_once_it_is_ready(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision, handshake=False) as peer:
        await peer.initialize()
        stage.app.notify_tools_changed()
        assert await peer.request("ping") == {}
        assert peer.notifications == []
        await peer.notify("notifications/initialized")
        if transport == "http":
            await peer.listen()
        assert await peer.request("ping") == {}
        stage.app.notify_tools_changed()
        await peer.next_notification("notifications/tools/list_changed")
        assert len(peer.notifications) == 1


@requirement("life.ping")
async def test_ping_is_answered_with_nothing(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        assert await peer.request("ping") == {}
        assert await peer.request("ping", {}) == {}
        assert await peer.request("ping", {"_meta": {"com.example/x": 1}}) == {}


@requirement("life.ping")
async def test_ping_is_answered_while_work_goes_on(revision: str, transport: str) -> None:
    stage = ControlledServer()
    stage.remember_loop()
    async with connect(stage.app, transport, revision) as peer:
        waiting = peer.start("tools/call", call_params("wait", name="w"))
        blocking = peer.start("tools/call", call_params("block", name="b"))
        await stage.wait_until_started("w")
        await stage.wait_until_started("b")
        assert await peer.request("ping") == {}
        stage.release("w")
        stage.release("b")
        await waiting
        await blocking


@requirement("life.server-ping", transports=("memory", "http"))
async def test_a_server_can_ping_its_client(revision: str, transport: str) -> None:
    app = Server("pinging")

    @app.tool
    async def check(ctx: Context) -> str:
        await ctx.ping()
        return "answered"

    async with connect(app, transport, revision, answer={"ping": lambda params: {}}) as peer:
        assert text(await peer.request("tools/call", call_params("check"))) == "answered"
        assert [method for method, _ in peer.server_requests] == ["ping"]


@requirement("life.client-notifications")
async def test_a_server_handles_notifications_of_its_client(revision: str, transport: str) -> None:
    app, mounted = Server("outer"), Server("inner")
    received: asyncio.Queue[Any] = asyncio.Queue()

    @app.on_notification("notifications/roots/list_changed")
    async def on_roots_changed(params: dict[str, Any], ctx: Context) -> None:
        if transport != "http":
            assert [root.uri for root in await ctx.list_roots()] == ["file:///srv"]
        await received.put((params, ctx.session_id))
        raise RuntimeError("a failure affects no other message")

    @mounted.on_notification("notifications/elicitation/dialog_opened")
    def on_dialog_opened(params: dict[str, Any], ctx: Context) -> None:
        ctx.wait(received.put((params, ctx.session_id)))

    @app.tool
    async def session(ctx: Context) -> str:
        return ctx.session_id

    app.mount(mounted)
    answer = {"roots/list": lambda params: {"roots": [{"uri": "file:///srv"}]}}
    async with connect(app, transport, revision, capabilities={"roots": {"listChanged": True}}, answer=answer) as peer:
        session_id = text(await peer.request("tools/call", call_params("session")))
        assert session_id
        await peer.notify("notifications/roots/list_changed")
        async with asyncio.timeout(TIMEOUT_S):
            assert await received.get() == ({}, session_id)
        await peer.notify("notifications/unknown")
        await peer.notify("notifications/elicitation/dialog_opened", {"dialogId": "d-1"})
        async with asyncio.timeout(TIMEOUT_S):
            assert await received.get() == ({"dialogId": "d-1"}, session_id)
        assert text(await peer.request("tools/call", call_params("session"))) == session_id


@requirement("life.ping-gone")
async def test_a_stateless_client_is_not_pinged(revision: str) -> None:
    app = Server("pinging")

    @app.tool
    async def check(ctx: Context) -> str:
        try:
            await ctx.ping()
        except NotSupported:
            return "not supported"
        return "answered"

    async with connect(app, "memory", revision) as peer:
        assert text(await peer.request("tools/call", call_params("check"))) == "not supported"


@requirement("life.ping-gone")
async def test_the_stateless_era_has_no_ping(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        assert (await expect_error(peer.request("ping"))).code == -32601


@requirement("life.shutdown")
async def test_shutdown_is_answered_null_and_ends_the_session(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        assert await peer.request("shutdown") is None
        assert peer.messages[-1]["result"] is None
        if transport == "http":
            reply = await peer.raw(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
            assert reply.status == 404
        else:
            async with asyncio.timeout(TIMEOUT_S):
                await peer.ended.wait()


@requirement("life.shutdown", transports=("memory",))
async def test_shutdown_ends_the_session_of_a_custom_transport(revision: str) -> None:
    stage = ControlledServer()
    received: list[Any] = []
    link = stage.app.open_connection(lambda data: received.append(json.loads(data)))
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}
    for message in (
        {"id": 1, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call_params("wait", name="first")},
    ):
        link.receive(json.dumps({"jsonrpc": "2.0"} | message).encode())
    await stage.wait_until_started("first")
    link.receive(b'{"jsonrpc":"2.0","id":3,"method":"shutdown"}')
    assert received[-1] == {"jsonrpc": "2.0", "id": 3, "result": None}
    link.receive(b'{"jsonrpc":"2.0","id":4,"method":"tools/list"}')
    assert received[-1]["id"] == 4
    assert received[-1]["error"]["code"] == -32600
    before = len(received)
    stage.app.notify_tools_changed()
    await link.close()
    assert len(received) == before


@requirement("life.bare-initialized")
async def test_initialized_without_the_prefix_opens_the_session(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision, handshake=False) as peer:
        await peer.initialize()
        await peer.notify("initialized")
        await peer.request("ping")  # the server has read the notification
        if transport == "http":
            await peer.listen()
        stage.app.notify_tools_changed()
        await peer.next_notification("notifications/tools/list_changed")


@requirement("life.shutdown")
async def test_shutdown_ends_a_process(revision: str) -> None:
    from behaviour import programs

    async with connect(programs.plain, "stdio", revision) as peer:
        assert await peer.request("shutdown") is None
        assert peer.process is not None
        async with asyncio.timeout(TIMEOUT_S):
            assert await peer.process.wait() == 0


@requirement("life.stateless")
async def test_the_stateless_era_remembers_nothing_of_the_caller(revision: str, transport: str) -> None:
    app = Server("x")

    @app.tool
    async def who(ctx: Context) -> str:
        assert ctx.client_info is None or ctx.client_info.name
        roots = ctx.client_capabilities.roots is not None
        return json.dumps([ctx.client_info.name if ctx.client_info else None, roots])

    async with connect(app, transport, revision) as peer:

        async def asked(**meta: Any) -> Any:
            changed = {f"io.modelcontextprotocol/{name}": value for name, value in meta.items()}
            return json.loads(text(await peer.request("tools/call", call_params("who"), meta=changed)))

        assert await asked(clientInfo={"name": "a", "version": "1"}, clientCapabilities={"roots": {}}) == ["a", True]
        assert await asked(clientInfo={"name": "b", "version": "1"}, clientCapabilities={}) == ["b", False]
        assert await asked(clientInfo=None, clientCapabilities={"roots": {}}) == [None, True]
        exc = await expect_error(asked(clientCapabilities=None))
        assert exc.code == -32602


@requirement("life.session-caller")
async def test_a_handshake_session_remembers_the_caller(revision: str, transport: str) -> None:
    app = Server("x")

    @app.tool
    async def who(ctx: Context) -> str:
        assert ctx.client_info is not None
        return json.dumps([ctx.client_info.name, ctx.protocol_version, ctx.client_capabilities.roots is not None])

    async with connect(app, transport, revision, capabilities={"roots": {}}) as peer:
        for _ in range(2):
            told = json.loads(text(await peer.request("tools/call", call_params("who"))))
            assert told == ["driver", revision, True]


@requirement("life.capabilities")
async def test_only_what_is_declared_is_served(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        declared = await _capabilities(peer)
        assert declared["tools"] == {"listChanged": True}
        for method in ("resources/list", "resources/templates/list", "prompts/list"):
            assert (await expect_error(peer.request(method))).code == -32601, method
        assert (await expect_error(peer.request("resources/read", {"uri": "x://y"}))).code == -32601
        assert (await expect_error(peer.request("prompts/get", {"name": "x"}))).code == -32601
        if revision in HANDSHAKE:
            for method in ("resources/subscribe", "resources/unsubscribe"):
                assert (await expect_error(peer.request(method, {"uri": "x://y"}))).code == -32601, method


async def _capabilities(peer: Peer) -> Any:
    told = peer.initialize_result or await peer.request("server/discover")
    return told["capabilities"]
