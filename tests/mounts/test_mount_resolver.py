"""Test which mount owns a name: lists, calls and listeners agree, and a lost server affects no other."""

import asyncio
import contextlib
import gc
import json
import logging
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, LargeResultSettings, ResourceLink, Server, TextContent, Transform
from dovetail.auth import Guard, Principal, StaticTokenVerifier
from dovetail.errors import ConnectionLost, InsufficientScope, InternalError, InvalidParams, NotFound, ToolNotFound
from dovetail.mounts import mounted_servers as mounting
from dovetail.mounts import remote_subscriptions, resolver
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.server.server import get_dispatcher
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.revisions import NEWEST_REVISION
from dovetail.wire.tools import Tool
from server import direct_client
from support.fake_service import run_pending_callbacks


def having(*tools: str, name: str = "one", **options: Any) -> Server:
    app = Server(name)
    for tool in tools:

        async def say() -> str:
            return app.name

        app.add_tool(say, name=tool, description=f"of {name}", **options)
    return app


def exchange(method: str, scopes: str = "", **params: Any) -> IncomingExchange:
    who = Principal("bob", scopes=scopes)
    return IncomingExchange(1, method, params, {}, Caller(NEWEST_REVISION, is_stateless=True, principal=who))


async def said(app: Server, tool: str, scopes: str = "") -> str:
    result: Any = await get_dispatcher(app).handle(exchange("tools/call", scopes, name=tool))
    return result.content[0].text


async def listed(app: Server, scopes: str = "") -> dict[str, str]:
    result: Any = await get_dispatcher(app).handle(exchange("tools/list", scopes))
    return {tool["name"]: tool.get("description") for tool in json.loads(result)["tools"]}


async def test_a_mount_for_others_does_not_keep_callers_from_what_another_has() -> None:
    app = Server("outer")
    app.mount(having("adm", name="A"), scopes=["admin"])
    app.mount(having("pub", name="B"))
    assert await said(app, "pub") == "B"
    with pytest.raises(InsufficientScope):
        await said(app, "adm")
    assert await said(app, "adm", "admin") == "A"


async def test_a_name_two_mounts_have_is_that_of_the_one_the_caller_is_listed() -> None:
    app = Server("outer")
    app.mount(having("x", name="A"), scopes=["admin"])
    app.mount(having("x", name="B"))
    for scopes in ("", "admin"):
        assert (await listed(app, scopes))["x"] == f"of {await said(app, 'x', scopes)}"


@pytest.mark.parametrize("options", [{"scopes": ["admin"]}, {"visible_to": lambda _: False}])
async def test_what_a_caller_is_not_listed_gives_way(options: Any) -> None:
    app = having("x", name="outer", **options)
    app.mount(having("x", name="A", **options))
    app.mount(having("x", name="B"))
    assert await listed(app) == {"x": "of B"}
    assert await said(app, "x") == "B"


async def test_scopes_are_asked_for_only_where_something_is_visible() -> None:
    app = Server("outer")
    app.mount(having("x", name="A", scopes=["admin"]), visible_to=lambda _: False)
    with pytest.raises(ToolNotFound):
        await said(app, "x")
    inside = Server("between")
    inside.mount(having("x", name="A", scopes=["admin"]))
    app.mount(inside)
    with pytest.raises(InsufficientScope):
        await said(app, "x")


async def test_the_first_mount_owns_a_name_wherever_it_is() -> None:
    app = Server("outer")
    app.mount(Client(having("x", name="far")))
    app.mount(having("x", name="near"))
    async with Client(app) as client:
        (tool,) = await client.list_tools()
        assert (tool.description, await client.call("x")) == ("of far", "far")


# Templates


def notes() -> Server:
    app = Server("notes")

    @app.resource("note://open")
    def open_note() -> str:
        return "open"

    @app.resource("note://{name}")
    def note(name: str) -> str:
        return f"secret {name}"

    return app


