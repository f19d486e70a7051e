"""Test that clients leave no task, descriptor, process or object after many opens and closes."""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import Context
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import record_measurement

from dovetail import Client, Server, testing

VICTIM = Path(__file__).parent / "killable_server.py"
TRANSPORTS = ["memory", "stdio", "unix", "http"]
REVISIONS = {"stateless": "2026-07-28", "handshake": "2025-11-25"}
WARM = 10
_TIMERS = (asyncio.TimerHandle, Context)  # the loop keeps up to a hundred cancelled ones until it tidies up
MiB = 1024 * 1024

app = Server("cycled")


@app.tool
async def mark(token: str) -> str:
    """Give the token back."""
    return token


@asynccontextmanager
async def target(transport: Any, era: str, folder: Path) -> AsyncGenerator[Any]:
    if transport == "stdio":
        yield [sys.executable, "-I", "-S", str(VICTIM), str(folder / "marks.txt"), era]
        return
    async with testing.serve(app, transport=transport) as address:
        yield address


class Holdings:
    """What this process has."""

    def __init__(self) -> None:
        gc.collect()
        this = psutil.Process()
        self.tasks = len(asyncio.all_tasks())
        self.descriptors = this.num_fds()
        self.threads = this.num_threads()
        self.children = len(this.children(recursive=True))
        self.objects = sum(type(one) not in _TIMERS for one in gc.get_objects())
        self.rss = this.memory_info().rss


async def settled(before: Holdings) -> Holdings:
    """What is left when the servers, which live in this process too, have seen their clients leave."""
    async with asyncio.timeout(10):
        while True:
            after = Holdings()
            if after.tasks <= before.tasks and after.descriptors <= before.descriptors:
                return after
            await asyncio.sleep(0.02)


async def cycle(where: Any, revision: str) -> None:
    async with Client(where, protocol_version=revision) as client:
        assert await client.call("mark", token="x") == "x"


async def cycles(transport: str, era: str, folder: Path, count: int) -> None:
    revision = REVISIONS[era]
    async with target(transport, era, folder) as where:
        for _ in range(WARM):
            await cycle(where, revision)
        before = await settled(Holdings())
        for _ in range(count):
            await cycle(where, revision)
        after = await settled(before)
    row = f"{count} openings, {transport} {era}"
    record_measurement(f"{row}: objects", after.objects - before.objects, "")
    record_measurement(f"{row}: memory", (after.rss - before.rss) / MiB, "MiB")
    assert after.threads <= before.threads
    assert after.children <= before.children
    assert after.objects - before.objects < count / 2  # a leak is at least one for each
    assert after.rss - before.rss < 10 * MiB


@pytest.mark.parametrize("era", REVISIONS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nothing_grows(transport: str, era: str, tmp_path: Path) -> None:
    await cycles(transport, era, tmp_path, 25 if transport == "stdio" else 100)


@pytest.mark.soak
@pytest.mark.parametrize("era", REVISIONS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nothing_grows_in_a_thousand(transport: str, era: str, tmp_path: Path) -> None:
    await cycles(transport, era, tmp_path, 1000)


async def test_a_client_that_is_opened_again_and_again_keeps_nothing(tmp_path: Path) -> None:
    async with target("http", "stateless", tmp_path) as where:
        client = Client(where)
        for _ in range(WARM):
            await reopened(client)
        before = await settled(Holdings())
        for _ in range(100):
            await reopened(client)
        after = await settled(before)
    assert after.objects - before.objects < 50


async def reopened(client: Client) -> None:
    async with client:
        assert await client.call("mark", token="x") == "x"
