"""A bounded pool of daemon threads for synchronous functions.

The threads are daemons, because a blocked function must not keep the process alive. A call that gets no thread in time
is rejected, so that a few blocked functions do not block all callers. While a function waits for a user's answer or for
a nested request, another call can use its slot in the pool.
"""

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import Any

from dovetail.errors import ServerBusy
from dovetail.protocol.limits import CallerBusy, ServerLimits

_IDLE_TIMEOUT_S = 10.0  # the seconds after which an idle thread ends
# For each running thread, at most this many other threads may wait for users.
_MAX_LENT_PER_THREAD = 4


class ThreadSlot:
    """The slot of a running function in a thread pool. While the function waits, another function can use the slot."""

    __slots__ = ("_is_released", "_lend_count", "_origin", "_thread_pool")

    def __init__(self, thread_pool: "ThreadPool", origin: str | None) -> None:
        self._thread_pool = thread_pool
        self._origin = origin
        self._lend_count = 0
        self._is_released = False

    def lend(self) -> bool:
        """Let another function use the thread while the current function waits.

        Return False if too many functions are waiting.
        """
        with self._thread_pool.lock:
            if self._is_released or (self._lend_count == 0 and not self._thread_pool.lend_thread(self._origin)):
                return False
            self._lend_count += 1
            return True

    def take_back(self) -> None:
        """Undo `lend`, because the function continues. For a short time, too many functions may run."""
        with self._thread_pool.lock:
            self._lend_count -= 1
            if self._lend_count == 0:
                self._thread_pool.take_back_thread(self._origin)

    def release(self) -> None:
        self._is_released = True
        if self._origin is not None:
            self._thread_pool.release(self._origin)


# The slot of the function in the current thread, or None. Coroutine functions have no slot.
_current_slot: contextvars.ContextVar[ThreadSlot | None] = contextvars.ContextVar("current_slot", default=None)


@contextlib.contextmanager
def lend_current_slot() -> Generator[None]:
    """Let another function use the slot of the current function while the context is open."""
    slot = _current_slot.get()
    is_lent = slot is not None and slot.lend()
    try:
        yield
    finally:
        if slot is not None and is_lent:
            slot.take_back()


class _Job:
    __slots__ = ("args", "context", "function", "future", "kwargs", "loop", "slot")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], slot: ThreadSlot
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.slot = slot
        self.context = contextvars.copy_context()
        self.context.run(_current_slot.set, slot)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def run(self) -> tuple[Any, BaseException | None]:
        try:
            return self.context.run(self.function, *self.args, **self.kwargs), None
        except BaseException as exc:
            return None, exc

    def deliver(self, value: Any, exc: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # The event loop is closed, so no caller is waiting for the result.
            self.loop.call_soon_threadsafe(self._set_outcome, value, exc)

    def _set_outcome(self, value: Any, exc: BaseException | None) -> None:
        if self.future.done():
            return
        if exc is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(_wrap_for_future(exc))


def _wrap_for_future(exc: BaseException) -> BaseException:
    # A future does not accept StopIteration. SystemExit in a future would end the event loop.
    if not isinstance(exc, (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)):
        return exc
    wrapper = RuntimeError(f"{type(exc).__name__} raised in a thread")
    wrapper.__cause__ = exc
    return wrapper


_pools: "weakref.WeakSet[ThreadPool]" = weakref.WeakSet()


def _reset_after_fork() -> None:
    """Reset all thread pools, because threads are not copied to a forked process."""
    for pool in _pools:
        pool._reset()  # pyright: ignore[reportPrivateUsage]


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_reset_after_fork)


