"""A task store in a SQLite file that the workers of one machine share, or in memory.

One thread of each process does all work with the file, so the event loop never waits for the disk. Changes that arrive
while the thread writes share the next transaction, because the wait for the disk is the slowest part of a change.

With secret keys, the records are encrypted. The ID, the status and the times of a task are not.
"""

import asyncio
import contextlib
import hashlib
import os
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from dovetail.errors import DamagedFile, UnusableFile
from dovetail.log import ThrottledLog
from dovetail.storage import Migrations, SharedDatabase, get_data_dir, make_private_dir
from dovetail.tasks.record_codec import RecordCodec
from dovetail.tasks.task_record import TaskLease, TaskRecord, TaskStatus, TaskStoreUnavailable, TaskUnreadable
from dovetail.tasks.task_rules import UNFINISHED_RETENTION_S, claim_task, compute_due_at
from dovetail.tasks.task_store import DEFAULT_LIMITS, TaskConflict, TaskLimits, TaskStoreFull
from dovetail.tasks.task_watchers import TaskWatchers, Versions
from dovetail.wire.base import replace

_WRITE_BATCH: Final = 100  # the maximum number of changes in one transaction
_EXPIRE_BATCH: Final = 200  # the maximum number of expired tasks that are deleted in one transaction
_VERSION_BATCH: Final = 500
_MAX_UNSUMMED_BYTES: Final = 64 * 1024 * 1024  # After this many new bytes, the store counts all bytes again.
_MAX_UNCOUNTED: Final = 1_000  # The store counts its tasks again after this many new tasks.
_UNREADABLE_DELAY_S: Final = 60.0  # the delay before a worker reads an unreadable record again
_MAX_NAME_CHARS: Final = 150  # Server names are shortened to this length, because a file name has at most 255 bytes.

# The columns contain the fields of a record that SQL statements need.
# Read `version`, the lease and `expires_at` only from the columns, because their values in `record` may be outdated.
_SCHEMA: Final = """
CREATE TABLE tasks (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, server TEXT NOT NULL, owner BLOB, status TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL, retention REAL, due_at REAL, lease_holder TEXT, lease_expires_at REAL,
    is_cancel_requested INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE INDEX tasks_by_due_at ON tasks (server, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX tasks_by_expires_at ON tasks (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX tasks_by_owner ON tasks (owner) WHERE owner IS NOT NULL AND status IN ('working', 'input_required')
"""
_MIGRATIONS: Final[Migrations[sqlite3.Connection]] = ()

_SELECT: Final = "SELECT version, expires_at, lease_holder, lease_expires_at, record FROM tasks WHERE id = ?"
_INSERT: Final = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE: Final = """
UPDATE tasks SET version = ?, status = ?, expires_at = ?, due_at = ?, lease_holder = ?, lease_expires_at = ?,
    is_cancel_requested = ?, record = ? WHERE id = ?
"""
_DELAY: Final = "UPDATE tasks SET due_at = ? WHERE id = ? AND due_at IS NOT NULL"
# This query has the same condition as the index `tasks_by_owner`, so that SQLite uses the index.
_COUNT_UNFINISHED: Final = """
SELECT count(*) FROM tasks WHERE owner = ? AND owner IS NOT NULL AND status IN ('working', 'input_required')
"""
# This statement computes `expires_at` in the same way as the function `extend_expiry`.
_RENEW: Final = """
UPDATE tasks SET lease_expires_at = :until, due_at = CASE WHEN due_at IS NULL THEN NULL ELSE :until END,
    expires_at = CASE WHEN expires_at < :now + retention / 2 THEN :now + retention ELSE expires_at END
    WHERE id = :id AND lease_holder = :holder RETURNING is_cancel_requested
"""
_DUE: Final = "SELECT id FROM tasks WHERE server = ? AND due_at <= ? ORDER BY due_at LIMIT ?"
_EXPIRE: Final = """
DELETE FROM tasks WHERE id IN (
    SELECT id FROM tasks WHERE expires_at <= :now AND (lease_expires_at IS NULL OR lease_expires_at <= :now)
        AND (expires_at <= :unfinished_before OR status NOT IN ('working', 'input_required'))
    LIMIT :limit
) RETURNING id
"""

T = TypeVar("T")


def get_default_path(server: str) -> Path:
    """Return the path of a server's task file. The file is in the user's data directory."""
    name = quote(server, safe=" ")
    if len(name) > _MAX_NAME_CHARS:
        name = f"{name[:_MAX_NAME_CHARS]}-{hashlib.sha256(server.encode()).hexdigest()[:16]}"
    return get_data_dir() / "tasks" / f"{name}.sqlite"


