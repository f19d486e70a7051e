"""A server whose tools report their start and end to the test, and wait until the test releases them."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable
from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.errors import RemoteError
from support.raw_http import TIMEOUT_S


class ControlledServer:
    """The server, and the state of each call under the name in its arguments."""

    def __init__(self, **options: Any) -> None:
        self.app = Server("stage", **({"version": "1.0"} | options))
        self.outcomes: dict[str, str] = {}
        self._started_events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._release_events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._ended_events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._thread_release_events: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self.app.add_tool(self.echo)
        self.app.add_tool(self.wait)
        self.app.add_tool(self.talk)
        self.app.add_tool(self.block)
        self.app.add_tool(self.count)

    async def echo(self, text: str) -> str:
        return text

    async def wait(self, name: str) -> str:
        """Says nothing until released."""
        return await self.run_until_released(name)

    async def talk(self, name: str, ctx: Context) -> str:
        """Reports progress, waits to be released, reports again."""
        await ctx.progress(1, total=2, message=name)
        value = await self.run_until_released(name)
        await ctx.progress(2, total=2, message=name)
        return value

    def block(self, name: str) -> str:
        """Holds its thread until released."""
        loop = self._loop
        loop.call_soon_threadsafe(self._started_events[name].set)
        self._thread_release_events[name].wait(TIMEOUT_S)
        self.outcomes[name] = "finished"
        loop.call_soon_threadsafe(self._ended_events[name].set)
        return f"{name} is done"

    async def count(self, to: int, ctx: Context) -> str:
        """Reports progress from 1 to `to` without waiting."""
        for number in range(1, to + 1):
            await ctx.progress(number, total=to)
        return f"counted to {to}"

    async def run_until_released(self, name: str) -> str:
        """Report the start, wait to be released, and report the end."""
        self._started_events[name].set()
        try:
            await self._release_events[name].wait()
        except asyncio.CancelledError:
            self.outcomes[name] = "cancelled"
            raise
        else:
            self.outcomes[name] = "finished"
        finally:
            self._ended_events[name].set()
        return f"{name} is done"

    # For the test

    async def wait_until_started(self, name: str) -> None:
        """Wait until the call of this name has started."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_S):
            await self._started_events[name].wait()

    def remember_loop(self) -> None:
        """Store the event loop, for tools that run in threads."""
        self._loop = asyncio.get_running_loop()

    def over(self, name: str) -> None:
        """Mark the call of this name as ended."""
        self._ended_events[name].set()

    def release(self, name: str) -> None:
        """Let the call of this name finish."""
        self._release_events[name].set()
        self._thread_release_events[name].set()

    async def wait_until_ended(self, name: str) -> str:
        """Wait until the call has ended, and return its outcome."""
        async with asyncio.timeout(TIMEOUT_S):
            await self._ended_events[name].wait()
        return self.outcomes[name]


def call_params(tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the params of a tools/call."""
    return {"name": tool, "arguments": arguments}


def text(result: Any) -> str:
    """Return the text of a tool result."""
    return result["content"][0]["text"]


async def expect_error(work: Awaitable[Any]) -> Any:
    """Return the error that a request raises."""
    with pytest.raises(RemoteError) as caught:
        await work
    return caught.value
