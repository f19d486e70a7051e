"""A server with every feature, for tests of everything between it and its callers."""

import asyncio
from typing import Any

from dovetail import Context, ResourceLink, Server, ToolError


class UpstreamServer(Server):
    """Records the requests it receives."""

    def __init__(self, name: str = "far", **options: Any) -> None:
        super().__init__(name, debug=True, **options)
        self.stopped = asyncio.Event()
        self.calls: list[str] = []
        self.headers: list[Any] = []
        _add_items(self)


def _add_items(app: UpstreamServer) -> None:
    @app.tool(read_only=True)
    async def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        app.calls.append("add")
        return a + b

    @app.tool(name="a.name/that is_much__too long for any model to take, and then some")
    async def long() -> str:
        return "long"

    @app.tool
    async def work(ctx: Context) -> str:
        await ctx.progress(1, 2, "half")
        await ctx.info("on the way")
        return "done"

    @app.tool
    async def ask(ctx: Context) -> str:
        name = await ctx.elicit("Name?", str)
        age = await ctx.elicit("Age?", int)
        app.calls.append("ask")
        return f"{name} {age}"

    @app.tool
    async def think(ctx: Context) -> str:
        result = await ctx.sample("hello")
        return str(getattr(result.content, "text", None))

    @app.tool
    async def where(ctx: Context) -> str:
        return " ".join(root.uri for root in await ctx.list_roots())

    @app.tool
    async def hang(ctx: Context) -> None:
        await ctx.progress(1)
        try:
            await asyncio.Event().wait()
        finally:
            app.stopped.set()

    @app.tool
    async def fail() -> None:
        raise ToolError("not today")

    @app.tool
    async def who(ctx: Context) -> str:
        app.headers.append(dict(ctx.headers))
        return str(ctx.meta.get("com.example/who"))

    @app.tool
    async def point() -> ResourceLink:
        return ResourceLink(uri="note:1", name="one")

    @app.resource("note:all")
    def notes() -> str:
        return "all"

    @app.resource("note:{number}")
    def note(number: int) -> str:
        return f"note {number}"

    @app.prompt
    def greet(kind: str) -> str:
        return f"be {kind}"

    @app.prompt(name="greet in a way that is much too long for the name of anything at all, really")
    def greet_long(kind: str) -> str:
        return f"long {kind}"

    @app.completion("greet", "kind")
    def kinds(value: str) -> list[str]:
        return [f"{value}!"]
