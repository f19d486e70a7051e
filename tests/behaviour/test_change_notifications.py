"""Test notifications of changed lists and resources."""

import asyncio
import threading
from collections.abc import Callable

from behaviour.manifest import requirement
from behaviour.request_helpers import list_names
from dovetail import Server
from support.driver import STATELESS, Peer, connect, connect_again
from support.list_capabilities import ALL_LISTS

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"


def server() -> Server:
    app = Server("changing", capabilities=ALL_LISTS)
    for name in "ab":
        app.add_resource(lambda: "x", f"x:{name}", name=name)
    return app


async def listen(peer: Peer) -> None:
    """Hear of everything, where that has to be asked for."""
    if peer.revision == STATELESS:
        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
        peer.start("subscriptions/listen", {"notifications": wanted | {"resourceSubscriptions": ["x:a"]}})
        await peer.next_notification("notifications/subscriptions/acknowledged")
    else:
        await peer.request("resources/subscribe", {"uri": "x:a"})
    peer.notifications.clear()


@requirement("changes.registration")
async def test_additions_and_removals_are_sent_to_every_session(revision: str, transport: str) -> None:
    app = server()
    steps: list[tuple[Callable[[], None], str, str, list[str]]] = [
        (lambda: app.add_tool(lambda: "x", name="new"), TOOLS, "tools/list", ["new"]),
        (lambda: app.remove_tool("new"), TOOLS, "tools/list", []),
        (lambda: app.add_prompt(lambda: "x", name="new"), PROMPTS, "prompts/list", ["new"]),
        (lambda: app.remove_prompt("new"), PROMPTS, "prompts/list", []),
        (lambda: app.add_resource(lambda: "x", "x:new", name="new"), RESOURCES, "resources/list", ["a", "b", "new"]),
        (lambda: app.remove_resource("x:new"), RESOURCES, "resources/list", ["a", "b"]),
        (lambda: app.add_resource(lambda v: v, "x:new/{v}", name="t"), RESOURCES, "resources/templates/list", ["t"]),
        (lambda: app.remove_resource("x:new/{v}"), RESOURCES, "resources/templates/list", []),
    ]
    async with connect(app, transport, revision) as peer:
        async with connect_again(peer) if transport == "http" else connect(app, "memory", revision) as other:
            for change, notice, method, expected in steps:
                await list_names(peer, method)
                change()
                for one in (peer, other):
                    assert await one.next_notification(notice) == {}
                    assert await list_names(one, method) == expected
            assert len(other.notifications) == len(steps)
        assert [method for method, _ in peer.notifications] == [notice for _, notice, _, _ in steps]


@requirement("changes.from-a-thread")
async def test_a_change_may_come_from_a_thread(revision: str, transport: str) -> None:
    app = server()

    def change() -> None:
        app.notify_tools_changed()
        app.notify_resource_updated("x:a")
        app.add_prompt(lambda: "x", name="from-a-thread")
        app.notify_resources_changed()

    async with connect(app, transport, revision) as peer:
        await listen(peer)
        thread = threading.Thread(target=change)
        thread.start()
        for notice in (TOOLS, UPDATED, PROMPTS, RESOURCES):
            await peer.next_notification(notice)
        await asyncio.to_thread(thread.join)
        assert [method for method, _ in peer.notifications] == [TOOLS, UPDATED, PROMPTS, RESOURCES]
        assert await list_names(peer, "prompts/list") == ["from-a-thread"]


@requirement("changes.ready-first")
async def test_nothing_is_sent_before_the_session_is_ready(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision, handshake=False) as peer:
        app.notify_tools_changed()
        await peer.initialize()
        app.notify_tools_changed()
        await peer.request("ping")
        assert peer.notifications == []
        await peer.notify("notifications/initialized")
        await peer.request("ping")
        app.notify_prompts_changed()
        await peer.next_notification(PROMPTS)
        assert len(peer.notifications) == 1


@requirement("changes.updated")
async def test_updates_are_sent_to_subscribers(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        app.notify_resource_updated("x:a")
        assert await peer.request("resources/subscribe", {"uri": "x:a"}) == {}
        assert await peer.request("resources/subscribe", {"uri": "x:a"}) == {}
        async with connect_again(peer) if transport == "http" else connect(app, "memory", revision) as other:
            await other.request("resources/subscribe", {"uri": "x:b"})
            for uri in ("x:c", "x:A", "x:b", "x:a"):
                app.notify_resource_updated(uri)
            assert await peer.next_notification(UPDATED) == {"uri": "x:a"}
            assert await other.next_notification(UPDATED) == {"uri": "x:b"}
            app.notify_tools_changed()
            await peer.next_notification(TOOLS)
            await other.next_notification(TOOLS)
            assert len(other.notifications) == 2
        assert len(peer.notifications) == 2


@requirement("changes.spellings")
async def test_notices_have_the_subscribers_spelling(revision: str, transport: str) -> None:
    app = Server("spelled")
    app.add_resource(lambda: "x", "notes://today/%C3%A9")
    spelled = ["NOTES://tod%61y/%c3%a9", "notes://Today/%C3%a9"]
    async with connect(app, transport, revision) as peer:
        if revision == STATELESS:
            peer.start("subscriptions/listen", {"notifications": {"resourceSubscriptions": spelled}})
            await peer.next_notification("notifications/subscriptions/acknowledged")
        else:
            for uri in spelled:
                await peer.request("resources/subscribe", {"uri": uri})
        app.notify_resource_updated("notes://today/%C3%A9")
        assert [(await peer.next_notification(UPDATED))["uri"] for _ in spelled] == spelled
        if revision != STATELESS:
            await peer.request("resources/unsubscribe", {"uri": spelled[0]})
            app.notify_resource_updated("notes://today/%C3%A9")
            assert (await peer.next_notification(UPDATED))["uri"] == spelled[1]
            await peer.request("resources/unsubscribe", {"uri": "notes://today/%C3%A9"})
            app.notify_resource_updated("notes://today/%C3%A9")
            app.notify_resources_changed()
            await peer.next_notification(RESOURCES)
            assert [method for method, _ in peer.notifications if method == UPDATED] == [UPDATED] * 3


@requirement("changes.unsubscribed")
async def test_after_unsubscribing_there_is_silence(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        for uri in ("x:a", "x:b"):
            await peer.request("resources/subscribe", {"uri": uri})
        assert await peer.request("resources/unsubscribe", {"uri": "x:a"}) == {}
        assert await peer.request("resources/unsubscribe", {"uri": "x:never"}) == {}
        app.notify_resource_updated("x:a")
        app.notify_resource_updated("x:b")
        assert await peer.next_notification(UPDATED) == {"uri": "x:b"}
        await peer.request("resources/unsubscribe", {"uri": "x:b"})
        app.notify_resource_updated("x:b")
        app.notify_tools_changed()
        await peer.next_notification(TOOLS)
        assert [method for method, _ in peer.notifications] == [UPDATED, TOOLS]


@requirement("changes.collected")
async def test_a_missed_change_is_sent_once(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision, listen=False) as peer:
        await peer.request("resources/subscribe", {"uri": "x:a"})
        for _ in range(3):
            app.notify_tools_changed()
            app.notify_prompts_changed()
            app.notify_resource_updated("x:a")
            app.notify_resource_updated("x:b")
        await peer.request("ping")
        assert peer.notifications == [], "nothing but the GET stream carries what nobody asked for"
        await peer.listen()
        for notice in (TOOLS, PROMPTS, UPDATED):
            await peer.next_notification(notice)
        app.notify_resources_changed()
        await peer.next_notification(RESOURCES)
        assert len(peer.notifications) == 4
