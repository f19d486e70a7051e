"""The sessions that the workers of a cluster share. Each request of a session can reach any worker.

The session ID contains the parts of a session that never change. The other parts are one record, which is read once for
each request. A `HandshakeSession` is one worker's copy of a session, with the calls and streams of this worker.
"""

import asyncio
import contextlib
import contextvars
import os
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.sessions.caller_limits import SessionPlaces, StreamPlaces
from dovetail.cluster.sessions.cluster_streams import ClusterStreams
from dovetail.cluster.sessions.question_router import QuestionRouter
from dovetail.cluster.sessions.routed_id import RoutedIds
from dovetail.cluster.sessions.sealed_session_id import (
    MAX_CLIENT_BYTES,
    SessionClient,
    SessionIdentity,
    SessionIdSealer,
    hash_principal,
)
from dovetail.cluster.sessions.session_copies import SessionCopies, get_copy, is_unused
from dovetail.cluster.sessions.session_messages import RemoveHandler, SessionMessage, SessionMessenger
from dovetail.cluster.sessions.session_record import SessionCopy, SessionRecord
from dovetail.cluster.sessions.session_records import SessionRecords, apply_record
from dovetail.protocol.exchange import Caller, IncomingExchange, Service
from dovetail.protocol.handshake import DEFAULT_LOG_LEVEL, EMPTY_RESULT, HandshakeState
from dovetail.protocol.headers import VERSION_HEADER
from dovetail.protocol.http_checks import create_unavailable_refusal
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable, SharedWorker
from dovetail.protocol.principal import Principal
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.sessions.handshake_sessions import (
    SessionVersions,
    check_session_version,
    create_unknown_error,
    read_session_id,
)
from dovetail.transports.http_server.streams.http_response import ResponseTimers
from dovetail.transports.spool import MemoryBudget
from dovetail.wire.base import Result, replace
from dovetail.wire.codec import encode
from dovetail.wire.revisions import is_stateless

_KEY_BYTES: Final = 16
_SWEEP_INTERVAL_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 1.0
_RECORD_METHODS: Final = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})

_ENDED: Final = "session-ended"


