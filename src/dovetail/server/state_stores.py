"""Stores for the state that functions keep between calls: in memory, in a SQLite file, or shared by several workers."""

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from dovetail.errors import ServerBusy
from dovetail.protocol.interfaces.shared_state import SharedWorker
from dovetail.protocol.interfaces.state_store import StateStore
from dovetail.protocol.limits import MiB
from dovetail.storage import Migrations, SharedDatabase

_MAX_MEMORY_BYTES: Final = 256 * MiB
_ENTRY_BYTES: Final = 200  # An entry needs about this many bytes in addition to its name and value.
_PURGE_EVERY_WRITES: Final = 200
_FOREVER_S: Final = 10 * 365 * 86400.0

_SCHEMA: Final = "CREATE TABLE state (name TEXT PRIMARY KEY, data BLOB NOT NULL, expires_at REAL) WITHOUT ROWID"
_MIGRATIONS: Final[Migrations[Any]] = ()


class MemoryStateStore:
    """Keeps state in the memory of one process. It is lost when the process ends.

    Args:
        max_bytes: The maximum size of all values. If the store is full, a new value raises ServerBusy.
    """

    def __init__(self, max_bytes: int = _MAX_MEMORY_BYTES) -> None:
        self._entries: dict[str, tuple[bytes, float]] = {}
        self._max_bytes = max_bytes
        self._stored_bytes = 0
        self._write_count = 0

    async def get(self, name: str) -> bytes | None:
        """Return a value, or None if there is no value or it has expired."""
        data, expires_at = self._entries.get(name, (None, 0.0))
        return data if expires_at > time.monotonic() else None

    async def set(self, name: str, data: bytes, ttl: float | None) -> None:
        """Store a value for `ttl` seconds. None means that it does not expire."""
        size, now = self._measure(name, data), time.monotonic()
        self._write_count += 1
        if self._write_count % _PURGE_EVERY_WRITES == 0:
            self._purge(now)
        previous = self._entries.get(name)
        freed = 0 if previous is None else self._measure(name, previous[0])
        if self._stored_bytes - freed + size > self._max_bytes:
            self._purge(now)
            freed = freed if name in self._entries else 0
            if self._stored_bytes - freed + size > self._max_bytes:
                raise ServerBusy(f"The state of this server is larger than {self._max_bytes} bytes")
        self._stored_bytes += size - freed
        self._entries[name] = data, now + (_FOREVER_S if ttl is None else ttl)

    async def delete(self, name: str) -> None:
        """Delete a value. Do nothing if there is none."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._stored_bytes -= self._measure(name, entry[0])

    def _purge(self, now: float) -> None:
        for name, (data, expires_at) in tuple(self._entries.items()):
            if expires_at <= now:
                del self._entries[name]
                self._stored_bytes -= self._measure(name, data)

    @staticmethod
    def _measure(name: str, data: bytes) -> int:
        return len(name) + len(data) + _ENTRY_BYTES


class SQLiteStateStore:
    """Keeps state in a SQLite file, which several processes of one machine can share. Only its owner can read it.

    Args:
        path: The path of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self._database = SharedDatabase(path, "state store", _SCHEMA, _MIGRATIONS)
        self._write_count = 0

    async def get(self, name: str) -> bytes | None:
        """Return a value, or None if there is no value or it has expired."""
        return await asyncio.to_thread(self._get, name)

    async def set(self, name: str, data: bytes, ttl: float | None) -> None:
        """Store a value for `ttl` seconds. None means that it does not expire."""
        await asyncio.to_thread(self._set, name, data, None if ttl is None else time.time() + ttl)

    async def delete(self, name: str) -> None:
        """Delete a value. Do nothing if there is none."""
        await asyncio.to_thread(self._delete, name)

    def _get(self, name: str) -> bytes | None:
        with self._database.use_reader() as reader:
            row = reader.execute("SELECT data, expires_at FROM state WHERE name = ?", (name,)).fetchone()
        return row[0] if row is not None and (row[1] is None or row[1] > time.time()) else None

    def _set(self, name: str, data: bytes, expires_at: float | None) -> None:
        with self._database.change() as writer:
            writer.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (name, data, expires_at))
            self._write_count += 1
            if self._write_count % _PURGE_EVERY_WRITES == 0:
                writer.execute("DELETE FROM state WHERE expires_at <= ?", (time.time(),))

    def _delete(self, name: str) -> None:
        with self._database.change() as writer:
            writer.execute("DELETE FROM state WHERE name = ?", (name,))


def create_state_store(option: StateStore | str | Path | None, worker: SharedWorker | None) -> StateStore:
    """Return the store for the value of `state=`. `worker` is None if this process is the only worker."""
    if isinstance(option, str | Path):
        return SQLiteStateStore(option)
    if option is not None:
        return option
    return MemoryStateStore() if worker is None else worker.create_state_store()
