"""Storage of an authorization server in the shared state of a cluster, for workers on several machines."""

import asyncio
from contextlib import suppress
from typing import Final

from dovetail.log import log
from dovetail.oauth.authorization_server.store import StoreUnavailable
from dovetail.protocol.interfaces.shared_state import (
    HistoryLost,
    Message,
    SharedState,
    SharedStateUnavailable,
    StoredValue,
    use_with_retry,
)
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.wire.base import Struct

# Values of these kinds can be used only once.
# If the back end may have lost the record of a use, no caller gets the value.
_SINGLE_USE_KINDS: Final = frozenset({"code", "trip"})
_MAX_ATTEMPTS: Final = 5
_RETRY_DELAY_S: Final = 0.2


class _Record(Struct, frozen=True, array_like=True):
    value: bytes
    stored_at: float
    until: float
    epoch: str  # The epoch changes when the shared state loses data.


_records: Final = VersionedCodec(_Record)


class SharedStateStore:
    """Keeps the data of an authorization server in the shared state of its workers.

    Args:
        state: The shared state. It must outlive the workers, so that logins survive a restart of all workers.
        prefix: The start of all names.
    """

    def __init__(self, state: SharedState, prefix: str) -> None:
        self._state = state
        self._prefix = prefix
        self._is_started = False
        self._lock = asyncio.Lock()

    async def get(self, kind: str, key: str, now: float) -> bytes | None:
        """Return the value, or None if the key has no value."""
        record, _ = await self._read(kind, key, now)
        return None if record is None else record.value

    async def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Store a value."""
        await self._write(kind, key, value, until, now)

    async def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Store a value if the key is new, and return None. Otherwise return the existing value."""
        while True:
            record, stored = await self._read(kind, key, now)
            if record is not None:
                return record.value
            if await self._write(kind, key, value, until, now, expected=stored.version):
                return None

    async def take(self, kind: str, key: str, now: float) -> bytes | None:
        """Delete a value and return it. Only one of several concurrent calls gets the value."""
        while True:
            record, stored = await self._read(kind, key, now)
            if record is None:
                return None
            if kind in _SINGLE_USE_KINDS:
                # After a failover, the new primary may still have a deleted value.
                # So only the caller whose use is recorded gets the value.
                # If the deletion fails, the value stays until it expires.
                if not await self._use(f"taken {kind}", key, record.stored_at, record.until, now, record.epoch):
                    return None
                with suppress(SharedStateUnavailable):
                    await self._state.delete(self._get_name(kind, key), expected=stored.version)
                return record.value
            try:
                if await self._state.delete(self._get_name(kind, key), expected=stored.version):
                    return record.value
            except SharedStateUnavailable as exc:
                raise StoreUnavailable(str(exc)) from exc

    async def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Replace a value if it equals `old`. Return True if the value was replaced."""
        record, stored = await self._read(kind, key, now)
        if record is None or record.value != old:
            return False
        try:
            return await self._write(kind, key, value, until, now, expected=stored.version, stored=stored.data)
        except StoreUnavailable:
            return await self._check_swapped(kind, key, value, now)

    async def _check_swapped(self, kind: str, key: str, value: bytes, now: float) -> bool:
        """Find out whether a value was stored. Call this method if the back end did not answer.

        The caller must not repeat a change that has happened. For example, a refresh token would look stolen.
        """
        for _ in range(_MAX_ATTEMPTS):
            await asyncio.sleep(_RETRY_DELAY_S)
            with suppress(StoreUnavailable):
                record, _stored = await self._read(kind, key, now)
                if record is not None and record.value == value:
                    return True
                break
        raise StoreUnavailable("the back end did not answer in time")

    async def use_once(self, kind: str, key: str, since: float, until: float, now: float) -> bool:
        """Record the use of an ID until it expires. Return True if this is the first use."""
        return await self._use(kind, key, since, until, now, "")

    async def count_event(self, name: str, rate: float, burst: float, cost: float) -> float:
        """Count an event of a rate limit for all workers. Return the seconds to wait, or 0.

        The costs 0 and -1 have the same meaning as in `SharedState.take`.
        """
        await self._start()
        try:
            return await self._state.take(self._get_name("rate", name), rate, burst, cost)
        except SharedStateUnavailable as exc:
            raise StoreUnavailable(str(exc)) from exc

    async def _use(self, kind: str, key: str, since: float, until: float, now: float, epoch: str) -> bool:
        await self._start()
        name, ttl = self._get_name(kind, key), max(0.0, until - now)
        try:
            return await use_with_retry(self._state, name, since, ttl, epoch)
        except HistoryLost:
            return False
        except SharedStateUnavailable as exc:
            raise StoreUnavailable(str(exc)) from exc

    async def _read(self, kind: str, key: str, now: float) -> tuple[_Record | None, StoredValue]:
        """Return a record and its stored value. The stored value of a missing record has the version 0."""
        await self._start()
        try:
            stored = await self._state.read(self._get_name(kind, key))
        except SharedStateUnavailable as exc:
            raise StoreUnavailable(str(exc)) from exc
        if stored is None:
            return None, StoredValue(b"", 0)
        record = _records.decode(stored.data)
        if record is None:
            raise StoreUnavailable("a stored value has an unknown format, which a newer version may have written")
        return (record if now < record.until else None), stored

    async def _write(
        self,
        kind: str,
        key: str,
        value: bytes,
        until: float,
        now: float,
        *,
        expected: int | None = None,
        stored: bytes | None = None,
    ) -> bool:
        """Store a value. If a newer release has added fields to the record in `stored`, keep these fields."""
        await self._start()
        record = _Record(value, now, until, self._state.get_status().epoch)
        try:
            data, ttl = _records.encode(record, stored), max(1.0, until - now)
            version = await self._state.write(self._get_name(kind, key), data, ttl, expected=expected)
        except SharedStateUnavailable as exc:
            raise StoreUnavailable(str(exc)) from exc
        return version is not None

    def _get_name(self, kind: str, key: str) -> str:
        return f"{self._prefix}\0{kind}\0{key}"

    async def _start(self) -> None:
        if self._is_started:
            return
        async with self._lock:
            if not self._is_started:
                try:
                    await self._state.start(self)
                except SharedStateUnavailable as exc:
                    raise StoreUnavailable(str(exc)) from exc
                self._is_started = True

    async def close(self) -> None:
        """Leave the cluster."""
        if self._is_started:
            self._is_started = False
            await self._state.close()

    # The store implements SharedStateListener, but ignores all messages.

    def receive(self, message: Message) -> None:
        """Ignore a message."""

    def handle_gap(self) -> None:
        """Log that the back end may have lost logins."""
        log.warning("the shared state of the authorization server has lost records. Users may have to log in again")
