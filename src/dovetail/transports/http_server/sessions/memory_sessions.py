"""The sessions of one process, in protocol versions with a handshake.

A session has a random ID, and its state is in the memory of this process. A server without sessions creates a
temporary session for each request.
"""

import asyncio
import contextvars
import secrets
from collections import OrderedDict
from functools import partial
from typing import Any, Final, TypeAlias

from dovetail.eager_tasks import EagerTaskStarter
from dovetail.log import log
from dovetail.protocol import sse
from dovetail.protocol.exchange import IncomingExchange, Service
from dovetail.protocol.handshake import HandshakeState, create_implicit_session
from dovetail.protocol.headers import LAST_EVENT_HEADER, SESSION_HEADER, VERSION_HEADER
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.principal import Principal
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.sessions.handshake_session import STANDALONE_STREAM, HandshakeSession
from dovetail.transports.http_server.sessions.handshake_sessions import (
    SessionVersions,
    check_session_version,
    create_unknown_error,
    read_session_id,
)
from dovetail.transports.http_server.streams.event_log import EventLog, EventStream
from dovetail.transports.http_server.streams.http_response import ResponseTimers
from dovetail.transports.http_server.streams.resumption import (
    EventStreamReader,
    SessionResponseWriter,
    find_resume_point,
)
from dovetail.transports.spool import MemoryBudget
from dovetail.wire.base import Result
from dovetail.wire.revisions import DEFAULT_HTTP_REVISION

_MAX_EVICTION_STEPS: Final = 100
_SWEEP_INTERVAL_S: Final = 5.0
_MAX_ENDED_IDS: Final = 1000

# An owner is (True, principal) for an authenticated caller, and (False, address) for any other caller.
Owner: TypeAlias = tuple[bool, str]


