"""Test that change notifications reach every listener on its event loop. A slow one receives each change once."""

import asyncio
import json
import threading
from typing import Any

import pytest

from dovetail.eager_tasks import EagerTaskStarter
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.server.dispatch.change_notices import ChangeStream, Subscriptions
from dovetail.wire.subscriptions import SubscriptionFilter

PATIENCE = 10.0
TOOLS, UPDATED = "notifications/tools/list_changed", "notifications/resources/updated"


class Ear:
    """A listener that keeps what it hears, and where it heard it."""

    def __init__(self, *wanted: str) -> None:
        self.wanted = wanted
        self.heard: list[tuple[str, str | None]] = []
        self.threads: set[int] = set()

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        return not self.wanted or method in self.wanted

    def deliver(self, method: str, uri: str | None) -> None:
        self.heard.append((method, uri))
        self.threads.add(threading.get_ident())

    def send_to_session(self, session_id: str, method: str, message: bytes) -> bool:
        return False


async def turn() -> None:
    """Let everything that was called soon happen."""
    await asyncio.sleep(0)


async def test_listeners_receive_the_changes_they_want() -> None:
    changes, all_ears, picky = Subscriptions(), Ear(), Ear(UPDATED)
    changes.subscribe(all_ears)
    changes.subscribe(picky)
    changes.publish(TOOLS)
    changes.publish(UPDATED, "a:b")
    assert not all_ears.heard  # never within the call: a publisher is not its listeners' slave
    await turn()
    assert all_ears.heard == [(TOOLS, None), (UPDATED, "a:b")]
    assert picky.heard == [(UPDATED, "a:b")]


async def test_equal_changes_without_a_pause_are_delivered_once_in_their_first_order() -> None:
    changes, ear = Subscriptions(), Ear()
    changes.subscribe(ear)
    for _ in range(1000):
        changes.publish(UPDATED, "a:b")
        changes.publish(TOOLS)
    await turn()
    assert ear.heard == [(UPDATED, "a:b"), (TOOLS, None)]
    changes.publish(TOOLS)
    await turn()
    assert ear.heard == [(UPDATED, "a:b"), (TOOLS, None), (TOOLS, None)]


async def test_notifications_for_a_session_and_changes_keep_their_order() -> None:
    changes, order = Subscriptions(), list[str]()

    class Session(Ear):
        def deliver(self, method: str, uri: str | None) -> None:
            order.append(method)

        def send_to_session(self, session_id: str, method: str, message: bytes) -> bool:
            order.append(method)
            return True

    changes.subscribe(Session())
    changes.publish(TOOLS)
    changes.send_to_session("session", "notifications/message", {})
    changes.publish(TOOLS)
    await turn()
    assert order == [TOOLS, "notifications/message", TOOLS]


async def test_who_stopped_listening_hears_nothing_more() -> None:
    changes, ear = Subscriptions(), Ear()
    stop = changes.subscribe(ear)
    changes.publish(TOOLS)
    stop()
    stop()
    await turn()
    assert not ear.heard
    assert len(changes) == 0


async def test_a_listener_may_stop_while_others_are_notified() -> None:
    changes, other = Subscriptions(), Ear()

    class Leaving(Ear):
        def deliver(self, method: str, uri: str | None) -> None:
            super().deliver(method, uri)
            stop()

    leaving = Leaving()
    stop = changes.subscribe(leaving)
    changes.subscribe(other)
    changes.publish(TOOLS)
    changes.publish(UPDATED, "a:b")
    await turn()
    assert len(leaving.heard) == 1
    assert len(other.heard) == 2


async def test_changes_from_any_thread_are_delivered_on_the_listeners_loop() -> None:
    changes, ear = Subscriptions(), Ear()
    changes.subscribe(ear)
    await asyncio.gather(*(asyncio.to_thread(changes.publish, UPDATED, f"a:{number}") for number in range(20)))
    await turn()
    assert {uri for _, uri in ear.heard} == {f"a:{number}" for number in range(20)}
    assert ear.threads == {threading.get_ident()}


def test_a_listener_whose_loop_is_gone_is_forgotten() -> None:
    changes = Subscriptions()

    async def listen() -> None:
        changes.subscribe(Ear())

    asyncio.run(listen())
    assert len(changes) == 1
    changes.publish(TOOLS)
    assert len(changes) == 0


def test_listening_needs_a_loop() -> None:
    with pytest.raises(RuntimeError):
        Subscriptions().subscribe(Ear())


# Streams of subscriptions/listen

EMPTY_CALLER = Caller("2026-07-28", True)


