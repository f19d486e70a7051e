"""The server of `bench/tasks.py` with dovetail. The arguments are the port and the task store."""

import asyncio
import sys

from dovetail import Context, Server
from dovetail.extensions import TaskOptions

app = Server("bench", tasks=TaskOptions(store=sys.argv[2], poll_interval=0.01))


@app.tool
async def plain(month: str) -> str:
    """Return at once, without a task."""
    return month


@app.tool(task=True)
async def report(month: str) -> str:
    """Return at once, as a task."""
    return month


@app.tool(task=True)
async def ask(ctx: Context) -> str:
    """Ask a question."""
    return "yes" if await ctx.elicit("Continue?", bool) else "no"


@app.tool(task=True)
async def wait() -> str:
    """Wait until the task is cancelled."""
    await asyncio.Event().wait()
    return "never"


app.run("http", port=int(sys.argv[1]), path="/mcp")
