"""The shared state of one process, in its memory. Nothing is encoded or encrypted.

`MemoryBackend(other)` joins another back end of the same event loop, so that one process can have several workers.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from dovetail.cluster.envelope import check_message, check_size, create_worker_name, hash_name, parse_cursor
from dovetail.cluster.gcra import check_rate, take_cell
from dovetail.cluster.guarded_listener import GuardedListener
from dovetail.cluster.stream_budget import StreamBudget
from dovetail.cluster.stream_follower import StreamFollowers, follow_stream
from dovetail.protocol.interfaces.shared_state import (
    CLOCK_MARGIN_S,
    DEFAULT_STREAM_LIMITS,
    MAX_CHANGE_BYTES,
    MAX_CHANGES,
    MAX_INBOX_BYTES,
    MAX_INBOX_MESSAGES,
    MAX_READ_CHANGES,
    AppendOutcome,
    HistoryLost,
    Message,
    SharedStateListener,
    SharedStateStatus,
    SharedStateUnavailable,
    StoredValue,
    StreamEvent,
    StreamLimits,
    StreamPart,
)
from dovetail.protocol.limits import MiB
from dovetail.wire.base import Struct

_MAX_ENTRIES: Final = 100_000  # the maximum number of entries in each table
_MAX_VALUE_BYTES: Final = 256 * MiB  # the maximum size of all values
_MAX_NAME_CHARS: Final = 64  # Longer names are replaced by their hashes.
_SWEEP_INTERVAL_S: Final = 1.0  # Sweeps are rare, because a sweep reads all entries of a table.


class _Entry(Struct):
    value: Any
    size: int
    expires_at: float


class _Table:
    """A table of entries that expire."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._total_bytes = 0
        self._sweep_at = 0.0

    def find(self, name: str, now: float) -> Any:
        entry = self._entries.get(_shorten(name))
        return None if entry is None or entry.expires_at <= now else entry.value

    def put(self, name: str, value: Any, now: float, ttl: float, size: int = 0) -> None:
        name = _shorten(name)
        replaced = self._entries.get(name)
        new_bytes = size - (0 if replaced is None else replaced.size)
        if not self._has_room(replaced is None, new_bytes):
            self._sweep(now)
            if not self._has_room(replaced is None, new_bytes):
                raise SharedStateUnavailable(
                    f"the shared state is full. It has {len(self._entries)} entries of this kind with "
                    f"{self._total_bytes} bytes"
                )
        self.remove(name)
        self._entries[name] = _Entry(value, size, now + ttl)
        self._total_bytes += size

    def _has_room(self, is_new: bool, size: int) -> bool:
        return (not is_new or len(self._entries) < _MAX_ENTRIES) and self._total_bytes + size <= _MAX_VALUE_BYTES

    def _sweep(self, now: float) -> None:
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_INTERVAL_S
            for name in [name for name, entry in self._entries.items() if entry.expires_at <= now]:
                self.remove(name)

    def list_names(self) -> list[str]:
        return list(self._entries)

    def remove(self, name: str) -> None:
        entry = self._entries.pop(_shorten(name), None)
        if entry is not None:
            self._total_bytes -= entry.size


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"sha256 {hash_name(name)}"


class _Place(Struct):
    worker: str | None  # the owner. A place without an owner expires
    expires_at: float


class _Stream(Struct):
    writer: str
    header: bytes
    events: deque[StreamEvent]
    stored_bytes: int = 0
    last_number: int = 0
    ended_by: str | None = None


class _Hub:
    """What all workers of the process share."""

    def __init__(self) -> None:
        self.epoch = create_worker_name()
        self.created_at = time.monotonic()
        self.workers: dict[str, MemoryBackend] = {}
        self.values, self.used, self.rates, self.places, self.streams = (_Table() for _ in range(5))
        self.last_version = 0
        self.changes: deque[Message] = deque(maxlen=MAX_CHANGES)
        self.change_count = 0
        self.followers = StreamFollowers()


