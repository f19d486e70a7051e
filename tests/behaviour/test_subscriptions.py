"""Test subscriptions/listen: acknowledgement, filters, subscription ids and the end."""

import asyncio
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import call, expect_error
from dovetail import Context, Server
from dovetail.errors import ConnectionLost
from dovetail.server.server import get_dispatcher
from support.driver import STATELESS, Peer, Pending, connect
from support.list_capabilities import ALL_LISTS, declare_lists

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
ID = "io.modelcontextprotocol/subscriptionId"
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["x:a", "x:b"],
}


def server(*offers: str) -> Server:
    app = Server("listening", capabilities=declare_lists(*offers) if offers else ALL_LISTS)

    @app.tool
    async def work(ctx: Context) -> str:
        await ctx.progress(1)
        await ctx.error("logged")
        return "worked"

    return app


async def listen(peer: Peer, filter: dict[str, Any], id: int | str | None = None) -> Pending:
    """A subscription that has been acknowledged."""
    pending = peer.start("subscriptions/listen", {"notifications": filter}, id=id)
    await peer.next_notification(ACKNOWLEDGED)
    return pending


def heard(peer: Peer, id: int | str) -> list[tuple[str, str | None]]:
    """What was said on one subscription after its acknowledgement."""
    mine = [(m, p) for m, p in peer.notifications if p["_meta"][ID] == id and type(p["_meta"][ID]) is type(id)]
    assert mine[0][0] == ACKNOWLEDGED
    return [(method, params.get("uri")) for method, params in mine[1:]]


async def until_listeners_are(app: Server, count: int, peer: Peer) -> None:
    """Wait until only so many listeners are left, keeping the connection busy meanwhile."""
    async with asyncio.timeout(5):
        while len(get_dispatcher(app).registry.subscriptions) != count:
            await peer.request("tools/list")


@requirement("listen.acknowledged")
async def test_a_subscription_is_acknowledged_first(revision: str, transport: str) -> None:
    app = server("tools", "resources")
    async with connect(app, transport, revision) as peer:
        for number, (asked, honoured) in enumerate(
            (
                (EVERYTHING, {key: value for key, value in EVERYTHING.items() if key != "promptsListChanged"}),
                ({"toolsListChanged": True}, {"toolsListChanged": True}),
                ({"promptsListChanged": True}, {}),
                ({"toolsListChanged": False, "resourceSubscriptions": []}, {}),
                ({"resourceSubscriptions": ["x:a", "x:a"]}, {"resourceSubscriptions": ["x:a"]}),
                ({"unheardOf": True}, {}),
                ({}, {}),
            )
        ):
            app.notify_tools_changed()
            pending = peer.start("subscriptions/listen", {"notifications": asked}, id=f"s{number}")
            acknowledged = await peer.next_notification(ACKNOWLEDGED)
            assert acknowledged["notifications"] == honoured
            assert acknowledged["_meta"] == {ID: f"s{number}"}
            assert not pending.done
            if transport == "http":
                assert (await pending.streaming()).media_type == "text/event-stream"
                (first,) = [event.message for event in (await pending.streaming()).events_seen if event.data]
                assert first["method"] == ACKNOWLEDGED