def create_default_path(server: str) -> Path:
    """Create the folder for a server's task file, and return the path of the file.

    Raises:
        UnusableFile: the folder cannot be created.
    """
    path = get_default_path(server)
    try:
        make_private_dir(path.parent)
    except OSError as exc:
        raise UnusableFile(
            path.parent,
            f"cannot create the folder {path.parent} for tasks: {exc.strerror}. Set DOVETAIL_HOME to a writable "
            "directory, or pass TaskOptions(store=...)",
        ) from None
    return path


class SQLiteTaskStore:
    """Keeps tasks in a SQLite file that other users cannot read.

    Args:
        path: The file, which is created if needed. `":memory:"` keeps the tasks in the memory of this process.
        secret_keys: Keys that encrypt the records, newest first. Without keys, the records are not encrypted.
        poll_interval: Seconds between two checks for changes by other processes.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        secret_keys: Sequence[str | bytes] = (),
        poll_interval: float = 0.05,
    ) -> None:
        self._database = SharedDatabase(path, "task store", _SCHEMA, _MIGRATIONS)
        self._path = str(path)
        self._unreadable_warning = ThrottledLog()
        self._process_lock = threading.Lock()
        self._codec = RecordCodec(secret_keys)
        self._poll_interval_s = poll_interval
        self._process_id: int | None = None

    @property
    def location(self) -> str:
        """The path of the file, or ":memory:"."""
        return self._path

    async def create(self, record: TaskRecord, limits: TaskLimits = DEFAULT_LIMITS) -> None:
        """Store a new record. Raise TaskStoreFull if the store is full, or TaskConflict if the ID already exists.

        Args:
            limits: How many tasks the store may have.
        """
        await self._write(self._create, record, limits)

    async def get(self, id: str) -> TaskRecord | None:
        """Return the newest version of a record, or None if it does not exist."""
        return await self._run(self._get, id)

    async def change(self, record: TaskRecord) -> TaskRecord:
        """Store a changed record. Raise TaskConflict if the store has a newer version of the record."""
        stored = await self._write(self._change, record)
        self._watchers.notify(stored.id, stored.version)
        return stored

    async def claim(self, id: str, holder: str, now: float, lease_seconds: float) -> TaskRecord | None:
        """Give the lease of a task to a worker. Return None if the task should not run."""
        stored = await self._write(self._claim, id, holder, now, lease_seconds)
        if stored is None:
            return None
        self._watchers.notify(id, stored.version)
        return None if stored.lease is None else stored

    async def renew(self, holders: Mapping[str, str], now: float, lease_seconds: float) -> dict[str, bool]:
        """Extend the leases of tasks. In the returned dict, True means that the task should be cancelled.

        If the lease of a task is lost, the dict does not contain the task.
        """
        return await self._write(self._renew, holders, now, lease_seconds) if holders else {}

    async def list_due(self, server: str, now: float, limit: int) -> list[str]:
        """Return the IDs of tasks that a worker should claim. The task that has waited longest is first."""
        return await self._run(self._list_due, server, now, limit)

    async def list_ids(self, *, prefix: str = "", statuses: Collection[TaskStatus] = (), limit: int = 100) -> list[str]:
        """Return the IDs of tasks, newest first. Task IDs are secrets, so show them only to operators.

        Args:
            prefix: The start of the IDs. An empty text selects all tasks.
            statuses: The statuses of the tasks. An empty collection selects all tasks.
            limit: The maximum number of IDs.
        """
        return await self._run(self._list_ids, prefix, statuses, limit)

    async def expire(self, now: float) -> int:
        """Delete the records that have expired and have no valid lease. Return their number."""
        count, ids = 0, await self._write(self._expire, now)
        while ids:
            count += len(ids)
            for id in ids:
                self._watchers.notify(id, None)
            ids = await self._write(self._expire, now) if len(ids) == _EXPIRE_BATCH else []
        return count

    @contextlib.contextmanager
    def watch(self, ids: Collection[str]) -> Generator[AsyncIterator[str]]:
        """Watch tasks for changes. The iterator first yields every ID, and then the ID of each changed task."""
        self._prepare_process()
        with self._watchers.watch(ids) as changed_ids:
            yield changed_ids

    async def close(self) -> None:
        """Close the file."""
        if self._process_id == os.getpid():
            await self._run(self._database.close)
            self._executor.shutdown(wait=False)
            self._process_id = None

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in the store's thread."""
        self._prepare_process()
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._call, function, args)

    async def _write(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(database, *args)` in the store's thread, in a transaction."""
        self._prepare_process()
        change = _PendingChange(function, args)
        self._pending_changes.append(change)
        self._executor.submit(self._write_pending)
        return await change.future

    def _start_poll(self, marker: int | None, ids: list[str]) -> "asyncio.Future[tuple[int, Versions | None]]":
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, self._call, self._read_versions, (marker, ids))

    def _prepare_process(self) -> None:
        """Create the store's thread. A forked process needs a new one, because threads are not copied."""
        if self._process_id == os.getpid():
            return
        with self._process_lock:  # Several event loops may use the store for the first time at the same moment.
            if self._process_id == os.getpid():
                return
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="dovetail-tasks")
            poll_interval_s = None if self._database.is_in_memory else self._poll_interval_s
            self._watchers = TaskWatchers(self._start_poll, poll_interval_s)
            self._pending_changes: deque[_PendingChange] = deque()
            self._creates_until_count = 0
            self._bytes_until_sum = 0
            self._process_id = os.getpid()

    # The following methods run in the thread of the store.

    def _write_pending(self) -> None:
        """Run the waiting changes in one transaction. Do nothing if an earlier call has already run them."""
        changes = [self._pending_changes.popleft() for _ in range(min(len(self._pending_changes), _WRITE_BATCH))]
        if not changes:
            return
        outcomes: list[tuple[Any, Exception | None]] = []
        try:
            with self._database.change() as database:
                outcomes += [self._apply(database, change) for change in changes]
        except Exception as exc:
            # The transaction failed, so nothing was stored.
            outcomes = [(None, self._translate_error(exc))] * len(changes)
        for change, (result, error) in zip(changes, outcomes, strict=True):
            change.resolve(result, error)

    def _apply(self, database: sqlite3.Connection, change: "_PendingChange") -> tuple[Any, Exception | None]:
        """Run a change in a transaction of several changes. If the change fails, undo only this change."""
        if change.future.cancelled():
            return None, None
        database.execute("SAVEPOINT change")
        try:
            result = change.function(database, *change.args)
        except Exception as exc:
            if not database.in_transaction:
                # SQLite has undone the whole transaction, for example because the disk is full.
                raise
            database.execute("ROLLBACK TO change")
            return None, self._translate_error(exc)
        finally:
            if database.in_transaction:
                database.execute("RELEASE change")
        return result, None

    def _call(self, function: Callable[..., T], args: tuple[Any, ...]) -> T:
        try:
            return function(*args)
        except (sqlite3.DatabaseError, DamagedFile) as exc:
            raise self._translate_error(exc) from exc

    def _translate_error(self, error: Exception) -> Exception:
        """Convert an error of SQLite to TaskStoreUnavailable. For example, the file is locked or the disk is full."""
        if isinstance(error, sqlite3.Error | DamagedFile):
            error_type = TaskUnreadable if isinstance(error, DamagedFile) else TaskStoreUnavailable
            return error_type(f"the task store {self._path} cannot be used: {error}")
        return error

    def _create(self, database: sqlite3.Connection, record: TaskRecord, limits: TaskLimits) -> None:
        owner = _hash_owner(record.owner)
        lease_holder, lease_expires_at = _split_lease(record.lease)
        data = self._codec.encode(record)
        values = (
            record.id,
            record.version,
            record.server,
            owner,
            record.status,
            record.created_at,
            record.expires_at,
            record.retention,
            compute_due_at(record),
            lease_holder,
            lease_expires_at,
            record.is_cancel_requested,
            data,
        )
        self._check_room(database, owner, len(data), limits)
        try:
            database.execute(_INSERT, values)
        except sqlite3.IntegrityError:
            raise TaskConflict(record.id, self._select(database, record.id)) from None
        self._creates_until_count -= 1
        self._bytes_until_sum -= len(data)

    def _check_room(self, database: sqlite3.Connection, owner: bytes | None, size: int, limits: TaskLimits) -> None:
        if owner is not None:
            count = database.execute(_COUNT_UNFINISHED, (owner,)).fetchone()[0]
            if count >= limits.max_tasks_per_owner:
                raise TaskStoreFull(f"this owner already has {count} tasks that have not ended")
        if self._creates_until_count <= 0:
            # Counting reads all tasks, so the store counts rarely while it is far below the limit.
            count = database.execute("SELECT count(*) FROM tasks").fetchone()[0]
            if count >= limits.max_tasks:
                raise TaskStoreFull(f"the task store already has {count} tasks")
            self._creates_until_count = min(_MAX_UNCOUNTED, (limits.max_tasks - count + 1) // 2)
        if self._bytes_until_sum < size:
            total_bytes = int(database.execute("SELECT total(length(record)) FROM tasks").fetchone()[0])
            if total_bytes + size > limits.max_bytes:
                raise TaskStoreFull(f"the task store already has {total_bytes} bytes")
            self._bytes_until_sum = min(_MAX_UNSUMMED_BYTES, (limits.max_bytes - total_bytes - size) // 2) + size

    def _get(self, id: str) -> TaskRecord | None:
        with self._database.use_reader() as database:
            return self._select(database, id)

    def _select(self, database: sqlite3.Connection, id: str) -> TaskRecord | None:
        row = database.execute(_SELECT, (id,)).fetchone()
        if row is None:
            return None
        version, expires_at, lease_holder, lease_expires_at, data = row
        lease = None if lease_holder is None else TaskLease(holder=lease_holder, expires_at=lease_expires_at)
        return replace(self._codec.decode(id, data), version=version, expires_at=expires_at, lease=lease)

    def _change(self, database: sqlite3.Connection, record: TaskRecord) -> TaskRecord:
        current = self._select(database, record.id)
        if current is None or current.version != record.version:
            raise TaskConflict(record.id, current)
        return self._update(database, current, record)

    def _claim(
        self, database: sqlite3.Connection, id: str, holder: str, now: float, lease_seconds: float
    ) -> TaskRecord | None:
        try:
            current = self._select(database, id)
        except TaskUnreadable as exc:
            # Another process may have the key for this task, so this process waits before it tries the task again.
            self._unreadable_warning.log("cannot run a task: %s", exc)
            database.execute(_DELAY, (now + _UNREADABLE_DELAY_S, id))
            return None
        record = None if current is None else claim_task(current, holder, now, lease_seconds)
        return None if current is None or record is None else self._update(database, current, record)

    def _update(self, database: sqlite3.Connection, current: TaskRecord, record: TaskRecord) -> TaskRecord:
        lease = record.lease
        if lease is not None and current.lease is not None and lease.holder == current.lease.holder:
            lease = replace(lease, expires_at=max(lease.expires_at, current.lease.expires_at))
        expires_at = record.expires_at
        if expires_at is not None and current.expires_at is not None:
            expires_at = max(expires_at, current.expires_at)
        record = replace(record, version=current.version + 1, lease=lease, expires_at=expires_at)
        values = (
            record.version,
            record.status,
            record.expires_at,
            compute_due_at(record),
            *_split_lease(lease),
            record.is_cancel_requested,
            self._codec.encode(record),
            record.id,
        )
        database.execute(_UPDATE, values)
        return record

    def _renew(
        self, database: sqlite3.Connection, holders: Mapping[str, str], now: float, lease_seconds: float
    ) -> dict[str, bool]:
        held: dict[str, bool] = {}
        for id, holder in holders.items():
            values = {"id": id, "holder": holder, "now": now, "until": now + lease_seconds}
            for (is_cancel_requested,) in database.execute(_RENEW, values).fetchall():
                held[id] = bool(is_cancel_requested)
        return held

    def _list_due(self, server: str, now: float, limit: int) -> list[str]:
        with self._database.use_reader() as database:
            return [id for (id,) in database.execute(_DUE, (server, now, limit))]

    def _list_ids(self, prefix: str, statuses: Collection[TaskStatus], limit: int) -> list[str]:
        condition = f"AND status IN ({','.join('?' * len(statuses))})" if statuses else ""
        query = f"SELECT id FROM tasks WHERE id >= ? AND id < ? {condition} ORDER BY created_at DESC LIMIT ?"
        with self._database.use_reader() as database:
            return [id for (id,) in database.execute(query, (prefix, f"{prefix}\U0010ffff", *statuses, limit))]

    def _expire(self, database: sqlite3.Connection, now: float) -> list[str]:
        values = {"now": now, "unfinished_before": now - UNFINISHED_RETENTION_S, "limit": _EXPIRE_BATCH}
        return [id for (id,) in database.execute(_EXPIRE, values).fetchall()]

    def _read_versions(self, marker: int | None, ids: list[str]) -> tuple[int, Versions | None]:
        """Return a new marker, and the versions of tasks. The versions are None if the file has not changed."""
        with self._database.use_reader() as database:
            data_version: int = database.execute("PRAGMA data_version").fetchone()[0]
            if data_version == marker:
                return data_version, None
            versions: Versions = {}
            for start in range(0, len(ids), _VERSION_BATCH):
                batch = ids[start : start + _VERSION_BATCH]
                marks = ",".join("?" * len(batch))
                versions |= database.execute(f"SELECT id, version FROM tasks WHERE id IN ({marks})", batch).fetchall()
            return data_version, versions


class _PendingChange:
    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def resolve(self, result: Any, error: Exception | None) -> None:
        """Set the result of the future in its event loop. Do nothing if the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self.future.get_loop().call_soon_threadsafe(self._set_outcome, result, error)

    def _set_outcome(self, result: Any, error: Exception | None) -> None:
        if not self.future.done():
            self.future.set_result(result) if error is None else self.future.set_exception(error)


def _split_lease(lease: TaskLease | None) -> tuple[str | None, float | None]:
    return (None, None) if lease is None else (lease.holder, lease.expires_at)


def _hash_owner(owner: str | None) -> bytes | None:
    """Return a digest of the owner's name. The column is not encrypted, so it must not contain the name."""
    return None if owner is None else hashlib.sha256(owner.encode()).digest()[:16]
