"""The event log of handshake sessions. It stores events, so that a client can resume a stream after a lost connection.

A stream belongs to one session. The id of an event is the name of its stream and a number. The log keeps a limited
number of events. A client that asks for dropped events gets an error, never an empty success.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from dovetail.protocol import sse
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.spool import MemoryBudget

_MAX_ENDED_STREAMS = 10_000  # maximum number of complete streams. Each takes half a kilobyte in addition to its event


class EventLog:
    """The streams of one endpoint, with a limit on their total bytes."""

    __slots__ = ("_ended_streams", "budget", "limits", "stored_bytes")

    def __init__(self, limits: ServerLimits, budget: MemoryBudget) -> None:
        self.limits = limits
        self.budget = budget
        self.stored_bytes = 0
        self._ended_streams: deque[EventStream] = deque()

    def add_ended(self, stream: "EventStream") -> None:
        """Add a complete stream. The log may evict a complete stream."""
        self._ended_streams.append(stream)
        self.evict_ended()

    def evict_ended(self) -> None:
        """Evict complete streams, the oldest first, while the log is over its limits."""
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
        "_wake_reader",
        "ended_at",
        "is_done",
        "name",
        "reader",
        "unread_since",
    )

    def __init__(self, name: str, event_log: EventLog, session_streams: "dict[str, EventStream] | None" = None) -> None:
        self.name = name
        self._session_streams = session_streams  # all streams of the session, by name
        self.is_done = False
        self.ended_at: float | None = None
        self.reader: object | None = None  # the HTTP response that sends the events
        self.unread_since: float | None = None  # time at which the last reader left, or None while a reader is attached
        self._wake_reader: Callable[[], None] | None = None
        self._event_log = event_log
        # A list, because most streams hold one event and a deque takes ten times the memory.
        self._events: list[tuple[int, bytes]] = []
        self._stored_bytes = 0
        self._last_dropped = 0  # number of the newest dropped event
        self._next_number = 1

    def attach(self, reader: object, wake: Callable[[], None] | None = None) -> None:
        """Attach the reader of the stream. The stream calls `wake` after each new event."""
        wake_previous, self._wake_reader = self._wake_reader, wake
        self.reader = reader
        self.unread_since = None
        if wake_previous is not None:
            wake_previous()  # the previous reader sees that it was replaced, and ends

    def detach(self, reader: object) -> None:
        """Remove the reader, unless another one has taken over."""
        if self.reader is reader:
            self.reader = self._wake_reader = None
            self.unread_since = asyncio.get_running_loop().time()

    @property
    def last_number(self) -> int:
        """The number of the newest event."""
        return self._next_number - 1

    @property
    def is_empty(self) -> bool:
        """Whether the stream has no events."""
        return not self._events

    @property
    def _is_full(self) -> bool:
        limits = self._event_log.limits
        return (
            len(self._events) > limits.max_replay_events
            or self._stored_bytes > limits.max_replay_bytes
            or self._event_log.stored_bytes > limits.max_replay_total_bytes  # open streams alone exceed the total limit
        )

    def allocate_id(self) -> str:
        """Return the next event id. A client that resumes after this id receives all later events."""
        self._next_number += 1
        return f"{self.name}-{self._next_number - 1}"

    def append(self, data: bytes) -> bytes:
        """Store a message and return its encoded event."""
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
        """Mark the stream as complete."""
        if not self.is_done:
            self.is_done = True
            self.ended_at = asyncio.get_running_loop().time()
            self._event_log.add_ended(self)
        if self._wake_reader is not None:
            self._wake_reader()

    def store_complete(self, data: bytes, *, has_priming_event: bool) -> bytes:
        """Store the only message of a new stream, mark the stream as complete, and return all its events encoded."""
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
        """Drop all events and remove the stream from its session."""
        while self._events:
            self._drop_oldest()
        if self._session_streams is not None:
            self._session_streams.pop(self.name, None)

    def read_after(self, number: int) -> list[tuple[int, bytes]] | None:
        """Return the events after a number. Return None if the number is unknown or later events were dropped."""
        if number >= self._next_number or number < self._last_dropped:
            return None
        return self._events[bisect_right(self._events, number, key=itemgetter(0)) :]

    def _drop_oldest(self) -> None:
        self._last_dropped, event = self._events.pop(0)
        self._add_bytes(-len(event))

    def _add_bytes(self, size: int) -> None:
        self._stored_bytes += size
        self._event_log.stored_bytes += size
