"""Test that one timer serves the deadlines of all requests of a connection."""

import asyncio
from typing import Any

import pytest

from dovetail.client.deadlines import MAX_TIMEOUT_S, DeadlineTimer, RequestDeadline
from support.mentions import mentions


async def wait(clocks: DeadlineTimer, id: int, clock: RequestDeadline) -> str:
    """Wait for ever under a clock, as a request does."""
    clocks.start(id, clock)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if clock.is_cancel_cause():
            return "timed out"
        raise
    finally:
        clocks.stop(id)
    return "answered"


async def within(work: Any) -> Any:
    return await asyncio.wait_for(work, 5)


async def test_each_runs_out_in_its_own_order() -> None:
    clocks, over = DeadlineTimer(), list[int]()

    async def one(id: int, seconds: float) -> None:
        assert await wait(clocks, id, RequestDeadline(seconds)) == "timed out"
        over.append(id)

    await within(asyncio.gather(one(1, 0.15), one(2, 0.01), one(3, 0.08)))
    assert over == [2, 3, 1]


async def test_the_total_limit_ends_what_is_alive() -> None:
    clocks, clock = DeadlineTimer(), RequestDeadline(0.1, 0.15)
    waiting = asyncio.create_task(wait(clocks, 1, clock))
    while not waiting.done():
        clock.record_activity()
        await asyncio.sleep(0.005)
    assert await waiting == "timed out"
    assert clock.progress_count > 1
    assert mentions(clock.describe_timeout(), "total", "0.15 s", "progress")


async def test_a_sign_of_life_moves_the_limit() -> None:
    clocks, clock = DeadlineTimer(), RequestDeadline(0.05)
    waiting = asyncio.create_task(wait(clocks, 1, clock))
    first = clock.due_at
    await asyncio.sleep(0.02)
    clock.record_activity()
    assert clock.due_at > first
    assert await within(waiting) == "timed out"
    assert mentions(clock.describe_timeout(), "0.05 s", 1)


async def test_while_a_user_thinks_no_time_passes() -> None:
    clocks, clock = DeadlineTimer(), RequestDeadline(0.03, 0.06)
    waiting = asyncio.create_task(wait(clocks, 1, clock))
    await asyncio.sleep(0)
    clocks.pause()
    clock.record_activity()
    await asyncio.sleep(0.15)
    assert not waiting.done()
    clocks.resume()
    assert not waiting.done()
    assert await within(waiting) == "timed out"


async def test_to_be_cancelled_by_another_is_not_to_time_out() -> None:
    clocks = DeadlineTimer()
    waiting = asyncio.create_task(wait(clocks, 1, RequestDeadline(60)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_cancelled_by_another_and_timed_out_at_once_is_cancelled() -> None:
    clocks, clock = DeadlineTimer(), RequestDeadline(60)
    waiting = asyncio.create_task(wait(clocks, 1, clock))
    await asyncio.sleep(0)
    clock.expire()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_task_that_timed_out_can_go_on_waiting() -> None:
    clocks = DeadlineTimer()

    async def twice() -> list[str]:
        return [await wait(clocks, id, RequestDeadline(0.01)) for id in (1, 2)]

    task = asyncio.create_task(twice())
    assert await within(task) == ["timed out", "timed out"]
    assert not task.cancelling()


async def test_one_timer_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, loop = DeadlineTimer(), asyncio.get_running_loop()
    made: list[float] = []
    call_at = loop.call_at

    def counted(when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        made.append(when)
        return call_at(when, *args, **options)

    monkeypatch.setattr(loop, "call_at", counted)
    for id in range(1000):
        clocks.start(id, RequestDeadline(60))
        clocks.stop(id)
    assert len(made) == 1
    clocks.close()


async def test_for_ever_is_a_year() -> None:
    clocks, clock = DeadlineTimer(), RequestDeadline(float("inf"), float("inf"))
    clocks.start(1, clock)
    assert clock.due_at <= asyncio.get_running_loop().time() + MAX_TIMEOUT_S
    clocks.stop(1)
    clocks.close()
