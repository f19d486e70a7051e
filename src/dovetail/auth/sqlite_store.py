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

MAX_ENTRIES: Final = 100_000  # of one kind
_OPEN_LOCK: Final = threading.Lock()
PURGE_EVERY_WRITES: Final = 200  # writes between two looks for what is over

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS kept (
    kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, until REAL NOT NULL, PRIMARY KEY (kind, key)
) WITHOUT ROWID
"""

_EVICT: Final = """
DELETE FROM kept WHERE kind = ? AND key IN (SELECT key FROM kept WHERE kind = ? ORDER BY until LIMIT ?)
"""


class SQLiteStore:
    """One file, readable by its owner alone."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with contextlib.closing(self._connect()) as connection:  # what cannot be used shows at once
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(_SCHEMA)
        self._process_id: int | None = None
        self._inherited_connections: list[sqlite3.Connection] = []

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=5.0, isolation_level=None, check_same_thread=False)

    def _open_in_process(self) -> None:
        """Connections and locks of this process, when they are first used here: what came by a fork is its parent's."""
        if self._process_id == os.getpid():
            return
        with _OPEN_LOCK:
            if self._process_id == os.getpid():
                return
            if self._process_id is not None:
                self._inherited_connections += [
                    self._writer,
                    self._reader,
                ]  # closing them here would undo the parent's locks
            self._writer_lock, self._reader_lock = threading.Lock(), threading.Lock()
            self._writer = self._connect()
            self._writer.execute("PRAGMA synchronous = FULL")
            # Whoever reads waits for nobody who writes: every request at a guarded server reads.
            self._reader = self._connect()
            self._reader.execute("PRAGMA query_only = ON")
            weakref.finalize(
                self, _close_connections, self._writer, self._reader, os.getpid()
            )  # for users who never call close()
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
        """The value, if it is there."""
        with self._use_reader() as reader:
            row = reader.execute("SELECT value, until FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return None if row is None or row[1] <= now else row[0]

    def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Remember a value."""
        with self._use_writer() as writer:
            self._make_room(kind, key, now)
            writer.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (kind, key, value, until))

    def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Remember a value if there is none; None, or what was there. Of several processes one succeeds."""
        statement = (
            "INSERT INTO kept VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
            "SET value = excluded.value, until = excluded.until WHERE kept.until <= ? RETURNING value"
        )
        with self._use_writer() as writer:
            self._make_room(kind, key, now)
            row = writer.execute(statement, (kind, key, value, until, now)).fetchone()
        return None if row is not None else self.get(kind, key, now)

    def _make_room(self, kind: str, key: str, now: float) -> None:
        """Forget what is over, now and then; StoreFull if that leaves no room for what is not there yet."""
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
        """The value, which is gone with that; of several processes one gets it."""
        statement = "DELETE FROM kept WHERE kind = ? AND key = ? RETURNING value, until"
        with self._use_writer() as writer:
            row = writer.execute(statement, (kind, key)).fetchone()
        return None if row is None or row[1] <= now else row[0]

    def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Put a value where the old one still is; of several processes one succeeds."""
        statement = (
            "UPDATE kept SET value = ?, until = ? WHERE kind = ? AND key = ? AND value = ? AND until > ? RETURNING key"
        )
        with self._use_writer() as writer:
            return writer.execute(statement, (value, until, kind, key, old, now)).fetchone() is not None

    def all(self, kind: str, now: float) -> list[tuple[str, bytes]]:
        """Every key of a kind, with its value."""
        statement = "SELECT key, value FROM kept WHERE kind = ? AND until > ?"
        with self._use_reader() as reader:
            return reader.execute(statement, (kind, now)).fetchall()

    def close(self) -> None:
        """Let go of the file."""
        with self._use_writer() as writer, self._use_reader() as reader:
            reader.close()
            writer.close()


def _close_connections(writer: sqlite3.Connection, reader: sqlite3.Connection, process_id: int) -> None:
    """Close the connections of a store that is gone, in the process that opened them."""
    if process_id == os.getpid():
        reader.close()
        writer.close()