class SharedSessions:
    """The sessions of a cluster, as one endpoint of one worker sees them."""

    def __init__(
        self,
        cluster: SharedWorker,
        service: Service,
        versions: SessionVersions,
        budget: MemoryBudget,
        timers: ResponseTimers,
        join_cluster: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._service = service
        self._limits = service.limits
        self._cluster = cluster
        self._versions = versions
        self._join_cluster = join_cluster
        self._sealer = SessionIdSealer(cluster.secret_keys, service.implementation.name)
        self._tasks = BackgroundTasks()
        self._copies = SessionCopies(service.limits.max_sessions)
        self._messenger = SessionMessenger(cluster, self._copies)
        self._places = SessionPlaces(cluster.state, service.limits, self._copies)
        self._records = SessionRecords(
            cluster, service.limits, self._copies, self._messenger, self._places, self._tasks
        )
        self._questions = QuestionRouter(service, self._messenger, RoutedIds(cluster.secret_keys))
        self._stream_places = StreamPlaces(cluster, service.limits.max_streams_per_principal)
        self._streams = ClusterStreams(service, cluster, timers, budget, self._records.update)
        self.create_writer = self._streams.create_writer
        self._handler_removers: list[RemoveHandler] = []
        self._sweep_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def reader_count(self) -> int:
        """Return the number of streams with a reader at this worker."""
        return sum(session.reader_count for session in self._copies)

    @property
    def replay_bytes(self) -> int:
        """Return 0, because the events of streams are in the shared state."""
        return 0

    async def start(self) -> None:
        """Join the cluster if the HTTP server has not started the application."""
        if not self._cluster.is_started and self._join_cluster is not None:
            await self._join_cluster()

    # Finding, opening and ending sessions.

    async def create(self, handshake: HandshakeState, address: str | None) -> HandshakeSession:
        """Open a session for a client that sent `initialize`."""
        caller, now = handshake.caller, time.time()
        caller.session_id = os.urandom(_KEY_BYTES).hex()
        client = SessionClient(client_info=caller.client_info, capabilities=caller.client_capabilities)
        is_large = len(encode(client)) > MAX_CLIENT_BYTES
        identity = SessionIdentity(
            key=caller.session_id,
            protocol_version=caller.protocol_version,
            created_at=int(now),
            expires_at=int(now + self._limits.session_lifetime) + 1,
            principal_digest=hash_principal(caller.principal),
            address=None if caller.principal is not None else address,
            client=None if is_large else client,
        )
        self._copies.make_room(is_new_session=True)
        await self._places.take(identity)
        with _refuse_if_unavailable():
            copy = await self._records.create(identity, client if is_large else None)
        session = self._add(self._sealer.seal(identity), handshake, copy)
        if copy.is_unsaved:
            self._records.saver.save_later(session)
        return session

    async def find(self, request: EndpointRequest, *, is_answer: bool = False) -> HandshakeSession:
        """Return this worker's copy of a session, with its current state. Raise Refusal if the session has ended.

        An answer to a question needs no current state, and must arrive while the shared state is away.
        """
        if not self._cluster.is_started:
            await self.start()
        version = request.headers.get(VERSION_HEADER)
        self._versions.check(version)
        session = await self._find_copy(read_session_id(request), request.principal)
        copy = get_copy(session)
        copy.request_count += 1
        try:
            if time.time() >= copy.identity.expires_at:
                self._copies.drop(session)
                raise create_unknown_error()
            if not is_answer:
                # While the back end is away, this worker uses the last state that it knows.
                with contextlib.suppress(SharedStateUnavailable):
                    await self._records.refresh(session)
            if copy.record.is_ended:
                raise create_unknown_error()
            check_session_version(version, session)
        except BaseException:
            copy.request_count -= 1
            raise
        return session

    def release(self, session: HandshakeSession) -> None:
        """Allow this worker to drop its copy of the session, because the request has ended."""
        get_copy(session).request_count -= 1
        self._copies.mark_used(session)

    async def _find_copy(self, id: str, principal: Principal | None) -> HandshakeSession:
        session = self._copies.get(id)
        if session is None:
            return await self._open(id, principal)
        # A session of another caller gets the same error as an unknown session.
        if session.handshake.caller.principal != principal:
            raise create_unknown_error()
        self._copies.mark_used(session)
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
            raise create_unknown_error()
        self._copies.make_room(is_new_session=False)
        if (client := identity.client) is None:
            with _refuse_if_unavailable():
                client = await self._records.read_client(identity)
        if (session := self._copies.get(id)) is not None:
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

    def _add(self, id: str, handshake: HandshakeState, copy: SessionCopy) -> HandshakeSession:
        handshake.watches_resources = False
        session = HandshakeSession(id, handshake, copy.identity.address, asyncio.get_running_loop())
        session.store_data = copy
        session.question_ids = self._questions
        self._copies.add(session)
        self._start_background()
        return session

    async def end(self, session: HandshakeSession) -> None:
        """End a session at all workers."""
        identity = get_copy(session).identity
        with _refuse_if_unavailable():
            await self._records.update(session, lambda record: replace(record, is_ended=True, subscriptions=None))
        await self._messenger.send_to_others(_ENDED, SessionMessage(session=identity.key))
        with contextlib.suppress(SharedStateUnavailable):
            await self._places.free(identity)
            await self._records.delete_client(identity)

    def _receive_end(self, session: HandshakeSession, message: SessionMessage) -> None:
        copy = get_copy(session)
        copy.record = replace(copy.record, is_ended=True)
        session.close()

    # Messages of clients.

    async def handle_session_request(self, session: HandshakeSession, exchange: IncomingExchange) -> Result:
        """Return the result of a request about the session, such as `resources/subscribe`."""
        handshake = session.handshake
        if exchange.method == "shutdown":
            await self.end(session)
        if exchange.method not in _RECORD_METHODS:
            return handshake.handle_session_request(exchange, self._service)

        def change(record: SessionRecord) -> SessionRecord:
            apply_record(session, record)
            handshake.handle_session_request(exchange, self._service)
            subscriptions = handshake.subscriptions or None
            return replace(
                record,
                log_level=handshake.caller.log_level,
                subscriptions=None if subscriptions is None else dict(subscriptions),
            )

        try:
            with _refuse_if_unavailable():
                await self._records.update(session, change)
        finally:
            apply_record(session, get_copy(session).record)
        if exchange.method != "logging/setLevel":
            await self._records.inform_stream_worker(session)
        return EMPTY_RESULT

    async def mark_ready(self, session: HandshakeSession) -> None:
        """Record that the client has completed the handshake."""
        await self._records.mark_ready(session)

    async def handle_answer(self, session: HandshakeSession, message: dict[str, Any]) -> None:
        """Pass the client's response to the worker that asked for it."""
        await self._questions.handle_response(session, message)

    async def accept_progress(self, session: HandshakeSession, message: dict[str, Any]) -> bool:
        """Pass a progress notification to the worker that waits. Return True if it is this worker."""
        return await self._questions.handle_progress(session, message)

    async def cancel(self, session: HandshakeSession, id: Any) -> None:
        """Cancel a request at the worker that runs it."""
        await self._questions.cancel(session, id)

    # Streams.

    async def serve_stream(self, request: EndpointRequest, session: HandshakeSession) -> None:
        """Send the GET stream of a session, or resume an interrupted stream."""
        async with self._stream_places.take(request.principal, request.client_address):
            await self._streams.handle_get(request, session)

    async def end_streams(self) -> None:
        """End the streams of this worker, so that their clients continue at other workers."""
        await self._streams.end_readers()

    # Work in the background.

    def _start_background(self) -> None:
        if self._sweep_timer is None:
            self._schedule_sweep()
        if not self._handler_removers:
            self._handler_removers = [
                *self._questions.start(),
                *self._records.start(),
                self._messenger.add_handler(_ENDED, self._receive_end),
                self._cluster.add_close_handler(self._finish_work),
            ]

    def _schedule_sweep(self) -> None:
        limits = self._limits
        delay = min(_SWEEP_INTERVAL_S, limits.session_idle_timeout / 4, limits.replay_ttl / 2)
        self._sweep_timer = asyncio.get_running_loop().call_later(delay, self._sweep, context=contextvars.Context())

    def _sweep(self) -> None:
        """Drop the copies of sessions that were not used for a while, and extend the life of sessions in use."""
        loop_time, now, replay_ttl = asyncio.get_running_loop().time(), time.time(), self._limits.replay_ttl
        sessions_in_use: list[HandshakeSession] = []
        for session in self._copies:
            copy = get_copy(session)
            session.end_unread_requests(loop_time, replay_ttl)
            session.drop_old_streams(loop_time, replay_ttl)
            if now >= copy.identity.expires_at:
                self._copies.drop(session)
            elif not is_unused(session):
                sessions_in_use.append(session)
            elif loop_time - session.last_used_at > self._records.get_ttl(copy.record):
                self._copies.drop(session)
        self._records.saver.touch_all(sessions_in_use)
        self._schedule_sweep()

    async def _finish_work(self) -> None:
        """Store replies and changes of sessions that are not stored yet, before this worker leaves the cluster."""
        await asyncio.gather(self._streams.store_replies(), self._tasks.close(_CLOSE_TIMEOUT_S))

    async def close(self) -> None:
        """Drop this worker's copies of all sessions. The sessions continue at other workers."""
        await self._streams.close()
        await self._tasks.close(_CLOSE_TIMEOUT_S if self._cluster.is_started else 0.0)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for session in self._copies:
            self._copies.drop(session)
        for remove in self._handler_removers:
            remove()
        self._handler_removers = []


@contextlib.contextmanager
def _refuse_if_unavailable() -> Generator[None]:
    """Refuse a request that needs the shared state while the shared state is away."""
    try:
        yield
    except SharedStateUnavailable as exc:
        raise create_unavailable_refusal(exc.retry_after) from None
