"""Test the shared event loop of synchronous clients: any thread can use it and interrupt it."""

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dovetail.client import sync_client


async def loop_and_thread() -> tuple[asyncio.AbstractEventLoop, str]:
    return asyncio.get_running_loop(), threading.current_thread().name


def test_all_threads_share_one_loop_in_a_thread_of_its_own() -> None:
    with ThreadPoolExecutor(8) as threads:
        found = {threads.submit(sync_client.run_blocking, loop_and_thread()).result() for _ in range(20)}
    ((loop, thread),) = found
    assert loop is sync_client.get_shared_loop()
    assert thread != threading.current_thread().name
    assert next(one for one in threading.enumerate() if one.name == thread).daemon


async def test_it_works_inside_another_loop() -> None:
    loop, _ = await asyncio.to_thread(sync_client.run_blocking, loop_and_thread())
    assert loop is not asyncio.get_running_loop()
    assert sync_client.run_blocking(loop_and_thread())[0] is loop  # it blocks this one, but it ends


def test_what_is_raised_there_is_raised_here() -> None:
    async def failing() -> None:
        raise LookupError("there")

    with pytest.raises(LookupError, match="there"):
        sync_client.run_blocking(failing())


def test_a_call_from_the_loop_itself_raises() -> None:
    async def inner() -> None: ...

    async def outer() -> str:
        with pytest.raises(RuntimeError) as told:
            sync_client.run_blocking(inner())
        return str(told.value)

    assert sync_client.run_blocking(outer())


def test_an_interrupted_wait_cancels_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupted(_: Future[Any], timeout: float | None = None) -> Any:
        assert begun.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sync_client.run_blocking(work())
    assert cancelled.wait(10)


def test_a_loop_that_was_closed_gives_way_to_another() -> None:
    closed, name = sync_client.run_blocking(loop_and_thread())
    thread = next(one for one in threading.enumerate() if one.name == name)
    closed.call_soon_threadsafe(closed.stop)
    thread.join(10)
    closed.close()
    loop, _ = sync_client.run_blocking(loop_and_thread())
    assert loop is not closed
