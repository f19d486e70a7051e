"""Test that the workers of a cluster hear each other's changes: listeners, list pages and response caches."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.cluster.change_messages import read_change
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.middleware import ResponseCache
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.server.server import get_dispatcher

KEYS = ["a key with enough bytes"]
TOOLS, UPDATED = "notifications/tools/list_changed", "notifications/resources/updated"
TIMEOUT_S = 10.0


class Listener:
    """A listener that subscribed to everything, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None]] = []
        self.missed = 0

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        return True

    def deliver(self, method: str, uri: str | None) -> None:
        self.heard.append((method, uri))

    def deliver_all(self) -> None:
        self.missed += 1

    def send_to_session(self, session_id: str, method: str, message: bytes) -> bool:
        return False


class FailingBackend(MemoryBackend):
    """A back end whose change log can fail."""

    is_away = False
    is_open: asyncio.Event | None = None  # If set, the log answers after this event.
    waiting = 0

    async def publish(self, kind: str, body: bytes) -> str:
        if self.is_open is not None:
            self.waiting += 1
            await self.is_open.wait()
        if self.is_away:
            raise SharedStateUnavailable("away")
        return await super().publish(kind, body)


def create_server(backend: MemoryBackend) -> Server:
    app = Server("test", cluster=backend, secret_keys=KEYS)
    app.add_resource(lambda: "text", "x://r")
    app.add_tool(lambda: "text", name="first")
    return app


@asynccontextmanager
async def run_workers() -> AsyncIterator[tuple[Server, Server, FailingBackend]]:
    backend = FailingBackend()
    first, second = create_server(backend), create_server(MemoryBackend(backend))
    await first.start()
    await second.start()
    try:
        yield first, second, backend
    finally:
        await second.stop()
        await first.stop()


def listen(app: Server) -> Listener:
    listener = Listener()
    get_dispatcher(app).subscribe(listener)
    return listener


async def wait_for(condition: Any) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_change_is_heard_once_in_every_worker() -> None:
    async with run_workers() as (first, second, _):
        here, there = listen(first), listen(second)
        first.notify_resource_updated("x://r")
        await wait_for(lambda: there.heard)
        first.notify_tools_changed()
        await wait_for(lambda: len(there.heard) == 2)
        assert here.heard == there.heard == [(UPDATED, "x://r"), (TOOLS, None)]


async def test_a_change_can_be_published_from_any_thread() -> None:
    async with run_workers() as (first, second, _):
        there = listen(second)
        thread = threading.Thread(target=first.notify_resource_updated, args=["x://r"])
        thread.start()
        await wait_for(lambda: there.heard)
        thread.join()
        assert there.heard == [(UPDATED, "x://r")]


async def test_changes_before_the_start_are_not_sent() -> None:
    backend = MemoryBackend()
    first = create_server(backend)
    second = create_server(listening := MemoryBackend(backend))
    await second.start()
    cursor = await listening.get_cursor()
    first.notify_tools_changed()
    await first.start()
    first.notify_resource_updated("x://r")
    await wait_for(lambda: backend._hub.change_count)
    messages = await listening.read_changes(cursor)
    assert messages is not None
    assert [read_change(message).method for message in messages] == [UPDATED]
    await first.stop()
    await second.stop()


async def test_changes_during_an_outage_are_heard_here_at_once_and_elsewhere_later_each_once() -> None:
    async with run_workers() as (first, second, backend):
        here, there = listen(first), listen(second)
        backend.is_away = True
        for _ in range(3):
            first.notify_resource_updated("x://r")
            await asyncio.sleep(0)
        first.notify_tools_changed()
        await wait_for(lambda: len(here.heard) == 4)
        assert not there.heard
        backend.is_away = False
        await wait_for(lambda: len(there.heard) == 2)
        first.notify_resource_updated("x://other")
        await wait_for(lambda: len(there.heard) == 3)
        assert there.heard == [(UPDATED, "x://r"), (TOOLS, None), (UPDATED, "x://other")]


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_call_is_answered_after_the_log_has_its_changes(is_sync: bool) -> None:
    async with run_workers() as (first, second, backend):

        def touch() -> str:
            first.notify_resource_updated("x://r")
            first.notify_tools_changed()
            return "done"

        async def touch_without_thread() -> str:
            return touch()

        there = listen(second)
        first.add_tool(touch if is_sync else touch_without_thread, name="touch")
        await wait_for(lambda: there.heard == [(TOOLS, None)])
        async with Client(first) as client:
            backend.is_open = asyncio.Event()
            call = asyncio.ensure_future(client.call("touch"))
            await wait_for(lambda: backend.waiting)
            assert await client.call("first") == "text"  # Other calls do not wait.
            assert not call.done()
            backend.is_open.set()
            assert await call == "done"
            assert backend.waiting == 2
            await wait_for(lambda: there.heard[1:] == [(UPDATED, "x://r"), (TOOLS, None)])


