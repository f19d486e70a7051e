"""Test limits on running calls and subscriptions that the workers of a cluster share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from dovetail import Server
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.protocol.limits import CallerBusy, ServerLimits
from dovetail.server.server import get_dispatcher

KEYS = ["a key with enough bytes"]
CALLER = Caller("2026-07-28", True)


class Away(SharedStateUnavailable):
    retry_after = 0.01


class FailingBackend(MemoryBackend):
    """A back end whose places can fail. It counts the messages for places."""

    is_away = False
    is_slow = False  # The back end does what it is asked for, but its answer comes too late.
    is_stuck = False  # The back end does what it is asked for, but never answers.
    place_count = 0

    async def acquire(self, name: str, holder: str, limit: int, ttl: float | None) -> bool:
        self.place_count += 1
        if self.is_away:
            raise Away("away")
        has_place = await super().acquire(name, holder, limit, ttl)
        if self.is_slow:
            raise Away("slow")
        if self.is_stuck:
            await asyncio.Event().wait()
        return has_place

    async def release(self, name: str, holder: str) -> None:
        if self.is_away:
            raise Away("away")
        await super().release(name, holder)


class Worker:
    """One worker with a tool that runs until the test lets it end."""

    def __init__(self, backend: FailingBackend, limits: ServerLimits) -> None:
        self.backend = backend
        self.app = Server("test", cluster=backend, secret_keys=KEYS, limits=limits)
        self.gate = asyncio.Event()
        self.app.add_tool(self._wait, name="wait")
        self.running: list[asyncio.Task[Any]] = []

    async def _wait(self) -> str:
        await self.gate.wait()
        return "done"

    def start_call(
        self, origin: str | None = "ada", method: str = "tools/call", params: dict[str, Any] | None = None
    ) -> asyncio.Task[Any]:
        params = {"name": "wait", "arguments": {}} if params is None else params
        exchange = IncomingExchange(len(self.running) + 1, method, params, {}, CALLER, origin=origin)
        task = asyncio.ensure_future(get_dispatcher(self.app).handle(exchange))
        self.running.append(task)
        return task

    async def fill(self, attempts: int, **call: Any) -> int:
        """Start calls until one is refused. Return how many run."""
        for count in range(attempts):
            task = self.start_call(**call)
            for _ in range(20):  # A call is refused after a few steps of the event loop.
                await asyncio.sleep(0)
            if task.done():
                assert isinstance(task.exception(), CallerBusy)
                return count
        return attempts

    async def finish(self) -> None:
        self.gate.set()
        await asyncio.gather(*self.running, return_exceptions=True)
        self.gate.clear()
        self.running.clear()
        for _ in range(5):  # Places are given back in the background.
            await asyncio.sleep(0)


@asynccontextmanager
async def run_workers(count: int = 2, **limits: Any) -> AsyncIterator[list[Worker]]:
    first = FailingBackend()
    backends = [first, *(FailingBackend(first) for _ in range(count - 1))]
    workers = [Worker(backend, ServerLimits(**limits)) for backend in backends]
    async with AsyncExitStack() as stack:
        for worker in workers:
            await worker.app.start()
            stack.push_async_callback(worker.app.stop)
        yield workers
        for worker in workers:
            worker.backend.is_away = False
            for task in worker.running:
                task.cancel()
            await worker.finish()


async def test_the_calls_of_all_workers_count_together() -> None:
    async with run_workers(max_calls_per_principal=8) as (first, second):
        assert await first.fill(20) == 6  # its own 2, and the 4 shared places
        assert await second.fill(20) == 2
        assert await second.fill(1, origin="bob") == 1
        assert await second.fill(20, origin=None) == 20


async def test_few_calls_need_no_message() -> None:
    async with run_workers(max_calls_per_principal=8) as (first, _):
        assert await first.fill(2) == 2
        assert first.backend.place_count == 0


async def test_a_finished_call_gives_its_place_back() -> None:
    async with run_workers(max_calls_per_principal=8) as (first, second):
        for worker in (first, second, first):
            assert await worker.fill(20) == 6
            await worker.finish()


async def test_the_places_of_a_lost_worker_are_free() -> None:
    async with run_workers(max_calls_per_principal=8) as (first, second):
        assert await first.fill(20) == 6
        assert await second.fill(20) == 2
        await first.backend.close()
        assert await second.fill(20) == 6  # A single worker has all 8.


async def test_each_worker_allows_its_share_while_the_back_end_is_away() -> None:
    async with run_workers(max_calls_per_principal=8) as (first, second):
        first.backend.is_away = second.backend.is_away = True
        assert [await first.fill(20), await second.fill(20)] == [4, 4]


async def wait_until_free(worker: Worker, count: int) -> None:
    """Wait until the other worker can start `count` calls."""
    async with asyncio.timeout(10):
        while await worker.fill(20) < count:
            await worker.finish()
            await asyncio.sleep(0.01)
    await worker.finish()


async def test_places_that_could_not_be_given_back_are_given_back_later() -> None:
    async with run_workers(max_calls_per_principal=8) as (first, second):
        assert await first.fill(20) == 6
        first.backend.is_away = True
        await first.finish()
        assert await second.fill(20) == 2
        await second.finish()
        first.backend.is_away = False
        await wait_until_free(second, 6)


async def test_a_place_is_free_again_if_the_answer_was_lost() -> None:
    async with run_workers(max_calls_per_principal=8) as (first, second):
        first.backend.is_slow = True
        assert await first.fill(20) == 4  # its share
        await first.finish()
        first.backend.is_slow = False
        await wait_until_free(second, 6)


async def test_a_place_is_free_again_if_the_request_was_cancelled() -> None:
    async with run_workers(max_calls_per_principal=8) as (first, second):
        assert await first.fill(2) == 2
        first.backend.is_stuck = True
        waiting = [first.start_call() for _ in range(4)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await first.finish()
        await wait_until_free(second, 6)


async def test_a_small_limit_is_never_exceeded() -> None:
    async with run_workers(3, max_calls_per_principal=1) as workers:
        assert [await worker.fill(3) for worker in workers] == [1, 0, 0]


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_limit_of_zero_allows_nothing(is_away: bool) -> None:
    async with run_workers(max_calls_per_principal=0) as (first, _):
        first.backend.is_away = is_away
        assert await first.fill(3) == 0


async def test_the_subscriptions_of_all_workers_count_together() -> None:
    listen: dict[str, Any] = {"method": "subscriptions/listen", "params": {"notifications": {"toolsListChanged": True}}}
    async with run_workers(max_subscriptions_per_principal=4) as (first, second):
        assert await first.fill(20, **listen) == 3
        assert await second.fill(20, **listen) == 1
