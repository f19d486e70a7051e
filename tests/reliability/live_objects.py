"""Count the live objects of dovetail and asyncio, and a server with a tool for each kind of request.

The server also runs in a process of its own. It then counts its objects with the tool `census`.
"""

import asyncio
import gc
from collections import Counter
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType
from typing import Any

from dovetail import Context, Server, ServerLimits
from dovetail.cluster.local.local_backend import LocalBackend
from dovetail.extensions import TaskOptions
from dovetail.wire.base import replace

_COUNTED_MODULES = ("dovetail", "asyncio", "_asyncio", "uvloop")
_COUNTED_TYPES = (AsyncGeneratorType, CoroutineType)


def count_live_objects() -> Counter[str]:
    """Return the number of live objects by type, after a garbage collection."""
    gc.collect()
    # asyncio keeps a cancelled timer until it is due, but not what the timer would call.
    counts = Counter(type(thing) for thing in gc.get_objects() if not _is_cancelled_timer(thing))
    return Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in counts.items()
            if str(kind.__module__).partition(".")[0] in _COUNTED_MODULES or kind in _COUNTED_TYPES
        }
    )


def _is_cancelled_timer(thing: object) -> bool:
    return type(thing) is asyncio.TimerHandle and thing.cancelled()


def create_counted_server(keep_alive_interval: float = 15.0, cluster_folder: Path | None = None) -> Server:
    """Return the server. It keeps no events for clients that reconnect, because these are kept on purpose."""
    limits = ServerLimits(max_replay_total_bytes=0, keep_alive_interval=keep_alive_interval)
    options: dict[str, Any] = {}
    if cluster_folder is not None:
        keys = ["a key of at least 32 characters."]
        options = {"cluster": LocalBackend(cluster_folder, secret_keys=keys), "secret_keys": keys}
        # A worker keeps its copy of an ended session for this time.
        limits = replace(limits, session_idle_timeout=1.0)
    tasks = TaskOptions(store=":memory:", poll_interval=0.01, ttl=5.0)
    app = Server("counted", limits=limits, tasks=tasks, **options)
    waiting: set[asyncio.Event] = set()
    started = 0

    @app.tool
    async def echo(text: str) -> str:
        return text

    @app.tool
    def shout(text: str) -> str:
        return text

    @app.tool
    async def report(ctx: Context) -> str:
        """Report progress before the first wait."""
        await ctx.progress(1, 2, "half")
        await asyncio.sleep(0)
        return "done"

    @app.tool
    async def report_later(ctx: Context) -> str:
        """Report progress after the first wait."""
        await asyncio.sleep(0)
        await ctx.progress(1, 2, "half")
        return "done"

    @app.tool
    async def wait(ctx: Context, reports: bool = False) -> str:
        """Wait until `release` is called."""
        nonlocal started
        if reports:
            await ctx.progress(1, 2, "half")
        started += 1
        event = asyncio.Event()
        waiting.add(event)
        try:
            await event.wait()
        finally:
            waiting.discard(event)
        return "released"

    @app.tool
    async def doze(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @app.tool
    async def get_started() -> int:
        """Return how often `wait` has started."""
        return started

    @app.tool
    async def release() -> None:
        for event in waiting:
            event.set()

    @app.tool
    async def touch() -> None:
        app.notify_resource_updated("note://fixed")

    @app.tool
    async def ask(ctx: Context) -> str:
        return await ctx.elicit("Which one?", str)

    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        await ctx.progress(1, 2, "half")
        return "done"

    @app.tool
    async def fail() -> str:
        raise ValueError("expected")

    @app.tool
    async def census() -> dict[str, int]:
        return count_live_objects()

    @app.resource("note://fixed")
    def note() -> str:
        return "text"

    @app.route("/page", allow_anonymous=True)
    async def page() -> dict[str, str]:
        return {"page": "text"}

    return app


def create_server_with_short_timers() -> Server:
    """Return the server for the mixed load. Its streams send comments often."""
    return create_counted_server(keep_alive_interval=0.5)
