"""A server for the tests of dovetail.testing, in a module variable, so that another process can import it."""

import asyncio

from dovetail import Context, Server

app = Server("calculator", version="1.2")


@app.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool
async def divide(a: int, ctx: Context) -> float:
    """Divide by something the user names."""
    return a / await ctx.elicit("By what?", int, key="divisor")


@app.tool
async def climb(ctx: Context) -> str:
    """Report progress on the way."""
    for step in range(3):
        await ctx.progress(step, total=3)
    return "up"


@app.tool
async def hold() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"
