"""Metering: the limits a policy sets on calls — how many at once, how often, how much of a result."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from dovetail.errors import PolicyError
from dovetail.host.quotas import Quota, Rate
from dovetail.wire.codec import encode
from dovetail.wire.content import TextContent
from dovetail.wire.shape import UNSET, replace
from dovetail.wire.tools import CallToolResult


class Meter:
    """What was used of the limits: for each tool of each server, and for each other kind of thing of each server.

    Addresses and names of prompts are the caller's to choose: counted one by one they would be no limit, and no end.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], deque[float]] = {}
        self._room: dict[tuple[str, str], tuple[int, asyncio.Semaphore]] = {}

    @asynccontextmanager
    async def within(self, server: str, tool: str, quota: Quota, kind: str = "tool.call") -> AsyncGenerator[None]:
        """One call; PolicyError if there were too many of late, a wait if there are too many now."""
        tool = tool if kind == "tool.call" else kind
        if quota.rate is not None:
            self.count(server, tool, quota.rate)
        async with contextlib.AsyncExitStack() as stack:
            if quota.concurrency is not None:
                size, room = self._room.get((server, tool), (0, None))
                if room is None or size != quota.concurrency:
                    room = asyncio.Semaphore(quota.concurrency)
                    self._room[server, tool] = quota.concurrency, room
                await stack.enter_async_context(room)
            yield

    def count(self, server: str, tool: str, rate: Rate) -> None:
        """One more; PolicyError if that is one too many."""
        now = asyncio.get_running_loop().time()
        times = self._times.setdefault((server, tool), deque())
        while times and now - times[0] >= rate.seconds:
            times.popleft()
        if len(times) >= rate.count:
            wait = rate.seconds - (now - times[0])
            raise PolicyError(f"{server}.{tool}: more than {rate}; again in {wait:.0f} s").at(server=server)
        times.append(now)


def shortened(result: CallToolResult, limit: int | None) -> CallToolResult:
    """A result of at most so many bytes: what is longer gives way to its beginning, and says so."""
    if limit is None:
        return result
    size = len(encode(result))
    if size <= limit:
        return result
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    shown = text.encode()[:limit].decode("utf-8", "ignore")
    note = f"[the result has {size} bytes, of which {limit} may be passed on]"
    content = [TextContent(text=shown), TextContent(text=note)] if shown else [TextContent(text=note)]
    return replace(result, content=content, structured_content=UNSET)
