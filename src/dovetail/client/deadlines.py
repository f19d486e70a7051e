"""Deadlines of requests: an idle timeout, which restarts at each activity, and a total timeout.

Deadlines are paused while a user answers an input request. One timer serves all open requests and wakes up at the
earliest deadline.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final, TypeAlias

from dovetail.errors import MCPError
from dovetail.wire.base import Struct, field
from dovetail.wire.jsonrpc import RequestId

# A progress handler receives the progress, the total and the message. It may be async.
ProgressHandler: TypeAlias = Callable[[float, float | None, str | None], object]

# Some event loops cannot wait forever, so the maximum is one year.
MAX_TIMEOUT_S: Final = 365 * 86400.0


class RequestDeadline(Struct, eq=False):
    """Deadline of one request."""

    idle_timeout: float = MAX_TIMEOUT_S
    total_timeout: float = MAX_TIMEOUT_S
    progress_handler: ProgressHandler | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    started_at: float = 0.0
    due_at: float = 0.0
    ends_at: float = 0.0
    paused_at: float | None = None
    is_expired: bool = False
    task: asyncio.Task[Any] | None = None  # the task to cancel at the deadline
    cancel_count: int = 0  # how many times the task was cancelled before the deadline started
    failure: MCPError | None = None  # the error that ended the request early
    progress_count: int = 0

    def __post_init__(self) -> None:
        if self.idle_timeout > MAX_TIMEOUT_S:
            self.idle_timeout = MAX_TIMEOUT_S
        if self.total_timeout > MAX_TIMEOUT_S:
            self.total_timeout = MAX_TIMEOUT_S
        self.started_at = now = self.loop.time()
        self.ends_at = now + self.total_timeout
        self.due_at = now + self.idle_timeout if self.idle_timeout < self.total_timeout else self.ends_at

    def expire(self) -> None:
        if self.task is not None and not self.is_expired:
            self.is_expired = True
            self.task.cancel()

    def fail(self, failure: MCPError) -> None:
        """Cancel the task that waits for the response, because the request has failed."""
        self.failure = failure
        self.expire()

    def is_cancel_cause(self) -> bool:
        """Return whether the task was cancelled only because of this deadline."""
        return self.is_expired and self.task is not None and self.task.uncancel() <= self.cancel_count

    def record_activity(self) -> None:
        """Restart the idle timeout, because the server is working on the request."""
        self.progress_count += 1
        if self.paused_at is None:
            self.due_at = min(self.loop.time() + self.idle_timeout, self.ends_at)

    def pause(self) -> None:
        """Pause the timeout while the user answers an input request."""
        if self.paused_at is None:
            self.paused_at = self.loop.time()
            self.due_at = inf

    def resume(self) -> None:
        """Resume the timeout after the user has answered."""
        if self.paused_at is not None:
            now = self.loop.time()
            self.ends_at += now - self.paused_at
            self.paused_at = None
            self.due_at = min(now + self.idle_timeout, self.ends_at)

    def is_due_within(self, seconds: float) -> bool:
        """Return whether the request times out within this many seconds."""
        return self.loop.time() + seconds >= self.due_at

    def describe_timeout(self) -> str:
        """Return an error message that says which timeout has passed."""
        if self.due_at >= self.ends_at:
            progress_note = ", although the server reported progress" if self.progress_count else ""
            return f"no response within the total limit of {self.total_timeout:g} s{progress_note}"
        if self.progress_count:
            return (
                f"no response within {self.idle_timeout:g} s after the last progress "
                f"(messages so far: {self.progress_count})"
            )
        return f"no response and no progress within {self.idle_timeout:g} s"


class DeadlineTimer:
    """Cancels each task whose request has passed its deadline."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._deadlines: dict[Any, RequestDeadline] = {}
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = inf  # Time of the next check.

    @property
    def running(self) -> int:
        """Return the number of active deadlines."""
        return len(self._deadlines)

    def start(self, id: Any, deadline: RequestDeadline) -> None:
        """Start a deadline. The current task is cancelled when the deadline has passed."""
        self._deadlines[id] = deadline
        deadline.task = task = asyncio.current_task(self.loop)
        deadline.cancel_count = 0 if task is None else task.cancelling()
        if self._is_paused:
            deadline.pause()
        if deadline.due_at < self._wakes_at:
            self._schedule_check(deadline.due_at)

    def stop(self, id: Any) -> None:
        """Remove a deadline from this timer."""
        deadline = self._deadlines.pop(id)
        if self._is_paused:
            deadline.resume()

    def get(self, id: RequestId) -> RequestDeadline | None:
        return self._deadlines.get(id)

    def find_for(self, id: RequestId | None) -> RequestDeadline | None:
        """Return the deadline of a request. If `id` is None, return the active deadline if there is only one."""
        if id is not None:
            return self._deadlines.get(id)
        return next(iter(self._deadlines.values())) if len(self._deadlines) == 1 else None

    def pause(self) -> None:
        """Pause all deadlines while the user answers an input request."""
        self._is_paused = True
        for deadline in self._deadlines.values():
            deadline.pause()

    def resume(self) -> None:
        """Resume all deadlines after the user has answered."""
        self._is_paused = False
        for deadline in self._deadlines.values():
            deadline.resume()
        self._check_due()

    def close(self) -> None:
        """Stop the timer."""
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
