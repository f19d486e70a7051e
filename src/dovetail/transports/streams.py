"""Stream: the events of one handshake reply, kept for a while so that a client who lost the connection can fetch them.

Belongs to one session; an event's id is the stream's name and a number. Holds a bounded window: what falls out of it
is gone, and asking for it is an error, never an empty success.
"""

import asyncio
from collections import deque

from dovetail.protocol import sse
from dovetail.protocol.limits import Limits


class Stream:
    """One stream of events, live or finished."""

    __slots__ = ("_bytes", "_dropped", "_events", "_limits", "_next", "done", "ended_at", "name", "reader", "wake")

    def __init__(self, name: str, limits: Limits) -> None:
        self.name = name
        self.done = False
        self.ended_at: float | None = None
        self.reader: object | None = None  # whoever sends it on; there is at most one
        self.wake = asyncio.Event()
        self._limits = limits
        self._events: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._dropped = 0  # the newest event that fell out of the window
        self._next = 1

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._next - 1

    def number(self) -> str:
        """An id that stands for "nothing yet": resuming after it brings everything that follows."""
        self._next += 1
        return f"{self.name}-{self._next - 1}"

    def append(self, data: bytes) -> bytes:
        """Keep one message; the event to send for it."""
        place = self._next
        event = sse.event(data, id=self.number())
        self._events.append((place, event))
        self._bytes += len(event)
        while len(self._events) > self._limits.replay_events or self._bytes > self._limits.replay_bytes:
            if len(self._events) == 1:
                break
            self._dropped, gone = self._events.popleft()
            self._bytes -= len(gone)
        self.wake.set()
        return event

    def finish(self) -> None:
        """Nothing will follow."""
        self.done = True
        self.ended_at = asyncio.get_running_loop().time()
        self.wake.set()

    def after(self, place: int) -> list[tuple[int, bytes]] | None:
        """The events that follow a place; None if some of them are gone or the place never was."""
        if place >= self._next or place < self._dropped:
            return None
        return [entry for entry in self._events if entry[0] > place]
