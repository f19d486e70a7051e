"""Read and change the records of shared sessions. Workers change a record with compare-and-set.

Each request reads the record of its session once. While the shared state is unavailable, a worker uses its copy of the
record, and saves its changes later.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.sessions.caller_limits import SessionPlaces
from dovetail.cluster.sessions.sealed_session_id import SessionClient, SessionIdentity, decode_client, encode_client
from dovetail.cluster.sessions.session_copies import SessionCopies, get_copy
from dovetail.cluster.sessions.session_messages import (
    RemoveHandler,
    SessionMessage,
    SessionMessenger,
    decode_message,
)
from dovetail.cluster.sessions.session_record import (
    SessionCopy,
    SessionRecord,
    decode_record,
    encode_record,
    has_unknown_members,
)
from dovetail.cluster.sessions.session_record_saver import SessionRecordSaver
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.interfaces.shared_state import Message, SharedStateUnavailable, SharedWorker
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.sessions.handshake_sessions import create_unknown_error
from dovetail.wire.base import replace

_FIRST_VERSION: Final = 1
_MAX_CHANGE_ATTEMPTS: Final = 20
_PROBE: Final = "session probe"  # Workers write this value to find out whether the back end can store values.
# After a loss of data, other workers have this time to store their records again.
_RESTORE_TIME_S: Final = 5.0
_CLOCK_TOLERANCE_S: Final = 2.0  # how much the clocks of two workers may differ
_ACKNOWLEDGE_TIMEOUT_S: Final = 1.0

_CHANGED: Final = "session-changed"
_APPLIED: Final = "session-applied"

_RETRY_HEADERS: Final = ((b"retry-after", b"1"),)


class SessionRecords:
    """Reads and changes the records of shared sessions.

    Methods that use the shared state raise SharedStateUnavailable if the shared state is unavailable. They raise
    Refusal if the session has expired.
    """

    def __init__(
        self,
        cluster: SharedWorker,
        limits: ServerLimits,
        copies: SessionCopies,
        messenger: SessionMessenger,
        places: SessionPlaces,
        tasks: BackgroundTasks,
    ) -> None:
        self._cluster = cluster
        self._state = cluster.state
        self._limits = limits
        self._copies = copies
        self._messenger = messenger
        self._places = places
        self._tasks = tasks
        # The time of the last known loss of data. A new worker uses its start time, because it knows no earlier loss.
        self._gap_at = time.monotonic()
        self._acknowledgments: dict[str, asyncio.Future[None]] = {}
        # Requests renew a record at most once per quarter of the idle timeout. So a record needs a lifetime of 1.25
        # idle timeouts.
        self._touch_interval = limits.session_idle_timeout / 4
        self._record_ttl = limits.session_idle_timeout * 1.25
        self.saver = SessionRecordSaver(
            copies,
            tasks,
            save=self._save,
            restore=self._restore_known,
            touch=self._touch,
            touch_interval=self._touch_interval,
        )

    def start(self) -> list[RemoveHandler]:
        """Register the message handlers. Return the functions that remove the handlers."""
        return [
            self._cluster.add_handler(_CHANGED, self._receive_change),
            self._cluster.add_handler(_APPLIED, self._receive_acknowledgment),
            self._cluster.add_gap_handler(self._handle_gap),
        ]

    def get_ttl(self, record: SessionRecord) -> float:
        """Return the time for which a record is stored after its last change."""
        if record.is_ready or record.is_ended:
            return self._record_ttl
        return self._limits.initialize_timeout

    # Reading and changing.

    async def create(self, identity: SessionIdentity, large_client: SessionClient | None) -> SessionCopy:
        """Store the record of a new session. If the shared state is unavailable, mark the copy as unsaved.

        Raises:
            SharedStateUnavailable: `large_client` could not be stored. The session ID cannot contain it, because it is
                too large.
        """
        copy = SessionCopy(identity, SessionRecord(touched_at=time.time()), _FIRST_VERSION, is_opener=True)
        try:
            if large_client is not None:
                await self._state.write(
                    _get_client_name(identity.key), encode_client(large_client), self._limits.session_lifetime
                )
            version = await self._state.write(
                _get_name(identity.key), encode_record(copy.record), self._limits.initialize_timeout, expected=0
            )
            copy.version = version or _FIRST_VERSION
        except SharedStateUnavailable:
            if large_client is not None:
                raise
            copy.is_unsaved = True
        return copy

    async def read_client(self, identity: SessionIdentity) -> SessionClient:
        """Read the stored client information of a session. It is stored only if it is too large for the session ID."""
        stored = await self._state.read(_get_client_name(identity.key))
        if stored is None:
            raise await self._create_missing_error(identity) or create_unknown_error()
        client = decode_client(stored.data)
        if client is None:
            raise SharedStateUnavailable(
                "the stored capabilities of a client have an unknown format. A newer version may have written them"
            )
        return client

    async def delete_client(self, identity: SessionIdentity) -> None:
        """Delete the stored client information of a session, if there is any."""
        if identity.client is None:
            await self._state.delete(_get_client_name(identity.key))

    async def refresh(self, session: HandshakeSession) -> None:
        """Read the record of a session, and apply it to this worker's copy."""
        copy = get_copy(session)
        stored = await self._state.read(_get_name(copy.identity.key))
        if stored is None:
            await self._restore_missing(session, copy)
        elif stored.version > copy.version:
            self._load(session, stored.data, stored.version)
        elif stored.version < copy.version and not copy.lock.locked():
            # The stored version is older, because a replica without the last changes has replaced the back end.
            await self._restore(copy)
        if time.time() - copy.record.touched_at > self._touch_interval:
            await self._touch(session)

    async def update(
        self, session: HandshakeSession, change: Callable[[SessionRecord], SessionRecord]
    ) -> SessionRecord:
        """Change the record of a session, and return the new record.

        If another worker changes the record at the same time, this method calls `change` again with the new record.
        """
        copy = get_copy(session)
        async with copy.lock:
            if copy.version == 0 or copy.is_unsaved:
                await self._reload(session, copy)
            for _ in range(_MAX_CHANGE_ATTEMPTS):
                previous = copy.record
                record = change(previous)
                if record == previous:
                    return record
                record = replace(record, touched_at=time.time())
                data = encode_record(record, copy.newer_data)
                version = await self._state.write(
                    _get_name(copy.identity.key), data, self.get_ttl(record), expected=copy.version
                )
                if version is not None:
                    # While this worker waited for the answer, another worker may have sent a newer record.
                    if version > copy.version:
                        self._apply(session, record, version)
                    break
                await self._reload(session, copy)
            else:
                raise SharedStateUnavailable("the session could not be saved, because other workers keep changing it")
        return record

    async def mark_ready(self, session: HandshakeSession) -> None:
        """Store that the client has completed the handshake. If the shared state is unavailable, store it later."""
        session.handshake.is_ready = True
        try:
            await self._save_ready(session)
        except SharedStateUnavailable:
            copy = get_copy(session)
            if copy.version:
                copy.record, copy.is_unsaved = replace(copy.record, is_ready=True, touched_at=time.time()), True
            self.saver.save_later(session)

    async def _save_ready(self, session: HandshakeSession) -> None:
        cursor = await self._state.get_cursor()
        await self.update(
            session,
            lambda record: record if record.is_ready else replace(record, is_ready=True, seen=record.seen or cursor),
        )
        await self._places.extend(get_copy(session).identity, self._record_ttl)

    async def _touch(self, session: HandshakeSession) -> None:
        """Extend the life of a session."""
        now = time.time()

        def touch(record: SessionRecord) -> SessionRecord:
            is_recent = now - record.touched_at <= self._touch_interval  # Another request may have touched it.
            return record if is_recent else replace(record, touched_at=now)

        await self.update(session, touch)
        await self._places.extend(get_copy(session).identity, self._record_ttl)

    async def _reload(self, session: HandshakeSession, copy: SessionCopy) -> None:
        stored = await self._state.read(_get_name(copy.identity.key))
        if stored is None or stored.version < copy.version:
            await self._restore_missing(session, copy)
        elif stored.version != copy.version or copy.is_unsaved:
            copy.is_unsaved = False
            self._load(session, stored.data, stored.version)

    def _load(self, session: HandshakeSession, data: bytes, version: int) -> None:
        record = decode_record(data)
        get_copy(session).newer_data = data if has_unknown_members(record, data) else None
        self._apply(session, record, version)

    def _apply(self, session: HandshakeSession, record: SessionRecord, version: int) -> None:
        copy = get_copy(session)
        copy.record, copy.version = record, version
        apply_record(session, record)
        if record.is_ended and not session.is_closed:
            session.close()

    # Records that are missing.

    async def _restore_missing(self, session: HandshakeSession, copy: SessionCopy) -> None:
        """Store a missing record again. Raise Refusal if this worker has no valid copy of the record."""
        now = time.time()
        if copy.version == 0 or now - copy.record.touched_at > self.get_ttl(copy.record):
            refusal = await self._create_missing_error(copy.identity)
            if refusal is not None:
                self._copies.drop(session)
                raise refusal
            copy.record, copy.version = SessionRecord(touched_at=now), _FIRST_VERSION
        await self._restore(copy)

    async def _restore(self, copy: SessionCopy) -> None:
        key = copy.identity.key
        if copy.identity.client is None and (session := self._copies.get_by_key(key)) is not None:
            caller = session.handshake.caller
            client = SessionClient(client_info=caller.client_info, capabilities=caller.client_capabilities)
            ttl = max(1.0, copy.identity.expires_at - time.time())
            await self._state.write(_get_client_name(key), encode_client(client), ttl, expected=0)
        data, version = encode_record(copy.record, copy.newer_data), copy.version
        await self._state.restore(_get_name(key), data, version, self.get_ttl(copy.record))
        copy.is_unsaved = False

    async def _create_missing_error(self, identity: SessionIdentity) -> Refusal | None:
        """Create the error for a session without a record. Return None if the record was probably never stored.

        A new session may have no record, because its worker could not store the record. Shortly after a loss of data,
        the error has status 503, because another worker may have a copy and store the record again.

        Raises:
            SharedStateUnavailable: The back end is full, so it may not have stored the record.
        """
        await self._state.write(_PROBE, b"", 1.0)
        epoch = (await self._state.get_cursor()).partition(".")[0]
        is_new_epoch = epoch != self._state.get_status().epoch
        gap_age, session_age = time.monotonic() - self._gap_at, time.time() - identity.created_at
        is_new = session_age <= self._limits.initialize_timeout and session_age + _CLOCK_TOLERANCE_S < gap_age
        if is_new and not is_new_epoch:
            return None
        if is_new_epoch or gap_age < _RESTORE_TIME_S:
            return Refusal(503, "The session is not available at the moment", _RETRY_HEADERS)
        return create_unknown_error()

    def _handle_gap(self) -> None:
        self._gap_at = time.monotonic()
        self.saver.restore_all()

    async def _restore_known(self, session: HandshakeSession) -> None:
        """Store this worker's copy of a record again, unless the record has expired."""
        copy = get_copy(session)
        if copy.version and time.time() - copy.record.touched_at <= self.get_ttl(copy.record):
            await self._restore(copy)

    async def _save(self, session: HandshakeSession) -> None:
        copy = get_copy(session)
        with contextlib.suppress(Refusal):  # The session has ended.
            if session.handshake.is_ready:
                await self._save_ready(session)
            else:
                async with copy.lock:
                    await self._reload(session, copy)

    # Messages to the worker that has the GET stream of a session.

    async def inform_stream_worker(self, session: HandshakeSession) -> None:
        """Send the record to the worker that has the GET stream, and wait until this worker has applied the record.

        Otherwise the client could miss a change directly after `resources/subscribe`. Call this method even if a
        request changes nothing. The request may be a retry, and the first worker may have failed before it sent the
        record.
        """
        copy = get_copy(session)
        worker = copy.record.stream_worker
        if worker in ("", self._cluster.name):
            return
        id = os.urandom(8).hex()
        record = encode_record(copy.record, copy.newer_data)
        message = SessionMessage(session=copy.identity.key, record=record, id=id, version=copy.version)
        future = self._acknowledgments[id] = asyncio.get_running_loop().create_future()
        try:
            if await self._messenger.send(worker, _CHANGED, message):
                async with asyncio.timeout(_ACKNOWLEDGE_TIMEOUT_S):
                    await future
        except (SharedStateUnavailable, TimeoutError):
            pass  # The other worker reads the new record when the next request of the session arrives.
        finally:
            del self._acknowledgments[id]

    def _receive_change(self, message: Message) -> None:
        body = decode_message(message.body)
        if body is None:
            return
        session = self._copies.get_by_key(body.session)
        if session is not None and body.version > get_copy(session).version:
            try:
                self._load(session, body.record, body.version)
            except SharedStateUnavailable:
                return  # The sender runs a newer release. It stops waiting for the answer after a short timeout.
        acknowledgment = SessionMessage(session=body.session, id=body.id)
        self._tasks.start(self._messenger.try_send(message.sender, _APPLIED, acknowledgment))

    def _receive_acknowledgment(self, message: Message) -> None:
        body = decode_message(message.body)
        future = None if body is None else self._acknowledgments.get(str(body.id))
        if future is not None and not future.done():
            future.set_result(None)


def apply_record(session: HandshakeSession, record: SessionRecord) -> None:
    """Apply a record to this worker's copy of a session."""
    handshake = session.handshake
    handshake.is_ready = record.is_ready or handshake.is_ready
    handshake.caller.log_level = record.log_level
    handshake.subscriptions = None if record.subscriptions is None else dict(record.subscriptions)
    handshake.update_watches()


def _get_name(key: str) -> str:
    return f"session {key}"


def _get_client_name(key: str) -> str:
    return f"client of session {key}"
