"""Threads for synchronous functions: a bounded crew of daemons.

Daemons, because a function that blocks must not keep the process from ending. A call that finds no thread within a
time is refused, so a few stuck functions cannot collect all callers behind them. A function that waits for a user's
answer lends its place to another call.
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
_MAX_LENT_PER_THREAD = 4  # places lent at once, for each thread there may be: a waiting thread still takes memory


class Place:
    """The place that one running function takes among the threads."""

    __slots__ = ("_lent", "_origin", "_over", "_threads")

    def __init__(self, threads: "Threads", origin: str | None) -> None:
        self._threads = threads
        self._origin = origin
        self._lent = 0
        self._over = False

    def lend(self) -> bool:
        """Let another call have the place meanwhile. Return False if too many places are lent already."""
        with self._threads.lock:
            if self._over or (self._lent == 0 and not self._threads.lend(self._origin)):
                return False
            self._lent += 1
            return True

    def take_back(self) -> None:
        """Be at work again, at once: for a moment more functions may be at work than there are places."""
        with self._threads.lock:
            self._lent -= 1
            if self._lent == 0:
                self._threads.take_back(self._origin)

    def leave(self) -> None:
        """The function has ended."""
        self._over = True
        if self._origin is not None:
            self._threads.leave(self._origin)


# The place of the plain function that this runs in or for.
current_place: contextvars.ContextVar[Place | None] = contextvars.ContextVar("current_place", default=None)


class _Job:
    __slots__ = ("args", "context", "function", "future", "kwargs", "loop", "place")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: Place
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.place = place
        self.context = contextvars.copy_context()
        self.context.run(current_place.set, place)
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
        self.lock = threading.Lock()
        self._wake = threading.Condition(self.lock)
        self._jobs: deque[_Job] = deque()
        self._threads = 0
        self._idle = 0
        self._busy: Counter[str] = Counter()
        self._lent: Counter[str | None] = Counter()

    @property
    def busy(self) -> int:
        """How many threads run a function, those that wait for an answer too."""
        with self.lock:
            return self._threads - self._idle + self._lent.total()

    async def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origin: str | None
    ) -> Any:
        """Call the function in a thread; Busy if none is free in time."""
        job = _Job(function, args, kwargs, Place(self, origin))
        with self.lock:
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
        with self.lock:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
        job.place.leave()
        if not job.future.done():
            job.future.set_exception(Busy("No thread became free in time", self._limits.waiting_time))

    def _work(self) -> None:
        while (job := self._next()) is not None:
            outcome = (None, None) if job.future.cancelled() else job.run()
            job.place.leave()  # before the caller hears of it, whose next call may come at once
            job.tell(*outcome)

    def _next(self) -> _Job | None:
        with self.lock:
            if self._threads > self._limits.threads:  # places were taken back meanwhile
                self._threads -= 1
                return None
            self._idle += 1
            try:
                if not self._jobs and not self._wake.wait_for(lambda: self._jobs, _IDLE):
                    self._threads -= 1
                    return None
                job = self._jobs.popleft()
            finally:
                self._idle -= 1
            return job

    # What a place calls

    def leave(self, origin: str) -> None:
        """A function of this caller has ended."""
        with self.lock:
            self._count(self._busy, origin, -1)

    def lend(self, origin: str | None) -> bool:
        """Count a thread that waits apart from those at work. One caller may have half of what can be lent.

        Called with the lock held.
        """
        limit = _MAX_LENT_PER_THREAD * self._limits.threads
        if self._lent.total() >= limit or (origin is not None and self._lent[origin] >= limit // 2):
            return False
        self._count(self._lent, origin, 1)
        self._threads -= 1
        if origin is not None:
            self._count(self._busy, origin, -1)
        if self._jobs:
            self._staff()
        return True

    def take_back(self, origin: str | None) -> None:
        """Count a thread among those at work again. Called with the lock held."""
        self._count(self._lent, origin, -1)
        self._threads += 1
        if origin is not None:
            self._count(self._busy, origin, 1)

    @staticmethod
    def _count(counter: Counter[Any], origin: str | None, change: int) -> None:
        counter[origin] += change
        if not counter[origin]:
            del counter[origin]
