"""SQLiteStore: the data of an authorization server in a file that several processes can share."""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Final

from dovetail.oauth.authorization_server.store import REFETCHABLE_KINDS, StoreFull
from dovetail.storage import Migrations, connect_database, open_database

MAX_ENTRIES: Final = 100_000  # limit for each kind of entry
_OPEN_LOCK: Final = threading.Lock()
PURGE_EVERY_WRITES: Final = 200  # number of writes between two purges of expired entries

_SCHEMA: Final = """
CREATE TABLE kept (
    kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, until REAL NOT NULL, PRIMARY KEY (kind, key)
) WITHOUT ROWID
"""

_MIGRATIONS: Final[Migrations[sqlite3.Connection]] = (lambda database: None,)  # format 2 only added the format number

_EVICT: Final = """
DELETE FROM kept WHERE kind = ? AND key IN (SELECT key FROM kept WHERE kind = ? ORDER BY until LIMIT ?)
"""


class SQLiteStore:
    """A SQLite file that only its owner can read."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        open_database(path, _SCHEMA, _MIGRATIONS).close()  # fails at once if the file cannot be used
        self._process_id: int | None = None
        self._inherited_connections: list[sqlite3.Connection] = []

    def _open_in_process(self) -> None:
        """Open the connections and locks of this process on first use. A forked process must not use those of its
        parent.
        """
        if self._process_id == os.getpid():
            return
        with _OPEN_LOCK:
            if self._process_id == os.getpid():
                return
            if self._process_id is not None:
                self._inherited_connections += [
                    self._writer,
                    self._reader,
                ]  # keeps the connections open, because closing them would release the locks of the parent
            self._writer_lock, self._reader_lock = threading.Lock(), threading.Lock()
            self._writer = connect_database(self._path)
            self._writer.execute("PRAGMA synchronous = FULL")
            # Reads have a separate connection and do not wait for writes, because every request to a protected server
            # reads.
            self._reader = connect_database(self._path)
            self._reader.execute("PRAGMA query_only = ON")
            weakref.finalize(
                self, _close_connections, self._writer, self._reader, os.getpid()
            )  # closes the connections if close() is never called
            self._write_count = 0
            self._process_id = os.getpid()

    @contextlib.contextmanager
    def _use_writer(self) -> Generator[sqlite3.Connection]:
        self._open_in_process()
        with self._writer_lock:
            yield self._writer

    @contextlib.contextmanager
    def _use_reader(self) -> Generator[sqlite3.Connection]:
        self._open_in_process()
        with self._reader_lock:
            yield self._reader

    def get(self, kind: str, key: str, now: float) -> bytes | None:
        """Return the value, or None if the key has no value or the value has expired."""
        with self._use_reader() as reader:
            row = reader.execute("SELECT value, until FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return None if row is None or row[1] <= now else row[0]

    def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Store a value."""
        with self._use_writer() as writer:
            self._make_room(kind, key, now)
            writer.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (kind, key, value, until))

    def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Store a value if the key has none and return None. Otherwise return the existing value. If several processes
        call this at once, one succeeds.
        """
        statement = (
            "INSERT INTO kept VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
            "SET value = excluded.value, until = excluded.until WHERE kept.until <= ? RETURNING value"
        )
        with self._use_writer() as writer:
            self._make_room(kind, key, now)
            row = writer.execute(statement, (kind, key, value, until, now)).fetchone()
        return None if row is not None else self.get(kind, key, now)

    def _make_room(self, kind: str, key: str, now: float) -> None:
        """Delete expired entries from time to time. Raise StoreFull if the store has no room for a new key."""
        self._write_count += 1
        if self._write_count % PURGE_EVERY_WRITES == 1:
            self._writer.execute("DELETE FROM kept WHERE until <= ?", (now,))
            count = self._writer.execute("SELECT count(*) FROM kept WHERE kind = ?", (kind,)).fetchone()[0]
            existing = self._writer.execute("SELECT 1 FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
            if count >= MAX_ENTRIES and existing is None:
                if kind not in REFETCHABLE_KINDS:
                    self._write_count -= 1
                    raise StoreFull(kind)
                self._writer.execute(_EVICT, (kind, kind, count - MAX_ENTRIES + PURGE_EVERY_WRITES))

    def take(self, kind: str, key: str, now: float) -> bytes | None:
        """Delete a value and return it. If several processes call this at once, one gets the value."""
        statement = "DELETE FROM kept WHERE kind = ? AND key = ? RETURNING value, until"
        with self._use_writer() as writer:
            row = writer.execute(statement, (kind, key)).fetchone()
        return None if row is None or row[1] <= now else row[0]

    def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Replace a value if it is still `old`. Return whether it was replaced. If several processes call this at once,
        one succeeds.
        """
        statement = (
            "UPDATE kept SET value = ?, until = ? WHERE kind = ? AND key = ? AND value = ? AND until > ? RETURNING key"
        )
        with self._use_writer() as writer:
            return writer.execute(statement, (value, until, kind, key, old, now)).fetchone() is not None

    def all(self, kind: str, now: float) -> list[tuple[str, bytes]]:
        """Return every key of a kind with its value."""
        statement = "SELECT key, value FROM kept WHERE kind = ? AND until > ?"
        with self._use_reader() as reader:
            return reader.execute(statement, (kind, now)).fetchall()

    def close(self) -> None:
        """Close the connections."""
        with self._use_writer() as writer, self._use_reader() as reader:
            reader.close()
            writer.close()


def _close_connections(writer: sqlite3.Connection, reader: sqlite3.Connection, process_id: int) -> None:
    """Close the connections of a garbage-collected store, if this process opened them."""
    if process_id == os.getpid():
        reader.close()
        writer.close()
