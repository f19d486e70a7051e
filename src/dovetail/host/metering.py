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
        self._call_times: dict[tuple[str, str], deque[float]] = {}
        self._semaphores: dict[tuple[str, str], tuple[int, asyncio.Semaphore]] = {}

    @asynccontextmanager
    async def limit_call(self, server: str, tool: str, limits: Quota, kind: str = "tool.call") -> AsyncGenerator[None]:
        """One call; PolicyError if there were too many of late, a wait if there are too many now."""
        tool = tool if kind == "tool.call" else kind
        if limits.rate is not None:
            self.record_call(server, tool, limits.rate)
        async with contextlib.AsyncExitStack() as stack:
            if limits.concurrency is not None:
                size, semaphore = self._semaphores.get((server, tool), (0, None))
                if semaphore is None or size != limits.concurrency:
                    semaphore = asyncio.Semaphore(limits.concurrency)
                    self._semaphores[server, tool] = limits.concurrency, semaphore
                await stack.enter_async_context(semaphore)
            yield

    def record_call(self, server: str, tool: str, rate: Rate) -> None:
        """One more; PolicyError if that is one too many."""
        now = asyncio.get_running_loop().time()
        call_times = self._call_times.setdefault((server, tool), deque())
        while call_times and now - call_times[0] >= rate.seconds:
            call_times.popleft()
        if len(call_times) >= rate.count:
            wait = rate.seconds - (now - call_times[0])
            raise PolicyError(f"{server}.{tool}: more than {rate}; again in {wait:.0f} s").at(server=server)
        call_times.append(now)


def truncate_result(result: CallToolResult, max_bytes: int | None) -> CallToolResult:
    """A result of at most so many bytes: what is longer gives way to its beginning, and says so."""
    if max_bytes is None:
        return result
    size = len(encode(result))
    if size <= max_bytes:
        return result
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    kept_text = text.encode()[:max_bytes].decode("utf-8", "ignore")
    note = f"[the result has {size} bytes, of which {max_bytes} may be passed on]"
    content = [TextContent(text=kept_text), TextContent(text=note)] if kept_text else [TextContent(text=note)]
    return replace(result, content=content, structured_content=UNSET)
