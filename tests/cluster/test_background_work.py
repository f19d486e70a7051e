"""Attempts that are repeated while the shared state is away."""

import asyncio

import pytest

from dovetail.cluster.background_work import (
    release_place,
    repeat_until_available,
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

    worker = ClusterWorker(AwayBackend(None), ["key"])
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
