"""A server whose tools run as tasks, for clients of other implementations."""

import asyncio

from msgspec import Struct

from dovetail import Context, Server, ToolError
from dovetail.extensions import TaskOptions

app = Server("tasks", tasks=TaskOptions(store=":memory:", poll_interval=0.05))


class Order(Struct):
    quantity: int
    note: str = ""


@app.tool(task=True)
async def add(a: int, b: int, ctx: Context) -> int:
    """Add two numbers."""
    await ctx.progress(1, 2, "adding")
    return a + b


@app.tool(task=True)
async def order(item: str, ctx: Context) -> str:
    """Order something after a question."""
    answer = await ctx.elicit(f"How many of {item}?", Order)
    confirmed = await ctx.elicit("Really?", bool)
    return f"{answer.quantity} of {item}" if confirmed else "nothing"


@app.tool(task=True)
async def wait_forever() -> str:
    """Wait until the task is cancelled."""
    await asyncio.Event().wait()
    return "never"


@app.tool(task=True)
async def fail() -> str:
    """Report an error."""
    raise ToolError("the shop is closed")


@app.tool(task="required")
async def required(name: str) -> str:
    """Greet, only as a task."""
    return f"Hello, {name}!"


@app.tool
async def plain(name: str) -> str:
    """Greet, never as a task."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    app.run("http", port=0)
