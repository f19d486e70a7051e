"""Lost, paused and competing workers of the Redis back end."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Generator

import pytest

from cluster.conftest import LIFETIME_S, Start
from cluster.recorder import wait_for
from cluster.worker_process import WorkerProcess
from dovetail.protocol.interfaces.shared_state import StreamEvent, WorkerLost
from support.redis_servers import RedisServer


@pytest.fixture
def processes(redis_server: RedisServer) -> Generator[list[WorkerProcess]]:
    with contextlib.ExitStack() as stack:
        create = functools.partial(WorkerProcess, "redis", redis_server.url, LIFETIME_S)
        yield [stack.enter_context(contextlib.closing(create())) for _ in range(2)]


async def test_an_id_is_used_once_by_several_processes(processes: list[WorkerProcess]) -> None:
    names = [str(number) for number in range(300)]
    for process in processes:
        process.send("use_many", names, time.time() + 3600)
    used = [name for process in processes for name in process.receive()]
    assert sorted(used) == sorted(names)


async def test_a_killed_worker_counts_as_lost_after_some_seconds(start: Start, processes: list[WorkerProcess]) -> None:
    backend, _ = await start()
    lost = processes[0]
    assert lost.call("append", "stream", 1, "one", header="request 7") == "added"
    assert await backend.send(lost.worker, "answer", b"")
    await asyncio.sleep(
        LIFETIME_S + 0.2
    )  # After its start, a server needs the lifetime of a heartbeat to know its workers.
    lost.kill()
    killed_at = time.monotonic()
    events = backend.follow("stream", 0)
    assert await anext(events) == StreamEvent(1, b"one")
    with pytest.raises(WorkerLost) as caught:
        await anext(events)
    assert time.monotonic() - killed_at < LIFETIME_S + 3
    assert (caught.value.worker, caught.value.header) == (lost.worker, b"request 7")
    assert not await backend.send(lost.worker, "answer", b"")
    assert await backend.end_lost_stream("stream", b"lost")
    assert not await backend.end_lost_stream("stream", b"lost")
    assert [event async for event in backend.follow("stream", 1)] == [StreamEvent(2, b"lost", True)]


async def test_a_worker_that_was_paused_cannot_continue_a_stream_that_was_ended(
    start: Start, processes: list[WorkerProcess]
) -> None:
    backend, _ = await start()
    paused = processes[0]
    assert paused.call("append", "stream", 1, "one", header="") == "added"
    await asyncio.sleep(LIFETIME_S + 0.2)
    paused.pause()

    async def is_lost() -> bool:
        return await backend.end_lost_stream("stream", b"lost")

    await wait_for(is_lost)
    paused.resume()

    async def is_refused() -> bool:
        # At first, the worker may think that Redis did not answer while the worker was paused.
        return paused.call("append", "stream", 2, "two", is_last=True) == "ended"

    await wait_for(is_refused)
    assert [event.data async for event in backend.follow("stream", 0)] == [b"one", b"lost"]

    async def is_back() -> bool:
        return await backend.send(paused.worker, "answer", b"")

    await wait_for(is_back)
