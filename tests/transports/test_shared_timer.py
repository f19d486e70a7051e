"""Test that one timer serves all waits with the same delay, each once and in order."""

import asyncio
import gc
import weakref

import pytest

from dovetail.transports.http_server.streams.shared_timer import DueTimes, SharedTimer
from support.fake_service import wait_until


class Target:
    def __init__(self, order: list["Target"], timer: SharedTimer | None = None) -> None:
        self.order = order
        self.timer = timer
        self.due_times: DueTimes = {}

    def handle_timer(self) -> None:
        self.order.append(self)
        if self.timer is not None:
            self.due_times = self.timer.add(self)


async def test_targets_come_due_once_in_the_order_in_which_they_were_added() -> None:
    order: list[Target] = []
    timer, targets = SharedTimer(0.005), [Target(order) for _ in range(3)]
    for target in targets:
        timer.add(target)
        await asyncio.sleep(0.002)
    await wait_until(lambda: len(order) == 3)
    assert order == targets


async def test_a_target_that_was_removed_does_not_come_due() -> None:
    order: list[Target] = []
    timer, removed, other = SharedTimer(0.005), Target(order), Target(order)
    due_times = timer.add(removed)
    timer.add(other)
    del due_times[removed]
    await wait_until(lambda: order)
    assert order == [other]


async def test_a_target_may_be_added_again_when_it_comes_due() -> None:
    order: list[Target] = []
    timer = SharedTimer(0.002)
    target = Target(order, timer)
    timer.add(target)
    await wait_until(lambda: len(order) >= 3)
    target.timer = None
    target.due_times.pop(target, None)


@pytest.mark.parametrize("is_running", [False, True], ids=["first target", "timer fires"])
async def test_the_targets_of_a_closed_event_loop_are_dropped(is_running: bool) -> None:
    order: list[Target] = []
    timer, forgotten, other = SharedTimer(0.002), Target(order), Target(order)
    if is_running:
        timer.add(other)
    await asyncio.to_thread(asyncio.run, add_target(timer, forgotten))
    reference = weakref.ref(forgotten)
    del forgotten
    if not is_running:
        timer.add(other)
    await wait_until(lambda: order and gc.collect() is not None and reference() is None)


async def add_target(timer: SharedTimer, target: Target) -> None:
    timer.add(target)