@pytest.mark.parametrize("prefix", ["", "in"])
@pytest.mark.parametrize("far", [False, True])
async def test_resources_of_a_hidden_template_cannot_be_read(prefix: str, *, far: bool) -> None:
    app = Server("outer")
    app.mount(Client(notes()) if far else notes(), prefix, transforms={"note://{name}": Transform(hide=True)})
    before = f"{prefix}+" if prefix else ""
    async with Client(app) as client:
        assert await client.list_resource_templates() == []
        assert await client.read(f"{before}note://open") == "open"
        with pytest.raises(NotFound):
            await client.read(f"{before}note://a")


async def heard(app: Server, *uris: str) -> list[str]:
    async with Client(app) as client, client.listen(uris=[*uris]) as listening:
        assert listening.acknowledged_filter is not None
        return [*(listening.acknowledged_filter.resource_subscriptions or ())]


async def test_hidden_resources_are_not_listened_to() -> None:
    inner = notes()

    @inner.resource("note://mine/own", visible_to=lambda _: False)
    def mine() -> str:
        return "mine"

    app = Server("outer")
    app.mount(inner, transforms={"note://{name}": Transform(hide=True)})
    assert await heard(app, "note://open", "note://a", "note://mine/own") == ["note://open"]
    app = Server("outer")
    app.mount(notes(), transforms={"note://open": Transform(hide=True)})
    assert await heard(app, "note://open", "note://a") == ["note://a"]


# One that is gone


class Mute:
    """A port where somebody listens and says nothing."""

    async def __aenter__(self) -> str:
        self._over = asyncio.Event()
        self._server = await asyncio.start_server(self._hold, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"

    async def _hold(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._over.wait()
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mounting, resolver, remote_subscriptions):
        monkeypatch.setattr(module, "LIST_TIMEOUT_S", 0.3)


async def closed_port() -> str:
    async with Mute() as url:
        return url


@pytest.mark.parametrize("mute", [False, True])
@pytest.mark.usefixtures("impatient")
async def test_one_that_is_gone_costs_the_others_nothing(caplog: pytest.LogCaptureFixture, *, mute: bool) -> None:
    caplog.set_level(logging.WARNING, "dovetail")
    async with Mute() as silent:
        app = Server("outer")

        @app.resource("own://a")
        def own() -> str:
            return "own"

        app.mount(Client(silent if mute else await closed_port()))
        app.mount(Client(having("y", name="two")))
        async with asyncio.timeout(20):
            await app.start()
            async with Client(app) as client:
                assert await client.call("y") == "two"
                async with client.listen(uris=["own://a"]) as listening:
                    app.notify_resource_updated("own://a")
                    assert (await anext(aiter(listening))).uri == "own://a"
            await app.stop()
    assert any(one.levelname == "WARNING" for one in caplog.records)


@pytest.mark.usefixtures("impatient")
async def test_one_that_hangs_delays_only_the_first_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "LIST_TIMEOUT_S", 60.0)  # the time until the next attempt
    async with Mute() as silent:
        app = Server("outer")
        app.mount(Client(silent), "mute")
        app.mount(having("y", name="two"))
        assert await listed(app) == {"y": "of two"}
        monkeypatch.setattr(mounting, "LIST_TIMEOUT_S", 60.0)
        async with asyncio.timeout(10):
            for _ in range(3):
                assert await listed(app) == {"y": "of two"}
        await app.stop()


async def test_a_tool_of_a_server_that_is_down_is_not_unknown(tmp_path: Path) -> None:
    path = str(tmp_path / "far.sock")
    app = Server("outer")
    app.mount(Client(f"unix:{path}"))
    with pytest.raises(InternalError):
        await said(app, "x")
    with pytest.raises(InternalError):
        await said(app, "x")  # also while no new attempt is made
    serving = asyncio.create_task(having("x", name="far").serve("unix", path=path))
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(InternalError):
                result: Any = await get_dispatcher(app).handle(exchange("tools/call", name="x"))
                assert b'"far"' in result
                break
            await asyncio.sleep(0.05)
    with pytest.raises(ToolNotFound):
        await said(app, "unknown")
    await app.stop()
    serving.cancel()
    await asyncio.wait([serving])