class MemorySessions:
    """The sessions of one endpoint in one process."""

    def __init__(
        self,
        service: Service,
        versions: SessionVersions,
        budget: MemoryBudget,
        timers: ResponseTimers,
        *,
        is_stateful: bool,
    ) -> None:
        self._service = service
        self._limits = service.limits
        self._versions = versions
        self._is_stateful = is_stateful
        # A server without sessions uses this version for requests without an MCP-Protocol-Version header.
        self._default_version = None if is_stateful else DEFAULT_HTTP_REVISION.encode()
        self.budget = budget
        self.event_log = EventLog(service.limits, budget)
        self.timers = timers
        self.create_writer = partial(SessionResponseWriter, self)
        self._starters: dict[asyncio.AbstractEventLoop, EagerTaskStarter] = {}  # one task starter for each event loop
        # The least recently used session is first.
        self._sessions: OrderedDict[str, HandshakeSession] = OrderedDict()
        self._sessions_by_owner: dict[Owner, dict[str, HandshakeSession]] = {}
        self._sweep_timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}
        self._ended_ids: dict[str, None] = {}  # the sessions that ended last. The oldest is first.
        self._has_logged_unknown = False  # Any client can send an unknown session ID, so the warning is logged once.

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def reader_count(self) -> int:
        """Return the number of streams that a client is reading."""
        return sum(session.reader_count for session in tuple(self._sessions.values()))

    @property
    def replay_bytes(self) -> int:
        """Return how many bytes this process stores for clients that reconnect."""
        return self.event_log.stored_bytes

    async def start(self) -> None:
        """Do nothing."""

    # Finding, opening and ending sessions.

    async def find(self, request: EndpointRequest, *, is_answer: bool = False) -> HandshakeSession:
        """Return the session of a request. Raise Refusal if the session is unknown or belongs to another caller."""
        headers, principal = request.headers, request.principal
        version = headers.get(VERSION_HEADER, self._default_version)
        revision = None if version is None else self._versions.allowed.get(version)
        if revision is None:
            self._versions.check(version)
        loop = request.http.loop or asyncio.get_running_loop()
        now = loop.time()
        if not self._is_stateful:
            return HandshakeSession("", create_implicit_session(revision, principal), None, loop)
        id = headers.get(SESSION_HEADER)
        session_id = read_session_id(request) if id is None else id.decode("latin-1")
        session = self._sessions.get(session_id)
        if session is not None and self._is_expired(session, now):
            self._remove(session)
            session = None
        # For another caller's session, the error is the same as for an unknown session.
        if session is None or session.handshake.caller.principal != principal:
            if session is None and not self._has_logged_unknown and session_id not in self._ended_ids:
                self._has_logged_unknown = True
                log.warning(
                    "a client used an unknown session. After a restart of the server, this is normal, and the client "
                    "opens another session. If several processes serve this server, pass cluster= to the server, or "
                    "send all requests of a session to one process"
                )
            raise create_unknown_error()
        if revision is not None and revision != session.handshake.caller.protocol_version:
            check_session_version(version, session)
        session.last_used_at = now
        self._sessions.move_to_end(session.id)
        return session

    def release(self, session: HandshakeSession) -> None:
        """Store when the session was last used."""
        now = session.loop.time()
        # The clock of uvloop advances once per loop iteration. Most calls start and end in the same iteration.
        if now != session.last_used_at:
            session.last_used_at = now
            if session.id in self._sessions:  # The temporary sessions of a server without sessions are not stored.
                self._sessions.move_to_end(session.id)

    async def create(self, handshake: HandshakeState, address: str | None) -> HandshakeSession:
        """Open a session for a client that sent `initialize`. Raise Refusal if there are too many sessions."""
        limits, principal = self._limits, handshake.caller.principal
        owner = _get_owner(principal, address)
        open_count = len(self._sessions_by_owner.get(owner, ())) if owner is not None else 0
        if principal is not None and open_count >= limits.max_sessions_per_principal:
            raise Refusal(429, "Too many sessions", [(b"retry-after", b"60")])
        if principal is None and open_count >= limits.max_sessions_per_address:
            raise Refusal(429, "Too many sessions from this address", [(b"retry-after", b"60")])
        if len(self._sessions) >= limits.max_sessions and not self._evict_idle():
            raise Refusal(503, "Too many sessions", [(b"retry-after", b"60")])
        session = HandshakeSession(secrets.token_urlsafe(24), handshake, address, asyncio.get_running_loop())
        self._sessions[session.id] = session
        if owner is not None:
            self._sessions_by_owner.setdefault(owner, {})[session.id] = session
        self._schedule_sweep()
        return session

    def _evict_idle(self) -> bool:
        """End an idle session to make room for a new one.

        This method moves sessions with a reader or a running call to the end. So the next search does not start with
        them.
        """
        for _ in range(min(len(self._sessions), _MAX_EVICTION_STEPS)):
            session = next(iter(self._sessions.values()))
            if session.is_idle:
                self._remove(session)
                return True
            self._sessions.move_to_end(session.id)
        return False

    async def end(self, session: HandshakeSession) -> None:
        """End a session."""
        self._remove(session)

    def _remove(self, session: HandshakeSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._ended_ids[session.id] = None
            if len(self._ended_ids) > _MAX_ENDED_IDS:
                del self._ended_ids[next(iter(self._ended_ids))]
            owner = _get_owner(session.handshake.caller.principal, session.address)
            if owner is not None:
                del self._sessions_by_owner[owner][session.id]
                if not self._sessions_by_owner[owner]:
                    del self._sessions_by_owner[owner]
        session.close()

    def _schedule_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._sweep_timers:
            for other_loop in tuple(self._sweep_timers):
                if other_loop.is_closed():
                    self._sweep_timers.pop(other_loop, None)
            limits = self._limits
            delay = min(
                _SWEEP_INTERVAL_S, limits.initialize_timeout / 2, limits.session_idle_timeout / 2, limits.replay_ttl / 2
            )
            self._sweep_timers[loop] = loop.call_later(delay, self._sweep, loop, context=contextvars.Context())

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the sessions that have expired, and the sessions of closed event loops."""
        del self._sweep_timers[loop]
        now, limits = loop.time(), self._limits
        for session in tuple(self._sessions.values()):
            if session.loop is not loop and not session.loop.is_closed():
                continue
            if self._is_expired(session, now):
                self._remove(session)
            else:
                session.end_unread_requests(now, limits.replay_ttl)
                session.drop_old_streams(now, limits.replay_ttl)
        if self._sessions:
            self._schedule_sweep()

    def _is_expired(self, session: HandshakeSession, now: float) -> bool:
        if session.running_exchanges and not session.is_idle:
            return False  # A session does not expire during a call.
        limits, age = self._limits, now - session.created_at
        is_unopened = not session.handshake.is_ready and age > limits.initialize_timeout
        is_unused = now - session.last_used_at > limits.session_idle_timeout and session.is_idle
        return is_unopened or is_unused or age > limits.session_lifetime

    # Messages of clients.

    async def handle_session_request(self, session: HandshakeSession, exchange: IncomingExchange) -> Result:
        """Return the result of a request about the session, such as `resources/subscribe`."""
        result = session.handshake.handle_session_request(exchange, self._service)
        if exchange.method == "shutdown":
            self._remove(session)
        return result

    async def mark_ready(self, session: HandshakeSession) -> None:
        """Record that the client has completed the handshake."""
        if self._is_stateful:
            session.mark_ready(self._service)

    async def handle_answer(self, session: HandshakeSession, message: dict[str, Any]) -> None:
        """Pass the client's response to the function that sent the request."""
        session.handle_response(message)

    async def accept_progress(self, session: HandshakeSession, message: dict[str, Any]) -> bool:
        """Return True, because there is only one process."""
        return True

    async def cancel(self, session: HandshakeSession, id: Any) -> None:
        """Cancel a running request."""
        session.cancel(id)

    # Streams.

    async def serve_stream(self, request: EndpointRequest, session: HandshakeSession) -> None:
        """Send the GET stream of a session, or resume an interrupted stream."""
        self._check_streams(request.principal, request.client_address)
        last_event_id = request.headers.get(LAST_EVENT_HEADER)
        if last_event_id is None:
            stream = self._get_standalone_stream(session)
            position = stream.last_number
        else:
            stream, position = find_resume_point(session, last_event_id)
        reader = EventStreamReader(stream, position, request.send, self.timers.keep_alive, self._get_starter())
        stream.attach(reader, reader.response.wake)
        first_event = b""
        if last_event_id is None and session.has_priming_events:
            first_event = sse.encode_event(b"", id=stream.allocate_id())
        if stream.name == STANDALONE_STREAM:
            session.send_pending(stream, request.principal)
        try:
            await reader.response.run(request, first_event)
        finally:
            stream.detach(reader)

    def _check_streams(self, principal: Principal | None, address: str | None) -> None:
        owner = _get_owner(principal, address)
        sessions = self._sessions_by_owner.get(owner, {}) if owner is not None else {}
        if sum(not session.is_idle for session in sessions.values()) >= self._limits.max_streams_per_principal:
            raise Refusal(429, "Too many streams", [(b"retry-after", b"5")])

    def _get_standalone_stream(self, session: HandshakeSession) -> EventStream:
        stream = session.get_stream(STANDALONE_STREAM) or session.open_stream(self.event_log, STANDALONE_STREAM)
        if stream.reader is not None:
            raise Refusal(409, "This session already has an open GET stream")
        return stream

    def _get_starter(self) -> EagerTaskStarter:
        loop = asyncio.get_running_loop()
        starter = self._starters.get(loop)
        if starter is None:
            for other_loop in tuple(self._starters):
                if other_loop.is_closed():
                    self._starters.pop(other_loop, None)
            starter = self._starters[loop] = EagerTaskStarter(contextvars.Context())
        return starter

    async def end_streams(self) -> None:
        """Do nothing. No other worker can continue the streams."""

    async def close(self) -> None:
        """End all sessions."""
        sweep_timer = self._sweep_timers.pop(asyncio.get_running_loop(), None)
        if sweep_timer is not None:
            sweep_timer.cancel()
        for session in list(self._sessions.values()):
            self._remove(session)


def _get_owner(principal: Principal | None, address: str | None) -> Owner | None:
    """Return the owner whose limits apply to a session. Anonymous callers on this machine have no limits."""
    if principal is not None:
        return True, principal
    return None if address is None else (False, address)
