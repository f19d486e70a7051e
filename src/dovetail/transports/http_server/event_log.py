"""The event log of handshake sessions: stored events, so that a client can resume after a lost connection.

A stream belongs to one session; an event's id is the stream's name and a number. It holds a bounded window: what falls
out of it is gone, and asking for it is an error, never an empty success.
"""

import asyncio
from collections import deque

from dovetail.protocol import sse
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.spool import MemoryBudget

_MAX_ENDED_STREAMS = 10_000  # a stream of one short event takes half a kilobyte besides it


class EventLog:
    """All streams of one endpoint: together they keep so many bytes and no more."""

    __slots__ = ("_ended_streams", "budget", "limits", "stored_bytes")

    def __init__(self, limits: ServerLimits, budget: MemoryBudget) -> None:
        self.limits = limits
        self.budget = budget
        self.stored_bytes = 0
        self._ended_streams: deque[EventStream] = deque()

    def add_ended(self, stream: "EventStream") -> None:
        """A stream is complete: from now on it may have to give way."""
        self._ended_streams.append(stream)
        self.evict_ended()

    def evict_ended(self) -> None:
        """Let go of complete streams, the oldest first, while too much is kept."""
        limit = self.limits.max_replay_total_bytes
        while self._ended_streams and (
            self.stored_bytes > limit
            or len(self._ended_streams) > _MAX_ENDED_STREAMS
            or self._ended_streams[0].is_empty
        ):
            self._ended_streams.popleft().clear()


class EventStream:
    """One stream of events, live or finished."""

    __slots__ = (
        "_event_log",
        "_events",
        "_last_dropped",
        "_next_number",
        "_session_streams",
        "_stored_bytes",
        "_wakeup",
        "ended_at",
        "is_done",
        "name",
        "reader",
        "unread_since",
    )

    def __init__(self, name: str, event_log: EventLog, session_streams: "dict[str, EventStream] | None" = None) -> None:
        self.name = name
        self._session_streams = session_streams  # where its session finds it
        self.is_done = False
        self.ended_at: float | None = None
        self.reader: object | None = None  # whoever sends it on; there is at most one
        self.unread_since: float | None = None  # when the last reader left, if there was one
        self._wakeup: asyncio.Event | None = None
        self._event_log = event_log
        self._events: list[tuple[int, bytes]] = []  # most hold one, for which a deque would take ten times the room
        self._stored_bytes = 0
        self._last_dropped = 0  # the newest event that fell out of the window
        self._next_number = 1

    @property
    def wakeup(self) -> asyncio.Event:
        """Set whenever there is something new for a reader who waits."""
        if self._wakeup is None:
            self._wakeup = asyncio.Event()
        return self._wakeup

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
    def last_number(self) -> int:
        """The number of the newest event."""
        return self._next_number - 1

    @property
    def is_empty(self) -> bool:
        """Whether it keeps nothing."""
        return not self._events

    @property
    def _is_full(self) -> bool:
        limits = self._event_log.limits
        return (
            len(self._events) > limits.max_replay_events
            or self._stored_bytes > limits.max_replay_bytes
            or self._event_log.stored_bytes > limits.max_replay_total_bytes  # all of it in streams that still go on
        )

    def allocate_id(self) -> str:
        """An id that stands for "nothing yet": resuming after it brings everything that follows."""
        self._next_number += 1
        return f"{self.name}-{self._next_number - 1}"

    def append(self, data: bytes) -> bytes:
        """Keep one message; the event to send for it."""
        number = self._next_number
        event = sse.encode_event(data, id=self.allocate_id())
        self._events.append((number, event))
        self._add_bytes(len(event))
        if self._event_log.stored_bytes > self._event_log.limits.max_replay_total_bytes:
            self._event_log.evict_ended()
        while len(self._events) > 1 and self._is_full:
            self._drop_oldest()
        self._wake_reader()
        return event

    def finish(self) -> None:
        """Nothing will follow."""
        if not self.is_done:
            self.is_done = True
            self.ended_at = asyncio.get_running_loop().time()
            self._event_log.add_ended(self)
        self._wake_reader()

    def store_complete(self, data: bytes, *, has_priming_event: bool) -> bytes:
        """Keep the one message of a new stream, and let nothing follow; all there is to send."""
        number = 2 if has_priming_event else 1
        event = sse.encode_event(data, f"{self.name}-{number}")
        self._events.append((number, event))
        self._add_bytes(len(event))
        self._next_number = number + 1
        self.is_done = True
        self.ended_at = asyncio.get_running_loop().time()
        self._event_log.add_ended(self)
        return sse.encode_event(b"", f"{self.name}-1") + event if has_priming_event else event

    def clear(self) -> None:
        """Keep nothing any more, and be forgotten."""
        while self._events:
            self._drop_oldest()
        if self._session_streams is not None:
            self._session_streams.pop(self.name, None)

    def read_after(self, number: int) -> list[tuple[int, bytes]] | None:
        """The events that follow a place; None if some of them are gone or the place never was."""
        if number >= self._next_number or number < self._last_dropped:
            return None
        return [entry for entry in self._events if entry[0] > number]

    def _wake_reader(self) -> None:
        if self._wakeup is not None:
            self._wakeup.set()

    def _drop_oldest(self) -> None:
        self._last_dropped, event = self._events.pop(0)
        self._add_bytes(-len(event))

    def _add_bytes(self, size: int) -> None:
        self._stored_bytes += size
        self._event_log.stored_bytes += size
