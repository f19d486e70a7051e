"""What is waiting for the user's handlers, in order and bounded: a server's flood must not fill this side's memory.

A plain function is called at once; what a coroutine function returns is awaited here, one after the other.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

log = logging.getLogger("dovetail")

# Which handler's work it is, in whatever task that is done.
_within: ContextVar[object] = ContextVar("dovetail_within", default=None)


class Mailbox:
    """Runs handlers; when they are too slow, the oldest calls give way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Coroutine[Any, Any, Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._working: object = None  # a mark of the handler at work
        self._complained = False
        self._posted = self._handled = 0
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self.dropped = 0

    @property
    def queued(self) -> int:
        """How many calls have not begun."""
        return len(self._waiting)

    def call(self, handler: Callable[..., Any], *args: Any) -> None:
        """Call a handler of the user's; what it raises is logged, once."""
        try:
            made = handler(*args)
        except Exception as exc:
            self._complain(exc)
            return
        if inspect.iscoroutine(made):
            self._add(made)

    def _add(self, work: Coroutine[Any, Any, Any]) -> None:
        if len(self._waiting) >= self._limit:
            self._waiting.popleft().close()
            self.dropped += 1
            self._done()
        self._waiting.append(work)
        self._posted += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while self._waiting:
            self._working = mark = object()
            _within.set(mark)
            try:
                await self._waiting.popleft()
            except Exception as exc:
                self._complain(exc)
            finally:
                self._working = None
                self._done()

    def _done(self) -> None:
        """One more has been handled, or given way; the first ones go first, so a count says which."""
        self._handled += 1
        while self._flushing and self._flushing[0][0] <= self._handled:
            _release(self._flushing.pop(0)[1])

    def _complain(self, exc: Exception) -> None:
        if not self._complained:
            self._complained = True
            log.error("a handler of the client failed; later failures are not logged", exc_info=exc)

    async def flush(self, seconds: float) -> None:
        """Wait until everything posted so far has been handled, but not longer than this.

        A handler, in any task of its own, does not wait: that would be for itself.
        """
        if self._task is None or self._task.done() or self._within():
            return
        loop = asyncio.get_running_loop()
        flushed: asyncio.Future[None] = loop.create_future()
        waiting = (self._posted, flushed)
        self._flushing.append(waiting)
        late = loop.call_later(seconds, _release, flushed)
        try:
            await flushed
        finally:
            late.cancel()
            if waiting in self._flushing:
                self._flushing.remove(waiting)

    def _within(self) -> bool:
        return self._working is not None and _within.get() is self._working

    def close(self) -> None:
        """Forget what is waiting."""
        if self._task is not None:
            self._task.cancel()
        while self._waiting:
            self._waiting.popleft().close()
            self._done()

    def abandon(self) -> None:
        """Forget everything: the event loop it lived on is gone, and whoever waited there."""
        self._task = self._working = None
        self._flushing.clear()
        while self._waiting:
            self._waiting.popleft().close()
        self._handled = self._posted


def _release(flushed: asyncio.Future[None]) -> None:
    if not flushed.done():
        flushed.set_result(None)
