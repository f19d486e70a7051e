"""The loop of all client programs: `with_NAME.py transport era request width seconds target...`. It prints a JSON
object.

The target is a URL or a command. In memory there is no target, and the program creates the server itself. The figures
contain only the time from the first call to the last, and only the CPU time of this process.
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

WARM_UP_SHARE = 0.15  # part of the duration that runs first and does not count


class CallerOptions:
    """The command line options of a client program."""

    def __init__(self) -> None:
        self.transport, self.era, self.request, width, seconds, *self.target = sys.argv[1:]
        self.width, self.seconds = int(width), float(seconds)

    @property
    def is_handshake(self) -> bool:
        """Whether to use the handshake era."""
        return self.era == "handshake"


Call = Callable[[str], Awaitable[str]]


async def run_calls(options: CallerOptions, echo: Call, read: Callable[[], Awaitable[str]]) -> None:
    """Call for the given time, and print the number of calls and their cost."""
    kind, _, megabytes = options.request.partition("-")
    expected = workload.text(float(megabytes)) if kind == "read" else ""

    async def call_once(number: int) -> None:
        text = f"call number {number}"
        if (await read() != expected) if expected else (await echo(text) != text):
            raise RuntimeError("wrong answer")

    await _run(call_once, options.width, options.seconds * WARM_UP_SHARE)
    cpu, started = time.process_time(), time.perf_counter()
    calls = await _run(call_once, options.width, options.seconds)
    result = {"calls": calls, "seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
    sys.stdout.write(json.dumps(result) + "\n")


async def _run(call_once: Callable[[int], Awaitable[None]], width: int, seconds: float) -> int:
    deadline = time.perf_counter() + seconds
    calls = 0

    async def caller() -> None:
        nonlocal calls
        while time.perf_counter() < deadline or not calls:
            calls += 1
            await call_once(calls)

    await asyncio.gather(*(caller() for _ in range(width)))
    return calls


def run(main: Callable[[CallerOptions], Any]) -> None:
    """Run on asyncio's default event loop, as most programs do."""
    asyncio.run(main(CallerOptions()))
