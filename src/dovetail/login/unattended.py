"""Unattended: flows of a server, with no user at hand. They need only the web and the time.

No redirect is followed, nothing large is read, nothing is waited for long.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from dovetail.auth.flow import Alone, Flow, HttpCall, Now, Pause, SignIn, StillUser, Stranger
from dovetail.login.web import answered
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.fetch import Fetcher

_DOCUMENT: Final = 256 * 1024

T = TypeVar("T")


class Unattended:
    """One loop's connections for such calls, made when first needed."""

    def __init__(
        self,
        *,
        strangers: Callable[[str], bool] | None = None,  # which addresses may be fetched from for somebody unknown
        stranger_size: int = _DOCUMENT,
        grant: Callable[[Any], Awaitable[Any]] | None = None,  # what else a flow may wish for
    ) -> None:
        self._strangers = strangers
        self._stranger_size = stranger_size
        self._grant = grant
        self._fetcher: Fetcher | None = None
        self._screened: Fetcher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alone = asyncio.Lock()
        self._turn = asyncio.Lock()

    async def run(self, flow: Flow[T], *, threaded: bool = False) -> T:
        """What the flow comes to; its steps in a thread, if they may take a while."""
        answer: Any = None
        async with AsyncExitStack() as held:
            while True:
                done, wish = await self._apart(flow, answer) if threaded else _step(flow, answer)
                if done:
                    return wish
                match wish:
                    case Now():
                        answer = time.time()
                    case Pause():
                        answer = await asyncio.sleep(wish.seconds)
                    case HttpCall():
                        answer = await answered(self._settle(), wish)
                    case Stranger() if self._strangers is not None:
                        answer = await answered(self._settle(screened=True), HttpCall(url=wish.url))
                    case Alone():
                        self._settle()
                        answer = await held.enter_async_context(self._alone)
                    case SignIn() | StillUser() if self._grant is not None:
                        answer = await self._grant(wish)
                    case _:
                        raise TypeError(f"nobody here can grant {wish!r}")

    async def _apart(self, flow: Flow[Any], answer: Any) -> tuple[bool, Any]:
        """A step in a thread; one flow at a time, for flows know nothing of threads."""
        async with self._turn:
            return await asyncio.to_thread(_step, flow, answer)

    def _settle(self, *, screened: bool = False) -> Fetcher:
        """The connections of the loop that is running."""
        loop = asyncio.get_running_loop()
        if self._fetcher is None or self._screened is None or self._loop is not loop:
            self._loop, self._alone = loop, asyncio.Lock()
            self._fetcher = Fetcher(limits=FetchLimits(body=_DOCUMENT), idle_time=1.0)
            # Not by a proxy of the environment: then the address that is connected to would be the proxy's.
            self._screened = Fetcher(
                limits=FetchLimits(body=self._stranger_size), screen=self._strangers, idle_time=1.0, trust_env=False
            )
        return self._screened if screened else self._fetcher

    async def close(self) -> None:
        """Let go of the connections."""
        open_ones, self._fetcher, self._screened = (self._fetcher, self._screened), None, None
        for fetcher in open_ones:
            if fetcher is not None and self._loop is asyncio.get_running_loop():
                await fetcher.close()


def _step(flow: Flow[Any], answer: Any) -> tuple[bool, Any]:
    """The next wish of a flow, or what it came to."""
    try:
        return False, flow.send(answer)
    except StopIteration as done:
        return True, done.value