async def test_a_call_does_not_wait_for_a_log_that_is_away() -> None:
    async with run_workers() as (first, second, backend):
        there = listen(second)
        first.add_tool(lambda: first.notify_resource_updated("x://r"), name="touch")
        backend.is_away = True
        async with Client(first) as client:
            for _ in range(3):
                await client.call("touch")
            assert not there.heard
            backend.is_away = False
            await wait_for(lambda: (UPDATED, "x://r") in there.heard)


async def test_many_changes_during_an_outage_become_one_message() -> None:
    async with run_workers() as (first, second, backend):
        there = listen(second)
        backend.is_away = True
        for number in range(1500):
            first.notify_resource_updated(f"x://{number}")
        await asyncio.sleep(0)
        backend.is_away = False
        await wait_for(lambda: there.missed)
        assert len(there.heard) <= 500


async def test_a_long_uri_is_reported_as_an_unknown_change() -> None:
    async with run_workers() as (first, second, _):
        there = listen(second)
        first.notify_resource_updated("x://" + "a" * 20_000)
        await wait_for(lambda: there.missed)
        assert not there.heard


async def test_a_change_in_an_unknown_format_counts_as_every_change() -> None:
    async with run_workers() as (_, second, backend):
        there = listen(second)
        await backend.publish("change", b"\x07?")
        await wait_for(lambda: there.missed == 1)


async def test_a_gap_reports_every_topic_of_a_subscription_once() -> None:
    async with (
        run_workers() as (first, second, _),
        Client(second) as client,
        client.listen(tools=True, uris=["x://r"]) as subscription,
    ):
        cluster, reported = get_dispatcher(second).cluster, aiter(subscription)
        assert cluster is not None
        cluster.handle_gap()
        async with asyncio.timeout(TIMEOUT_S):
            changes = [await anext(reported), await anext(reported)]
        assert {(change.kind, change.uri) for change in changes} == {("tools", None), ("resource", "x://r")}
        first.notify_prompts_changed()
        first.notify_resource_updated("x://r")
        async with asyncio.timeout(TIMEOUT_S):
            change = await anext(reported)
        assert (change.kind, change.uri) == ("resource", "x://r")


async def test_a_change_clears_list_pages_and_cached_responses_of_other_workers() -> None:
    calls: list[str] = []
    async with run_workers() as (first, second, _):
        second.middleware(ResponseCache(["cached"], shared=True))

        @second.tool
        def cached() -> str:
            calls.append("call")
            return "text"

        async with Client(second) as client:
            await client.call("cached")
            await client.call("cached")
            assert len(calls) == 1
            await client.list_tools()
            pages = second._registry._page_cache.current
            first.notify_tools_changed()
            await wait_for(lambda: second._registry._page_cache.current is not pages)
            await client.call("cached")
            assert len(calls) == 2


async def test_a_tool_that_is_added_at_run_time_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan(app: Server) -> AsyncIterator[None]:
        app.add_tool(lambda: "text", name="everywhere")
        yield

    app = Server("test", cluster=MemoryBackend(), secret_keys=KEYS, lifespan=lifespan)
    async with Client(app) as client:
        assert [tool.name for tool in await client.list_tools()] == ["everywhere"]
        assert not caplog.records
        app.add_tool(lambda: "text", name="late")
        app.disable("late")
        app.remove_tool("late")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_one_process_may_add_tools_at_run_time(caplog: pytest.LogCaptureFixture) -> None:
    app = Server("test")
    async with Client(app):
        app.add_tool(lambda: "text", name="late")
    assert not caplog.records
