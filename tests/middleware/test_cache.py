"""Test that the cache middleware never shares a result with a caller who could not request it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dovetail import Client, Context, Server, testing
from dovetail.auth import Principal
from dovetail.errors import InsufficientScope, ProtocolError, ToolNotFound
from dovetail.middleware import ResponseCache
from dovetail.protocol.exchange import Caller, Exchange, IncomingExchange
from dovetail.protocol.middleware import CallNext
from dovetail.server.server import get_dispatcher
from dovetail.wire.content import TextContent
from dovetail.wire.revisions import NEWEST_REVISION
from dovetail.wire.tools import CallToolResult


def exchange(who: Principal | None, tool: str = "secret", headers: Any = None) -> IncomingExchange:
    return IncomingExchange(
        1, "tools/call", {"name": tool}, {}, Caller(NEWEST_REVISION, is_stateless=True, principal=who), headers
    )


async def said(app: Server, who: Principal | None, tool: str = "secret", headers: Any = None) -> str:
    result: Any = await get_dispatcher(app).handle(exchange(who, tool, headers))
    return result.content[0].text


def bob(scopes: str = "", **claims: Any) -> Principal:
    return Principal("bob", scopes=scopes, claims=claims)


def guarded(*middleware: Any, **options: Any) -> Server:
    app = Server("guarded", middleware=middleware)

    @app.tool(**options)
    async def secret() -> str:
        return "secret"

    @app.tool
    async def other() -> str:
        return "other"

    return app


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mounted", [False, True])
async def test_a_cached_result_is_given_only_to_authorized_callers(*, shared: bool, mounted: bool) -> None:
    cache = ResponseCache(["secret"], shared=shared)
    inner = app = guarded(*(() if mounted else (cache,)), scopes=["admin"])
    if mounted:
        app = Server("outer", middleware=[cache])
        app.mount(inner)
    assert await said(app, bob("admin")) == "secret"
    with pytest.raises(InsufficientScope):
        await said(app, bob())
    inner.disable("secret")
    with pytest.raises(ToolNotFound):
        await said(app, bob("admin"))


async def test_what_became_invisible_is_not_given() -> None:
    seen = [True]

    def is_visible(_: object) -> bool:
        return seen[0]

    app = guarded(ResponseCache(["secret"]), visible_to=is_visible)
    assert await said(app, bob()) == "secret"
    seen.clear()
    seen.append(False)
    with pytest.raises(ProtocolError):
        await said(app, bob())


async def test_what_a_mounted_server_keeps_is_its_own_to_refuse() -> None:
    app = Server("outer")
    inner = guarded(ResponseCache(["secret"], shared=True), scopes=["admin"])
    app.mount(inner, "in")
    assert await said(app, bob("admin"), "in_secret") == "secret"
    with pytest.raises(InsufficientScope):
        await said(app, bob(), "in_secret")


def telling() -> Server:
    app = Server("telling", middleware=[ResponseCache(["me"])])

    @app.tool
    async def me(ctx: Context) -> str:
        who = ctx.principal
        return f"{sorted(who.scopes)} {dict(who.claims)}" if who is not None else ctx.headers.get("x-user", "")

    return app


async def test_scopes_and_claims_tell_callers_apart() -> None:
    app = telling()
    whos = [bob(), bob("a"), bob(role="admin"), bob(role="guest")]
    assert len({await said(app, who, "me") for who in whos}) == 4
    assert await said(app, bob("a", jti="1"), "me") == await said(app, bob("a", jti="2"), "me")


async def test_callers_who_prove_nothing_are_kept_nothing() -> None:
    app = telling()
    for who in (b"alice", b"mallory"):
        assert await said(app, None, "me", {b"x-user": who}) == who.decode()


@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
async def test_anonymous_connections_do_not_share_results(protocol_version: str) -> None:
    app, calls = Server("socket", middleware=[ResponseCache(["me"])]), Counter[str]()

    @app.tool
    async def me(ctx: Context) -> str:
        calls["me"] += 1
        return " ".join(root.uri for root in await ctx.list_roots())

    async with testing.serve(app, transport="unix") as target:
        for path in ("/anna", "/otto"):
            async with Client(target, protocol_version=protocol_version, roots=[path]) as client:
                assert [await client.call("me") for _ in range(2)] == [f"file://{path}"] * 2
    assert calls["me"] == (2 if protocol_version == "2025-11-25" else 8)


async def test_what_is_kept_reads_like_what_was_computed() -> None:
    app = Server("numbers", middleware=[ResponseCache(["numbers"])])

    @app.tool
    async def numbers() -> list[int]:
        return [1, 2]

    async with Client(app, protocol_version="2025-06-18") as client:
        assert await client.call_tool("numbers", {}) == await client.call_tool("numbers", {})


async def test_each_caller_gets_a_separate_copy() -> None:
    async def stamp(exchange: Exchange, call_next: CallNext) -> object:
        result = await call_next(exchange)
        if isinstance(result, CallToolResult):
            result.content.append(TextContent(text="stamped"))
            result.structured_content["numbers"].append(9)
        return result

    app = Server("stamped", middleware=[stamp, ResponseCache(["numbers"], shared=True)])

    @app.tool
    async def numbers() -> dict[str, list[int]]:
        return {"numbers": [1, 2]}

    async with Client(app) as client:
        results = [await client.call_tool("numbers") for _ in range(3)]
    assert [len(result.content) for result in results] == [2, 2, 2]
    assert [result.structured_content for result in results] == [{"numbers": [1, 2, 9]}] * 3


async def test_a_changed_item_is_not_served_from_the_cache() -> None:
    below, app = Server("below"), Server("x", middleware=[ResponseCache(["note:1", "in+note:1", "note:2", "count"])])
    said: Counter[str] = Counter()

    def counted(what: str) -> Callable[[], str]:
        def note() -> str:
            said[what] += 1
            return f"{what}: {said[what]}"

        return note

    for server in (below, app):
        for uri in ("note:1", "note:2"):
            server.add_resource(counted(f"{server.name} {uri}"), uri)

    @app.tool
    def count() -> int:
        said["count"] += 1
        return said["count"]

    app.mount(below, "in")
    async with Client(app) as client:
        for _ in range(2):
            assert await client.read("note:1") == "x note:1: 1"
            assert await client.read("in+note:1") == "below note:1: 1"
            assert await client.read("note:2") == "x note:2: 1"
            assert await client.call("count") == 1
        app.notify_resource_updated("note:1")
        below.notify_resource_updated("note:1")
        assert await client.read("note:1") == "x note:1: 2"
        assert await client.read("in+note:1") == "below note:1: 2"
        assert await client.read("note:2") == "x note:2: 1"
        assert await client.call("count") == 1
        app.notify_tools_changed()
        assert await client.call("count") == 2


async def test_what_changed_while_it_was_read_is_not_kept() -> None:
    app = Server("x", middleware=[ResponseCache(["note:1"])])
    said: list[int] = []

    @app.resource("note:1")
    def note() -> str:
        said.append(1)
        if len(said) == 1:
            app.notify_resource_updated("note:1")
        return str(len(said))

    async with Client(app) as client:
        assert [await client.read("note:1") for _ in range(3)] == ["1", "2", "2"]
