"""A server whose tools become tasks. Run it over stdio, or over HTTP with a port and the file of a store."""

import asyncio
import sys
from pathlib import Path

from dovetail import Context, Server, ServerLimits, ToolError
from dovetail.errors import InvalidParams
from dovetail.extensions import TaskConfig, TaskOptions


def create_server(store: str | Path = ":memory:", attempts: list[int] | None = None) -> Server:
    options = TaskOptions(store=store, poll_interval=0.05)
    app = Server("workshop", tasks=options, limits=ServerLimits(drain_timeout=0.1))

    @app.tool(task=True)
    async def double(number: int, ctx: Context) -> int:
        await ctx.progress(1, 2, message="doubling")
        await asyncio.sleep(0.1)
        return 2 * number

    @app.tool(task="required")
    async def confirm(ctx: Context) -> str:
        first = await ctx.elicit("First?", bool)
        second = await ctx.elicit("Second?", bool)
        return f"{first} {second}"

    @app.tool(task=True)
    async def hang() -> None:
        await asyncio.Event().wait()

    @app.tool(task=True)
    async def fail(protocol: bool) -> None:
        raise InvalidParams("wrong", {"field": "x"}) if protocol else ToolError("broken")

    @app.tool(task=TaskConfig(after=30.0))
    async def quick() -> str:
        return "quick"

    @app.tool(task=TaskConfig(max_retries=1))
    async def restart(ctx: Context) -> int:
        if attempts is not None:
            attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return ctx.attempt

    return app


if __name__ == "__main__":
    if len(sys.argv) > 1:
        create_server(sys.argv[2]).run("http", port=int(sys.argv[1]))
    else:
        create_server().run()
