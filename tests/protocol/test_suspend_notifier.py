"""Test that awaiting with a suspend notifier changes nothing, and notifies only if the work waits."""

import asyncio
import contextlib
import inspect
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from dovetail.eager_tasks import SuspendNotifier


class Wait:
    """Awaits by handing something to whoever drives the coroutine, and takes what comes back."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self.given)


class Told:
    def __init__(self) -> None:
        self.steps: list[str] = []

    def __call__(self) -> None:
        self.steps.append("told")


def driven(work: Coroutine[Any, Any, Any], told: Any) -> Coroutine[Any, Any, Any]:
    async def outer() -> Any:
        return await SuspendNotifier(work, told)

    return outer()


def finish(coroutine: Coroutine[Any, Any, Any], sent: Any = None) -> Any:
    with pytest.raises(StopIteration) as done:
        coroutine.send(sent)
    return done.value.value


def test_work_that_never_waits_does_not_notify() -> None:
    told = Told()

    async def work() -> str:
        told.steps.append("work")
        return "done"

    assert finish(driven(work(), told)) == "done"
    assert told.steps == ["work"]


def test_it_notifies_once_after_the_work_began_and_before_it_waits() -> None:
    told = Told()

    async def work() -> str:
        told.steps.append("begun")
        first = await Wait("one")
        told.steps.append(f"got {first}")
        second = await Wait("two")
        told.steps.append(f"got {second}")
        return "done"

    coroutine = driven(work(), told)
    assert coroutine.send(None) == "one"
    assert told.steps == ["begun", "told"]
    assert coroutine.send("a") == "two"
    assert finish(coroutine, "b") == "done"
    assert told.steps == ["begun", "told", "got a", "got b"]


def test_an_immediate_exception_does_not_notify() -> None:
    told = Told()

    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        driven(work(), told).send(None)
    assert told.steps == []


def test_an_exception_later_passes() -> None:
    told = Told()

    async def work() -> None:
        await Wait(1)
        raise KeyError("x")

    coroutine = driven(work(), told)
    coroutine.send(None)
    with pytest.raises(KeyError):
        coroutine.send(None)


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_what_is_thrown_in_reaches_the_work(kind: type[BaseException]) -> None:
    caught: list[BaseException] = []

    async def work() -> str:
        try:
            await Wait(1)
        except BaseException as exc:
            caught.append(exc)
            raise
        return "never"

    coroutine = driven(work(), Told())
    coroutine.send(None)
    thrown = kind("x")
    with pytest.raises(kind) as raised:
        coroutine.throw(thrown)
    assert caught == [thrown]
    assert raised.value is thrown


def test_work_may_go_on_after_what_was_thrown_in() -> None:
    async def work() -> str:
        try:
            await Wait(1)
        except ValueError:
            return "saved " + await Wait(2)
        return "never"

    coroutine = driven(work(), Told())
    coroutine.send(None)
    assert coroutine.throw(ValueError("x")) == 2
    assert finish(coroutine, "it") == "saved it"


def test_work_may_end_at_what_was_thrown_in() -> None:
    async def work() -> str:
        try:
            await Wait(1)
        except ValueError:
            return "ended"
        return "never"

    coroutine = driven(work(), Told())
    coroutine.send(None)
    with pytest.raises(StopIteration) as done:
        coroutine.throw(ValueError("x"))
    assert done.value.value == "ended"


def test_closing_closes_the_work() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await Wait(1)
        finally:
            steps.append("closed")

    inner = work()
    coroutine = driven(inner, Told())
    coroutine.send(None)
    coroutine.close()
    assert steps == ["closed"]
    assert inspect.getcoroutinestate(inner) == inspect.CORO_CLOSED


def test_work_that_will_not_close_is_reported_as_ever() -> None:
    async def work() -> None:
        with contextlib.suppress(GeneratorExit):
            await Wait(1)
        await Wait(2)

    inner = work()
    coroutine = driven(inner, Told())
    coroutine.send(None)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        coroutine.close()


# With a loop


async def test_it_awaits_futures_tasks_and_sleeps() -> None:
    told = Told()

    async def work() -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 1)
        value = await future
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            value += await asyncio.create_task(asyncio.sleep(0.001, 2))
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        return value

    assert await SuspendNotifier(work(), told) == 3
    assert told.steps == ["told"]


async def test_a_cancelled_task_cancels_the_work_and_stays_cancelled() -> None:
    told, steps = Told(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    async def outer() -> None:
        await SuspendNotifier(work(), told)

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel("why")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["cancelled"]


async def test_the_notifier_may_start_something_that_ends_the_work() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return "stopped"
        return "never"

    task = asyncio.current_task()
    assert task is not None
    assert await SuspendNotifier(work(), lambda: asyncio.get_running_loop().call_soon(task.cancel)) == "stopped"
    assert task.cancelling() == 0