async def test_a_server_that_is_down_does_not_hide_the_tools_of_another() -> None:
    inner = Server("inner")
    inner.mount(Client(await closed_port()))
    app = Server("outer")
    app.mount(inner)
    app.mount(having("y", name="two"))
    assert await said(app, "y") == "two"
    with pytest.raises(InternalError):
        await said(app, "x")
    app.disable("secret")
    with pytest.raises(ToolNotFound):
        await said(app, "secret")
    await app.stop()


async def test_a_local_server_is_released_when_it_is_unmounted() -> None:
    ended = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        ended.set()

    inner = Server("inner", lifespan=lifespan)
    inner.add_tool(lambda: "x", name="x")
    app = Server("outer")
    unmount = app.mount(inner)
    assert await said(app, "x") == "x"
    reference = weakref.ref(inner)
    unmount()
    async with asyncio.timeout(10):
        await ended.wait()
        del inner, unmount
        while reference() is not None:
            gc.collect()
            await asyncio.sleep(0.001)


async def test_a_lifespan_does_not_make_requests_wait_for_one_that_is_silent() -> None:
    async with Mute() as silent:
        app = Server("outer", lifespan=lambda: contextlib.nullcontext())
        app.mount(Client(silent), "far")
        app.add_tool(lambda: "own", name="own")
        async with asyncio.timeout(mounting.LIST_TIMEOUT_S / 2):
            assert await said(app, "own") == "own"
        await app.stop()


# Taken off again


