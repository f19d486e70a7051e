"""What the workers of a gateway share about each caller: the grants of its session, and the definitions that it used.

The shared state keeps both for at most a day. The grants and pins of the host's user are in files, which a deployment
copies to each machine.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.background_work import repeat_until_available
from dovetail.host.caller_pins import CallerPins
from dovetail.host.consent.grants import Grant, GrantStore, list_session_grants, replace_session_grants
from dovetail.log import ThrottledLog, log
from dovetail.protocol.interfaces.shared_state import CLOCK_MARGIN_S, SharedStateUnavailable, SharedWorker, StoredValue
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.wire.base import Struct, field

_RECORD_TTL_S: Final = 86_400.0  # A caller's session grants end after this time, so the record is not needed longer.
_MAX_GRANTS: Final = 256
_MAX_PINS: Final = 1_024
_MAX_REVOCATIONS: Final = 256
_REVOCATIONS: Final = "caller revocations"
_MAX_UNSHARED: Final = 10_000
_CLOSE_TIMEOUT_S: Final = 1.0


class CallerRecord(Struct, kw_only=True):
    """The record of one caller, which all workers share."""

    grants: list[Grant] = field(default_factory=list[Grant])
    # The keys contain a server identity and a tool name. The values are fingerprints.
    pins: dict[str, str] = field(default_factory=dict[str, str])


class _Revocation(Struct, kw_only=True):
    id: str | None
    server: str | None
    tool: str | None
    at: float

    def covers(self, grant: Grant) -> bool:
        criteria = ((self.id, grant.id), (self.server, grant.server), (self.tool, grant.tool))
        # The clocks of two machines may differ. A grant that is only slightly newer is asked for again.
        is_older = self.id is not None or grant.granted_at <= self.at + CLOCK_MARGIN_S
        return is_older and all(wanted in (None, value) for wanted, value in criteria)


class _Revocations(Struct, kw_only=True):
    entries: list[_Revocation] = field(default_factory=list[_Revocation])


_caller_records: Final = VersionedCodec(CallerRecord)
_revocations: Final = VersionedCodec(_Revocations)
T = TypeVar("T")


class SharedCallers:
    """Reads and changes the records of callers. There is one object for each host and cluster worker."""

    def __init__(self, cluster: SharedWorker, grants: GrantStore, pins: CallerPins) -> None:
        self.cluster = cluster
        self._grants = grants
        self._pins = pins
        self._loop = asyncio.get_running_loop()
        self._warning = ThrottledLog()
        self._tasks = BackgroundTasks()
        self._unshared_ids: set[str] = set()  # grants that this worker could not share yet
        cluster.add_close_handler(self._finish_revocations)

    async def load(self, caller: str) -> None:
        """Load the shared record of a caller. If the back end cannot be used, keep the data of this worker."""
        try:
            record, _ = await self._read(_get_name(caller), _caller_records)
            revocations, _ = await self._read(_REVOCATIONS, _revocations)
        except SharedStateUnavailable as exc:
            self._warning.log("what other workers know about a caller cannot be read: %s", exc)
            return
        known = CallerRecord() if record is None else record
        revoked = [] if revocations is None else revocations.entries
        # Grants that are not in the record were revoked or lost, except those that this worker could not share yet.
        unshared = [grant for grant in list_session_grants(self._grants, caller) if grant.id in self._unshared_ids]
        grants = [
            grant for grant in (*known.grants, *unshared) if not any(revocation.covers(grant) for revocation in revoked)
        ]
        replace_session_grants(self._grants, caller, grants)
        for key, fingerprint in known.pins.items():
            identity, _, tool = key.partition("\0")
            self._pins.learn(caller, identity, tool, fingerprint)
        unshared_pins = self._pins.list_pins(caller).items() - known.pins.items()
        if unshared_pins or {grant.id for grant in grants} != {grant.id for grant in known.grants}:
            await self._update(caller, grants, dict(unshared_pins), revoked)

    async def _update(self, caller: str, grants: list[Grant], pins: dict[str, str], revoked: list[_Revocation]) -> None:
        """Add the grants that could not be shared before to the record, and remove revoked grants."""

        def update(record: CallerRecord) -> None:
            known_grants = [*record.grants, *(grant for grant in grants if grant.id in self._unshared_ids)]
            valid_grants = {
                grant.id: grant for grant in known_grants if not any(revocation.covers(grant) for revocation in revoked)
            }
            record.grants = [*valid_grants.values()][-_MAX_GRANTS:]
            record.pins = pins | record.pins

        if await self._change(caller, update):
            self._unshared_ids.difference_update(grant.id for grant in grants)

    async def add_grant(self, grant: Grant) -> None:
        """Add a session grant to the shared record of its caller."""

        def add(record: CallerRecord) -> None:
            now = time.time()
            valid_grants = [known for known in record.grants if not known.is_expired(now)]
            record.grants = [*valid_grants[1 - _MAX_GRANTS :], grant]

        if not await self._change(grant.caller, add):
            if len(self._unshared_ids) >= _MAX_UNSHARED:
                self._unshared_ids.clear()  # Callers with these grants are asked again.
            self._unshared_ids.add(grant.id)

    async def add_pin(self, caller: str, identity: str, tool: str, fingerprint: str) -> None:
        """Store in the shared record which tool definition a caller uses."""

        def add(record: CallerRecord) -> None:
            record.pins.pop(f"{identity}\0{tool}", None)
            record.pins[f"{identity}\0{tool}"] = fingerprint
            if len(record.pins) > _MAX_PINS:
                del record.pins[next(iter(record.pins))]

        await self._change(caller, add)

    async def _change(self, caller: str, change: Callable[[CallerRecord], None]) -> bool:
        """Change the record of a caller. Return False if the back end cannot be used now."""
        try:
            while True:
                record, stored = await self._read(_get_name(caller), _caller_records)
                record = CallerRecord() if record is None else record
                change(record)
                data = _caller_records.encode(record, stored.data)
                if await self.cluster.state.write(_get_name(caller), data, _RECORD_TTL_S, expected=stored.version):
                    return True
        except SharedStateUnavailable as exc:
            # This worker remembers the answer. Other workers ask the user again.
            self._warning.log("an answer of a caller cannot be shared with other workers: %s", exc)
            return False

    def revoke(self, id: str | None, server: str | None, tool: str | None) -> None:
        """Revoke session grants at all workers. The revocation is stored as soon as the back end can be used, unless
        this worker leaves the cluster before.

        This method can be called in any thread.
        """
        revocation = _Revocation(id=id, server=server, tool=tool, at=time.time())
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._start_revocation, revocation)

    async def _finish_revocations(self) -> None:
        await asyncio.sleep(0)  # Another thread may have revoked a grant just before.
        await self._tasks.close(_CLOSE_TIMEOUT_S)

    def _start_revocation(self, revocation: _Revocation) -> None:
        self._tasks.start(self._share_revocation(revocation))

    async def _share_revocation(self, revocation: _Revocation) -> None:
        store, is_shared = partial(self._store_revocation, revocation), False
        try:
            is_shared = await repeat_until_available(store, should_continue=lambda: self.cluster.is_started)
        finally:
            if not is_shared:
                log.warning("a revocation could not be shared. Other workers keep the revoked grants until they expire")

    async def _store_revocation(self, revocation: _Revocation) -> None:
        while True:
            known, stored = await self._read(_REVOCATIONS, _revocations)
            entries = [] if known is None else known.entries
            recent = [entry for entry in entries if entry.at > time.time() - _RECORD_TTL_S][1 - _MAX_REVOCATIONS :]
            data = _revocations.encode(_Revocations(entries=[*recent, revocation]), stored.data)
            if await self.cluster.state.write(_REVOCATIONS, data, _RECORD_TTL_S, expected=stored.version):
                return

    async def _read(self, name: str, codec: VersionedCodec[T]) -> tuple[T | None, StoredValue]:
        stored = await self.cluster.state.read(name)
        if stored is None:
            return None, StoredValue(b"", 0)
        record = codec.decode(stored.data)
        if record is None:
            raise SharedStateUnavailable("a record has an unknown format, which a newer version may have written")
        return record, stored


def _get_name(caller: str) -> str:
    return f"caller:{hashlib.sha256(caller.encode(errors='surrogatepass')).hexdigest()}"