class ThreadPool:
    """A pool of threads for all sync functions of a server."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self.lock = threading.Lock()
        self._job_available = threading.Condition(self.lock)
        self._jobs: deque[_Job] = deque()
        self._thread_count = 0
        self._idle_count = 0
        self._jobs_by_origin: Counter[str] = Counter()
        self._lent_by_origin: Counter[str | None] = Counter()

    @property
    def busy(self) -> int:
        """Return the number of threads that run a function. Threads that wait for a user also count."""
        with self.lock:
            return self._thread_count - self._idle_count + self._lent_by_origin.total()

    async def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origin: str | None
    ) -> Any:
        """Call a function in a thread. Raise ServerBusy if no thread is free in time."""
        job = _Job(function, args, kwargs, ThreadSlot(self, origin))
        with self.lock:
            if len(self._jobs) >= self._limits.max_thread_queue:
                raise ServerBusy("Too many calls are waiting for a thread")
            if origin is not None and self._jobs_by_origin[origin] >= max(1, self._limits.max_threads // 2):
                raise CallerBusy("You have too many running calls")
            if origin is not None:
                # Waiting calls also count, so that one caller cannot use all threads.
                self._jobs_by_origin[origin] += 1
            self._jobs.append(job)
            self._ensure_thread()
        timer = job.loop.call_later(self._limits.thread_queue_timeout, self._expire_job, job)
        try:
            return await job.future
        finally:
            timer.cancel()

    def _ensure_thread(self) -> None:
        if self._idle_count >= len(self._jobs):
            self._job_available.notify()
        elif self._thread_count < self._limits.max_threads:
            self._thread_count += 1
            try:
                threading.Thread(target=self._run_jobs, name="dovetail-sync", daemon=True).start()
            except RuntimeError:
                # The system allows no more threads, so the call waits for a thread to become free.
                self._thread_count -= 1

    def _expire_job(self, job: _Job) -> None:
        with self.lock:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
        job.slot.release()
        if not job.future.done():
            job.future.set_exception(ServerBusy("No thread became free in time", self._limits.thread_queue_timeout))

    def _run_jobs(self) -> None:
        while (job := self._take_job()) is not None:
            outcome = (None, None) if job.future.cancelled() else job.run()
            # The slot is freed first, because the caller may call again as soon as it gets the result.
            job.slot.release()
            job.deliver(*outcome)
            del job, outcome  # A thread that waits for the next job must not keep the arguments and the result.

    def _take_job(self) -> _Job | None:
        with self.lock:
            # After several functions have continued from a wait, there may be too many threads.
            if self._thread_count > self._limits.max_threads:
                self._thread_count -= 1
                return None
            self._idle_count += 1
            try:
                if not self._jobs and not self._job_available.wait_for(lambda: self._jobs, _IDLE_TIMEOUT_S):
                    self._thread_count -= 1
                    return None
                job = self._jobs.popleft()
            finally:
                self._idle_count -= 1
            return job

    def release(self, origin: str) -> None:
        """Reduce the number of running calls of this caller by one."""
        with self.lock:
            self._adjust_count(self._jobs_by_origin, origin, -1)

    def lend_thread(self, origin: str | None) -> bool:
        """Count a thread as waiting. Return False if too many threads are waiting already.

        The caller of this method must hold the lock.
        """
        limit = _MAX_LENT_PER_THREAD * self._limits.max_threads
        if self._lent_by_origin.total() >= limit or (origin is not None and self._lent_by_origin[origin] >= limit // 2):
            return False
        self._adjust_count(self._lent_by_origin, origin, 1)
        self._thread_count -= 1
        if origin is not None:
            self._adjust_count(self._jobs_by_origin, origin, -1)
        if self._jobs:
            self._ensure_thread()
        return True

    def take_back_thread(self, origin: str | None) -> None:
        """Count a thread as running again after its wait. The caller must hold the lock."""
        self._adjust_count(self._lent_by_origin, origin, -1)
        self._thread_count += 1
        if origin is not None:
            self._adjust_count(self._jobs_by_origin, origin, 1)

    @staticmethod
    def _adjust_count(counter: Counter[Any], origin: str | None, change: int) -> None:
        counter[origin] += change
        if not counter[origin]:
            del counter[origin]
