"""Print the CPU microseconds of one call from dovetail's client to a server in the same process."""

import asyncio
import sys
import time

from dovetail import Client, Server

CALLS, ROUNDS = 3000, 7
app = Server("bench")


@app.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main(revision: str) -> None:
    """Call, and print the lowest cost of all rounds, because other programs can only add to it."""
    costs: list[float] = []
    async with Client(app, protocol_version=revision) as client:
        for _ in range(ROUNDS):
            before = time.process_time()
            for _ in range(CALLS):
                await client.call_tool("add", {"a": 1, "b": 2})
            costs.append((time.process_time() - before) / CALLS * 1e6)
    sys.stdout.write(f"{min(costs):.2f}\n")


asyncio.run(main(sys.argv[1]))