@pytest.mark.parametrize("id", [0, 7, "7", "", "sub \u00fc"])
@requirement("listen.subscription-id")
async def test_everything_carries_the_subscriptions_id(id: Any, revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        await listen(peer, EVERYTHING, id)
        app.notify_tools_changed()
        app.notify_resource_updated("x:a")
        await peer.next_notification(UPDATED)
        assert heard(peer, id) == [(TOOLS, None), (UPDATED, "x:a")]
        assert len(peer.notifications) == 3


@requirement("listen.filter")
async def test_a_subscription_hears_only_what_it_asked_for(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        await listen(peer, {"promptsListChanged": True, "resourceSubscriptions": ["x:a"]}, "s")
        result = peer.start("tools/call", {"name": "work"}, progress_token="t", log_level="debug")
        await result
        if transport == "http":
            assert result.response is not None
            assert len([event for event in result.response.events_seen if event.data]) == 3
        peer.notifications[:] = [
            (m, p) for m, p in peer.notifications if m not in ("notifications/progress", "notifications/message")
        ]
        for uri in ("x:b", "x:", "x:A", "x:a/b"):
            app.notify_resource_updated(uri)
        app.notify_tools_changed()
        app.notify_resources_changed()
        app.add_tool(lambda: "x", name="new")
        app.notify_resource_updated("x:a")
        app.notify_prompts_changed()
        await peer.next_notification(PROMPTS)
        assert heard(peer, "s") == [(UPDATED, "x:a"), (PROMPTS, None)]
        assert len(peer.notifications) == 3


@requirement("listen.filter", transports=("http",))
async def test_a_subscriptions_stream_carries_nothing_else(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        pending = peer.start(
            "subscriptions/listen", {"notifications": EVERYTHING}, progress_token="l", log_level="debug"
        )
        await peer.next_notification(ACKNOWLEDGED)
        await peer.request("tools/call", {"name": "work"}, progress_token="t", log_level="debug")
        app.notify_tools_changed()
        await peer.next_notification(TOOLS)
        said = [event.message["method"] for event in (await pending.streaming()).events_seen if event.data]
        assert said == [ACKNOWLEDGED, TOOLS]


@requirement("listen.several")
async def test_subscriptions_live_side_by_side(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        await listen(peer, {"toolsListChanged": True}, "tools")
        await listen(peer, {"resourceSubscriptions": ["x:a", "x:b"]}, "both")
        await listen(peer, {"resourceSubscriptions": ["x:b"]}, 1)
        await listen(peer, {"resourceSubscriptions": ["x:b"]}, "1")
        app.notify_tools_changed()
        app.notify_resource_updated("x:a")
        app.notify_resource_updated("x:b")
        for _ in range(4):
            await peer.next_notification(UPDATED)
        await peer.next_notification(TOOLS)
        assert heard(peer, "tools") == [(TOOLS, None)]
        assert heard(peer, "both") == [(UPDATED, "x:a"), (UPDATED, "x:b")]
        assert heard(peer, 1) == heard(peer, "1") == [(UPDATED, "x:b")]


@requirement("listen.graceful")
async def test_a_server_that_stops_ends_subscriptions_with_grace(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        pendings = [await listen(peer, {"toolsListChanged": True}, id) for id in ("a", 2)]
        app.notify_tools_changed()
        await app.stop()
        for pending in pendings:
            result = await pending
            assert result["resultType"] == "complete"
            assert result["_meta"][ID] == pending.id
            assert heard(peer, pending.id) == [(TOOLS, None)], "what happened before the end is still told"
        assert len(get_dispatcher(app).registry.subscriptions) == 0


@requirement("listen.cancelled", transports=("memory", "pipe"))
async def test_a_notice_ends_a_subscription(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        before = len(get_dispatcher(app).registry.subscriptions)
        kept = await listen(peer, {"toolsListChanged": True}, "kept")
        gone = await listen(peer, {"toolsListChanged": True}, "gone")
        await peer.cancel("gone")
        await until_listeners_are(app, before + 1, peer)
        app.notify_tools_changed()
        await peer.next_notification(TOOLS)
        await call(peer, "work")
        assert heard(peer, "gone") == []
        assert heard(peer, "kept") == [(TOOLS, None)]
        assert not gone.done
        assert not kept.done


@requirement("listen.cancelled", transports=("http",))
async def test_a_dropped_connection_ends_a_subscription(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        await listen(peer, {"toolsListChanged": True}, "kept")
        gone = await listen(peer, {"toolsListChanged": True}, "gone")
        assert len(get_dispatcher(app).registry.subscriptions) == 2
        await gone.disconnect()
        with pytest.raises(ConnectionLost):
            await gone
        await until_listeners_are(app, 1, peer)
        app.notify_tools_changed()
        await peer.next_notification(TOOLS)
        assert heard(peer, "kept") == [(TOOLS, None)]


@requirement("listen.not-offered")
async def test_there_must_be_something_to_hear_of(revision: str, transport: str) -> None:
    async with connect(Server("mute"), transport, revision) as peer:
        error = await expect_error(peer.request("subscriptions/listen", {"notifications": {}}))
        assert error.code == -32601
    async with connect(server(), transport, revision) as peer:
        for params in (
            {},
            {"notifications": None},
            {"notifications": []},
            {"notifications": {"toolsListChanged": "yes"}},
            {"notifications": {"resourceSubscriptions": "x:a"}},
            {"notifications": {"resourceSubscriptions": [1]}},
        ):
            assert (await expect_error(peer.request("subscriptions/listen", params))).code == -32602, params
        assert peer.notifications == []


@requirement("listen.silent-without")
async def test_who_did_not_subscribe_hears_nothing(revision: str, transport: str) -> None:
    app = server()
    assert revision == STATELESS
    async with connect(app, transport, revision) as peer:
        app.notify_tools_changed()
        app.notify_resource_updated("x:a")
        await call(peer, "work")
        assert peer.notifications == []
