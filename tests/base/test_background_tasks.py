"""Tasks in the background: logged errors, and the end of all tasks."""

import asyncio
import contextlib
import logging

import pytest

from dovetail.background_tasks import BackgroundTasks


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
    monkeypatch.setattr("dovetail.background_tasks._CANCEL_TIMEOUT_S", 0.01)
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
