"""PacedQueue: passes lines to a function, a limited number in each iteration of the event loop.

One chunk of a pipe or socket may contain thousands of lines. Without the limit, a peer could keep all other tasks from
running.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

MAX_LINES_PER_ITERATION: Final = 200

T = TypeVar("T")


class PacedQueue(Generic[T]):
    """A queue of lines from one transport. The transport does not read while the queue contains lines."""

    def __init__(self, handle: Callable[[T], None], loop: asyncio.AbstractEventLoop) -> None:
        self.transport: Any = None
        self._handle = handle
        self._loop = loop
        self._lines: deque[T] = deque()
        self.is_waiting = False  # True if the next iteration of the event loop handles more lines

    def extend(self, lines: Iterable[T]) -> None:
        """Add lines and start to handle them. Each iteration of the event loop handles a limited number of lines."""
        self._lines.extend(lines)
        if not self.is_waiting:
            self._handle_some()

    def drain(self) -> None:
        """Handle all lines now, because the transport is closed."""
        while self._lines:
            self._handle(self._lines.popleft())

    def _handle_some(self) -> None:
        try:
            for _ in range(min(MAX_LINES_PER_ITERATION, len(self._lines))):
                self._handle(self._lines.popleft())
        except BaseException:
            if self.transport is not None:
                self.transport.close()  # A paused transport would keep requests waiting forever.
            raise
        if self._lines:
            if not self.is_waiting and self.transport is not None:
                self.transport.pause_reading()
            self.is_waiting = True
            self._loop.call_soon(self._handle_some)
        elif self.is_waiting:
            self.is_waiting = False
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
