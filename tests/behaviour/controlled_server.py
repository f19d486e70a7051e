"""A server whose tools tell the test when they began and how they ended, and wait until the test lets them go on."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable
from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.errors import RemoteError
from raw_http import TIMEOUT_S


class ControlledServer:
    """The server and what its tools reported, each under the name given in the call."""

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
        return await self.play(name)

    async def talk(self, name: str, ctx: Context) -> str:
        """Reports progress, waits to be released, reports again."""
        await ctx.progress(1, total=2, message=name)
        value = await self.play(name)
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

    async def play(self, name: str) -> str:
        """Report the beginning, wait to be released, report the end."""
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

    # What the test calls

    async def wait_until_started(self, name: str) -> None:
        """Wait until the call of this name is at work."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_S):
            await self._started_events[name].wait()

    def remember_loop(self) -> None:
        """Remember the loop, for tools that run in threads."""
        self._loop = asyncio.get_running_loop()

    def over(self, name: str) -> None:
        """Say that a call of this name has ended."""
        self._ended_events[name].set()

    def release(self, name: str) -> None:
        """Let the call of this name finish."""
        self._release_events[name].set()
        self._thread_release_events[name].set()

    async def wait_until_ended(self, name: str) -> str:
        """Wait until the call is over; how it ended."""
        async with asyncio.timeout(TIMEOUT_S):
            await self._ended_events[name].wait()
        return self.outcomes[name]


def call_params(tool: str, **arguments: Any) -> dict[str, Any]:
    """The params of a tools/call."""
    return {"name": tool, "arguments": arguments}


def text(result: Any) -> str:
    """The text of a tool's result."""
    return result["content"][0]["text"]


async def expect_error(work: Awaitable[Any]) -> Any:
    """The error a request is answered with."""
    with pytest.raises(RemoteError) as caught:
        await work
    return caught.value
