"""The shared state of one process, in its memory. Nothing is encoded or encrypted, and there is only one worker."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from dovetail.cluster.envelope import check_message, check_size, create_worker_name, parse_cursor
from dovetail.cluster.gcra import take_cell
from dovetail.cluster.stream_budget import StreamBudget
from dovetail.cluster.stream_follower import StreamFollowers, follow_stream
from dovetail.protocol.shared_state import (
    DEFAULT_STREAM_LIMITS,
    MAX_CHANGE_BYTES,
    MAX_CHANGES,
    Message,
    SharedStateListener,
    SharedStateStatus,
    SharedStateUnavailable,
    StoredValue,
    StreamEvent,
    StreamLimits,
    StreamPart,
)
from dovetail.wire.base import Struct

_MAX_ENTRIES: Final = 100_000  # the maximum number of entries in each table


class _Entry(Struct):
    value: Any
    expires_at: float


class _Table:
    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def find(self, name: str, now: float) -> Any:
        entry = self._entries.get(name)
        return None if entry is None or entry.expires_at <= now else entry.value

    def put(self, name: str, value: Any, now: float, ttl: float) -> None:
        entries = self._entries
        if name not in entries and len(entries) >= _MAX_ENTRIES:
            for expired in [key for key, entry in entries.items() if entry.expires_at <= now]:
                del entries[expired]
            if len(entries) >= _MAX_ENTRIES:
                raise SharedStateUnavailable(f"the shared state has {_MAX_ENTRIES} entries of this kind")
        entries[name] = _Entry(value, now + ttl)

    def remove(self, name: str) -> None:
        self._entries.pop(name, None)


class _Stream(Struct):
    header: bytes
    events: deque[StreamEvent]
    stored_bytes: int = 0
    last_number: int = 0
    is_ended: bool = False


class MemoryBackend:
    """Keeps the shared state in memory. It is lost when the process ends."""

    def __init__(self, stream_limits: StreamLimits = DEFAULT_STREAM_LIMITS) -> None:
        self.worker = create_worker_name()
        self._limits = stream_limits
        self._listener: SharedStateListener | None = None
        self._values, self._used, self._rates, self._places, self._streams = (_Table() for _ in range(5))
        self._last_version = 0
        self._changes: deque[Message] = deque(maxlen=MAX_CHANGES)
        self._change_count = 0
        self._budget = StreamBudget(stream_limits)
        self._followers = StreamFollowers()

    async def start(self, listener: SharedStateListener) -> None:
        """Set the listener."""
        self._listener = listener

    async def close(self) -> None:
        """Remove the listener."""
        self._listener = None

    def get_status(self) -> SharedStateStatus:
        """Return the status. The memory back end is always available."""
        return SharedStateStatus(is_available=True)

    async def list_workers(self) -> frozenset[str]:
        """Return the name of this worker."""
        return frozenset({self.worker})

    async def read(self, name: str) -> StoredValue | None:
        """Return a value, or None if the name has no value."""
        return self._values.find(name, time.monotonic())

    async def write(self, name: str, data: bytes, ttl: float, *, expected: int | None = None) -> int | None:
        """Store a value and return its version. Return None if the stored version is not `expected`."""
        check_size(data)
        now = time.monotonic()
        present: StoredValue | None = self._values.find(name, now)
        if expected is not None and expected != (0 if present is None else present.version):
            return None
        self._last_version += 1
        self._values.put(name, StoredValue(data, self._last_version), now, ttl)
        return self._last_version

    async def delete(self, name: str, *, expected: int | None = None) -> bool:
        """Delete a value. With `expected`, only delete a value of this version. Return whether a value was deleted."""
        present: StoredValue | None = self._values.find(name, time.monotonic())
        if present is None or expected not in (None, present.version):
            return False
        self._values.remove(name)
        return True

    async def use_once(self, name: str, valid_from: float, ttl: float) -> bool:
        """Record the use of an ID. Return True if this is the first use."""
        now = time.monotonic()
        if self._used.find(name, now):
            return False
        self._used.put(name, True, now, ttl)
        return True

    async def take(self, name: str, rate: float, burst: float) -> float:
        """Count an event and return 0. If the limit is reached, return the seconds to wait instead."""
        now = time.monotonic()
        full_at, wait = take_cell(self._rates.find(name, now), now, rate, burst)
        self._rates.put(name, full_at, now, full_at - now)
        return wait

    async def acquire(self, name: str, holder: str, limit: int, ttl: float) -> bool:
        """Give one of `limit` places to a holder, or extend the holder's time. Return False if all places are taken."""
        now = time.monotonic()
        expiries: dict[str, float] = self._places.find(name, now) or {}
        places = {other: expires_at for other, expires_at in expiries.items() if expires_at > now}
        if holder not in places and len(places) >= limit:
            return False
        places[holder] = now + ttl
        self._places.put(name, places, now, max(places.values()) - now)
        return True

    async def release(self, name: str, holder: str) -> None:
        """Free the place of a holder."""
        places: dict[str, float] | None = self._places.find(name, time.monotonic())
        if places is not None:
            places.pop(holder, None)

    async def send(self, worker: str, kind: str, body: bytes) -> bool:
        """Send a message to this worker. Return False for any other name."""
        check_message(kind, body)
        if worker != self.worker or self._listener is None:
            return False
        self._deliver(Message(kind, body, self.worker))
        return True

    async def publish(self, kind: str, body: bytes) -> str:
        """Add a message to the change log and return its cursor."""
        check_message(kind, body, MAX_CHANGE_BYTES)
        self._change_count += 1
        cursor = f"{self.worker}.{self._change_count}"
        message = Message(kind, body, self.worker, cursor)
        self._changes.append(message)
        self._deliver(message)
        return cursor

    async def get_cursor(self) -> str:
        """Return the cursor of the newest message in the change log."""
        return f"{self.worker}.{self._change_count}"

    async def read_changes(self, cursor: str) -> list[Message] | None:
        """Return the messages after a cursor. Return None if some of them were deleted."""
        after = parse_cursor(cursor, self.worker)
        missing = -1 if after is None else self._change_count - after
        return list(self._changes)[len(self._changes) - missing :] if 0 <= missing <= len(self._changes) else None

    def _deliver(self, message: Message) -> None:
        # Call the listener later, so that it never runs inside `send` or `publish`.
        if self._listener is not None:
            asyncio.get_running_loop().call_soon(self._listener.receive, message)

    async def append(
        self, stream: str, number: int, data: bytes, *, header: bytes | None = None, is_last: bool = False
    ) -> bool:
        """Add the event with the next number. Return False if the stream has ended or does not exist."""
        check_size(data)
        now = time.monotonic()
        stored: _Stream | None = self._streams.find(stream, now)
        if stored is None:
            if header is None:
                return False
            stored = _Stream(header, deque())
        if number <= stored.last_number:
            return True
        if stored.is_ended or number != stored.last_number + 1:
            return False
        for evicted in self._budget.add(stream, len(data), now, is_last=is_last):
            self._streams.remove(evicted)
        self._streams.put(stream, stored, now, self._limits.get_ttl(is_last=is_last))
        stored.events.append(StreamEvent(number, data, is_last))
        stored.stored_bytes += len(data)
        stored.last_number, stored.is_ended = number, is_last
        while len(stored.events) > 1 and (
            len(stored.events) > self._limits.max_events or stored.stored_bytes > self._limits.max_bytes
        ):
            stored.stored_bytes -= len(stored.events.popleft().data)
        self._followers.wake(stream)
        return True

    async def read_stream(self, stream: str, after: int) -> StreamPart | None:
        """Return the events with a number above `after`. Return None if one of them is not stored."""
        stored: _Stream | None = self._streams.find(stream, time.monotonic())
        if stored is None or not stored.events or not stored.events[0].number - 1 <= after <= stored.last_number:
            return None
        events = list(stored.events)[after - stored.last_number or len(stored.events) :]
        return StreamPart(self.worker, stored.header, events, stored.is_ended)

    async def follow(self, stream: str, after: int) -> AsyncGenerator[StreamEvent]:
        """Yield the events with a number above `after`. Wait for new events until the stream ends."""
        wakeup = asyncio.Event()
        self._followers.add(stream, wakeup)

        async def read(after: int) -> StreamPart | None:
            return await self.read_stream(stream, after)

        try:
            async with aclosing(follow_stream(after, wakeup, read=read, is_lost=self._is_lost)) as events:
                async for event in events:
                    yield event
        finally:
            self._followers.remove(stream, wakeup)

    async def _is_lost(self, worker: str) -> bool:
        return False

    async def end_lost_stream(self, stream: str, data: bytes) -> bool:
        """Return False, because the only worker is alive."""
        return False

    async def delete_stream(self, stream: str) -> None:
        """Delete a stream and its events."""
        self._streams.remove(stream)
        self._budget.forget(stream)
        self._followers.wake(stream)
