"""Work beside requests: tasks in the background, and attempts that are repeated."""

import asyncio
import contextlib
import logging

import pytest

from dovetail.cluster.background_work import (
    BackgroundTasks,
    release_place,
    repeat_until_available,
    run_close_handlers,
    wait_until_empty,
)
from dovetail.cluster.cluster_worker import ClusterWorker
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.cluster.background_work._FIRST_DELAY_S", 0.0)


class Work:
    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.runs = 0

    async def __call__(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise SharedStateUnavailable("away")


async def test_work_is_repeated_until_the_shared_state_is_available() -> None:
    work = Work(3)
    assert await repeat_until_available(work)
    assert work.runs == 4


async def test_work_is_not_repeated_for_ever() -> None:
    work = Work(10**9)
    assert not await repeat_until_available(work, give_up_after=0.0)
    assert not await repeat_until_available(work, should_continue=lambda: work.runs < 5)
    assert work.runs == 5


async def test_other_errors_are_not_repeated() -> None:
    async def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await repeat_until_available(fail)


async def test_a_place_is_not_released_after_the_worker_has_left() -> None:
    class AwayBackend(MemoryBackend):
        async def release(self, name: str, holder: str) -> None:
            await worker.close()
            raise SharedStateUnavailable("away")

    worker = ClusterWorker(AwayBackend(None), ["key"], run_close_handlers)
    await worker.start()
    await release_place(worker, "name", "holder")
    assert not worker.is_started


async def test_a_wait_for_an_empty_collection_ends_in_time() -> None:
    items = [1]
    await wait_until_empty(items, 0.01)
    asyncio.get_running_loop().call_soon(items.clear)
    async with asyncio.timeout(10.0):
        await wait_until_empty(items, 60.0)
    assert not items


async def test_the_error_of_a_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise KeyError

    tasks = BackgroundTasks()
    tasks.start(fail())
    while len(tasks):  # noqa: ASYNC110 - the end of a task sets no event
        await asyncio.sleep(0)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_closing_waits_for_the_end_of_all_tasks(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("clean-up")

    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError

    tasks = BackgroundTasks()
    tasks.start(clean_up())
    tasks.start(fail())
    await asyncio.sleep(0)
    await tasks.close()
    assert not len(tasks)
    assert ended == ["clean-up"]
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [KeyError]


async def test_closing_waits_for_work_that_other_work_starts() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0.01)
        if number:
            tasks.start(work(number - 1))
        ended.append(number)

    tasks = BackgroundTasks()
    tasks.start(work(3))
    await tasks.close(60.0)
    assert ended == [3, 2, 1, 0]


async def test_closing_ends_although_a_task_ignores_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.cluster.background_work._CANCEL_TIMEOUT_S", 0.01)
    may_end = asyncio.Event()

    async def ignore_cancellation() -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    tasks = BackgroundTasks()
    task = tasks.start(ignore_cancellation())
    await asyncio.sleep(0)
    await tasks.close()
    assert len(tasks) == 1
    may_end.set()
    await task
