"""A bounded queue that calls the user's handlers in order.

A server that sends too many messages cannot fill the memory. If the handlers are too slow, the oldest calls are
dropped.

A plain function is called immediately. The queue awaits the coroutines of async functions one after the other.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from dovetail.log import log

# This value is set while a handler runs. Tasks that the handler starts inherit the value.
_current_callback: ContextVar[object] = ContextVar("dovetail_within", default=None)


class CallbackQueue:
    """Runs the user's handlers one after the other. If they are too slow, the oldest waiting calls are dropped."""

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._pending: deque[Coroutine[Any, Any, Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._running_mark: object = None
        self._has_logged_failure = False
        self._posted_count = self._finished_count = 0
        self._flush_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.dropped_count = 0

    @property
    def queued(self) -> int:
        """Return the number of handler calls that have not started yet."""
        return len(self._pending)

    def call(self, handler: Callable[..., Any], *args: Any) -> None:
        """Queue a call of a handler. Only the first exception of a handler is logged."""
        try:
            result = handler(*args)
        except Exception as exc:
            self._log_failure(exc)
            return
        if inspect.iscoroutine(result):
            self._enqueue(result)

    def _enqueue(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        if len(self._pending) >= self._max_pending:
            self._pending.popleft().close()
            self.dropped_count += 1
            self._count_finished()
        self._pending.append(coroutine)
        self._posted_count += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run_pending())

    async def _run_pending(self) -> None:
        while self._pending:
            self._running_mark = mark = object()
            _current_callback.set(mark)
            try:
                await self._pending.popleft()
            except Exception as exc:
                self._log_failure(exc)
            finally:
                self._running_mark = None
                self._count_finished()

    def _count_finished(self) -> None:
        """Count a call as finished or dropped.

        Calls end in order, so this number shows which waiting tasks can continue.
        """
        self._finished_count += 1
        while self._flush_waiters and self._flush_waiters[0][0] <= self._finished_count:
            _resolve(self._flush_waiters.pop(0)[1])

    def _log_failure(self, exc: Exception) -> None:
        if not self._has_logged_failure:
            self._has_logged_failure = True
            log.error("a handler of the client failed. Later failures are not logged", exc_info=exc)

    async def flush(self, seconds: float) -> None:
        """Wait until all queued calls have finished, but at most this many seconds.

        Inside a handler, this method returns immediately, because the handler would wait for itself.
        """
        if self._task is None or self._task.done() or self._is_in_callback():
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiter = (self._posted_count, future)
        self._flush_waiters.append(waiter)
        timer = loop.call_later(seconds, _resolve, future)
        try:
            await future
        finally:
            timer.cancel()
            if waiter in self._flush_waiters:
                self._flush_waiters.remove(waiter)

    def _is_in_callback(self) -> bool:
        return self._running_mark is not None and _current_callback.get() is self._running_mark

    def close(self) -> None:
        """Stop the current handler and drop all queued calls."""
        if self._task is not None:
            self._task.cancel()
        while self._pending:
            self._pending.popleft().close()
            self._count_finished()

    def abandon(self) -> None:
        """Drop all calls and waiting tasks, because their event loop is closed."""
        self._task = self._running_mark = None
        self._flush_waiters.clear()
        while self._pending:
            self._pending.popleft().close()
        self._finished_count = self._posted_count


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
