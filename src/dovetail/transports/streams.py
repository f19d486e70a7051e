"""Streams: the events of handshake replies, kept for a while so that a client who lost the connection can fetch them.

A stream belongs to one session; an event's id is the stream's name and a number. It holds a bounded window: what falls
out of it is gone, and asking for it is an error, never an empty success.
"""

import asyncio
from collections import deque

from dovetail.protocol import sse
from dovetail.protocol.limits import Limits
from dovetail.transports.spool import Budget

_MOST_ENDED = 10_000  # a stream of one short event takes half a kilobyte besides it


class Shelf:
    """All streams of one endpoint: together they keep so many bytes and no more."""

    __slots__ = ("_ended", "budget", "kept", "limits")

    def __init__(self, limits: Limits, budget: Budget) -> None:
        self.limits = limits
        self.budget = budget
        self.kept = 0
        self._ended: deque[Stream] = deque()

    def ended(self, stream: "Stream") -> None:
        """A stream is complete: from now on it may have to give way."""
        self._ended.append(stream)
        self.make_room()

    def make_room(self) -> None:
        """Let go of complete streams, the oldest first, while too much is kept."""
        limit = self.limits.replay_total
        while self._ended and (self.kept > limit or len(self._ended) > _MOST_ENDED or self._ended[0].empty):
            self._ended.popleft().clear()


class Stream:
    """One stream of events, live or finished."""

    __slots__ = (
        "_bytes",
        "_dropped",
        "_events",
        "_home",
        "_next",
        "_shelf",
        "_wake",
        "done",
        "ended_at",
        "name",
        "reader",
        "unread_since",
    )

    def __init__(self, name: str, shelf: Shelf, home: "dict[str, Stream] | None" = None) -> None:
        self.name = name
        self._home = home  # where its session finds it
        self.done = False
        self.ended_at: float | None = None
        self.reader: object | None = None  # whoever sends it on; there is at most one
        self.unread_since: float | None = None  # when the last reader left, if there was one
        self._wake: asyncio.Event | None = None
        self._shelf = shelf
        self._events: list[tuple[int, bytes]] = []  # most hold one, for which a deque would take ten times the room
        self._bytes = 0
        self._dropped = 0  # the newest event that fell out of the window
        self._next = 1

    @property
    def wake(self) -> asyncio.Event:
        """Set whenever there is something new for a reader who waits."""
        if self._wake is None:
            self._wake = asyncio.Event()
        return self._wake

    def attach(self, reader: object) -> None:
        """Send the stream on to this reader from now on."""
        self.reader = reader
        self.unread_since = None

    def detach(self, reader: object) -> None:
        """The reader has left, unless another one has taken over."""
        if self.reader is reader:
            self.reader = None
            self.unread_since = asyncio.get_running_loop().time()

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._next - 1

    @property
    def empty(self) -> bool:
        """Whether it keeps nothing."""
        return not self._events

    @property
    def _full(self) -> bool:
        limits = self._shelf.limits
        return (
            len(self._events) > limits.replay_events
            or self._bytes > limits.replay_bytes
            or self._shelf.kept > limits.replay_total  # all of it in streams that still go on
        )

    def number(self) -> str:
        """An id that stands for "nothing yet": resuming after it brings everything that follows."""
        self._next += 1
        return f"{self.name}-{self._next - 1}"

    def append(self, data: bytes) -> bytes:
        """Keep one message; the event to send for it."""
        place = self._next
        event = sse.event(data, id=self.number())
        self._events.append((place, event))
        self._count(len(event))
        if self._shelf.kept > self._shelf.limits.replay_total:
            self._shelf.make_room()
        while len(self._events) > 1 and self._full:
            self._drop_oldest()
        self._rouse()
        return event

    def finish(self) -> None:
        """Nothing will follow."""
        if not self.done:
            self.done = True
            self.ended_at = asyncio.get_running_loop().time()
            self._shelf.ended(self)
        self._rouse()

    def complete(self, data: bytes, *, primed: bool) -> bytes:
        """Keep the one message of a new stream, and let nothing follow; all there is to send."""
        place = 2 if primed else 1
        event = sse.event(data, f"{self.name}-{place}")
        self._events.append((place, event))
        self._count(len(event))
        self._next = place + 1
        self.done = True
        self.ended_at = asyncio.get_running_loop().time()
        self._shelf.ended(self)
        return sse.event(b"", f"{self.name}-1") + event if primed else event

    def clear(self) -> None:
        """Keep nothing any more, and be forgotten."""
        while self._events:
            self._drop_oldest()
        if self._home is not None:
            self._home.pop(self.name, None)

    def after(self, place: int) -> list[tuple[int, bytes]] | None:
        """The events that follow a place; None if some of them are gone or the place never was."""
        if place >= self._next or place < self._dropped:
            return None
        return [entry for entry in self._events if entry[0] > place]

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def _drop_oldest(self) -> None:
        self._dropped, event = self._events.pop(0)
        self._count(-len(event))

    def _count(self, size: int) -> None:
        self._bytes += size
        self._shelf.kept += size
