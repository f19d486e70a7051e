"""Test that tasks which have ended and expired leave nothing in the memory of a server and its client."""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail import Client, Context, Server
from dovetail.extensions import SQLiteTaskStore, TaskOptions

WARM_UP_TASKS = 100
CONCURRENT_TASKS = 50
MAX_NEW_OBJECTS = 50
MAX_NEW_BYTES = 500_000  # With 10,000 tasks, an ID that is kept for each of them needs more.


@pytest.fixture
def traced_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


async def run_tasks(client: Client, store: SQLiteTaskStore, count: int) -> tuple[int, int]:
    """Create tasks, wait for their results, and delete them. Return the number of our objects, and the used memory."""
    for start in range(0, count, CONCURRENT_TASKS):
        numbers = range(start, start + CONCURRENT_TASKS)
        assert await asyncio.gather(*(client.call("report", month=number) for number in numbers)) == [*numbers]
    assert await store.expire(time.time() + 1e6) == count
    assert await store.list_ids() == []
    gc.collect()
    own_objects = [thing for thing in gc.get_objects() if str(type(thing).__module__).startswith("dovetail")]
    return len(own_objects), tracemalloc.get_traced_memory()[0]


@pytest.mark.usefixtures("traced_memory")
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_tasks_that_have_expired_leave_nothing_in_memory(tmp_path: Path, count: int) -> None:
    store = SQLiteTaskStore(tmp_path / "tasks.sqlite")
    app = Server("memory", tasks=TaskOptions(store=store, poll_interval=0.05))

    @app.tool(task=True)
    async def report(month: int, ctx: Context) -> int:
        await ctx.progress(1, 2, "half")
        return month

    async with Client(app, tasks=True) as client:
        objects_before, bytes_before = await run_tasks(client, store, WARM_UP_TASKS)
        objects, used_bytes = await run_tasks(client, store, count)
    await store.close()
    assert objects - objects_before < MAX_NEW_OBJECTS
    assert used_bytes - bytes_before < MAX_NEW_BYTES
