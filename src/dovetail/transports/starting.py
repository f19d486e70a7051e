"""Starting work on the spot, and keeping a task only for what waits.

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
from typing import Any

Work = Coroutine[Any, Any, None]


class Starter:
    """Starts the work of one connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._standby: _Standby | None = None

    def start(self, work: Work) -> asyncio.Task[None]:
        """Begin; the task whose work it is."""
        standby = self._standby
        if standby is not None and standby.begin(work):
            return standby.task
        if standby is None or standby.taken:
            self._standby = _Standby(self._loop)
        return self._loop.create_task(work)

    def close(self) -> None:
        """Nothing more will be started; what was goes on."""
        if self._standby is not None and not self._standby.taken:
            self._standby.task.cancel()
        self._standby = None


class _Standby:
    """A task that waits to be somebody's."""

    __slots__ = ("_context", "_lent", "_loop", "_parked", "_ready", "_waiting", "_work", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parked: asyncio.Future[None] = loop.create_future()
        self._work: Work | None = None
        self._lent = False  # a first step is being made in its name
        self._ready = False  # before a task's own first step, cancelling it would not reach what it carries
        self.task = loop.create_task(self._carry())

    @property
    def taken(self) -> bool:
        """Whether it is somebody's, or was cancelled while it lent its name."""
        return self._parked.done()

    def begin(self, work: Work) -> bool:
        """Make the first step of the work, and carry it on if it waits; whether that was possible."""
        if not self._ready or self._lent or self._parked.done():
            return False
        loop, task = self._loop, self.task
        around = current_task(loop)  # whoever hands the message over, where that is not the loop itself
        if around is not None:
            _leave_task(loop, around)
        _enter_task(loop, task)
        self._lent = True
        context = contextvars.copy_context()
        try:
            self._waiting = context.run(work.send, None)
        except StopIteration:
            return True
        finally:
            self._lent = False
            _leave_task(loop, task)
            if around is not None:
                _enter_task(loop, around)
        self._work, self._context = work, context
        if not self._parked.done():
            self._parked.set_result(None)
        return True

    async def _carry(self) -> None:
        await self

    def __await__(self) -> Generator[Any, Any, None]:
        self._ready = True
        step: Callable[[Any], Any] = self._begun
        given: Any = None
        try:
            yield from self._parked
        except asyncio.CancelledError as exc:
            if self._work is None:
                raise
            step, given = self._work.throw, exc  # cancelled in its first step
        work = self._work
        assert work is not None
        while True:
            try:
                waiting = self._context.run(step, given)
            except StopIteration:
                return
            try:
                step, given = work.send, (yield waiting)
            except BaseException as exc:
                step, given = work.throw, exc

    def _begun(self, _: None) -> Any:
        return self._waiting