class Noting(Client):
    """A client that says when it is closed."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.closed = asyncio.Event()

    async def close(self) -> None:
        await super().close()
        self.closed.set()


async def test_a_client_that_is_taken_off_is_closed_after_its_calls() -> None:
    began, go = asyncio.Event(), asyncio.Event()
    far = Server("far")

    @far.tool
    async def slow() -> str:
        began.set()
        await go.wait()
        return "done"

    app, noting = Server("outer"), Noting(far)
    unmount = app.mount(noting)
    async with Client(app) as client:
        call = asyncio.ensure_future(client.call("slow"))
        await began.wait()
        unmount()
        assert not noting.closed.is_set()
        go.set()
        assert await call == "done"
        await asyncio.wait_for(noting.closed.wait(), 20)


async def test_a_server_that_was_taken_off_is_stopped_with_the_other() -> None:
    steps: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        steps.append("in")
        yield
        steps.append("out")

    inner = Server("inner", lifespan=lifespan)
    inner.add_tool(lambda: 1, name="one")
    app = Server("outer")
    unmount = app.mount(inner)
    async with Client(app) as client:
        await client.call("one")
    unmount()
    await app.stop()
    assert steps == ["in", "out"]


# Shown, but locked


async def test_what_is_listed_without_its_scopes_is_refused_without_them() -> None:
    app = Server("outer", auth=Guard(StaticTokenVerifier({}), list_restricted=True))
    app.mount(having("x", name="A"), "a", scopes=["admin"])
    app.mount(having("x", name="B", tags=["risky"]), "b")
    app.mount(Client(having("x", name="C")), "c", scopes=["admin"])
    app.restrict(tags=["risky"], scopes=["admin"])
    assert [*await listed(app)] == ["a_x", "b_x", "c_x"]
    for name in ("a_x", "b_x", "c_x"):
        with pytest.raises(InsufficientScope):
            await said(app, name)
    await app.stop()


# Large results


@pytest.mark.parametrize("far", [False, True])
async def test_large_results_of_mounted_tools_are_kept_back_too(*, far: bool) -> None:
    inner = Server("inner")

    @inner.tool
    async def big() -> str:
        return "x" * 1000

    @inner.tool
    async def rows() -> list[int]:
        return [*range(1000)]

    @inner.tool
    async def untold() -> Any:
        return {"rows": [*range(1000)]}

    app = Server("outer", large_results=LargeResultSettings(max_text_chars=100, preview_chars=20))
    app.mount(Client(inner) if far else inner, "in")
    async with Client(app) as client:
        told, link = (await client.call_tool("in_big", {})).content
        assert isinstance(told, TextContent)
        assert isinstance(link, ResourceLink)
        assert len(told.text) < 200
        assert await client.read(link.uri) == "x" * 1000
        assert (await client.call_tool("in_rows", {})).structured_content == {"result": [*range(1000)]}
        assert await client.call("in_rows") == [*range(1000)]
        assert "999" not in str(await client.call_tool("in_untold", {}))


# Lists of a server that is not available


class PersonalServer:
    """A remote server that has a tool for each caller, and can fail."""

    name = "personal"
    is_remote = True

    def __init__(self) -> None:
        self.is_down = False
        self.watched: list[str] = []

    def __mountable__(self) -> Any:
        return self

    async def start(self) -> None:
        if self.is_down:
            raise ConnectionLost("down")

    async def stop(self) -> None: ...

    def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities(
            tools=ListChangedCapability(), resources=ResourcesCapability(subscribe=True, list_changed=True)
        )

    async def list_items(self, kind: str, exchange: Any) -> dict[str, Any]:
        if kind != "tool":
            return {}
        name = f"of_{exchange.caller.principal}"
        return {name: Tool(name=name, input_schema={"type": "object"})}

    async def has_item(self, kind: str, name: str, exchange: Any) -> bool:
        return name in await self.list_items(kind, exchange)

    def watch_changes(self, callback: Any) -> Any:
        return lambda: None

    def can_receive_updates(self, uri: str, principal: Any) -> bool:
        return True

    async def watch_resources(self, uris: list[str], principal: Any) -> Any:
        self.watched += uris
        return lambda: None


@pytest.mark.parametrize("prefix", ["", "in"])
async def test_the_list_of_one_caller_is_not_shown_to_another_when_the_server_fails(prefix: str) -> None:
    app, remote = Server("outer"), PersonalServer()
    app.mount(remote, prefix)
    start = f"{prefix}_" if prefix else ""

    async def list_names(principal: Any) -> list[str]:
        caller = direct_client.Client(app, principal=principal)
        return [tool["name"] for tool in (await caller.request("tools/list"))["tools"]]

    ada, ada_admin = Principal("ada", scopes=["read"]), Principal("ada", scopes=["read", "admin"])
    assert await list_names(ada) == [f"{start}of_ada"]
    remote.is_down = True
    assert await list_names(ada) == [f"{start}of_ada"]
    for other in (Principal("bob"), ada_admin, None):
        assert await list_names(other) == []


async def test_a_remote_server_hears_only_of_subscriptions_that_the_caller_may_have() -> None:
    app, remote = Server("outer"), PersonalServer()
    app.mount(remote, "in")
    app.restrict("in+r://secret", scopes=["admin"])
    client = direct_client.Client(app, principal=Principal("ada"))
    uris = ["in+r://secret", "in+R://secret", "in+r://open"]
    too_long = client.exchange(
        "subscriptions/listen", {"notifications": {"resourceSubscriptions": [*uris, "in+r://" + "x" * 9000]}}
    )
    with pytest.raises(InvalidParams):
        await client.run(too_long)
    assert remote.watched == []
    exchange = client.exchange("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
    listening = asyncio.create_task(client.run(exchange))
    await run_pending_callbacks()
    listening.cancel()
    await asyncio.wait([listening])
    assert remote.watched == ["r://open"]
