"""Changes and mailboxes: whoever listens is told, on its own loop, each topic once."""

import asyncio
import threading
from typing import Any

import pytest

from dovetail.server.change_notices import ChangeQueue, Subscriptions

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


async def turn() -> None:
    """Let everything that was called soon happen."""
    await asyncio.sleep(0)


async def test_those_who_want_it_are_told() -> None:
    changes, all_ears, picky = Subscriptions(), Ear(), Ear(UPDATED)
    changes.subscribe(all_ears)
    changes.subscribe(picky)
    changes.publish(TOOLS)
    changes.publish(UPDATED, "a:b")
    assert not all_ears.heard  # never within the call: a publisher is not its listeners' slave
    await turn()
    assert all_ears.heard == [(TOOLS, None), (UPDATED, "a:b")]
    assert picky.heard == [(UPDATED, "a:b")]


async def test_who_stopped_listening_hears_nothing_more() -> None:
    changes, ear = Subscriptions(), Ear()
    stop = changes.subscribe(ear)
    changes.publish(TOOLS)
    stop()
    stop()
    await turn()
    assert not ear.heard
    assert len(changes) == 0


async def test_a_listener_may_stop_while_others_are_told() -> None:
    changes, other = Subscriptions(), Ear()

    class Leaving(Ear):
        def deliver(self, method: str, uri: str | None) -> None:
            super().deliver(method, uri)
            stop()

    leaving = Leaving()
    stop = changes.subscribe(leaving)
    changes.subscribe(other)
    changes.publish(TOOLS)
    changes.publish(TOOLS)
    await turn()
    assert len(leaving.heard) == 1
    assert len(other.heard) == 2


async def test_changes_are_told_from_any_thread_on_the_listeners_own() -> None:
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


# Mailboxes


def box() -> ChangeQueue:
    return ChangeQueue(lambda method, uri: method != TOOLS)


async def take(mailbox: ChangeQueue) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await mailbox.take()


async def test_a_mailbox_wants_what_its_filter_matches() -> None:
    assert box().is_subscribed(UPDATED, "a:b")
    assert not box().is_subscribed(TOOLS, None)


async def test_what_was_not_yet_heard_is_told_once_in_order_of_arrival() -> None:
    mailbox = box()
    for uri in ("a:2", "a:1", "a:2", "a:3", "a:1"):
        mailbox.deliver(UPDATED, uri)
    mailbox.deliver(TOOLS, None)
    assert await take(mailbox) == [(UPDATED, "a:2"), (UPDATED, "a:1"), (UPDATED, "a:3"), (TOOLS, None)]


async def test_a_change_after_a_look_is_a_new_one() -> None:
    mailbox = box()
    for _ in range(3):
        mailbox.deliver(UPDATED, "a:1")
        assert await take(mailbox) == [(UPDATED, "a:1")]


async def test_one_who_waits_is_woken() -> None:
    mailbox = box()
    waiting = asyncio.create_task(take(mailbox))
    await turn()
    assert not waiting.done()
    mailbox.deliver(UPDATED, "a:1")
    assert await waiting == [(UPDATED, "a:1")]


async def test_one_who_looks_again_waits_again() -> None:
    mailbox = box()
    mailbox.deliver(UPDATED, "a:1")
    await take(mailbox)
    waiting = asyncio.create_task(take(mailbox))
    await turn()
    assert not waiting.done()
    mailbox.deliver(UPDATED, "a:2")
    assert await waiting == [(UPDATED, "a:2")]


async def test_a_closed_mailbox_gives_what_it_has_and_then_nothing() -> None:
    mailbox = box()
    mailbox.deliver(UPDATED, "a:1")
    mailbox.close()
    assert await take(mailbox) == [(UPDATED, "a:1")]
    assert await take(mailbox) is None
    assert await take(mailbox) is None


async def test_closing_wakes_the_one_who_waits() -> None:
    mailbox = box()
    waiting = asyncio.create_task(take(mailbox))
    await turn()
    mailbox.close()
    assert await waiting is None


async def test_a_cancelled_wait_loses_nothing() -> None:
    mailbox = box()
    waiting = asyncio.create_task(take(mailbox))
    await turn()
    mailbox.deliver(UPDATED, "a:1")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await take(mailbox) == [(UPDATED, "a:1")]
