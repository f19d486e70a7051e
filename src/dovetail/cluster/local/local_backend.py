"""The shared state of the workers of one machine: a SQLite file, and a socket and a lock for each worker.

All data is in the file. The sockets only wake other workers, so a lost wake-up loses no data. The locks show which
workers are alive. A finished stream can be read after its worker has ended.
"""

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

from dovetail.cluster.envelope import (
    Envelope,
    check_message,
    check_size,
    create_worker_name,
    hash_name,
    pack_message,
    parse_cursor,
)
from dovetail.cluster.gcra import check_rate
from dovetail.cluster.guarded_listener import GuardedListener
from dovetail.cluster.local import local_statements as statements
from dovetail.cluster.local.local_database import LocalDatabase
from dovetail.cluster.local.wakeup_socket import WakeupSocket
from dovetail.cluster.local.worker_lock import WorkerLock
from dovetail.cluster.stream_budget import StreamBudget
from dovetail.cluster.stream_follower import StreamFollowers, follow_stream
from dovetail.log import ThrottledLog, log
from dovetail.protocol.interfaces.shared_state import (
    DEFAULT_STREAM_LIMITS,
    MAX_CHANGE_BYTES,
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

_FILE_NAME: Final = "shared-state.sqlite"
_CHECK_INTERVAL_S: Final = 1.0  # Even without a wake-up, a worker checks for messages at this interval.
_PURGE_INTERVAL_S: Final = 10.0
_CHANGE_TTL_S: Final = 86400.0  # how long a message in the change log is valid


class LocalBackend:
    """Keeps the shared state in a folder. The process that starts the workers creates and removes the folder.

    Args:
        folder: The folder. It must belong to the user and have the mode 0700.
        secret_keys: Keys that encrypt the data in the file, newest first.
        stream_limits: How much of each stream is stored.
    """

    def __init__(
        self,
        folder: Path,
        *,
        secret_keys: Sequence[str | bytes] = (),
        stream_limits: StreamLimits = DEFAULT_STREAM_LIMITS,
    ) -> None:
        self.worker = ""
        self._folder = folder
        self._envelope = Envelope(secret_keys)
        self._limits = stream_limits
        self._budget = StreamBudget(stream_limits)
        self._followers = StreamFollowers()
        self._problem: str | None = "the back end is not started"
        self._is_open = False
        self._worker_count = 1
        self._epoch = ""
        self._last_change = self._last_message = 0
        self._is_draining = self._is_drain_due = False
        self._warning = ThrottledLog()

    async def start(self, listener: SharedStateListener) -> None:
        """Open the file and the socket. Raise PermissionError if other users can use the folder."""
        _check_folder(self._folder)
        self.worker = create_worker_name()  # Each forked process needs a different name.
        self._listener = GuardedListener(listener)
        async with contextlib.AsyncExitStack() as cleanup:
            # The lock keeps programs such as systemd-tmpfiles from deleting old files in the folder.
            self._folder_lock = _lock_folder(self._folder)
            cleanup.callback(os.close, self._folder_lock)
            self._database = LocalDatabase(self._folder / _FILE_NAME)
            cleanup.push_async_callback(self._database.close)
            self._epoch = self._database.read(statements.read_epoch)
            self._last_change = self._database.read(statements.find_last_change)
            self._socket = WakeupSocket(self._folder, self.worker, self._wake)
            cleanup.callback(self._socket.close)
            self._lock = WorkerLock(self._folder, self.worker)
            cleanup.pop_all()
        self._problem, self._is_open = None, True
        self._worker_count = len(self._lock.list_workers())
        self._drain_task: asyncio.Task[None] | None = None
        self._maintenance_task = asyncio.get_running_loop().create_task(self._maintain())

    async def close(self) -> None:
        """Close the file and the socket. Other workers learn at once that this worker has ended."""
        if not self._is_open:
            return
        self._is_open = False
        self._listener.close()
        self._lock.close()
        self._socket.close()
        for task in (self._maintenance_task, self._drain_task):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._problem = "the back end is closed"
        await self._database.close()
        os.close(self._folder_lock)

    def get_status(self) -> SharedStateStatus:
        """Return whether the file can be used, and a description of its last problem."""
        return SharedStateStatus(
            is_available=self._problem is None,
            problem=self._problem or (self._database.problem if self._is_open else None),
            worker_count=self._worker_count,
            epoch=self._epoch,
        )

    async def list_workers(self) -> frozenset[str]:
        """Return the names of all workers that are alive."""
        self._check_available()
        return self._lock.list_workers()

    def _check_available(self) -> None:
        if self._problem is not None:
            raise SharedStateUnavailable(self._problem)

    async def _change(self, work: Any, *args: Any) -> Any:
        self._check_available()
        return await self._database.change(partial(work, *args))

    # Values.

    async def read(self, name: str) -> StoredValue | None:
        """Return a value, or None if the name has no value."""
        self._check_available()
        key = hash_name(name)
        row = self._database.read(partial(statements.read_value, key))
        if row is None:
            return None
        data = self._envelope.decode(row[1], f"value {key}")
        if data is None:
            raise SharedStateUnavailable("this worker cannot read the value. Workers need the same keys and clocks")
        return StoredValue(data, row[0])

    async def write(self, name: str, data: bytes, ttl: float, *, expected: int | None = None) -> int | None:
        """Store a value and return its version. Return None if the stored version is not `expected`."""
        check_size(data)
        key = hash_name(name)
        encoded = self._envelope.encode(data, f"value {key}", ttl)
        return await self._change(statements.write_value, key, encoded, ttl, expected)

    async def restore(self, name: str, data: bytes, version: int, ttl: float) -> bool:
        """Store a value with its old version. Return False if the stored version is not lower."""
        check_size(data)
        key = hash_name(name)
        encoded = self._envelope.encode(data, f"value {key}", ttl)
        return await self._change(statements.restore_value, key, encoded, version, ttl)

    async def delete(self, name: str, *, expected: int | None = None) -> bool:
        """Delete a value. With `expected`, only delete a value of this version. Return whether a value was deleted."""
        return await self._change(statements.delete_value, hash_name(name), expected)

    # Limits.

    async def use_once(self, name: str, valid_from: float, ttl: float, *, attempt: str = "", epoch: str = "") -> bool:
        """Record the use of an ID. Return True if this is the first use."""
        is_first = await self._change(statements.use_id, hash_name(name), valid_from, ttl, attempt, epoch)
        if is_first is None:
            raise HistoryLost("this ID may have been used before the workers started")
        return is_first

    async def is_used(self, name: str) -> bool:
        """Return whether the use of an ID is recorded."""
        self._check_available()
        return self._database.read(partial(statements.is_used, hash_name(name)))

    async def take(self, name: str, rate: float, burst: float, cost: float = 1.0) -> float:
        """Count an event and return 0. If the limit is reached, return the seconds to wait instead."""
        check_rate(rate, burst, cost)
        return await self._change(statements.take, hash_name(name), rate, burst, cost)

    async def acquire(self, name: str, holder: str, limit: int, ttl: float | None) -> bool:
        """Give one of `limit` places to a holder, or extend the holder's time. Return False if all places are taken."""
        key, worker = hash_name(name), self.worker if ttl is None else None
        if await self._change(statements.acquire, key, holder, limit, worker, ttl):
            return True
        workers: list[str] = self._database.read(partial(statements.list_place_workers, key))
        lost = [worker for worker in workers if await self._is_lost(worker)]
        for lost_worker in lost:
            await self._change(statements.delete_places, lost_worker)
        return bool(lost) and await self._change(statements.acquire, key, holder, limit, worker, ttl)

    async def release(self, name: str, holder: str) -> None:
        """Free the place of a holder."""
        await self._change(statements.release, hash_name(name), holder)

    # Messages.

    async def send(self, worker: str, kind: str, body: bytes) -> bool:
        """Send a message to one worker. Return False if this worker has ended."""
        check_message(kind, body)
        self._check_available()
        if not self._lock.is_alive(worker):
            return False
        data = self._envelope.encode(pack_message(kind, self.worker, body), f"inbox {worker}", statements.MESSAGE_TTL_S)
        if await self._change(statements.add_to_inbox, worker, data) is None:
            raise SharedStateUnavailable(f"worker {worker} has too many unread messages")
        self._socket.wake(worker)
        return True

    async def publish(self, kind: str, body: bytes) -> str:
        """Send a message to all workers through the change log. Return the cursor of the message."""
        check_message(kind, body, MAX_CHANGE_BYTES)
        data = self._envelope.encode(pack_message(kind, self.worker, body), "changes", _CHANGE_TTL_S)
        id: int = await self._change(statements.add_change, data)
        with contextlib.suppress(SharedStateUnavailable):  # The change is stored, so it must not look failed.
            for worker in self._lock.list_workers():
                self._socket.wake(worker)
        return f"{self._epoch}.{id}"

    async def get_cursor(self) -> str:
        """Return the cursor of the newest message in the change log."""
        self._check_available()
        return f"{self._epoch}.{self._database.read(statements.find_last_change)}"

    async def read_changes(self, cursor: str) -> list[Message] | None:
        """Return the messages after a cursor. Return None if some of them were deleted, or if there are too many."""
        self._check_available()
        after = parse_cursor(cursor, self._epoch)
        if after is None:
            return None
        rows = self._database.read(partial(statements.read_changes, after, MAX_READ_CHANGES + 1))
        if rows is None or len(rows) > MAX_READ_CHANGES:
            return None
        decoded = [self._envelope.decode_message(data, "changes", f"{self._epoch}.{id}") for id, data in rows]
        messages = [message for message in decoded if message is not None]
        return messages if len(messages) == len(decoded) else None

    def _wake(self, streams: set[str] | None, has_messages: bool) -> None:
        if streams is None:
            self._followers.wake_all()
        else:
            for stream in streams:
                self._followers.wake(stream)
        if not has_messages:
            return
        if self._is_draining:
            self._is_drain_due = True
        elif self._problem is None:
            self._is_draining = True
            self._drain_task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            self._is_drain_due = True
            while self._is_drain_due:
                self._is_drain_due = False
                # All messages that were sent before these changes are in the inbox now, and are delivered first.
                changes = self._database.read(
                    partial(statements.read_changes, self._last_change, statements.MESSAGE_BATCH)
                )
                await self._read_inbox()
                self._deliver_changes(changes)
        except Exception as exc:  # The next wake-up or check starts this task again.
            self._warning.log("could not read the messages of other workers: %s", exc, exc_info=exc)
        finally:
            self._is_draining = False

    async def _read_inbox(self) -> None:
        while rows := self._database.read(partial(statements.read_inbox, self.worker, self._last_message)):
            for id, data in rows:
                # If the messages cannot be deleted, because the disk is full, they must not be delivered again.
                self._last_message = id
                message = self._envelope.decode_message(data, f"inbox {self.worker}")
                if message is not None:
                    self._listener.deliver(message)
            with contextlib.suppress(SharedStateUnavailable):
                await self._change(statements.delete_from_inbox, self.worker, self._last_message)

    def _deliver_changes(self, rows: list[tuple[int, bytes]] | None) -> None:
        if rows is None:
            self._last_change = self._database.read(statements.find_last_change)
            self._listener.report_gap()
            return
        for id, data in rows:
            self._last_change = id
            message = self._envelope.decode_message(data, "changes", f"{self._epoch}.{id}")
            if message is None:
                self._listener.report_gap()
            else:
                self._listener.deliver(message)
        if len(rows) == statements.MESSAGE_BATCH:
            self._is_drain_due = True  # There may be more.

    async def _maintain(self) -> None:
        purge_at = time.monotonic()
        while self._problem is None:
            try:
                self._wake(set(), True)  # Readers of streams check for new events themselves.
                self._worker_count = len(self._lock.list_workers())
                if time.monotonic() >= purge_at:
                    purge_at = time.monotonic() + _PURGE_INTERVAL_S
                    if self._database.is_replaced():
                        self._problem = f"the file {_FILE_NAME} in {self._folder} was deleted. Restart the server"
                        log.error("%s", self._problem)
                        return
                    await self._database.purge(self._lock.is_alive, self._limits.max_total_bytes)
            except Exception as exc:  # The next round tries again.
                self._warning.log("could not maintain the shared file: %s", exc, exc_info=exc)
            await asyncio.sleep(_CHECK_INTERVAL_S)

    # Streams.

    async def append(
        self, stream: str, number: int, data: bytes, *, header: bytes | None = None, is_last: bool = False
    ) -> AppendOutcome:
        """Add the event with the next number. Return "added", or why the event was not added."""
        check_size(data)
        self._check_available()
        key = hash_name(stream)
        for evicted in self._budget.find_evictions(key, number, len(data), time.monotonic()):
            await self._delete_stream(evicted)
        sealed = self._envelope.encode(data, f"event {key} {number}", self._limits.max_ttl)
        sealed_header = None if header is None else self._envelope.encode(header, f"stream {key}", self._limits.max_ttl)
        outcome, followers = await self._change(
            statements.append, key, self.worker, self._limits, number, sealed, sealed_header, is_last
        )
        if outcome == "added":
            self._budget.count(key, number, len(data), time.monotonic(), is_last=is_last)
        else:
            self._budget.forget(key)
        await self._wake_followers(key, followers)
        return outcome

    async def _wake_followers(self, key: str, followers: Sequence[str]) -> None:
        for worker in followers:
            if not self._socket.wake(worker, key):
                await self._change(statements.remove_follower, key, worker)

    async def read_stream(self, stream: str, after: int) -> StreamPart | None:
        """Return the events with a number above `after`. Return None if one of them is not stored."""
        self._check_available()
        key = hash_name(stream)
        row = self._database.read(partial(statements.read_stream, key, after))
        header = None if row is None else self._envelope.decode(row[1], f"stream {key}")
        if row is None or header is None:
            return None
        events: list[StreamEvent] = []
        for number, sealed, is_last in row[2]:
            data = self._envelope.decode(sealed, f"event {key} {number}")
            if data is None:
                return None
            events.append(StreamEvent(number, data, bool(is_last)))
        return StreamPart(row[0], header, events, row[3])

    async def follow(self, stream: str, after: int, *, writer: str | None = None) -> AsyncGenerator[StreamEvent]:
        """Yield the events with a number above `after`. Wait for new events until the stream ends."""
        key, wakeup = hash_name(stream), asyncio.Event()

        async def read(after: int) -> StreamPart | None:
            return await self.read_stream(stream, after)

        async def exists() -> bool:
            self._check_available()
            return self._database.read(partial(statements.has_stream, key))

        is_first = self._followers.add(key, wakeup)
        try:
            if is_first:
                await self._change(statements.add_follower, key, self.worker)
            following = follow_stream(after, wakeup, read=read, is_lost=self._is_lost, exists=exists, writer=writer)
            async with aclosing(following) as events:
                async for event in events:
                    yield event
        finally:
            if self._followers.remove(key, wakeup):
                with contextlib.suppress(SharedStateUnavailable):
                    await self._change(statements.remove_follower, key, self.worker)

    async def _is_lost(self, worker: str) -> bool:
        self._check_available()
        return not self._lock.is_alive(worker)

    async def end_lost_stream(self, stream: str, data: bytes) -> bool:
        """End the stream of a lost worker with a last event. Return False if the stream has already ended."""
        check_size(data)
        self._check_available()
        key = hash_name(stream)
        state = self._database.read(partial(statements.read_open_stream, key))
        if state is None or not await self._is_lost(state[0]):
            return False
        number = state[1] + 1
        sealed = self._envelope.encode(data, f"event {key} {number}", self._limits.max_ttl)
        followers = await self._change(statements.end_lost_stream, key, self.worker, self._limits, number, sealed)
        await self._wake_followers(key, followers or ())
        return followers is not None

    async def delete_stream(self, stream: str) -> None:
        """Delete a stream and its events."""
        await self._delete_stream(hash_name(stream))

    async def _delete_stream(self, key: str) -> None:
        followers = await self._change(statements.delete_stream, key)
        self._budget.forget(key)
        await self._wake_followers(key, followers)


def _check_folder(folder: Path) -> None:
    folder_stat = os.lstat(folder)
    if not stat.S_ISDIR(folder_stat.st_mode):
        raise NotADirectoryError(f"{folder} must be a folder")
    if folder_stat.st_uid != os.geteuid() or folder_stat.st_mode & 0o077:
        raise PermissionError(f"other users can use {folder}. Create a folder of mode 700")


def _lock_folder(folder: Path) -> int:
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor
