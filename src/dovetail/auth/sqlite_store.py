"""Storage of an authorization server in a SQLite file that several processes can share."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import Final

from dovetail.errors import DamagedFile
from dovetail.oauth.authorization_server.responses import hash_secret
from dovetail.oauth.authorization_server.store import (
    REFETCHABLE_KINDS,
    AuthorizationCode,
    StoreFull,
    StoreUnavailable,
    TokenFamily,
    UserIndex,
    decode_record,
    encode_record,
)
from dovetail.storage import Migrations, SharedDatabase

MAX_ENTRIES: Final = 100_000  # The store contains at most this many entries of each kind.
PURGE_EVERY_WRITES: Final = 200  # Expired entries are deleted after this many writes.

_SCHEMA: Final = """
CREATE TABLE kept (
    kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, until REAL NOT NULL, PRIMARY KEY (kind, key)
) WITHOUT ROWID
"""


def _index_users(database: sqlite3.Connection) -> None:
    """Create an index of the codes and token families of each user."""
    indexes: dict[str, dict[str, float]] = {}
    for kind, record_type in (("code", AuthorizationCode), ("family", TokenFamily)):
        rows = database.execute("SELECT key, value, until FROM kept WHERE kind = ?", (kind,)).fetchall()
        for key, value, until in rows:
            record = decode_record(value, record_type)
            if record is not None and record.grant.subject:
                indexes.setdefault(record.grant.subject, {})[f"{kind} {key}"] = until
    for subject, entries in indexes.items():
        row = ("user", hash_secret(subject), encode_record(UserIndex(entries=entries)), max(entries.values()))
        database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", row)


# Version 2 of the file only added the version number. Version 3 has an index of the logins of each user.
_MIGRATIONS: Final[Migrations[sqlite3.Connection]] = (lambda database: None, _index_users)

_EVICT: Final = """
DELETE FROM kept WHERE kind = ? AND key IN (SELECT key FROM kept WHERE kind = ? ORDER BY until LIMIT ?)
"""


class SQLiteStore:
    """A store that keeps the data of an authorization server in a SQLite file. Only the owner can read the file."""

    def __init__(self, path: str | Path) -> None:
        # Reads must not wait for writes, because every request to a protected server reads from the store.
        self._database = SharedDatabase(path, "store of an authorization server", _SCHEMA, _MIGRATIONS)
        self._write_count = 0

    @contextlib.contextmanager
    def _use_writer(self) -> Generator[sqlite3.Connection]:
        with _report_unavailable(), self._database.use_writer() as writer:
            yield writer

    @contextlib.contextmanager
    def _use_reader(self) -> Generator[sqlite3.Connection]:
        with _report_unavailable(), self._database.use_reader() as reader:
            yield reader

    async def get(self, kind: str, key: str, now: float) -> bytes | None:
        """Return the value, or None if the key has no value or the value has expired."""
        # Reading does not wait for writes, so it needs no thread.
        return self._get(kind, key, now)

    async def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Store a value."""
        await asyncio.to_thread(self._put, kind, key, value, until, now)

    async def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Store a value if the key is new, and return None. Otherwise return the existing value.

        Only one of several concurrent calls succeeds.
        """
        return await asyncio.to_thread(self._add, kind, key, value, until, now)

    async def take(self, kind: str, key: str, now: float) -> bytes | None:
        """Delete a value and return it. Only one of several concurrent calls gets the value."""
        return await asyncio.to_thread(self._take, kind, key, now)

    async def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Replace a value if it equals `old`. Return True if the value was replaced.

        Only one of several concurrent calls succeeds.
        """
        return await asyncio.to_thread(self._swap, kind, key, old, value, until, now)

    async def use_once(self, kind: str, key: str, since: float, until: float, now: float) -> bool:
        """Record the use of an ID until it expires. Return True if this is the first use."""
        return await self.add(kind, key, b"1", until, now) is None

    def _get(self, kind: str, key: str, now: float) -> bytes | None:
        with self._use_reader() as reader:
            row = reader.execute("SELECT value, until FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return None if row is None or row[1] <= now else row[0]

    def _put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        with self._use_writer() as writer:
            self._make_room(writer, kind, key, now)
            writer.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (kind, key, value, until))

    def _add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        statement = (
            "INSERT INTO kept VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
            "SET value = excluded.value, until = excluded.until WHERE kept.until <= ? RETURNING value"
        )
        with self._use_writer() as writer:
            self._make_room(writer, kind, key, now)
            row = writer.execute(statement, (kind, key, value, until, now)).fetchone()
        return None if row is not None else self._get(kind, key, now)

    def _make_room(self, writer: sqlite3.Connection, kind: str, key: str, now: float) -> None:
        """Delete expired entries from time to time. Raise StoreFull if there is no room for a new key."""
        self._write_count += 1
        if self._write_count % PURGE_EVERY_WRITES == 1:
            writer.execute("DELETE FROM kept WHERE until <= ?", (now,))
            count = writer.execute("SELECT count(*) FROM kept WHERE kind = ?", (kind,)).fetchone()[0]
            existing = writer.execute("SELECT 1 FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
            if count >= MAX_ENTRIES and existing is None:
                if kind not in REFETCHABLE_KINDS:
                    self._write_count -= 1
                    raise StoreFull(kind)
                writer.execute(_EVICT, (kind, kind, count - MAX_ENTRIES + PURGE_EVERY_WRITES))

    def _take(self, kind: str, key: str, now: float) -> bytes | None:
        statement = "DELETE FROM kept WHERE kind = ? AND key = ? RETURNING value, until"
        with self._use_writer() as writer:
            row = writer.execute(statement, (kind, key)).fetchone()
        return None if row is None or row[1] <= now else row[0]

    def _swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        statement = (
            "UPDATE kept SET value = ?, until = ? WHERE kind = ? AND key = ? AND value = ? AND until > ? RETURNING key"
        )
        with self._use_writer() as writer:
            return writer.execute(statement, (value, until, kind, key, old, now)).fetchone() is not None

    def close(self) -> None:
        """Close the connections."""
        with _report_unavailable():
            self._database.close()


@contextlib.contextmanager
def _report_unavailable() -> Generator[None]:
    """Raise StoreUnavailable if the file is locked, read-only or damaged, or the disk is full."""
    try:
        yield
    except (sqlite3.OperationalError, DamagedFile) as exc:
        raise StoreUnavailable(str(exc)) from exc
