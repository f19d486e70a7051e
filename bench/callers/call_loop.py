"""What all callers of the benchmark do: `caller.py transport era ask width seconds target...`, one JSON object out.

The target is a URL or a command; in memory there is none, and the caller brings a server of its own make. Only the time
between the first call and the last is counted, and only the processor time of this process.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "servers"))

import workload

WARM_UP_S = 0.15  # of the time, before anything is counted


class Job:
    """The command line."""

    def __init__(self) -> None:
        self.transport, self.era, self.ask, width, seconds, *self.target = sys.argv[1:]
        self.width, self.seconds = int(width), float(seconds)

    @property
    def is_handshake(self) -> bool:
        """Whether to speak the handshake era."""
        return self.era == "handshake"


Call = Callable[[str], Awaitable[str]]


async def drive(job: Job, echo: Call, read: Callable[[], Awaitable[str]]) -> None:
    """Call as often as time allows, and say what it took."""
    long = workload.text(float(job.ask.removeprefix("read-"))) if job.ask.startswith("read-") else ""

    async def once(number: int) -> None:
        text = f"call number {number}"
        if (await read() != long) if long else (await echo(text) != text):
            raise RuntimeError("a wrong answer")

    await _run(once, job.width, job.seconds * WARM_UP_S)
    cpu, began = time.process_time(), time.perf_counter()
    calls = await _run(once, job.width, job.seconds)
    found = {"calls": calls, "seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    sys.stdout.write(json.dumps(found) + "\n")


async def _run(once: Callable[[int], Awaitable[None]], width: int, seconds: float) -> int:
    until = time.perf_counter() + seconds
    calls = 0

    async def caller() -> None:
        nonlocal calls
        while time.perf_counter() < until or not calls:
            calls += 1
            await once(calls)

    await asyncio.gather(*(caller() for _ in range(width)))
    return calls


def run(main: Callable[[Job], Any]) -> None:
    """Run on the loop of the standard library, as most programs do."""
    asyncio.run(main(Job()))
