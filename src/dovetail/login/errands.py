"""Errands: flows that need only the web and the time, run over the HTTP client.

No redirect is followed, nothing large is read, nothing is waited for long.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from dovetail.auth.flow import Alone, Flow, HttpAnswer, HttpCall, Now
from dovetail.errors import TransportError
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.fetch import Fetcher

_DOCUMENT: Final = 256 * 1024
_TIME: Final = 5.0

T = TypeVar("T")


class Errands:
    """One loop's connections for such calls, made when first needed."""

    def __init__(self, screen: Callable[[str], bool] | None = None, largest: int = _DOCUMENT) -> None:
        self._screen = screen
        self._largest = largest
        self._fetcher: Fetcher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alone = asyncio.Lock()

    async def run(self, flow: Flow[T]) -> T:
        """What the flow comes to."""
        answer: Any = None
        async with AsyncExitStack() as held:
            while True:
                try:
                    wish = flow.send(answer)
                except StopIteration as done:
                    return done.value
                match wish:
                    case Now():
                        answer = time.time()
                    case HttpCall():
                        answer = await self.call(wish)
                    case Alone():
                        self._settle()
                        answer = await held.enter_async_context(self._alone)
                    case _:
                        raise TypeError(f"nobody here can grant {wish!r}")

    async def call(self, call: HttpCall) -> HttpAnswer:
        """What came back; status 0 if nothing did, or nothing that could be read."""
        parts = urlsplit(call.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return HttpAnswer(0)
        headers = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in call.headers.items()]
        try:
            async with asyncio.timeout(_TIME):
                reply = await self._settle().fetch(call.method, call.url, headers, call.body)
                body = await reply.read()
        except (TransportError, TimeoutError, ValueError):
            return HttpAnswer(0)
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers.items()}
        return HttpAnswer(reply.status, found, body)

    def _settle(self) -> Fetcher:
        """The connections of the loop that is running."""
        loop = asyncio.get_running_loop()
        if self._fetcher is None or self._loop is not loop:
            self._loop, self._alone = loop, asyncio.Lock()
            self._fetcher = Fetcher(limits=FetchLimits(body=self._largest), screen=self._screen, idle_time=1.0)
        return self._fetcher

    async def close(self) -> None:
        """Let go of the connections."""
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None and self._loop is asyncio.get_running_loop():
            await fetcher.close()
