"""Threads for synchronous functions: a bounded crew of daemons.

Daemons, because a function that blocks must not keep the process from ending. A call that finds no thread within a
time is refused, so a few stuck functions cannot collect all callers behind them.
"""

import asyncio
import contextlib
import contextvars
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from dovetail.errors import Busy
from dovetail.protocol.limits import Limits

_IDLE = 10.0  # how long a thread waits for more work before it ends


class _Job:
    __slots__ = ("args", "context", "function", "future", "kwargs", "loop", "origin")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origin: str | None
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.origin = origin
        self.context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def run(self) -> tuple[Any, BaseException | None]:
        try:
            return self.context.run(self.function, *self.args, **self.kwargs), None
        except BaseException as exc:
            return None, exc

    def tell(self, value: Any, exc: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._settle, value, exc)

    def _settle(self, value: Any, exc: BaseException | None) -> None:
        if self.future.done():
            return
        if exc is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(_carried(exc))


def _carried(exc: BaseException) -> BaseException:
    # A future refuses to carry StopIteration, and one that carries SystemExit ends the loop.
    if not isinstance(exc, (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)):
        return exc
    carrier = RuntimeError(f"{type(exc).__name__} raised in a thread")
    carrier.__cause__ = exc
    return carrier


_crews: "weakref.WeakSet[Threads]" = weakref.WeakSet()


def _recruit() -> None:
    """A forked process has the crews, but none of their threads."""
    for crew in _crews:
        crew._begin()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_recruit)


class Threads:
    """The crew. One per server, shared by all its synchronous functions."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._begin()
        _crews.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._jobs: deque[_Job] = deque()
        self._threads = 0
        self._idle = 0
        self._busy: Counter[str] = Counter()

    async def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origin: str | None
    ) -> Any:
        """Call the function in a thread; Busy if none is free in time."""
        job = _Job(function, args, kwargs, origin)
        with self._lock:
            if len(self._jobs) >= self._limits.waiting:
                raise Busy("Too many calls wait for a thread")
            if origin is not None and self._busy[origin] >= max(1, self._limits.threads // 2):
                raise Busy("Too many calls of one caller are at work", own=True)
            if origin is not None:
                self._busy[origin] += 1  # those that wait count too, or a burst would take every thread
            self._jobs.append(job)
            self._staff()
        waiting = job.loop.call_later(self._limits.waiting_time, self._give_up, job)
        try:
            return await job.future
        finally:
            waiting.cancel()

    def _staff(self) -> None:
        if self._idle >= len(self._jobs):
            self._wake.notify()
        elif self._threads < self._limits.threads:
            self._threads += 1
            try:
                threading.Thread(target=self._work, name="dovetail-sync", daemon=True).start()
            except RuntimeError:  # the system has no more; the job waits for one of ours, or gives up
                self._threads -= 1

    def _give_up(self, job: _Job) -> None:
        with self._lock:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
        self._left(job)
        if not job.future.done():
            job.future.set_exception(Busy("No thread became free in time", self._limits.waiting_time))

    def _work(self) -> None:
        while (job := self._next()) is not None:
            outcome = (None, None) if job.future.cancelled() else job.run()
            self._left(job)  # before the caller hears of it, whose next call may come at once
            job.tell(*outcome)

    def _next(self) -> _Job | None:
        with self._lock:
            self._idle += 1
            try:
                if not self._jobs and not self._wake.wait_for(lambda: self._jobs, _IDLE):
                    self._threads -= 1
                    return None
                job = self._jobs.popleft()
            finally:
                self._idle -= 1
            return job

    def _left(self, job: _Job) -> None:
        if job.origin is not None:
            with self._lock:
                self._busy[job.origin] -= 1
                if not self._busy[job.origin]:
                    del self._busy[job.origin]
