"""The event log of sessions, from which a client can resume a stream after a lost connection.

A stream belongs to one session. An event ID consists of the name of its stream and a number. The log keeps a limited
number of events. A client that asks for dropped events gets an error.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from dovetail.protocol import sse
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.spool import MemoryBudget

_MAX_ENDED_STREAMS = 10_000  # Each finished stream takes half a kilobyte of memory.


class EventLog:
    """Stores the event streams of one endpoint, up to a total size."""

    __slots__ = ("_ended_streams", "budget", "limits", "stored_bytes")

    def __init__(self, limits: ServerLimits, budget: MemoryBudget) -> None:
        self.limits = limits
        self.budget = budget
        self.stored_bytes = 0
        self._ended_streams: deque[EventStream] = deque()

    def add_ended(self, stream: "EventStream") -> None:
        """Add a finished stream. To make room, older streams may be deleted."""
        self._ended_streams.append(stream)
        self.evict_ended()

    def evict_ended(self) -> None:
        """Delete the oldest finished streams until the log is within its limits."""
        streams, limit = self._ended_streams, self.limits.max_replay_total_bytes
        while streams and (self.stored_bytes > limit or len(streams) > _MAX_ENDED_STREAMS or streams[0].is_empty):
            streams.popleft().clear()


class EventStream:
    """An open or finished event stream of a session."""

    __slots__ = (
        "_event_log",
        "_events",
        "_last_dropped",
        "_next_number",
        "_read_streams",
        "_session_streams",
        "_stored_bytes",
        "_wake_reader",
        "ended_at",
        "is_done",
        "name",
        "reader",
        "unread_since",
    )

    def __init__(
        self,
        name: str,
        event_log: EventLog,
        session_streams: "dict[str, EventStream] | None" = None,
        read_streams: "set[EventStream] | None" = None,
    ) -> None:
        self.name = name
        self._session_streams = session_streams  # maps names to all streams of the session
        self._read_streams = read_streams  # the streams of the session that have a reader
        self.is_done = False
        self.ended_at: float | None = None
        self.reader: object | None = None  # the HTTP response to which the stream is written
        self.unread_since: float | None = None  # the time when the last reader left, or None if there is a reader
        self._wake_reader: Callable[[], None] | None = None
        self._event_log = event_log
        # Most streams have one event. A deque with one event needs ten times the memory of a list.
        self._events: list[tuple[int, bytes]] = []
        self._stored_bytes = 0
        self._last_dropped = 0
        self._next_number = 1

    def attach(self, reader: object, wake: Callable[[], None] | None = None) -> None:
        """Set the reader of the stream. `wake` is called after each new event."""
        wake_previous, self._wake_reader = self._wake_reader, wake
        self.reader = reader
        self.unread_since = None
        if self._read_streams is not None:
            self._read_streams.add(self)
        if wake_previous is not None:
            wake_previous()  # The previous reader notices that it was replaced, and ends.

    def detach(self, reader: object) -> None:
        """Remove the reader from the stream, unless another reader has replaced it."""
        if self.reader is reader:
            self.reader = self._wake_reader = None
            self.unread_since = asyncio.get_running_loop().time()
            if self._read_streams is not None:
                self._read_streams.discard(self)

    @property
    def last_number(self) -> int:
        """Return the number of the newest event."""
        return self._next_number - 1

    @property
    def is_empty(self) -> bool:
        """Return whether the stream has no events."""
        return not self._events

    @property
    def _is_full(self) -> bool:
        limits = self._event_log.limits
        return (
            len(self._events) > limits.max_replay_events
            or self._stored_bytes > limits.max_replay_bytes
            or self._event_log.stored_bytes > limits.max_replay_total_bytes  # The open streams together are too large.
        )

    def allocate_id(self) -> str:
        """Return an ID for the next event. With this ID, a client can resume the stream after the event."""
        self._next_number += 1
        return f"{self.name}-{self._next_number - 1}"

    def append(self, data: bytes) -> bytes:
        """Store a message and return it as an encoded event."""
        number = self._next_number
        event = sse.encode_event(data, id=self.allocate_id())
        self._events.append((number, event))
        self._add_bytes(len(event))
        if self._event_log.stored_bytes > self._event_log.limits.max_replay_total_bytes:
            self._event_log.evict_ended()
        while len(self._events) > 1 and self._is_full:
            self._drop_oldest()
        if self._wake_reader is not None:
            self._wake_reader()
        return event

    def finish(self) -> None:
        """Mark the stream as finished."""
        if not self.is_done:
            self.is_done = True
            self.ended_at = asyncio.get_running_loop().time()
            self._event_log.add_ended(self)
        if self._wake_reader is not None:
            self._wake_reader()

    def store_complete(self, data: bytes, now: float, *, has_priming_event: bool) -> bytes:
        """Store the only message of a stream, finish the stream, and return its encoded events."""
        number = 2 if has_priming_event else 1
        event = sse.encode_event(data, f"{self.name}-{number}")
        self._events.append((number, event))
        self._stored_bytes = len(event)
        self._next_number = number + 1
        self.is_done = True
        self.ended_at = now
        self._event_log.stored_bytes += len(event)
        self._event_log.add_ended(self)
        return b"id: %b-1\ndata: \n\n%b" % (self.name.encode(), event) if has_priming_event else event

    def clear(self) -> None:
        """Delete all events and remove the stream from its session."""
        if self._read_streams:
            self._read_streams.discard(self)
        if self._events:
            self._last_dropped = self._events[-1][0]
            self._events = []
            self._add_bytes(-self._stored_bytes)
        if self._session_streams is not None:
            self._session_streams.pop(self.name, None)

    def read_after(self, number: int) -> list[tuple[int, bytes]] | None:
        """Return the events after this number.

        Return None if the number is unknown, or if some of these events were deleted.
        """
        if number >= self._next_number or number < self._last_dropped:
            return None
        return self._events[bisect_right(self._events, number, key=itemgetter(0)) :]

    def _drop_oldest(self) -> None:
        self._last_dropped, event = self._events.pop(0)
        self._add_bytes(-len(event))

    def _add_bytes(self, size: int) -> None:
        self._stored_bytes += size
        self._event_log.stored_bytes += size