class MemoryBackend:
    """Keeps the shared state in memory. It is lost when the process ends.

    Args:
        other: Another worker of the same process and event loop. The new worker shares its state.
        stream_limits: How much of each stream is stored.
    """

    def __init__(
        self, other: "MemoryBackend | None" = None, *, stream_limits: StreamLimits = DEFAULT_STREAM_LIMITS
    ) -> None:
        self.worker = ""
        self._hub: _Hub = _Hub() if other is None else other._hub
        self._limits = stream_limits
        self._budget = StreamBudget(stream_limits)
        self._problem: str | None = "the back end is not started"
        self._inbox: deque[Message] = deque()
        self._inbox_bytes = 0

    async def start(self, listener: SharedStateListener) -> None:
        """Set the listener, and announce this worker."""
        self.worker = create_worker_name()
        self._listener = GuardedListener(listener)
        self._loop = asyncio.get_running_loop()
        self._hub.workers[self.worker] = self
        self._problem = None

    async def close(self) -> None:
        """Remove this worker. Its messages are lost."""
        if self._problem is not None:
            return
        self._problem = "the back end is closed"
        self._listener.close()
        self._hub.workers.pop(self.worker, None)
        self._free_places()
        self._inbox.clear()
        self._inbox_bytes = 0

    def _free_places(self) -> None:
        """Free the places that end with this worker."""
        places = self._hub.places
        for name in places.list_names():
            holders: dict[str, _Place] = places.find(name, 0.0)
            for holder in [holder for holder, place in holders.items() if place.worker == self.worker]:
                del holders[holder]
            if not holders:
                places.remove(name)

    def get_status(self) -> SharedStateStatus:
        """Return the status. The memory back end is available until it is closed."""
        return SharedStateStatus(
            is_available=self._problem is None,
            problem=self._problem,
            worker_count=max(1, len(self._hub.workers)),
            epoch=self._hub.epoch,
        )

    async def list_workers(self) -> frozenset[str]:
        """Return the names of all workers that are alive."""
        return frozenset(self._open_hub().workers)

    def _open_hub(self) -> _Hub:
        if self._problem is not None:
            raise SharedStateUnavailable(self._problem)
        return self._hub

    # Values.

    async def read(self, name: str) -> StoredValue | None:
        """Return a value, or None if the name has no value."""
        return self._open_hub().values.find(name, time.monotonic())

    async def write(self, name: str, data: bytes, ttl: float, *, expected: int | None = None) -> int | None:
        """Store a value and return its version. Return None if the stored version is not `expected`."""
        check_size(data)
        hub, now = self._open_hub(), time.monotonic()
        present: StoredValue | None = hub.values.find(name, now)
        if expected is not None and expected != (0 if present is None else present.version):
            return None
        version = hub.last_version + 1
        hub.values.put(name, StoredValue(data, version), now, ttl, len(data))
        hub.last_version = version
        return version

    async def restore(self, name: str, data: bytes, version: int, ttl: float) -> bool:
        """Store a value with its old version. Return False if the stored version is not lower."""
        check_size(data)
        hub, now = self._open_hub(), time.monotonic()
        present: StoredValue | None = hub.values.find(name, now)
        if present is not None and present.version >= version:
            return False
        hub.values.put(name, StoredValue(data, version), now, ttl, len(data))
        hub.last_version = max(hub.last_version, version)
        return True

    async def delete(self, name: str, *, expected: int | None = None) -> bool:
        """Delete a value. With `expected`, only delete a value of this version. Return whether a value was deleted."""
        hub = self._open_hub()
        present: StoredValue | None = hub.values.find(name, time.monotonic())
        if present is None or expected not in (None, present.version):
            return False
        hub.values.remove(name)
        return True

    # Limits.

    async def use_once(self, name: str, valid_from: float, ttl: float, *, attempt: str = "", epoch: str = "") -> bool:
        """Record the use of an ID. Return True if this is the first use."""
        hub, now = self._open_hub(), time.monotonic()
        present: str | None = hub.used.find(name, now)
        if present is not None:
            return attempt != "" and present == attempt
        if epoch != hub.epoch and valid_from - CLOCK_MARGIN_S < time.time() - (now - hub.created_at):
            raise HistoryLost("this ID may have been used before the server started")
        hub.used.put(name, attempt, now, ttl + CLOCK_MARGIN_S)
        return True

    async def is_used(self, name: str) -> bool:
        """Return whether the use of an ID is recorded."""
        return self._open_hub().used.find(name, time.monotonic()) is not None

    async def take(self, name: str, rate: float, burst: float, cost: float = 1.0) -> float:
        """Count an event and return 0. If the limit is reached, return the seconds to wait instead."""
        check_rate(rate, burst, cost)
        hub, now = self._open_hub(), time.monotonic()
        full_at, wait = take_cell(hub.rates.find(name, now), now, rate, burst, cost)
        if cost and not wait:
            hub.rates.put(name, full_at, now, full_at - now)
        return wait

    async def acquire(self, name: str, holder: str, limit: int, ttl: float | None) -> bool:
        """Give one of `limit` places to a holder, or extend the holder's time. Return False if all places are taken."""
        hub, now = self._open_hub(), time.monotonic()
        stored: dict[str, _Place] = hub.places.find(name, now) or {}
        places = {other: place for other, place in stored.items() if place.expires_at > now}
        if holder not in places and len(places) >= limit:
            return False
        if ttl is None:
            places[holder] = _Place(self.worker, float("inf"))
        else:
            places[holder] = _Place(None, now + ttl)
        hub.places.put(name, places, now, max(place.expires_at for place in places.values()) - now)
        return True

    async def release(self, name: str, holder: str) -> None:
        """Free the place of a holder."""
        hub, now = self._open_hub(), time.monotonic()
        places: dict[str, _Place] | None = hub.places.find(name, now)
        if places is not None:
            places.pop(holder, None)
            if not places:
                hub.places.remove(name)

    # Messages.

    async def send(self, worker: str, kind: str, body: bytes) -> bool:
        """Send a message to one worker. Return False if this worker has ended."""
        check_message(kind, body)
        receiver = self._open_hub().workers.get(worker)
        if receiver is None:
            return False
        if len(receiver._inbox) >= MAX_INBOX_MESSAGES or receiver._inbox_bytes + len(body) > MAX_INBOX_BYTES:
            raise SharedStateUnavailable(f"worker {worker} has too many unread messages")
        receiver._inbox.append(Message(kind, body, self.worker))
        receiver._inbox_bytes += len(body)
        # Call the listener later, so that it never runs inside `send`.
        self._loop.call_soon(receiver._read_inbox)
        return True

    def _read_inbox(self) -> None:
        if self._inbox:
            message = self._inbox.popleft()
            self._inbox_bytes -= len(message.body)
            self._listener.deliver(message)

    async def publish(self, kind: str, body: bytes) -> str:
        """Add a message to the change log and return its cursor."""
        check_message(kind, body, MAX_CHANGE_BYTES)
        hub = self._open_hub()
        hub.change_count += 1
        message = Message(kind, body, self.worker, f"{hub.epoch}.{hub.change_count}")
        hub.changes.append(message)
        for receiver in hub.workers.values():
            self._loop.call_soon(receiver._listener.deliver, message)
        return f"{hub.epoch}.{hub.change_count}"

    async def get_cursor(self) -> str:
        """Return the cursor of the newest message in the change log."""
        hub = self._open_hub()
        return f"{hub.epoch}.{hub.change_count}"

    async def read_changes(self, cursor: str) -> list[Message] | None:
        """Return the messages after a cursor. Return None if some of them were deleted, or if there are too many."""
        hub = self._open_hub()
        after = parse_cursor(cursor, hub.epoch)
        missing = -1 if after is None else hub.change_count - after
        if not 0 <= missing <= min(len(hub.changes), MAX_READ_CHANGES):
            return None
        return [hub.changes[index] for index in range(-missing, 0)]

    # Streams.

    async def append(
        self, stream: str, number: int, data: bytes, *, header: bytes | None = None, is_last: bool = False
    ) -> AppendOutcome:
        """Add the event with the next number. Return "added", or why the event was not added."""
        check_size(data)
        hub, now = self._open_hub(), time.monotonic()
        stored: _Stream | None = hub.streams.find(stream, now)
        if stored is None:
            if header is None or number != 1:
                return "missing"
            stored = _Stream(self.worker, header, deque())
        if stored.writer != self.worker or stored.ended_by not in (None, self.worker):
            return "ended"
        if number <= stored.last_number:
            return "added"
        if stored.ended_by is not None:
            return "ended"
        if number != stored.last_number + 1:
            return "missing"
        for evicted in self._budget.find_evictions(stream, number, len(data), now):
            await self.delete_stream(evicted)
        self._add_event(stream, stored, data, now, is_last=is_last)
        self._budget.count(stream, number, len(data), now, is_last=is_last)
        return "added"

    def _add_event(self, stream: str, stored: _Stream, data: bytes, now: float, *, is_last: bool) -> None:
        self._hub.streams.put(stream, stored, now, self._limits.get_ttl(is_last=is_last))
        stored.last_number += 1
        stored.events.append(StreamEvent(stored.last_number, data, is_last))
        stored.stored_bytes += len(data)
        stored.ended_by = self.worker if is_last else None
        while len(stored.events) > 1 and (
            len(stored.events) > self._limits.max_events or stored.stored_bytes > self._limits.max_bytes
        ):
            stored.stored_bytes -= len(stored.events.popleft().data)
        self._hub.followers.wake(stream)

    async def read_stream(self, stream: str, after: int) -> StreamPart | None:
        """Return the events with a number above `after`. Return None if one of them is not stored."""
        stored: _Stream | None = self._open_hub().streams.find(stream, time.monotonic())
        if stored is None or not stored.events or not stored.events[0].number - 1 <= after <= stored.last_number:
            return None
        events = list(stored.events)[after - stored.last_number or len(stored.events) :]
        return StreamPart(stored.writer, stored.header, events, stored.ended_by is not None)

    async def follow(self, stream: str, after: int, *, writer: str | None = None) -> AsyncGenerator[StreamEvent]:
        """Yield the events with a number above `after`. Wait for new events until the stream ends."""
        followers, wakeup = self._open_hub().followers, asyncio.Event()

        async def read(after: int) -> StreamPart | None:
            return await self.read_stream(stream, after)

        async def exists() -> bool:
            return self._open_hub().streams.find(stream, time.monotonic()) is not None

        followers.add(stream, wakeup)
        try:
            following = follow_stream(after, wakeup, read=read, is_lost=self._is_lost, exists=exists, writer=writer)
            async with aclosing(following) as events:
                async for event in events:
                    yield event
        finally:
            followers.remove(stream, wakeup)

    async def _is_lost(self, worker: str) -> bool:
        return worker not in self._open_hub().workers

    async def end_lost_stream(self, stream: str, data: bytes) -> bool:
        """End the stream of a lost worker with a last event. Return False if the stream has already ended."""
        check_size(data)
        hub, now = self._open_hub(), time.monotonic()
        stored: _Stream | None = hub.streams.find(stream, now)
        if stored is None or stored.ended_by is not None or stored.writer in hub.workers:
            return False
        self._add_event(stream, stored, data, now, is_last=True)
        return True

    async def delete_stream(self, stream: str) -> None:
        """Delete a stream and its events."""
        hub = self._open_hub()
        hub.streams.remove(stream)
        self._budget.forget(stream)
        hub.followers.wake(stream)
