"""The shared state of workers on several machines, in Redis 7 or Valkey.

Each change is one Lua script, so it is atomic and uses the clock of Redis.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from dovetail.cluster.envelope import (
    Envelope,
    check_message,
    check_size,
    create_worker_name,
    hash_name,
    is_worker_name,
    pack_message,
    unpack_message,
)
from dovetail.cluster.gcra import check_rate
from dovetail.cluster.guarded_listener import GuardedListener
from dovetail.cluster.redis import redis_scripts as scripts
from dovetail.cluster.redis.redis_connection import import_redis, parse_redis_url
from dovetail.cluster.redis.redis_link import RedisLink, create_id
from dovetail.cluster.redis.redis_reader import RedisReader, parse_entry
from dovetail.cluster.stream_budget import StreamBudget
from dovetail.cluster.stream_follower import StreamFollowers, follow_stream
from dovetail.log import log
from dovetail.protocol.interfaces.shared_state import (
    DEFAULT_STREAM_LIMITS,
    MAX_CHANGE_BYTES,
    MAX_INLINE_BYTES,
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

_CHANGE_TTL_S: Final = 86400.0  # how long a message in the change log is valid
# A worker renews its open streams. The streams of a worker that was killed are deleted after this time.
OPEN_STREAM_TTL_S: Final = 300.0
_RENEWALS_PER_TTL: Final = 4
_RENEW_BATCH: Final = 500


class RedisBackend:
    """Keeps the shared state in Redis or Valkey.

    Args:
        url: The address, such as `redis://:password@host:6379/0`. `parse_redis_url` describes all forms.
        prefix: The first part of all keys. Servers with the same prefix share their state.
        secret_keys: Keys that encrypt the data, newest first.
        timeout: Seconds to wait for an answer from Redis.
        is_required: Whether `start` fails if Redis does not answer.
        stream_limits: How much of each stream is stored.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "dovetail",
        secret_keys: Sequence[str | bytes] = (),
        timeout: float = 2.0,
        is_required: bool = True,
        stream_limits: StreamLimits = DEFAULT_STREAM_LIMITS,
    ) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            raise ValueError(f"the prefix must be a text without braces, not {prefix!r}")
        import_redis()
        self.worker = ""
        self._prefix = f"{{{prefix}}}:"  # Redis Cluster stores all keys with the same tag on the same node.
        self._link = RedisLink(parse_redis_url(url), self._prefix, timeout)
        self._envelope = Envelope(secret_keys)
        self._is_required = is_required
        self._limits = stream_limits
        self._budget = StreamBudget(stream_limits)
        self._followers = StreamFollowers()
        self._reader: RedisReader | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def start(self, listener: SharedStateListener) -> None:
        """Connect to Redis. Raise SharedStateUnavailable if Redis does not answer and is required."""
        self.worker = create_worker_name()  # Each forked process needs a different name.
        self._link.create_client()
        self._listener = GuardedListener(listener)
        self._reader = RedisReader(
            self._link, self._prefix, self.worker, self._envelope, self._listener, self._followers
        )
        await self._link.open(
            self.worker, self._envelope.key_ids, self._reader.start_epoch, is_required=self._is_required
        )
        loop = asyncio.get_running_loop()
        self._tasks = loop.create_task(self._reader.run()), loop.create_task(self._renew_streams())

    async def close(self) -> None:
        """Close the connections. Other workers learn at once that this worker has ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._listener.close()
        await self._link.close()

    def get_status(self) -> SharedStateStatus:
        """Return whether Redis answers, and a description of its last problem."""
        return SharedStateStatus(
            is_available=self._link.problem is None,
            problem=(
                self._link.problem
                or (None if self._reader is None else self._reader.problem)
                or self._link.refusal
                or self._link.key_problem
                or self._link.clock_problem
                or self._link.settings_problem
            ),
            worker_count=self._link.worker_count,
            epoch=self._link.epoch,
        )

    async def list_workers(self) -> frozenset[str]:
        """Return the names of all workers that are alive."""
        return frozenset(name.decode() for name in await self._link.run(scripts.LIST_WORKERS))

    # Values.

    async def read(self, name: str) -> StoredValue | None:
        """Return a value, or None if the name has no value."""
        key = hash_name(name)
        version, encoded = await self._link.execute("HMGET", f"{self._prefix}value:{key}", "version", "data")
        if encoded is None:
            return None
        data = self._envelope.decode(encoded, f"value {key}")
        if data is None:
            raise SharedStateUnavailable("this worker cannot read the value. Workers need the same keys and clocks")
        return StoredValue(data, int(version))

    async def write(self, name: str, data: bytes, ttl: float, *, expected: int | None = None) -> int | None:
        """Store a value and return its version. Return None if the stored version is not `expected`."""
        check_size(data)
        key = hash_name(name)
        encoded = self._envelope.encode(data, f"value {key}", ttl)
        version = await self._link.run(scripts.WRITE, key, encoded, _to_ms(ttl), "" if expected is None else expected)
        return None if version is None else int(version)

    async def restore(self, name: str, data: bytes, version: int, ttl: float) -> bool:
        """Store a value with its old version. Return False if the stored version is not lower."""
        check_size(data)
        key = hash_name(name)
        encoded = self._envelope.encode(data, f"value {key}", ttl)
        return bool(await self._link.run(scripts.RESTORE, key, encoded, _to_ms(ttl), version))

    async def delete(self, name: str, *, expected: int | None = None) -> bool:
        """Delete a value. With `expected`, only delete a value of this version. Return whether a value was deleted."""
        return bool(await self._link.run(scripts.DELETE, hash_name(name), "" if expected is None else expected))

    # Limits.

    async def use_once(self, name: str, valid_from: float, ttl: float, *, attempt: str = "", epoch: str = "") -> bool:
        """Record the use of an ID. Return True if this is the first use."""
        outcome = await self._link.run(
            scripts.USE_ONCE, hash_name(name), f"{valid_from:.6f}", _to_ms(ttl), create_id(), attempt, epoch
        )
        if isinstance(outcome, list):  # "unknown" and the epoch
            # The caller gets a new ID. This worker would create it in the old epoch, so that it would be refused again.
            await self._link.wait_for_epoch(outcome[1].decode())
            raise HistoryLost("Redis has lost its records, so this ID may have been used")
        return outcome == b"first"

    async def is_used(self, name: str) -> bool:
        """Return whether the use of an ID is recorded."""
        return bool(await self._link.execute("EXISTS", f"{self._prefix}used:{hash_name(name)}"))

    async def take(self, name: str, rate: float, burst: float, cost: float = 1.0) -> float:
        """Count an event and return 0. If the limit is reached, return the seconds to wait instead."""
        check_rate(rate, burst, cost)
        return float(await self._link.run(scripts.TAKE, hash_name(name), rate, burst, cost))

    async def acquire(self, name: str, holder: str, limit: int, ttl: float | None) -> bool:
        """Give one of `limit` places to a holder, or extend the holder's time. Return False if all places are taken."""
        worker, ttl_ms = (self.worker, 0) if ttl is None else ("", _to_ms(ttl))
        return bool(await self._link.run(scripts.ACQUIRE, hash_name(name), holder, limit, ttl_ms, worker, create_id()))

    async def release(self, name: str, holder: str) -> None:
        """Free the place of a holder."""
        await self._link.run(scripts.RELEASE, hash_name(name), holder)

    # Messages.

    async def send(self, worker: str, kind: str, body: bytes) -> bool:
        """Send a message to one worker. Return False if this worker has ended."""
        check_message(kind, body)
        if not is_worker_name(worker):
            return False
        encoded = self._envelope.encode(pack_message(kind, self.worker, body), f"inbox {worker}", scripts.MESSAGE_TTL_S)
        outcome = await self._link.run(scripts.SEND, worker, _choose_field(encoded), encoded, create_id(), len(encoded))
        if outcome == b"full":
            raise SharedStateUnavailable(f"worker {worker} has too many unread messages")
        if outcome == b"unknown":
            raise SharedStateUnavailable(f"worker {worker} has not sent a heartbeat yet")
        return outcome == b"sent"

    async def publish(self, kind: str, body: bytes) -> str:
        """Send a message to all workers through the change log. Return the cursor of the message."""
        check_message(kind, body, MAX_CHANGE_BYTES)
        encoded = self._envelope.encode(pack_message(kind, self.worker, body), "changes", _CHANGE_TTL_S)
        return b".".join(await self._link.run(scripts.PUBLISH, encoded, create_id())).decode()

    async def get_cursor(self) -> str:
        """Return the cursor of the newest message in the change log."""
        return b".".join(await self._link.run(scripts.GET_CURSOR, create_id())).decode()

    async def read_changes(self, cursor: str) -> list[Message] | None:
        """Return the messages after a cursor. Return None if some of them were deleted, or if there are too many."""
        epoch, number, position = _parse_cursor(cursor)
        present_epoch, present_number, entries = await self._link.run(scripts.READ_CHANGES, position, create_id())
        changes = [parse_entry(*entry) for entry in entries]
        if len(changes) > MAX_READ_CHANGES or epoch != present_epoch.decode():
            return None
        numbers = [int(fields.get(b"number", 0)) for _, fields in changes]
        if numbers != list(range(number + 1, int(present_number) + 1)):
            return None
        messages: list[Message] = []
        for id, fields in changes:
            decoded = self._envelope.decode(fields.get(b"data", b""), "changes")
            if decoded is None:
                return None
            messages.append(unpack_message(decoded, f"{epoch}.{int(fields[b'number'])}.{id}"))
        return messages

    # Streams.

    async def append(
        self, stream: str, number: int, data: bytes, *, header: bytes | None = None, is_last: bool = False
    ) -> AppendOutcome:
        """Add the event with the next number. Return "added", or why the event was not added."""
        check_size(data)
        if self._link.problem is not None:  # The budget must not count an event that cannot be stored.
            raise SharedStateUnavailable(self._link.problem)
        key, limits = hash_name(stream), self._limits
        for evicted in self._budget.find_evictions(key, number, len(data), time.monotonic()):
            await self._delete_stream(evicted)
        encoded = self._envelope.encode(data, f"event {key} {number}", limits.max_ttl)
        headers = () if header is None else (self._envelope.encode(header, f"stream {key}", limits.max_ttl),)
        outcome = await self._link.run(
            scripts.APPEND,
            key,
            number,
            _choose_field(encoded),
            encoded,
            len(encoded),
            int(is_last),
            self.worker,
            _to_ms(limits.ttl if is_last else min(limits.open_ttl, OPEN_STREAM_TTL_S)),
            limits.max_events,
            limits.max_bytes,
            *headers,
        )
        if outcome in (b"added", b"repeated"):
            self._budget.count(key, number, len(data), time.monotonic(), is_last=is_last)
            return "added"
        self._budget.forget(key)
        return "ended" if outcome == b"ended" else "missing"

    async def read_stream(self, stream: str, after: int) -> StreamPart | None:
        """Return the events with a number above `after`. Return None if one of them is not stored."""
        return await self._read_stream(hash_name(stream), after, "")

    async def _read_stream(self, key: str, after: int, follower: str) -> StreamPart | None:
        reply = await self._link.run(scripts.READ_STREAM, key, after, follower)
        header = None if reply is None else self._envelope.decode(reply[1], f"stream {key}")
        if reply is None or header is None:
            return None
        writer, last, is_ended = reply[0].decode(), int(reply[2]), bool(reply[3])
        events: list[StreamEvent] = []
        for id, fields in (parse_entry(*entry) for entry in reply[4]):
            number = int(id.partition("-")[0])
            encoded = fields.get(b"data")
            if b"large" in fields:
                encoded = await self._link.execute("HGET", f"{self._prefix}large:{key}", number)
            data = None if encoded is None else self._envelope.decode(encoded, f"event {key} {number}")
            if data is None or number != after + 1:
                return None
            events.append(StreamEvent(number, data, fields.get(b"last") == b"1"))
            after = number
        if not events and after < last:  # Redis has deleted the events to save memory.
            return None
        return StreamPart(writer, header, events, is_ended and after == last)

    async def follow(self, stream: str, after: int, *, writer: str | None = None) -> AsyncGenerator[StreamEvent]:
        """Yield the events with a number above `after`. Wait for new events until the stream ends."""
        key, wakeup = hash_name(stream), asyncio.Event()

        async def read(after: int) -> StreamPart | None:
            return await self._read_stream(key, after, self.worker)

        async def exists() -> bool:
            return bool(await self._link.execute("EXISTS", f"{self._prefix}stream:{key}"))

        self._followers.add(key, wakeup)
        try:
            following = follow_stream(after, wakeup, read=read, is_lost=self._is_lost, exists=exists, writer=writer)
            async with aclosing(following) as events:
                async for event in events:
                    yield event
        finally:
            if self._followers.remove(key, wakeup):
                with contextlib.suppress(SharedStateUnavailable):
                    await self._link.execute("SREM", f"{self._prefix}followers:{key}", self.worker)

    async def _is_lost(self, worker: str) -> bool:
        return await self._link.run(scripts.JUDGE, worker, create_id()) == b"lost"

    async def end_lost_stream(self, stream: str, data: bytes) -> bool:
        """End the stream of a lost worker with a last event. Return False if the stream has already ended."""
        check_size(data, MAX_INLINE_BYTES)
        key = hash_name(stream)
        last = await self._link.execute("HGET", f"{self._prefix}stream:{key}", "last")
        if last is None:
            return False
        number = int(last) + 1
        encoded = self._envelope.encode(data, f"event {key} {number}", self._limits.max_ttl)
        ttl = _to_ms(self._limits.ttl)
        return (
            await self._link.run(scripts.END_LOST_STREAM, key, encoded, self.worker, ttl, create_id(), number)
            == b"added"
        )

    async def _renew_streams(self) -> None:
        while True:
            await asyncio.sleep(OPEN_STREAM_TTL_S / _RENEWALS_PER_TTL)
            streams = self._budget.list_open(time.monotonic())
            ttl = _to_ms(min(self._limits.open_ttl, OPEN_STREAM_TTL_S))
            try:
                for batch in (streams[start : start + _RENEW_BATCH] for start in range(0, len(streams), _RENEW_BATCH)):
                    await self._link.run(scripts.RENEW_STREAMS, ttl, *batch)
            except Exception as exc:  # The next round tries again.
                if not isinstance(exc, SharedStateUnavailable):
                    log.error("could not renew the open streams of this worker", exc_info=exc)

    async def delete_stream(self, stream: str) -> None:
        """Delete a stream and its events."""
        await self._delete_stream(hash_name(stream))

    async def _delete_stream(self, key: str) -> None:
        await self._link.run(scripts.DELETE_STREAM, key)
        self._budget.forget(key)


def _choose_field(encoded: bytes) -> str:
    """Return the field for a message or an event. Large data is stored separately."""
    return "data" if len(encoded) <= MAX_INLINE_BYTES else "large"


def _to_ms(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def _parse_cursor(cursor: str) -> tuple[str, int, str]:
    """Split a cursor into the epoch, the number and the ID of a change. The epoch of an invalid cursor is ""."""
    epoch, _, rest = cursor.partition(".")
    number, _, position = rest.partition(".")
    milliseconds, _, sequence = position.partition("-")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 18 for part in (number, milliseconds, sequence)):
        return "", 0, "0-0"
    return epoch, int(number), position