class Reader:
    """A client that may stop reading. The stream under test, and what has been read of it."""

    def __init__(self, *uris: str, tools: bool = True) -> None:
        self.received: list[tuple[str, str | None]] = []
        self.ids: set[Any] = set()
        self.reads = asyncio.Event()
        self.reads.set()
        self.error: Exception | None = None
        self.starter = EagerTaskStarter()
        self.exchange = IncomingExchange('s"1', "subscriptions/listen", {}, {}, EMPTY_CALLER, emit=self.emit)
        wanted = SubscriptionFilter(tools_list_changed=tools, resource_subscriptions=list(uris))
        self.stream = ChangeStream(self.exchange, wanted, self.starter)

    async def emit(self, data: bytes) -> None:
        await self.reads.wait()
        if self.error is not None:
            raise self.error
        message = json.loads(data)
        if message["method"] == "notifications/subscriptions/acknowledged":
            assert not self.received
            return
        self.received.append((message["method"], message["params"].get("uri")))
        self.ids.add(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"])

    async def start(self) -> asyncio.Task[None]:
        running = asyncio.create_task(self.stream.run())
        await turn()
        await turn()
        return running


async def finish(running: asyncio.Task[None]) -> None:
    async with asyncio.timeout(PATIENCE):
        await running


async def test_a_stream_wants_what_its_filter_names() -> None:
    stream = Reader("a:b", tools=False).stream
    assert stream.is_subscribed(UPDATED, "a:b")
    assert not stream.is_subscribed(UPDATED, "a:c")
    assert not stream.is_subscribed(TOOLS, None)


async def test_a_change_is_sent_within_the_call() -> None:
    reader = Reader("a:b", "A:b")
    running = await reader.start()
    reader.stream.deliver(TOOLS, None)
    reader.stream.deliver(UPDATED, "a:b")
    reader.stream.deliver(TOOLS, None)
    assert reader.received == [(TOOLS, None), (UPDATED, "a:b"), (UPDATED, "A:b"), (TOOLS, None)]
    assert reader.ids == {'s"1'}
    reader.stream.close()
    await finish(running)


async def test_nothing_is_sent_before_the_stream_runs() -> None:
    reader = Reader()
    reader.stream.deliver(TOOLS, None)
    reader.stream.deliver(TOOLS, None)
    assert not reader.received
    running = await reader.start()
    assert reader.received == [(TOOLS, None)]
    reader.stream.close()
    await finish(running)


async def test_a_slow_reader_gets_each_change_once_in_order_of_arrival() -> None:
    reader = Reader("a:1", "a:2", "a:3")
    running = await reader.start()
    reader.reads.clear()
    reader.stream.deliver(TOOLS, None)
    for uri in ("a:2", "a:1", "a:2", "a:3", "a:1"):
        reader.stream.deliver(UPDATED, uri)
    reader.stream.deliver(TOOLS, None)
    await turn()
    assert not reader.received
    reader.reads.set()
    reader.stream.close()
    await finish(running)
    assert reader.received == [(TOOLS, None), *((UPDATED, uri) for uri in ("a:2", "a:1", "a:3")), (TOOLS, None)]


async def test_a_slow_reader_does_not_hold_up_another() -> None:
    slow, quick = Reader(), Reader()
    subscriptions = Subscriptions()
    running = [await reader.start() for reader in (slow, quick)]
    for reader in (slow, quick):
        subscriptions.subscribe(reader.stream)
    slow.reads.clear()
    subscriptions.publish(TOOLS)
    await turn()
    assert quick.received == [(TOOLS, None)]
    for reader, task in zip((slow, quick), running, strict=True):
        reader.reads.set()
        reader.stream.close()
        await finish(task)
    assert slow.received == [(TOOLS, None)]


async def test_a_cancelled_stream_sends_nothing_more() -> None:
    reader = Reader()
    running = await reader.start()
    reader.reads.clear()
    reader.stream.deliver(TOOLS, None)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finish(running)
    reader.reads.set()
    await turn()
    await turn()
    assert not reader.received


async def test_a_write_that_fails_ends_its_stream_alone() -> None:
    broken, other = Reader(), Reader()
    subscriptions = Subscriptions()
    running = [await reader.start() for reader in (broken, other)]
    for reader in (broken, other):
        subscriptions.subscribe(reader.stream)
    broken.error = OSError("gone")
    subscriptions.publish(TOOLS)
    await turn()
    assert other.received == [(TOOLS, None)]
    with pytest.raises(OSError, match="gone"):
        await finish(running[0])
    other.stream.close()
    await finish(running[1])


async def test_a_listener_that_fails_does_not_cost_the_others_their_notice(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Ear):
        def deliver(self, method: str, uri: str | None) -> None:
            raise ValueError

    changes, other = Subscriptions(), Ear()
    changes.subscribe(Failing())
    changes.subscribe(other)
    changes.publish(TOOLS)
    await turn()
    assert other.heard == [(TOOLS, None)]
    assert len(caplog.records) == 1


async def test_a_callback_that_fails_keeps_no_other_from_a_change(caplog: pytest.LogCaptureFixture) -> None:
    received: list[str] = []

    def fail(*_: object) -> None:
        raise ValueError("broken")

    subscriptions = Subscriptions()
    subscriptions.add_callback(fail)
    subscriptions.add_callback(lambda method, _: received.append(method))
    subscriptions.publish("notifications/tools/list_changed")
    assert received == ["notifications/tools/list_changed"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
