"""The SQLite file that the workers of one machine share. The file is temporary, so no write waits for the disk.

A statement usually takes less time than a switch to a thread, so it runs in the event loop. If another worker writes at
that moment, the statement waits in a thread instead, for a limited time. Purges and checkpoints always run there.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from dovetail.log import ThrottledLog
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.protocol.limits import MiB
from dovetail.storage import connect_database, open_database

_MAX_FILE_BYTES: Final = 1024 * MiB
_LOCK_TIMEOUT_S: Final = 2.0
_MAX_WAITING: Final = 1000  # the maximum number of changes that wait for the lock
_PROBLEM_SHOWN_S: Final = 10.0
_PURGE_BATCH: Final = 1000
# The thread copies new pages from the log to the file. This limit is for the case that it is too slow.
_MAX_LOG_PAGES: Final = 8000

# All times come from the monotonic clock, which is the same in all processes of a machine.
_SCHEMA: Final = """
CREATE TABLE epoch (id TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE shared_values (name TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL, expires_at REAL)
    WITHOUT ROWID;
CREATE TABLE used_ids (name TEXT PRIMARY KEY, attempt TEXT NOT NULL, expires_at REAL) WITHOUT ROWID;
CREATE TABLE rates (name TEXT PRIMARY KEY, full_at REAL, expires_at REAL) WITHOUT ROWID;
CREATE TABLE places (name TEXT, holder TEXT, worker TEXT, expires_at REAL, PRIMARY KEY (name, holder)) WITHOUT ROWID;
CREATE TABLE inbox (id INTEGER PRIMARY KEY AUTOINCREMENT, worker TEXT NOT NULL, data BLOB NOT NULL, expires_at REAL);
CREATE TABLE changes (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL);
CREATE TABLE streams (
    name TEXT PRIMARY KEY, writer TEXT NOT NULL, header BLOB NOT NULL, first_number INTEGER NOT NULL,
    last_number INTEGER NOT NULL, stored_bytes INTEGER NOT NULL, ended_by TEXT, expires_at REAL
) WITHOUT ROWID;
CREATE TABLE events (
    stream TEXT, number INTEGER, data BLOB NOT NULL, is_last INTEGER NOT NULL, PRIMARY KEY (stream, number)
) WITHOUT ROWID;
CREATE TABLE followers (stream TEXT, worker TEXT, PRIMARY KEY (stream, worker)) WITHOUT ROWID;
CREATE INDEX inbox_by_worker ON inbox (worker);
CREATE INDEX values_by_expiry ON shared_values (expires_at);
CREATE INDEX used_ids_by_expiry ON used_ids (expires_at);
CREATE INDEX rates_by_expiry ON rates (expires_at);
CREATE INDEX places_by_expiry ON places (expires_at);
CREATE INDEX inbox_by_expiry ON inbox (expires_at);
CREATE INDEX streams_by_expiry ON streams (expires_at);
CREATE INDEX streams_by_writer ON streams (writer)
"""
_EXPIRING_TABLES: Final = {
    "shared_values": "name",
    "used_ids": "name",
    "rates": "name",
    "places": "name, holder",
    "inbox": "id",
    "streams": "name",
}

T = TypeVar("T")
Work = Callable[[sqlite3.Connection, float], T]


class LocalDatabase:
    """The connections of one worker to the shared file. Create this object after the process was forked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = _prepare(
            open_database(path, "cluster database", _SCHEMA, ()), lock_timeout_s=_LOCK_TIMEOUT_S
        )
        _transact(self._connection, _start_epoch)
        _set_lock_timeout(self._connection, 0.0)
        self._file_id = path.stat().st_ino
        self._thread_connection: sqlite3.Connection | None = None
        self._executor: ThreadPoolExecutor | None = None  # created when a statement has to wait for the first time
        self._waiting_count = 0
        self._is_blocked = False  # whether another worker has held the lock for too long
        self._problem: str | None = None
        self._problem_at = 0.0
        self._warning = ThrottledLog()

    @property
    def problem(self) -> str | None:
        """Return why an operation failed in the last seconds, or None."""
        if self._problem is not None and time.monotonic() - self._problem_at > _PROBLEM_SHOWN_S:
            self._problem = None
        return self._problem

    async def change(self, work: Work[T]) -> T:
        """Run `work(connection, now)` in a transaction. The function may run twice.

        Raises:
            SharedStateUnavailable: the change failed, or another worker held the lock for two seconds. While it
                holds the lock for longer, one change waits for it, and the others fail at once.
        """
        try:
            result = _transact(self._connection, work)
        except sqlite3.DatabaseError as exc:
            if not _is_busy(exc) or (self._is_blocked and self._waiting_count):
                raise self._report(exc) from exc
        else:
            self._report_success()
            return result
        if self._waiting_count >= _MAX_WAITING:
            raise self._report_problem("too many changes wait for the lock of the shared file")
        self._waiting_count += 1
        try:
            result = await self._run_in_thread(lambda connection: _transact(connection, work))
            self._report_success()
            return result
        finally:
            self._waiting_count -= 1

    def read(self, work: Work[T]) -> T:
        """Run `work(connection, now)`, which must only read. Readers never wait for writers."""
        connection = self._connection
        try:
            # In one transaction, all statements of the function see the same state.
            connection.execute("BEGIN")
            try:
                return work(connection, time.monotonic())
            finally:
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as exc:
            raise self._report(exc) from exc

    async def _run_in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="dovetail-cluster")
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._wait_until, deadline, work)
        except sqlite3.DatabaseError as exc:
            raise self._report(exc) from exc

    def _wait_until(self, deadline: float, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._thread_connection is None:
            self._thread_connection = _prepare(connect_database(self._path), lock_timeout_s=0.0)
        # The time in the queue counts as well, so several changes do not wait one after the other.
        _set_lock_timeout(self._thread_connection, max(0.0, deadline - time.monotonic()))
        return work(self._thread_connection)

    def _report_success(self) -> None:
        if self._is_blocked:
            self._is_blocked, self._problem = False, None

    def _report(self, exc: sqlite3.DatabaseError) -> SharedStateUnavailable:
        if _is_busy(exc):
            self._is_blocked = True
            return self._report_problem("another worker has held the lock of the shared file for too long")
        if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return self._report_problem(f"the shared file is full. It has {_MAX_FILE_BYTES} bytes, or the disk is full")
        return self._report_problem(f"the shared file {self._path} cannot be used: {exc}")

    def _report_problem(self, problem: str) -> SharedStateUnavailable:
        self._problem, self._problem_at = problem, time.monotonic()
        self._warning.log("%s", problem)
        return SharedStateUnavailable(problem)

    def is_replaced(self) -> bool:
        """Return whether the file was deleted or replaced. In that case, new workers use a different file."""
        try:
            return self._path.stat().st_ino != self._file_id
        except FileNotFoundError:
            return True

    async def purge(self, is_alive: Callable[[str], bool], max_lost_bytes: int) -> None:
        """Delete expired rows and what lost workers have left, and move the log into the file.

        Args:
            is_alive: Returns whether a worker is alive.
            max_lost_bytes: The maximum size of the streams of lost workers. The oldest are deleted first.
        """
        # A worker that is paused in a transaction blocks all other workers. So each transaction is short. If there is
        # nothing to delete, there is no transaction.
        while await self._run_in_thread(_has_expired_rows):
            await self._run_in_thread(lambda connection: _transact(connection, _delete_expired_rows))
        garbage = await self._run_in_thread(lambda connection: _find_garbage(is_alive, max_lost_bytes, connection))
        if any(garbage.values()):
            await self._run_in_thread(lambda connection: _transact(connection, partial(_delete_rows, garbage)))
        await self._run_in_thread(lambda connection: connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone())

    async def close(self) -> None:
        """Wait for the statements in the thread, at most until their deadline, and close the connections."""
        if self._executor is not None:
            await asyncio.to_thread(self._executor.shutdown)
        if self._thread_connection is not None:
            self._thread_connection.close()
        self._connection.close()


def _prepare(connection: sqlite3.Connection, *, lock_timeout_s: float) -> sqlite3.Connection:
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {_MAX_FILE_BYTES // page_bytes}")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_MAX_LOG_PAGES}")
    _set_lock_timeout(connection, lock_timeout_s)
    return connection


def _set_lock_timeout(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def _is_busy(exc: sqlite3.DatabaseError) -> bool:
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _transact(connection: sqlite3.Connection, work: Work[T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection, time.monotonic())
        connection.execute("COMMIT")
    except BaseException:
        # After some errors, such as a full disk, SQLite has already ended the transaction.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _start_epoch(connection: sqlite3.Connection, now: float) -> None:
    statement = "INSERT INTO epoch SELECT lower(hex(randomblob(6))), ? WHERE NOT EXISTS (SELECT 1 FROM epoch)"
    connection.execute(statement, (now,))


def _has_expired_rows(connection: sqlite3.Connection) -> bool:
    now = time.monotonic()
    statements = (f"SELECT EXISTS (SELECT 1 FROM {table} WHERE expires_at <= ?)" for table in _EXPIRING_TABLES)
    return any(connection.execute(statement, (now,)).fetchone()[0] for statement in statements)


def _delete_expired_rows(connection: sqlite3.Connection, now: float) -> None:
    """Delete a limited number of expired rows of each table."""
    for table, key in _EXPIRING_TABLES.items():
        selection = f"SELECT {key} FROM {table} WHERE expires_at <= ? LIMIT {_PURGE_BATCH}"
        if table == "streams":
            _delete_rows({"streams.name": connection.execute(selection, (now,)).fetchall()}, connection, now)
        else:
            connection.execute(f"DELETE FROM {table} WHERE ({key}) IN ({selection})", (now,))


def _find_garbage(
    is_alive: Callable[[str], bool], max_stream_bytes: int, connection: sqlite3.Connection
) -> dict[str, list[tuple[str]]]:
    """Return what lost workers have left. The keys are columns, and the values are the rows to delete."""

    def find_lost(table: str, column: str) -> list[tuple[str]]:
        names = connection.execute(f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()
        # Read the names first. A worker that starts in between is alive, so its data is kept.
        return [(name,) for (name,) in names if not is_alive(name)]

    statement = "SELECT name, stored_bytes, expires_at FROM streams WHERE writer = ?"
    streams = [row for writer in find_lost("streams", "writer") for row in connection.execute(statement, writer)]
    total, excess = 0, list[tuple[str]]()
    for name, size, _ in sorted(streams, key=lambda stream: stream[2], reverse=True):
        total += size
        if total > max_stream_bytes:
            excess.append((name,))
    garbage = {f"{table}.worker": find_lost(table, "worker") for table in ("followers", "places", "inbox")}
    return garbage | {"streams.name": excess}


def _delete_rows(rows: dict[str, list[tuple[str]]], connection: sqlite3.Connection, now: float) -> None:
    for place, values in rows.items():
        table, _, column = place.partition(".")
        if table == "streams":
            connection.executemany("DELETE FROM events WHERE stream = ?", values)
        connection.executemany(f"DELETE FROM {table} WHERE {column} = ?", values)
