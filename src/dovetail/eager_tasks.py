"""Run a coroutine immediately, and use a separate task only if the coroutine has to wait.

Most requests are answered without waiting. A task and a loop iteration for each request would cost more than the rest
of the call. The first step of a coroutine therefore runs immediately, inside a standby task, so
`asyncio.current_task()`, timeouts, task groups and cancellation work as usual. If the coroutine waits, the standby task
continues it and ends when the coroutine ends. Otherwise the standby task is used for the next coroutine, unless the
coroutine has changed the task. Each coroutine runs in a separate context.

asyncio documents how such extensions can enter a task:
https://docs.python.org/3/library/asyncio-extending.html#task-lifetime-support
If this does not work in an event loop, each coroutine gets a plain task and starts one loop iteration later.
"""

import asyncio
import contextvars
import logging
from asyncio.tasks import current_task
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

try:
    from asyncio.tasks import _enter_task, _leave_task
except ImportError:

    def _enter_task(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        raise NotImplementedError("this version of asyncio cannot make another task the current task")

    _leave_task = _enter_task

Work = Coroutine[Any, Any, None]

_log: Final = logging.getLogger("dovetail")
_enterable_loop_types: Final[dict[type[asyncio.AbstractEventLoop], bool]] = {}


def can_enter_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this event loop allows switching to another task. Each type of loop is tried once."""
    can_enter = _enterable_loop_types.get(type(loop))
    if can_enter is None:
        can_enter = _enterable_loop_types[type(loop)] = _try_entering_task(loop)
    return can_enter


def _try_entering_task(loop: asyncio.AbstractEventLoop) -> bool:
    outer_task = current_task(loop)
    task = loop.create_task(asyncio.sleep(0))
    task.cancel()
    try:
        if outer_task is not None:
            _leave_task(loop, outer_task)
        _enter_task(loop, task)
        entered_task = asyncio.current_task()
        _leave_task(loop, task)
        left_task = asyncio.current_task()
        if outer_task is not None:
            _enter_task(loop, outer_task)
        restored_task = asyncio.current_task()
    except Exception as exc:
        _log.warning("requests start one loop iteration later, because asyncio cannot enter a task: %r", exc)
        return False
    if (entered_task, left_task, restored_task) == (task, None, outer_task):
        return True
    _log.warning("requests start one loop iteration later, because asyncio does not use the entered task")
    return False


class EagerTaskStarter:
    """Starts coroutines without waiting for the next iteration of the event loop, if the loop supports it.

    Args:
        context: The context variables with which each coroutine starts. By default, these are the variables of the
            code that calls `start`. Pass a context if this code may run for somebody else.
    """

    def __init__(self, context: contextvars.Context | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._can_enter_tasks = can_enter_tasks(self._loop)
        # A task that is prepared for the next coroutine. It is always None if the event loop cannot enter tasks.
        self._standby: _StandbyTask | None = None
        self._user_count = 0

    def start(self, work: Work) -> asyncio.Task[None]:
        """Start a coroutine and return its task."""
        standby = self._standby
        context = contextvars.copy_context() if self._context is None else self._context.copy()
        if standby is not None and standby.run_first_step(work, context):
            return standby.task
        self._prepare()
        return self._loop.create_task(work, context=context)

    def _prepare(self) -> None:
        if self._can_enter_tasks and (self._standby is None or self._standby.is_taken):
            self._standby = _StandbyTask(self._loop)

    def acquire(self) -> None:
        """Create a task in advance, so that the next coroutine can start immediately.

        Call `release` when you no longer need the task.
        """
        self._user_count += 1
        self._prepare()

    def release(self) -> None:
        """Undo one call of `acquire`. After the last one is undone, the prepared task ends."""
        self._user_count -= 1
        if self._user_count == 0:
            self.close()

    def close(self) -> None:
        """End the prepared task. Running coroutines continue."""
        if self._standby is not None and not self._standby.is_taken:
            self._standby.task.cancel()
        self._standby = None


class _StandbyTask:
    """An asyncio task that is created in advance and later runs a coroutine."""

    __slots__ = ("_assigned", "_awaited", "_context", "_is_lent", "_is_ready", "_loop", "_name", "_work", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._assigned: asyncio.Future[None] = loop.create_future()
        self._work: Work | None = None
        self._is_lent = False
        # A cancellation reaches the coroutine only after the task has started.
        self._is_ready = False
        self.task = loop.create_task(self._run_work(), context=contextvars.Context())
        self._name = self.task.get_name()

    @property
    def is_taken(self) -> bool:
        return self._assigned.done()

    def run_first_step(self, work: Work, context: contextvars.Context) -> bool:
        """Run a coroutine up to its first wait. If the coroutine waits, continue it in this task.

        Return False if the task is not free.
        """
        if not self._is_ready or self._is_lent or self._assigned.done():
            return False
        loop, task = self._loop, self.task
        outer_task = current_task(loop)
        if outer_task is not None:
            _leave_task(loop, outer_task)
        _enter_task(loop, task)
        self._is_lent = True
        try:
            self._awaited = context.run(work.send, None)
        except StopIteration:
            has_changed = task.get_name() != self._name or getattr(task, "_callbacks", None)
            if has_changed and not self._assigned.done():
                self._assigned.set_result(None)  # This task ends now. The next coroutine gets a new task.
            return True
        finally:
            self._is_lent = False
            _leave_task(loop, task)
            if outer_task is not None:
                _enter_task(loop, outer_task)
        self._work, self._context = work, context
        if not self._assigned.done():
            self._assigned.set_result(None)
        return True

    async def _run_work(self) -> None:
        await self

    def __await__(self) -> Generator[Any, Any, None]:
        self._is_ready = True
        step: Callable[[Any], Any] = self._get_first_awaited
        value: Any = None
        try:
            yield from self._assigned
        except asyncio.CancelledError as exc:
            if self._work is None:
                raise
            # The task was cancelled during the coroutine's first step.
            step, value = self._work.throw, exc
        work = self._work
        if work is None:
            return
        while True:
            try:
                awaited = self._context.run(step, value)
            except StopIteration:
                return
            try:
                step, value = work.send, (yield awaited)
            except BaseException as exc:
                step, value = work.throw, exc

    def _get_first_awaited(self, _: None) -> Any:
        return self._awaited


class EagerWorker:
    """Runs a coroutine function each time `wake` is called. A task is created only if the function has to wait.

    The function must handle all pending work, because `wake` has no effect while the function runs.
    """

    __slots__ = ("_closed", "_error", "_is_working", "_starter", "_task", "_work")

    def __init__(self, work: Callable[[], Work], starter: EagerTaskStarter) -> None:
        self._work = work
        self._starter = starter
        # `wake` must do nothing before `run` has started.
        self._is_working = True
        self._task: asyncio.Task[None] | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: Exception | None = None

    @property
    def is_working(self) -> bool:
        """Return whether the function is running. Before `run` has started, return True."""
        return self._is_working

    def wake(self) -> None:
        """Run the function now, unless it is already running."""
        if not self._is_working:
            self._is_working = True
            self._task = self._starter.start(self._do_work())

    def close(self) -> None:
        """Make `run` return when the function has finished."""
        if not self._closed.done():
            self._closed.set_result(None)

    async def run(self) -> None:
        """Run the function once, and then after each call of `wake`, until `close` is called.

        If the function raises an exception, raise it here.
        """
        self._starter.acquire()
        try:
            await self._do_work()
            await self._closed
            while self._is_working and self._task is not None:
                await asyncio.wait([self._task])
        finally:
            if self._is_working and self._task is not None:
                self._task.cancel()
            self._starter.release()
        if self._error is not None:
            raise self._error

    async def _do_work(self) -> None:
        try:
            await self._work()
        except Exception as exc:
            self._error = exc
            self.close()
        finally:
            self._is_working = False


T = TypeVar("T")


class SuspendNotifier(Generic[T]):
    """Awaits a coroutine and returns the result. If the coroutine has to wait, `on_suspend` is called."""

    __slots__ = ("_coroutine", "_on_suspend")

    def __init__(self, coroutine: Coroutine[Any, Any, T], on_suspend: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._on_suspend = on_suspend

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine = self._coroutine
        try:
            awaited = coroutine.send(None)
        except StopIteration as done:
            return done.value
        self._on_suspend()
        while True:
            try:
                sent = yield awaited
            except BaseException as exc:
                step = coroutine.throw
                value: Any = exc
            else:
                step, value = coroutine.send, sent
            try:
                awaited = step(value)
            except StopIteration as done:
                return done.value
