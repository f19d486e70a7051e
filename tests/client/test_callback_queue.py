"""Test that the user's callbacks run in order, in a bounded queue, and that their errors do not spread."""

import asyncio
import logging

import pytest

from dovetail.client.callback_queue import CallbackQueue


async def test_coroutines_run_one_after_the_other_and_in_order() -> None:
    box, done = CallbackQueue(10), list[int]()

    async def slow(number: int) -> None:
        await asyncio.sleep(0)
        done.append(number)

    for number in range(5):
        box.call(slow, number)
    await box.flush(5)
    assert done == list(range(5))


async def test_the_oldest_give_way() -> None:
    box, done, gate = CallbackQueue(3), list[int](), asyncio.Event()

    async def slow(number: int) -> None:
        await gate.wait()
        done.append(number)

    box.call(slow, -1)
    await asyncio.sleep(0)  # at work, no longer waiting
    for number in range(100):
        box.call(slow, number)
    gate.set()
    await box.flush(5)
    assert done == [-1, 97, 98, 99]
    assert box.dropped_count == 97


async def test_failures_are_logged_once_and_do_not_stop_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    box, done = CallbackQueue(10), list[int]()

    async def broken() -> None:
        raise ZeroDivisionError

    def plainly() -> None:
        raise ZeroDivisionError

    async def fine() -> None:
        done.append(1)

    with caplog.at_level(logging.ERROR, "dovetail"):
        for handler in (broken, plainly, broken, fine):
            box.call(handler)
        await box.flush(5)
    assert done == [1]
    assert len(caplog.records) == 1


async def test_closing_forgets_what_waits() -> None:
    box, done = CallbackQueue(10), list[int]()

    async def late() -> None:
        done.append(1)

    box.call(late)
    box.close()
    await asyncio.sleep(0)
    assert not done
    await box.flush(5)


async def test_flushing_does_not_wait_for_what_comes_later() -> None:
    box, gate = CallbackQueue(10), asyncio.Event()

    async def endless() -> None:
        await asyncio.sleep(0)
        if not gate.is_set():
            box.call(endless)

    box.call(endless)
    async with asyncio.timeout(5):
        await box.flush(5)
    gate.set()
    await box.flush(5)


async def test_closing_releases_flushing_tasks_without_cancelling_them() -> None:
    box = CallbackQueue(10)

    async def slow() -> None:
        await asyncio.sleep(60)

    box.call(slow)
    box.call(slow)
    flushing = asyncio.create_task(box.flush(5))
    await asyncio.sleep(0)
    box.close()
    async with asyncio.timeout(5):
        await flushing


async def test_flushing_waits_no_longer_than_it_may() -> None:
    box, gate = CallbackQueue(10), asyncio.Event()
    box.call(gate.wait)
    async with asyncio.timeout(5):
        for seconds in (0.01, 0.0, -1.0):
            await box.flush(seconds)
    gate.set()
    await box.flush(5)


async def test_a_handler_never_waits_for_itself_whatever_tasks_it_uses() -> None:
    box, done = CallbackQueue(10), list[str]()

    async def flushing() -> None:
        await box.flush(60)
        done.append("inside")

    async def handler() -> None:
        await asyncio.gather(asyncio.wait_for(flushing(), 60), flushing())

    async with asyncio.timeout(5):
        box.call(handler)
        await box.flush(60)
    assert done == ["inside"] * 2


async def test_what_a_handler_left_running_waits_as_anybody_does() -> None:
    box, gate, order, left = CallbackQueue(10), asyncio.Event(), list[str](), list[asyncio.Task[None]]()

    async def afterwards() -> None:
        await gate.wait()
        await box.flush(60)
        order.append("flushed")

    async def handler() -> None:
        left.append(asyncio.create_task(afterwards()))

    async def later() -> None:
        gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        order.append("handled")

    box.call(handler)
    box.call(later)
    async with asyncio.timeout(5):
        await box.flush(60)
        await left[0]
    assert order == ["handled", "flushed"]


def test_a_callback_queue_of_a_closed_loop_starts_again() -> None:
    box, done = CallbackQueue(10), list[str]()

    async def endless() -> None:
        await asyncio.Event().wait()

    async def first() -> None:
        box.call(endless)
        box.call(endless)
        await box.flush(0.01)

    async def second() -> None:
        async def fine() -> None:
            done.append("fine")

        box.call(fine)
        await box.flush(60)
        assert done == ["fine"]

    asyncio.run(first())
    box.abandon()
    asyncio.run(second())
