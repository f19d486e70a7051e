"""The SQLite file that the workers of one machine share. The file is temporary, so no write waits for the disk.

A statement usually takes less time than a switch to a thread, so it runs in the event loop. If another worker writes at
that moment, the statement waits in a thread instead, for a limited time.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from dovetail.protocol.limits import MiB
from dovetail.protocol.shared_state import SharedStateUnavailable
from dovetail.storage import connect_database, open_database

_MAX_FILE_BYTES: Final = 1024 * MiB
_LOCK_TIMEOUT_S: Final = 2.0
_PURGE_BATCH: Final = 1000

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
CREATE INDEX streams_by_expiry ON streams (expires_at)
"""
_EXPIRING_TABLES: Final = {
    "shared_values": "name",
    "used_ids": "name",
    "rates": "name",
    "inbox": "id",
    "streams": "name",
}

T = TypeVar("T")
Work = Callable[[sqlite3.Connection, float], T]


class LocalDatabase:
    """The connections of one worker to the shared file. Create this object after the process was forked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = _prepare(open_database(path, _SCHEMA, ()), lock_timeout_s=_LOCK_TIMEOUT_S)
        _transact(self._connection, _start_epoch)
        self._connection.execute("PRAGMA busy_timeout = 0")
        self._file_id = path.stat().st_ino
        self._waiting_connection: sqlite3.Connection | None = None
        self._executor: ThreadPoolExecutor | None = (
            None  # created when another worker holds the lock for the first time
        )

    async def change(self, work: Work[T]) -> T:
        """Run `work(connection, now)` in a transaction. The function may run twice."""
        try:
            return _transact(self._connection, work)
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise _describe(exc) from exc
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="dovetail-cluster")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._wait_and_transact, work)
        except sqlite3.OperationalError as exc:
            raise _describe(exc) from exc

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
        except sqlite3.OperationalError as exc:
            raise _describe(exc) from exc

    def _wait_and_transact(self, work: Work[T]) -> T:
        if self._waiting_connection is None:
            self._waiting_connection = _prepare(connect_database(self._path), lock_timeout_s=_LOCK_TIMEOUT_S)
        return _transact(self._waiting_connection, work)

    def is_replaced(self) -> bool:
        """Return whether the file was deleted or replaced. In that case, new workers use a different file."""
        try:
            return self._path.stat().st_ino != self._file_id
        except FileNotFoundError:
            return True

    async def purge(self) -> None:
        """Delete a limited number of expired rows."""
        await self.change(_purge)

    def close(self) -> None:
        """Wait for the statement that runs in a thread, and close the connections."""
        if self._executor is not None:
            self._executor.shutdown()
        if self._waiting_connection is not None:
            self._waiting_connection.close()
        self._connection.close()


def _prepare(connection: sqlite3.Connection, *, lock_timeout_s: float) -> sqlite3.Connection:
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {_MAX_FILE_BYTES // page_bytes}")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA busy_timeout = {int(lock_timeout_s * 1000)}")
    return connection


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


def _purge(connection: sqlite3.Connection, now: float) -> None:
    for table, key in _EXPIRING_TABLES.items():
        selection = f"SELECT {key} FROM {table} WHERE expires_at <= ? LIMIT {_PURGE_BATCH}"
        if table == "streams":
            names = connection.execute(selection, (now,)).fetchall()
            connection.executemany("DELETE FROM events WHERE stream = ?", names)
            connection.executemany("DELETE FROM streams WHERE name = ?", names)
        else:
            connection.execute(f"DELETE FROM {table} WHERE {key} IN ({selection})", (now,))
    connection.execute("DELETE FROM places WHERE expires_at <= ?", (now,))


def _describe(exc: sqlite3.OperationalError) -> SharedStateUnavailable:
    if exc.sqlite_errorcode == sqlite3.SQLITE_FULL:
        return SharedStateUnavailable(f"the shared file is full. It has {_MAX_FILE_BYTES} bytes, or the disk is full")
    return SharedStateUnavailable(f"the shared file cannot be used: {exc}")
