"""Run a coroutine at once, and create a task only if it has to wait.

Most requests are answered without ever waiting; a task and a turn of the loop for each would cost more than the rest
of the call. So the first step is made at once, in the name of a task that stands by: `asyncio.current_task()`,
timeouts, task groups and cancellation find what they expect. Work that waits is carried on by that very task, which
ends with it; one that only lent its name stands by for the next. Every piece of work has a context of its own.

Entering a task by hand is what asyncio offers to those who extend it:
https://docs.python.org/3/library/asyncio-extending.html#task-lifetime-support
"""

import asyncio
import contextvars
from asyncio.tasks import _enter_task, _leave_task, current_task
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

Work = Coroutine[Any, Any, None]


class EagerTaskStarter:
    """Starts the work of one connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._standby: _StandbyTask | None = None

    def start(self, work: Work) -> asyncio.Task[None]:
        """Begin; the task whose work it is."""
        standby = self._standby
        if standby is not None and standby.run_first_step(work):
            return standby.task
        if standby is None or standby.is_taken:
            self._standby = _StandbyTask(self._loop)
        return self._loop.create_task(work)

    def close(self) -> None:
        """Nothing more will be started; what was goes on."""
        if self._standby is not None and not self._standby.is_taken:
            self._standby.task.cancel()
        self._standby = None


class _StandbyTask:
    """A task that waits to be somebody's."""

    __slots__ = ("_assigned", "_awaited", "_context", "_is_lent", "_is_ready", "_loop", "_work", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._assigned: asyncio.Future[None] = loop.create_future()
        self._work: Work | None = None
        self._is_lent = False  # a first step is being made in its name
        self._is_ready = False  # before a task's own first step, cancelling it would not reach what it carries
        self.task = loop.create_task(self._run_work())

    @property
    def is_taken(self) -> bool:
        """Whether it is somebody's, or was cancelled while it lent its name."""
        return self._assigned.done()

    def run_first_step(self, work: Work) -> bool:
        """Make the first step of the work, and carry it on if it waits; whether that was possible."""
        if not self._is_ready or self._is_lent or self._assigned.done():
            return False
        loop, task = self._loop, self.task
        outer_task = current_task(loop)  # whoever hands the message over, where that is not the loop itself
        if outer_task is not None:
            _leave_task(loop, outer_task)
        _enter_task(loop, task)
        self._is_lent = True
        context = contextvars.copy_context()
        try:
            self._awaited = context.run(work.send, None)
        except StopIteration:
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
            step, value = self._work.throw, exc  # cancelled in its first step
        work = self._work
        assert work is not None
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


T = TypeVar("T")


class SuspendNotifier(Generic[T]):
    """`await Suspending(work, told)`: the work's value; `told()` is called once, if and when it first waits."""

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
