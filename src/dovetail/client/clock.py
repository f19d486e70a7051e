"""How long one request may still take: a limit since the last sign of life, and one over all.

The time a user takes to answer a question of the server counts for neither. One timer serves all requests under way:
a clock says when it is due, and is looked at no sooner than the first of them.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final

from dovetail.errors import MCPError
from dovetail.wire.jsonrpc import Id

Progress = Callable[[float, float | None, str | None], Any]

# A year: no event loop can wait for ever, and some count in nanoseconds.
NEVER: Final = 365 * 86400.0


class Clock:
    """The limits of one request."""

    __slots__ = (
        "_before",
        "_ends",
        "_idle",
        "_loop",
        "_paused",
        "_ran_out",
        "_task",
        "_total",
        "begun",
        "due",
        "fault",
        "progress",
        "reported",
    )

    def __init__(self, idle: float = NEVER, total: float = NEVER, progress: Progress | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.begun = now = self._loop.time()
        self._idle = min(idle, NEVER)
        self._total = min(total, NEVER)
        self._ends = now + self._total
        self._paused: float | None = None
        self._ran_out = False
        self._task: asyncio.Task[Any] | None = None
        self._before = 0
        self.progress = progress
        self.fault: MCPError | None = None  # why it was stopped before it was due
        self.reported = 0  # signs of life so far
        self.due = min(now + self._idle, self._ends)

    def begin(self) -> None:
        """From here on the task that waits is cancelled when it is due."""
        self._task = task = asyncio.current_task(self._loop)
        self._before = 0 if task is None else task.cancelling()

    def run_out(self) -> None:
        """It is due."""
        if self._task is not None and not self._ran_out:
            self._ran_out = True
            self._task.cancel()

    def fail(self, fault: MCPError) -> None:
        """It need not be waited for any longer."""
        self.fault = fault
        self.run_out()

    def is_why(self) -> bool:
        """Whether the waiting task was cancelled because this was due or failed, and for no other reason."""
        return self._ran_out and self._task is not None and self._task.uncancel() <= self._before

    def alive(self) -> None:
        """The server is at work on it."""
        self.reported += 1
        if self._paused is None:
            self.due = min(self._loop.time() + self._idle, self._ends)

    def pause(self) -> None:
        """A user is being asked."""
        if self._paused is None:
            self._paused = self._loop.time()
            self.due = inf

    def resume(self) -> None:
        """The user has answered."""
        if self._paused is not None:
            now = self._loop.time()
            self._ends += now - self._paused
            self._paused = None
            self.due = min(now + self._idle, self._ends)

    def leaves_less_than(self, seconds: float) -> bool:
        """Whether it will be due before so much time has passed."""
        return self._loop.time() + seconds >= self.due

    def verdict(self) -> str:
        """Which limit has passed, in words."""
        if self.due >= self._ends:
            life = ", though the server reported progress" if self.reported else ""
            return f"no answer within the total limit of {self._total:g} s{life}"
        life = f"after {self.reported} signs of progress" if self.reported else "with no sign of progress"
        return f"no answer within {self._idle:g} s {life}"


class Clocks:
    """The clocks of the requests under way, by their ids; or of those who wait for something else, by any key."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._running: dict[Any, Clock] = {}
        self._held = False
        self._timer: asyncio.TimerHandle | None = None
        self._looks = inf  # when the timer goes off

    @property
    def running(self) -> int:
        """How many clocks are watched."""
        return len(self._running)

    def start(self, id: Any, clock: Clock) -> None:
        """Watch a clock, for the task that calls this."""
        self._running[id] = clock
        clock.begin()
        if self._held:
            clock.pause()
        if clock.due < self._looks:
            self._look_at(clock.due)

    def stop(self, id: Any) -> None:
        """The request is over; its clock may be watched elsewhere."""
        clock = self._running.pop(id)
        if self._held:
            clock.resume()

    def get(self, id: Id) -> Clock | None:
        """The clock of a request."""
        return self._running.get(id)

    def of(self, id: Id | None) -> Clock | None:
        """The clock of the request that something belongs to: the one named, else the only one there is."""
        if id is not None:
            return self._running.get(id)
        return next(iter(self._running.values())) if len(self._running) == 1 else None

    def pause(self) -> None:
        """A user is being asked."""
        self._held = True
        for clock in self._running.values():
            clock.pause()

    def resume(self) -> None:
        """The user has answered."""
        self._held = False
        for clock in self._running.values():
            clock.resume()
        self._look()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._looks = None, inf

    def _look_at(self, time: float) -> None:
        self.close()
        self._looks = time
        self._timer = self.loop.call_at(time, self._look)

    def _look(self) -> None:
        now, first = self.loop.time(), inf
        for clock in self._running.values():
            if clock.due <= now:
                clock.run_out()
            elif clock.due < first:
                first = clock.due
        self._looks = inf
        if first < inf:
            self._look_at(first)
