"""SqliteStore: what an authorization server remembers, in a file that survives it and that several processes share."""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Final

from dovetail.auth.server.store import FETCHED, Full

MAX_ENTRIES: Final = 100_000  # of one kind
_OPENING: Final = threading.Lock()
PURGE_EVERY_WRITES: Final = 200  # writes between two looks for what is over

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS kept (
    kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, until REAL NOT NULL, PRIMARY KEY (kind, key)
) WITHOUT ROWID
"""

_FORGET: Final = """
DELETE FROM kept WHERE kind = ? AND key IN (SELECT key FROM kept WHERE kind = ? ORDER BY until LIMIT ?)
"""


class SqliteStore:
    """One file, readable by its owner alone."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with contextlib.closing(self._connected()) as base:  # what cannot be used shows at once
            base.execute("PRAGMA journal_mode = WAL")
            base.execute(_SCHEMA)
        self._process: int | None = None
        self._inherited: list[sqlite3.Connection] = []

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=5.0, isolation_level=None, check_same_thread=False)

    def _own(self) -> None:
        """Connections and locks of this process, when they are first used here: what came by a fork is its parent's."""
        if self._process == os.getpid():
            return
        with _OPENING:
            if self._process == os.getpid():
                return
            if self._process is not None:
                self._inherited += [self._base, self._reader]  # closing them here would undo the parent's locks
            self._lock, self._reading = threading.Lock(), threading.Lock()
            self._base = self._connected()
            self._base.execute("PRAGMA synchronous = FULL")
            # Whoever reads waits for nobody who writes: every request at a guarded server reads.
            self._reader = self._connected()
            self._reader.execute("PRAGMA query_only = ON")
            weakref.finalize(self, _close, self._base, self._reader, os.getpid())  # for users who never call close()
            self._writes = 0
            self._process = os.getpid()

    @contextlib.contextmanager
    def _written(self) -> Generator[sqlite3.Connection]:
        self._own()
        with self._lock:
            yield self._base

    @contextlib.contextmanager
    def _read(self) -> Generator[sqlite3.Connection]:
        self._own()
        with self._reading:
            yield self._reader

    def get(self, kind: str, key: str, now: float) -> bytes | None:
        """The value, if it is there."""
        with self._read() as reader:
            found = reader.execute("SELECT value, until FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return None if found is None or found[1] <= now else found[0]

    def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Remember a value."""
        with self._written() as base:
            self._make_room(kind, key, now)
            base.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (kind, key, value, until))

    def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Remember a value if there is none; None, or what was there. Of several processes one succeeds."""
        statement = (
            "INSERT INTO kept VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
            "SET value = excluded.value, until = excluded.until WHERE kept.until <= ? RETURNING value"
        )
        with self._written() as base:
            self._make_room(kind, key, now)
            written = base.execute(statement, (kind, key, value, until, now)).fetchone()
        return None if written is not None else self.get(kind, key, now)

    def _make_room(self, kind: str, key: str, now: float) -> None:
        """Forget what is over, now and then; Full if that leaves no room for what is not there yet."""
        self._writes += 1
        if self._writes % PURGE_EVERY_WRITES == 1:
            self._base.execute("DELETE FROM kept WHERE until <= ?", (now,))
            count = self._base.execute("SELECT count(*) FROM kept WHERE kind = ?", (kind,)).fetchone()[0]
            there = self._base.execute("SELECT 1 FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
            if count >= MAX_ENTRIES and there is None:
                if kind not in FETCHED:
                    self._writes -= 1
                    raise Full(kind)
                self._base.execute(_FORGET, (kind, kind, count - MAX_ENTRIES + PURGE_EVERY_WRITES))

    def take(self, kind: str, key: str, now: float) -> bytes | None:
        """The value, which is gone with that; of several processes one gets it."""
        statement = "DELETE FROM kept WHERE kind = ? AND key = ? RETURNING value, until"
        with self._written() as base:
            found = base.execute(statement, (kind, key)).fetchone()
        return None if found is None or found[1] <= now else found[0]

    def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Put a value where the old one still is; of several processes one succeeds."""
        statement = (
            "UPDATE kept SET value = ?, until = ? WHERE kind = ? AND key = ? AND value = ? AND until > ? RETURNING key"
        )
        with self._written() as base:
            return base.execute(statement, (value, until, kind, key, old, now)).fetchone() is not None

    def all(self, kind: str, now: float) -> list[tuple[str, bytes]]:
        """Every key of a kind, with its value."""
        statement = "SELECT key, value FROM kept WHERE kind = ? AND until > ?"
        with self._read() as reader:
            return reader.execute(statement, (kind, now)).fetchall()

    def close(self) -> None:
        """Let go of the file."""
        with self._written() as base, self._read() as reader:
            reader.close()
            base.close()


def _close(base: sqlite3.Connection, reader: sqlite3.Connection, process: int) -> None:
    """Close the connections of a store that is gone, in the process that opened them."""
    if process == os.getpid():
        reader.close()
        base.close()
