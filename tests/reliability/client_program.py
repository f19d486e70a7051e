"""A client in its own process, measured from outside: `python client_program.py <job as JSON>`.

It warms up, does the job, and prints one line of JSON: the outcome, the duration, the additional memory, and the
longest pause of its event loop.
"""

import asyncio
import json
import sys
import time
from typing import Any

from dovetail import Client, ClientLimits, Timeouts

TICK = 0.01


def peak_memory_mib() -> float:
    """Return the peak memory in MiB. getrusage is not usable, because it inherits the peak of the parent process."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


async def longest_pause(stop: asyncio.Event) -> float:
    """Return the longest time that the event loop was blocked."""
    longest, last = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(TICK)
        now = time.monotonic()
        longest, last = max(longest, now - last - TICK), now
    return longest


async def run(job: dict[str, Any]) -> dict[str, Any]:
    heard = 0

    def hear(_: Any) -> None:
        nonlocal heard
        heard += 1

    given: dict[str, Any] = {"log_handler": hear} if job.get("hear") else {}
    timeouts = Timeouts(**{"discover": 1.0, "initialize": 5.0, "call": 20.0, "request": 20.0} | job.get("timeouts", {}))
    limits = ClientLimits(**job.get("limits", {}))
    client = Client(job["target"], protocol_version=job.get("era"), timeout=timeouts, limits=limits, **given)
    await client.connect()
    await client.call("warm")
    if job["what"] == "hold":
        sys.stdout.write(json.dumps({"up": True}) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
    stop = asyncio.Event()
    watching = asyncio.get_running_loop().create_task(longest_pause(stop))
    await asyncio.sleep(0)
    reset_peak()
    idle, began, cpu = peak_memory_mib(), time.monotonic(), time.process_time()
    try:
        if job["what"] == "list":
            outcome = f"{len(await client.list_tools())} tools"
        else:
            result = await client.call_tool("go", {}, timeout=job.get("limit"))
            outcome = str(len(getattr(result.content[0], "text", "")))
    except Exception as exc:
        outcome = type(exc).__name__
    took, cpu, over = time.monotonic() - began, time.process_time() - cpu, peak_memory_mib() - idle
    stop.set()
    pause = await watching
    usable = await client.call("warm") == "ok"
    await client.close()
    return {"outcome": outcome, "s": took, "cpu": cpu, "mib": over, "pause": pause, "usable": usable, "heard": heard}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))) + "\n")
