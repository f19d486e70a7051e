"""How long one request may still take: a limit since the last sign of life, and one over all.

The time a user takes to answer a question of the server counts for neither.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

Progress = Callable[[float, float | None, str | None], Any]

# A year: no event loop can wait for ever, and some count in nanoseconds.
NEVER: Final = 365 * 86400.0

# A flood of progress must not become a flood of timers.
_STEP = 0.1


class Clock:
    """The limits of one request; use `timeout` as a context around the wait."""

    __slots__ = ("_ends", "_idle", "_loop", "_paused", "_pushed", "progress", "reported", "timeout")

    def __init__(self, idle: float = NEVER, total: float = NEVER, progress: Progress | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._idle = min(idle, NEVER)
        self._ends = now + min(total, NEVER)
        self._pushed = now
        self._paused: float | None = None
        self.progress = progress
        self.reported = 0  # signs of life so far
        self.timeout = asyncio.timeout_at(min(now + idle, self._ends))

    def alive(self) -> None:
        """The server is at work on it."""
        self.reported += 1
        now = self._loop.time()
        if self._paused is None and now - self._pushed > self._idle * _STEP:
            self._push(now)

    def pause(self) -> None:
        """A user is being asked."""
        if self._paused is None:
            self._paused = self._loop.time()
            self.timeout.reschedule(None)

    def resume(self) -> None:
        """The user has answered."""
        if self._paused is not None:
            now = self._loop.time()
            self._ends += now - self._paused
            self._paused = None
            self._push(now)

    def _push(self, now: float) -> None:
        self._pushed = now
        self.timeout.reschedule(min(now + self._idle, self._ends))

    def verdict(self) -> str:
        """Which limit has passed, in words."""
        if self.reported and self._loop.time() >= self._ends:
            return "the total limit passed though the server reported progress"
        life = f"after {self.reported} signs of progress" if self.reported else "with no sign of progress"
        return f"no answer within {self._idle:g} s {life}"
