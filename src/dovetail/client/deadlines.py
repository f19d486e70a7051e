"""How long one request may still take: a limit since the last sign of life, and one over all.

The time a user takes to answer a question of the server counts for neither. One timer serves all requests under way:
a clock says when it is due, and is looked at no sooner than the first of them.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final, TypeAlias

from dovetail.errors import MCPError
from dovetail.wire.jsonrpc import RequestId

ProgressHandler: TypeAlias = Callable[[float, float | None, str | None], Any]

# A year: no event loop can wait for ever, and some count in nanoseconds.
MAX_TIMEOUT_S: Final = 365 * 86400.0


class RequestDeadline:
    """The limits of one request."""

    __slots__ = (
        "_ends_at",
        "_idle_timeout",
        "_is_expired",
        "_loop",
        "_paused_at",
        "_total_timeout",
        "cancel_count",
        "due_at",
        "failure",
        "progress_count",
        "progress_handler",
        "started_at",
        "task",
    )

    def __init__(
        self,
        idle_timeout: float = MAX_TIMEOUT_S,
        total_timeout: float = MAX_TIMEOUT_S,
        progress_handler: ProgressHandler | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.started_at = now = self._loop.time()
        self._idle_timeout = min(idle_timeout, MAX_TIMEOUT_S)
        self._total_timeout = min(total_timeout, MAX_TIMEOUT_S)
        self._ends_at = now + self._total_timeout
        self._paused_at: float | None = None
        self._is_expired = False
        self.task: asyncio.Task[Any] | None = None  # waits, and is cancelled when it is due
        self.cancel_count = 0  # how often that task had been cancelled before
        self.progress_handler = progress_handler
        self.failure: MCPError | None = None  # why it was stopped before it was due
        self.progress_count = 0  # signs of life so far
        self.due_at = min(now + self._idle_timeout, self._ends_at)

    def expire(self) -> None:
        """It is due."""
        if self.task is not None and not self._is_expired:
            self._is_expired = True
            self.task.cancel()

    def fail(self, failure: MCPError) -> None:
        """It need not be waited for any longer."""
        self.failure = failure
        self.expire()

    def is_cancel_cause(self) -> bool:
        """Whether the waiting task was cancelled because this was due or failed, and for no other reason."""
        return self._is_expired and self.task is not None and self.task.uncancel() <= self.cancel_count

    def record_activity(self) -> None:
        """The server is at work on it."""
        self.progress_count += 1
        if self._paused_at is None:
            self.due_at = min(self._loop.time() + self._idle_timeout, self._ends_at)

    def pause(self) -> None:
        """A user is being asked."""
        if self._paused_at is None:
            self._paused_at = self._loop.time()
            self.due_at = inf

    def resume(self) -> None:
        """The user has answered."""
        if self._paused_at is not None:
            now = self._loop.time()
            self._ends_at += now - self._paused_at
            self._paused_at = None
            self.due_at = min(now + self._idle_timeout, self._ends_at)

    def is_due_within(self, seconds: float) -> bool:
        """Whether it will be due before so much time has passed."""
        return self._loop.time() + seconds >= self.due_at

    def describe_timeout(self) -> str:
        """Which limit has passed, in words."""
        if self.due_at >= self._ends_at:
            progress_note = ", though the server reported progress" if self.progress_count else ""
            return f"no answer within the total limit of {self._total_timeout:g} s{progress_note}"
        progress_note = (
            f"after {self.progress_count} signs of progress" if self.progress_count else "with no sign of progress"
        )
        return f"no answer within {self._idle_timeout:g} s {progress_note}"


class DeadlineTimer:
    """The clocks of the requests under way, by their ids; or of those who wait for something else, by any key."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._deadlines: dict[Any, RequestDeadline] = {}
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = inf  # when the timer goes off

    @property
    def running(self) -> int:
        """How many clocks are watched."""
        return len(self._deadlines)

    def start(self, id: Any, deadline: RequestDeadline) -> None:
        """Watch a clock, for the task that calls this."""
        self._deadlines[id] = deadline
        deadline.task = task = asyncio.current_task(self.loop)
        deadline.cancel_count = 0 if task is None else task.cancelling()
        if self._is_paused:
            deadline.pause()
        if deadline.due_at < self._wakes_at:
            self._schedule_check(deadline.due_at)

    def stop(self, id: Any) -> None:
        """The request is over; its clock may be watched elsewhere."""
        deadline = self._deadlines.pop(id)
        if self._is_paused:
            deadline.resume()

    def get(self, id: RequestId) -> RequestDeadline | None:
        """The clock of a request."""
        return self._deadlines.get(id)

    def find_for(self, id: RequestId | None) -> RequestDeadline | None:
        """The clock of the request that something belongs to: the one named, else the only one there is."""
        if id is not None:
            return self._deadlines.get(id)
        return next(iter(self._deadlines.values())) if len(self._deadlines) == 1 else None

    def pause(self) -> None:
        """A user is being asked."""
        self._is_paused = True
        for deadline in self._deadlines.values():
            deadline.pause()

    def resume(self) -> None:
        """The user has answered."""
        self._is_paused = False
        for deadline in self._deadlines.values():
            deadline.resume()
        self._check_due()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._wakes_at = None, inf

    def _schedule_check(self, when: float) -> None:
        self.close()
        self._wakes_at = when
        self._timer = self.loop.call_at(when, self._check_due)

    def _check_due(self) -> None:
        now, next_due = self.loop.time(), inf
        for deadline in self._deadlines.values():
            if deadline.due_at <= now:
                deadline.expire()
            elif deadline.due_at < next_due:
                next_due = deadline.due_at
        self._wakes_at = inf
        if next_due < inf:
            self._schedule_check(next_due)
