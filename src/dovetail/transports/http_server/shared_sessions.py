"""The sessions that the workers of a cluster share. Each request of a session can reach any worker.

The session ID contains the parts of a session that never change. The other parts are one record, which is read once for
each request. A `HandshakeSession` is one worker's copy of a session, with the calls and streams of this worker. If a
worker drops its copy, the session does not end.
"""

import asyncio
import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final

import msgspec

from dovetail.log import log
from dovetail.protocol.cluster_worker import ClusterWorker
from dovetail.protocol.exchange import Caller, IncomingExchange, Service
from dovetail.protocol.handshake import DEFAULT_LOG_LEVEL, HandshakeState
from dovetail.protocol.http_checks import Refusal, create_unavailable_refusal
from dovetail.protocol.principal import Principal
from dovetail.protocol.routed_id import RoutedIds
from dovetail.protocol.session_id import (
    MAX_CLIENT_BYTES,
    SessionClient,
    SessionIdentity,
    SessionIdSealer,
    decode_client,
    hash_principal,
)
from dovetail.protocol.shared_state import Message, SharedStateUnavailable, StoredValue
from dovetail.transports.http_server.handshake_session import HandshakeSession
from dovetail.transports.http_server.question_router import QuestionRouter
from dovetail.transports.http_server.session_messages import SessionMessage, SessionMessenger, decode_message
from dovetail.transports.http_server.session_record import (
    SessionCopy,
    SessionRecord,
    decode_record,
    encode_record,
    read_unknown_members,
)
from dovetail.transports.http_server.stream_places import StreamPlaces, get_share
from dovetail.wire.base import replace
from dovetail.wire.codec import encode
from dovetail.wire.revisions import is_stateless

_KEY_BYTES: Final = 16
_FIRST_VERSION: Final = 1
_MAX_EVICTION_STEPS: Final = 100
_MAX_CHANGE_ATTEMPTS: Final = 20
_PROBE: Final = "session probe"  # the name of a value that shows whether the back end can store values
# The time that other workers have to store the record of a session again after a loss.
_RESTORE_TIME_S: Final = 5.0
_CLOCK_TOLERANCE_S: Final = 2.0  # how much the clocks of two workers may differ
_ACKNOWLEDGE_TIMEOUT_S: Final = 1.0
_RETRY_DELAY_S: Final = 0.5
_MAX_SAVE_FAILURES: Final = 10
_BATCH_SIZE: Final = 50
_SWEEP_INTERVAL_S: Final = 5.0

_CHANGED: Final = "session-changed"
_APPLIED: Final = "session-applied"
_ENDED: Final = "session-ended"

_RETRY_HEADERS: Final = [(b"retry-after", b"1")]


