"""The memory of one server process during a mixed load of all kinds of requests.

The server keeps no events for clients that reconnect, so this memory does not count. SOAK_SECONDS sets the duration.
"""

import asyncio
import os
import random
import statistics
from collections import Counter
from pathlib import Path

import pytest
from harness import MiB, Target, record_measurement, run_program
from live_objects import create_server_with_short_timers
from live_requests import HTTP_KINDS, REVISIONS, RequestKinds, connect

from support.full_server import server_command

DURATION_S = float(os.environ.get("SOAK_SECONDS", "900"))
WARM_UP_S = DURATION_S * 2 / 15
SAMPLE_INTERVAL_S = DURATION_S / 90
CLIENTS_PER_ERA = 6
PAUSE_S = 0.05
MAX_GROWTH_BYTES = 3 * MiB
REPORT_AT_S = (30, 120, 300, 600, 900)
SILENCE_S = 2.0  # The server sends comments on the streams of this time.


class Load:
    """Clients that send requests of random kinds."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.request_count = 0

    async def run(self, revision: str) -> None:
        """Send requests until this task is cancelled."""
        async with connect(self._target, revision) as client:
            requests = RequestKinds(client, self._target, revision)
            while True:
                await random.choice(HTTP_KINDS)(requests)
                self.request_count += 1
                await asyncio.sleep(PAUSE_S)

    async def run_silent(self, revision: str) -> None:
        """Keep streams open without messages until this task is cancelled."""
        async with connect(self._target, revision) as client:
            while True:
                async with client.listen(uris=["note://other"]):
                    await client.call("doze", seconds=SILENCE_S)


async def measure(target: Target, seconds: float) -> list[int]:
    """Return the resident memory at regular times."""
    samples: list[int] = []
    end = asyncio.get_running_loop().time() + seconds
    while (now := asyncio.get_running_loop().time()) < end:
        await asyncio.sleep(min(SAMPLE_INTERVAL_S, end - now))
        samples.append(target.rss)
    return samples


@pytest.mark.soak
@pytest.mark.timeout(DURATION_S + 300)
async def test_memory_stays_the_same_under_mixed_load(tmp_path: Path) -> None:
    command = [*server_command(create_server_with_short_timers)[:-1], "http", '{"port": 0}']
    with run_program(command, tmp_path / "log.txt") as target:
        url = f"http://127.0.0.1:{target.port}/mcp"
        load = Load(url)
        async with connect(url, REVISIONS["stateless"]) as client, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(work)
                for revision in REVISIONS.values()
                for work in (load.run_silent(revision), *(load.run(revision) for _ in range(CLIENTS_PER_ERA)))
            ]
            samples = await measure(target, WARM_UP_S)
            objects_before = Counter(await client.call("census", into=dict[str, int]))
            warm_count = len(samples)
            samples += await measure(target, DURATION_S - WARM_UP_S)
            objects = Counter(await client.call("census", into=dict[str, int]))
            for task in tasks:
                task.cancel()
    for seconds in REPORT_AT_S:
        if seconds <= DURATION_S:
            size = samples[min(len(samples), round(seconds / SAMPLE_INTERVAL_S)) - 1]
            record_measurement(f"mixed load, memory after {seconds} s", size / MiB, "MiB")
    growth = statistics.median(samples[-3:]) - statistics.median(samples[warm_count : warm_count + 3])
    record_measurement("mixed load, requests", load.request_count, "")
    record_measurement("mixed load, growth after the warm-up", growth / MiB, "MiB")
    new_objects = (objects - objects_before).most_common(10)
    sizes = [round(size / MiB, 1) for size in samples]
    assert growth <= MAX_GROWTH_BYTES, f"{growth / MiB:.1f} MiB more. New objects: {new_objects}. Sizes: {sizes}"