class SharedSessions:
    """The sessions of a cluster, as one endpoint of one worker sees them."""

    def __init__(
        self, service: Service, cluster: ClusterWorker, sessions: "OrderedDict[str, HandshakeSession]"
    ) -> None:
        self._service = service
        self._limits = service.limits
        self._cluster = cluster
        self._state = cluster.state
        self._sealer = SessionIdSealer(cluster.secret_keys, service.implementation.name)
        self._sessions = sessions  # this worker's copies by session ID. The least recently used one is first
        self._sessions_by_key: dict[str, HandshakeSession] = {}
        self._messenger = SessionMessenger(cluster, self._sessions_by_key)
        self.questions = QuestionRouter(service, self._messenger, RoutedIds(cluster.secret_keys))
        # When this worker noticed a loss of data. A new worker does not know what was lost before it started.
        self._gap_at = time.monotonic()
        self._unsaved: dict[HandshakeSession, None] = {}  # the sessions whose record could not be stored yet
        self._acknowledgments: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_saving = self._is_touching = False
        self.stream_places = StreamPlaces(cluster, service.limits.max_streams_per_principal)
        self._has_handlers = False
        self._sweep_timer: asyncio.TimerHandle | None = None
        # A request renews the record at most every quarter of the idle time, so the record lives for 1.25 times the
        # idle time.
        self._touch_interval = service.limits.session_idle_timeout / 4
        self._record_ttl = service.limits.session_idle_timeout * 1.25

    # Finding and opening sessions.

    async def create(self, handshake: HandshakeState, address: str | None) -> HandshakeSession:
        """Open a session for a client that sent `initialize`."""
        caller, now = handshake.caller, time.time()
        caller.session_id = os.urandom(_KEY_BYTES).hex()
        client = SessionClient(client_info=caller.client_info, capabilities=caller.client_capabilities)
        encoded_client = encode(client)
        is_large = len(encoded_client) > MAX_CLIENT_BYTES
        identity = SessionIdentity(
            key=caller.session_id,
            protocol_version=caller.protocol_version,
            created_at=int(now),
            expires_at=int(now + self._limits.session_lifetime) + 1,
            principal_digest=hash_principal(caller.principal),
            address=None if caller.principal is not None else address,
            client=None if is_large else client,
        )
        record = SessionRecord(touched_at=now)
        self._make_room(self._limits.max_sessions)
        await self._take_place(identity)
        copy = SessionCopy(identity, record, _FIRST_VERSION, is_opener=True)
        try:
            if is_large:
                await self._state.write(_get_client_name(identity.key), encoded_client, self._limits.session_lifetime)
            version = await self._state.write(
                _get_name(identity.key), encode_record(record), self._limits.initialize_timeout, expected=0
            )
            copy.version = version or _FIRST_VERSION
        except SharedStateUnavailable as exc:
            if is_large:
                raise create_unavailable_refusal(exc.retry_after) from None
            copy.is_unsaved = True
        session = self._add(self._sealer.seal(identity), handshake, copy)
        if copy.is_unsaved:
            self._save_later(session)
        return session

    async def find(self, id: str, principal: Principal | None, *, reads_record: bool = True) -> HandshakeSession:
        """Return this worker's copy of a session, with its current state. Raise Refusal if the session has ended."""
        session = self._sessions.get(id)
        if session is None:
            session = await self._open(id, principal)
        # A session of another caller gets the same error as an unknown session.
        elif session.handshake.caller.principal != principal:
            raise _create_unknown_error()
        copy = session.copy
        assert copy is not None
        session.last_used_at = asyncio.get_running_loop().time()
        if id in self._sessions:
            self._sessions.move_to_end(id)
        now = time.time()
        if now >= copy.identity.expires_at:
            self._drop(session)
            raise _create_unknown_error()
        if reads_record:
            # While the back end is away, this worker uses the last state that it knows.
            with contextlib.suppress(SharedStateUnavailable):
                await self.refresh(session)
                if now - copy.record.touched_at > self._touch_interval:
                    await self._touch(session)
        if copy.record.is_ended:
            raise _create_unknown_error()
        return session

    async def _open(self, id: str, principal: Principal | None) -> HandshakeSession:
        """Create this worker's copy of a session that another worker has opened."""
        identity = self._sealer.open(id, time.time())
        if (
            identity is None
            or identity.principal_digest != hash_principal(principal)
            or identity.protocol_version not in self._service.protocol_versions
            or is_stateless(identity.protocol_version)
        ):
            raise _create_unknown_error()
        # A worker with too many busy sessions opens no new ones, but still serves those of other workers.
        self._make_room(2 * self._limits.max_sessions)
        client = identity.client or await self._read_client(identity)
        if (session := self._sessions.get(id)) is not None:
            return session  # Another request has opened the session meanwhile.
        caller = Caller(
            identity.protocol_version,
            False,
            client.capabilities,
            DEFAULT_LOG_LEVEL,
            principal,
            client.client_info,
            identity.key,
        )
        return self._add(id, HandshakeState(caller), SessionCopy(identity, SessionRecord(), 0))

    async def _read_client(self, identity: SessionIdentity) -> SessionClient:
        with _refuse_if_unavailable():
            stored = await self._state.read(_get_client_name(identity.key))
            if stored is None:
                raise await self._create_missing_error(identity) or _create_unknown_error()
            return decode_client(stored.data)

    def _add(self, id: str, handshake: HandshakeState, copy: SessionCopy) -> HandshakeSession:
        handshake.watches_resources = False
        session = HandshakeSession(id, handshake, copy.identity.address, asyncio.get_running_loop())
        session.copy = copy
        session.question_ids = self.questions
        self._sessions[id] = self._sessions_by_key[copy.identity.key] = session
        self._start()
        return session

    def _make_room(self, max_copies: int) -> None:
        """Drop the copies of idle sessions to make room for another one. Raise Refusal if there are too many copies."""
        for _ in range(min(len(self._sessions), _MAX_EVICTION_STEPS)):
            if len(self._sessions) < self._limits.max_sessions:
                return
            session = next(iter(self._sessions.values()))
            if session.is_unused:
                self._drop(session)
            else:
                self._sessions.move_to_end(session.id)
        if len(self._sessions) >= max_copies:
            raise Refusal(503, "Too many sessions", [(b"retry-after", b"60")])

    def _drop(self, session: HandshakeSession) -> None:
        copy = session.copy
        assert copy is not None
        self._unsaved.pop(session, None)
        self._sessions.pop(session.id, None)
        self._sessions_by_key.pop(copy.identity.key, None)
        session.close()

    # The records.

    async def refresh(self, session: HandshakeSession) -> None:
        """Read the record of a session, and apply it to this worker's copy.

        Raises:
            SharedStateUnavailable: The record cannot be read now.
            Refusal: The session has expired.
        """
        copy = session.copy
        assert copy is not None
        stored = await self._state.read(_get_name(copy.identity.key))
        if stored is None:
            await self._restore_missing(session, copy)
        elif stored.version > copy.version:
            self._load(session, stored)
        elif stored.version < copy.version and not copy.lock.locked():
            # A replica without the last changes has replaced the back end.
            await self._restore(copy)

    async def update_record(
        self, session: HandshakeSession, change: Callable[[SessionRecord], SessionRecord]
    ) -> SessionRecord:
        """Change the record of a session, and return the new record.

        `change` is called again if another worker has changed the record at the same time.

        Raises:
            SharedStateUnavailable: The record cannot be changed now.
        """
        copy = session.copy
        assert copy is not None
        async with copy.lock:
            if copy.version == 0 or copy.is_unsaved:
                await self._reload(session, copy)
            for _ in range(_MAX_CHANGE_ATTEMPTS):
                previous = copy.record
                record = change(previous)
                if record == previous:
                    return record
                record = replace(record, touched_at=time.time())
                data = encode_record(record, copy.unknown_members)
                version = await self._state.write(
                    _get_name(copy.identity.key), data, self._get_ttl(record), expected=copy.version
                )
                if version is not None:
                    self._apply(session, record, version)
                    break
                await self._reload(session, copy)
            else:
                raise SharedStateUnavailable("other workers change the same session all the time")
        if record.subscriptions != previous.subscriptions and record.stream_worker not in ("", self._cluster.name):
            await self._inform(record.stream_worker, copy)
        return record

    async def _reload(self, session: HandshakeSession, copy: SessionCopy) -> None:
        stored = await self._state.read(_get_name(copy.identity.key))
        if stored is None or stored.version < copy.version:
            await self._restore_missing(session, copy)
        elif stored.version != copy.version or copy.is_unsaved:
            copy.is_unsaved = False
            self._load(session, stored)

    def _load(self, session: HandshakeSession, stored: StoredValue) -> None:
        record = decode_record(stored.data)
        if session.copy is not None:
            session.copy.unknown_members = read_unknown_members(stored.data)
        self._apply(session, record, stored.version)

    def _apply(self, session: HandshakeSession, record: SessionRecord, version: int) -> None:
        copy = session.copy
        assert copy is not None
        copy.record, copy.version = record, version
        load_record(session, record)
        if record.is_ended and not session.is_closed:
            session.close()

    async def _restore_missing(self, session: HandshakeSession, copy: SessionCopy) -> None:
        """Store a record that is missing. Raise Refusal if this worker does not know the record."""
        now = time.time()
        if copy.version == 0 or now - copy.record.touched_at > self._get_ttl(copy.record):
            refusal = await self._create_missing_error(copy.identity)
            if refusal is not None:
                self._drop(session)
                raise refusal
            copy.record, copy.version = SessionRecord(touched_at=now), _FIRST_VERSION
        await self._restore(copy)

    async def _restore(self, copy: SessionCopy) -> None:
        key = copy.identity.key
        if copy.identity.client is None and (session := self._sessions_by_key.get(key)) is not None:
            caller = session.handshake.caller
            client = SessionClient(client_info=caller.client_info, capabilities=caller.client_capabilities)
            ttl = max(1.0, copy.identity.expires_at - time.time())
            await self._state.write(_get_client_name(key), encode(client), ttl, expected=0)
        data, version = encode_record(copy.record, copy.unknown_members), copy.version
        await self._state.restore(_get_name(key), data, version, self._get_ttl(copy.record))
        copy.is_unsaved = False

    async def _create_missing_error(self, identity: SessionIdentity) -> Refusal | None:
        """Create the error for a session without a record. Return None if the record was never stored.

        After a loss of data, the session gets the status 503 for a short time, because another worker may know the
        record and store it again. The worker that opened a new session may have been unable to store the record.

        Raises:
            SharedStateUnavailable: The back end is full, so it may not have stored the record.
        """
        await self._state.write(_PROBE, b"", 1.0)
        # The back end may have lost its data a moment ago, and this worker has not noticed it yet.
        epoch = (await self._state.get_cursor()).partition(".")[0]
        is_new_epoch = epoch != self._state.get_status().epoch
        gap_age, session_age = time.monotonic() - self._gap_at, time.time() - identity.created_at
        is_new = session_age <= self._limits.initialize_timeout and session_age + _CLOCK_TOLERANCE_S < gap_age
        if is_new and not is_new_epoch:
            return None
        if is_new_epoch or gap_age < _RESTORE_TIME_S:
            return Refusal(503, "The session is not available at the moment", _RETRY_HEADERS)
        return _create_unknown_error()

    def _get_ttl(self, record: SessionRecord) -> float:
        if record.is_ready or record.is_ended:
            return self._record_ttl
        return self._limits.initialize_timeout

    async def _touch(self, session: HandshakeSession) -> None:
        """Extend the life of a session."""
        now = time.time()

        def touch(record: SessionRecord) -> SessionRecord:
            is_recent = now - record.touched_at <= self._touch_interval  # Another request has touched it meanwhile.
            return record if is_recent else replace(record, touched_at=now)

        await self.update_record(session, touch)
        copy = session.copy
        if copy is not None and (owner := self._get_owner(copy.identity)) is not None:
            await self._state.acquire(owner[0], copy.identity.key, owner[1], self._record_ttl)

    # Changes of a session.

    async def mark_ready(self, session: HandshakeSession) -> None:
        """Record that the client has completed the handshake."""
        session.handshake.is_ready = True
        try:
            await self._save_ready(session)
        except SharedStateUnavailable:
            copy = session.copy
            assert copy is not None
            if copy.version:
                copy.record, copy.is_unsaved = replace(copy.record, is_ready=True, touched_at=time.time()), True
            self._save_later(session)

    async def _save_ready(self, session: HandshakeSession) -> None:
        cursor = await self._state.get_cursor()
        await self.update_record(
            session,
            lambda record: record if record.is_ready else replace(record, is_ready=True, seen=record.seen or cursor),
        )
        copy = session.copy
        if copy is not None and (owner := self._get_owner(copy.identity)) is not None:
            await self._state.acquire(owner[0], copy.identity.key, owner[1], self._record_ttl)

    async def handle_session_request(self, session: HandshakeSession, exchange: IncomingExchange) -> Any:
        """Return the result of a request about the session, such as `resources/subscribe`. Otherwise return None."""
        handshake = session.handshake
        if exchange.method == "shutdown":
            await self.end(session)
        if exchange.method not in ("logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            return handshake.handle_session_request(exchange, self._service)
        result = None

        def change(record: SessionRecord) -> SessionRecord:
            nonlocal result
            load_record(session, record)
            result = handshake.handle_session_request(exchange, self._service)
            subscriptions = handshake.subscriptions or None
            return replace(
                record,
                log_level=handshake.caller.log_level,
                subscriptions=None if subscriptions is None else dict(subscriptions),
            )

        copy = session.copy
        assert copy is not None
        try:
            with _refuse_if_unavailable():
                await self.update_record(session, change)
        finally:
            load_record(session, copy.record)
        return result

    async def end(self, session: HandshakeSession) -> None:
        """End a session at all workers."""
        copy = session.copy
        assert copy is not None
        key = copy.identity.key
        with _refuse_if_unavailable():
            await self.update_record(session, lambda record: replace(record, is_ended=True, subscriptions=None))
        await self._messenger.send_to_others(_ENDED, SessionMessage(session=key))
        with contextlib.suppress(SharedStateUnavailable):
            if (owner := self._get_owner(copy.identity)) is not None:
                await self._state.release(owner[0], key)
            if copy.identity.client is None:
                await self._state.delete(_get_client_name(key))

    async def _inform(self, worker: str, copy: SessionCopy) -> None:
        """Send a changed record to the worker that has the GET stream, and wait until it has applied the record.

        Otherwise the client could miss a change that happens directly after `resources/subscribe`.
        """
        id = os.urandom(8).hex()
        data = msgspec.Raw(encode(copy.record))
        message = SessionMessage(session=copy.identity.key, data=data, id=id, version=copy.version)
        future = self._acknowledgments[id] = asyncio.get_running_loop().create_future()
        try:
            if await self._messenger.send(worker, _CHANGED, message):
                async with asyncio.timeout(_ACKNOWLEDGE_TIMEOUT_S):
                    await future
        except (SharedStateUnavailable, TimeoutError):
            pass  # The other worker reads the record with the next request of the session.
        finally:
            del self._acknowledgments[id]

    # Limits on sessions and streams.

    def _get_owner(self, identity: SessionIdentity) -> tuple[str, int] | None:
        """Return the name and the limit of the sessions that count together. Callers on this machine have no limit."""
        if identity.principal_digest is not None:
            return f"sessions of principal {identity.principal_digest}", self._limits.max_sessions_per_principal
        if identity.address is not None:
            return f"sessions of address {identity.address}", self._limits.max_sessions_per_address
        return None

    async def _take_place(self, identity: SessionIdentity) -> None:
        owner = self._get_owner(identity)
        if owner is None:
            return
        name, limit = owner
        try:
            is_allowed = await self._state.acquire(name, identity.key, limit, self._limits.initialize_timeout)
        except SharedStateUnavailable:
            is_allowed = self._count_own(identity) < get_share(self._state.get_status().worker_count, limit)
        if not is_allowed:
            is_principal = identity.principal_digest is not None
            message = "Too many sessions" if is_principal else "Too many sessions from this address"
            raise Refusal(429, message, [(b"retry-after", b"60")])

    def _count_own(self, identity: SessionIdentity) -> int:
        """Return how many open sessions of this caller were opened at this worker."""
        owner = identity.principal_digest, identity.address
        copies = (session.copy for session in self._sessions.values() if not session.is_closed)
        return sum(
            copy.is_opener and (copy.identity.principal_digest, copy.identity.address) == owner
            for copy in copies
            if copy is not None and not copy.record.is_ended
        )

    # Messages from other workers.

    def _start(self) -> None:
        if self._sweep_timer is None:
            self._schedule_sweep()
        if self._has_handlers:
            return
        self._has_handlers = True
        self.questions.start()
        self._messenger.add_handler(_ENDED, self._receive_end)
        self._cluster.add_handler(_CHANGED, self._receive_change)
        self._cluster.add_handler(_APPLIED, self._receive_acknowledgment)
        self._cluster.add_gap_handler(self._handle_gap)

    def _receive_end(self, session: HandshakeSession, message: SessionMessage) -> None:
        copy = session.copy
        if copy is not None:
            copy.record = replace(copy.record, is_ended=True)
        session.close()

    def _receive_change(self, message: Message) -> None:
        body = decode_message(message.body)
        if body is None:
            return
        session = self._sessions_by_key.get(body.session)
        if session is not None and session.copy is not None and body.version > session.copy.version:
            self._apply(session, msgspec.json.decode(body.data, type=SessionRecord), body.version)
        acknowledgment = SessionMessage(session=body.session, id=body.id)
        self._start_task(self._messenger.try_send(message.sender, _APPLIED, acknowledgment))

    def _receive_acknowledgment(self, message: Message) -> None:
        body = decode_message(message.body)
        future = None if body is None else self._acknowledgments.get(str(body.id))
        if future is not None and not future.done():
            future.set_result(None)

    # Work in the background.

    def _handle_gap(self) -> None:
        self._gap_at = time.monotonic()
        self._start_task(self._restore_all())

    async def _restore_all(self) -> None:
        """Store the records of all sessions again that this worker knows."""
        await self._run_in_batches(self._restore_known, tuple(self._sessions.values()))

    async def _restore_known(self, session: HandshakeSession) -> None:
        copy = session.copy
        assert copy is not None
        if copy.version == 0 or time.time() - copy.record.touched_at > self._get_ttl(copy.record):
            return
        try:
            await self._restore(copy)
        except SharedStateUnavailable:
            copy.is_unsaved = True
            self._save_later(session)

    def _save_later(self, session: HandshakeSession) -> None:
        self._unsaved[session] = None
        if not self._is_saving:
            self._is_saving = True
            self._start_task(self._save_unsaved())

    async def _save_unsaved(self) -> None:
        try:
            while self._unsaved:
                await asyncio.sleep(_RETRY_DELAY_S)
                failures = 0
                for session in tuple(self._unsaved):
                    if failures == _MAX_SAVE_FAILURES:
                        break
                    self._unsaved.pop(session, None)
                    try:
                        await self._save(session)
                    except SharedStateUnavailable:
                        failures += 1
                        self._unsaved[session] = None  # at the end, so that the others are saved first
        finally:
            self._is_saving = False

    async def _save(self, session: HandshakeSession) -> None:
        copy = session.copy
        assert copy is not None
        with contextlib.suppress(Refusal):  # The session has ended.
            if session.handshake.is_ready:
                await self._save_ready(session)
            else:
                async with copy.lock:
                    await self._reload(session, copy)

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finish_task)

    def _finish_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("could not update the shared sessions: %s", type(exc).__name__, exc_info=exc)

    def _schedule_sweep(self) -> None:
        limits = self._limits
        delay = min(_SWEEP_INTERVAL_S, limits.session_idle_timeout / 4, limits.replay_ttl / 2)
        self._sweep_timer = asyncio.get_running_loop().call_later(delay, self._sweep)

    def _sweep(self) -> None:
        """Drop the copies of sessions that were not used for a while, and extend the life of sessions in use."""
        loop_time, now, limits = asyncio.get_running_loop().time(), time.time(), self._limits
        sessions_in_use: list[HandshakeSession] = []
        for session in tuple(self._sessions.values()):
            copy = session.copy
            assert copy is not None
            session.end_unread_requests(loop_time, limits.replay_ttl)
            session.drop_old_streams(loop_time, limits.replay_ttl)
            if now >= copy.identity.expires_at:
                self._drop(session)
            elif session.is_unused:
                if loop_time - session.last_used_at > self._get_ttl(copy.record):
                    self._drop(session)
            elif not copy.record.is_ended and now - copy.record.touched_at > self._touch_interval:
                sessions_in_use.append(session)
        if sessions_in_use and not self._is_touching:
            self._is_touching = True
            self._start_task(self._touch_all(sessions_in_use))
        self._schedule_sweep()

    async def _touch_all(self, sessions: list[HandshakeSession]) -> None:
        try:
            await self._run_in_batches(self._touch_known, sessions)
        finally:
            self._is_touching = False

    async def _touch_known(self, session: HandshakeSession) -> None:
        with contextlib.suppress(SharedStateUnavailable, Refusal):
            await self._touch(session)

    async def _run_in_batches(
        self,
        function: Callable[[HandshakeSession], Coroutine[Any, Any, None]],
        sessions: Sequence[HandshakeSession],
    ) -> None:
        """Call a function for each session. Few calls run at once, so that requests do not wait for them."""
        for start in range(0, len(sessions), _BATCH_SIZE):
            await asyncio.gather(*map(function, sessions[start : start + _BATCH_SIZE]))

    async def close(self) -> None:
        """Drop this worker's copies of all sessions. The sessions continue at other workers."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for session in tuple(self._sessions.values()):
            self._drop(session)
        for task in tuple(self._tasks):
            task.cancel()


def load_record(session: HandshakeSession, record: SessionRecord) -> None:
    """Apply a record to this worker's copy of a session."""
    handshake = session.handshake
    handshake.is_ready = record.is_ready or handshake.is_ready
    handshake.caller.log_level = record.log_level
    handshake.subscriptions = None if record.subscriptions is None else dict(record.subscriptions)
    handshake.update_watches()


def _create_unknown_error() -> Refusal:
    return Refusal(404, "Unknown session. Open a session with initialize")


@contextlib.contextmanager
def _refuse_if_unavailable() -> Generator[None]:
    """Refuse a request that needs the shared state while the shared state is away."""
    try:
        yield
    except SharedStateUnavailable as exc:
        raise create_unavailable_refusal(exc.retry_after) from None


def _get_name(key: str) -> str:
    return f"session {key}"


def _get_client_name(key: str) -> str:
    return f"client of session {key}"
