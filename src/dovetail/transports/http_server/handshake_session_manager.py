"""The sessions over Streamable HTTP, in protocol versions with a handshake.

Only the principal that opened a session can use it. The server answers each request on the HTTP response of its POST,
even if two requests have the same ID. A lost connection does not stop a call. spec:
handshake/transports#streamable-http
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dovetail.eager_tasks import EagerTaskStarter
from dovetail.error_context import clip
from dovetail.errors import (
    HeaderMismatch,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    ProtocolError,
    ServerBusy,
    UnsupportedProtocolVersion,
)
from dovetail.log import log
from dovetail.protocol import downgrade, sse
from dovetail.protocol import handshake as handshake_protocol
from dovetail.protocol.exchange import IncomingExchange, Service, check_meta_size
from dovetail.protocol.http_checks import Refusal, get_http_status, parse_accept
from dovetail.protocol.principal import Principal
from dovetail.protocol.stateless import VERSION_HEADER
from dovetail.transports.http_server.event_log import EventLog, EventStream
from dovetail.transports.http_server.handshake_session import STANDALONE_STREAM, HandshakeSession
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.http_response import (
    STREAM_HEADERS,
    ResponseTimers,
    ResponseWriter,
    send_body,
    send_json,
)
from dovetail.transports.http_server.resumption import EventStreamReader, SessionResponseWriter, find_resume_point
from dovetail.transports.spool import MemoryBudget
from dovetail.wire import jsonrpc
from dovetail.wire.base import replace
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.revisions import DEFAULT_HTTP_REVISION, DRAFT, STATELESS_REVISIONS, is_stateless

if TYPE_CHECKING:  # Only servers in a cluster need these modules.
    from dovetail.protocol.cluster_worker import ClusterWorker
    from dovetail.transports.http_server.cluster_streams import ClusterStreams
    from dovetail.transports.http_server.shared_sessions import SharedSessions
    from dovetail.transports.http_server.stored_response import StoredResponseWriter

SESSION_HEADER: Final = b"mcp-session-id"
LAST_EVENT_HEADER: Final = b"last-event-id"
_MAX_EVICTION_STEPS: Final = 100
_SWEEP_INTERVAL_S: Final = 5.0

# An owner is (True, principal) for an authenticated caller, and (False, address) for any other caller.
Owner: TypeAlias = tuple[bool, str]
SessionWriter: TypeAlias = "SessionResponseWriter | StoredResponseWriter"


class HandshakeSessionManager:
    """The sessions of one endpoint, in protocol versions with a handshake."""

    def __init__(
        self,
        service: Service,
        budget: MemoryBudget,
        timers: ResponseTimers,
        *,
        is_stateful: bool,
        start: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        # the allowed values of the MCP-Protocol-Version header
        self._versions = frozenset(
            revision.encode() for revision in service.protocol_versions if not is_stateless(revision)
        )
        self.is_stateful = is_stateful and bool(self._versions)
        # A server without sessions uses this version for requests without an MCP-Protocol-Version header.
        self._default_version = None if self.is_stateful else DEFAULT_HTTP_REVISION.encode()
        self._service = service
        self._limits = service.limits
        self._event_log = EventLog(service.limits, budget)
        self._timers = timers
        self._starters: dict[asyncio.AbstractEventLoop, EagerTaskStarter] = {}  # one task starter for each event loop
        # The least recently used session is first.
        self._sessions: OrderedDict[str, HandshakeSession] = OrderedDict()
        self._has_logged_unknown = False  # Any client can send an unknown session ID, so the warning is logged once.
        self._sessions_by_owner: dict[Owner, dict[str, HandshakeSession]] = {}
        self._sweep_timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}
        self._cluster = service.cluster if self.is_stateful else None
        self._start = start
        self.is_draining = False  # True if the process ends soon, so it refuses new sessions
        # The sessions that all workers share. Without a cluster, this is None.
        self._shared_sessions = (
            None if self._cluster is None else _share_sessions(service, self._cluster, self._sessions)
        )
        self._cluster_streams = (
            None
            if self._cluster is None or self._shared_sessions is None
            else _share_streams(service, self._cluster, timers, budget, self._shared_sessions)
        )

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def streams(self) -> int:
        """Return the number of streams with a reader."""
        return sum(session.reader_count for session in tuple(self._sessions.values()))

    @property
    def replay_bytes(self) -> int:
        """Return the number of bytes that are stored for clients that reconnect."""
        return self._event_log.stored_bytes

    def handle_post(self, request: EndpointRequest) -> Awaitable[None]:
        """Return the awaitable that handles a POST request."""
        message = request.message
        if type(message) is list:
            if self._shared_sessions is not None:
                return self._handle_shared_batch(request, message, self._shared_sessions)
            return self._handle_batch(request, message, self._find_session(request))
        try:
            kind = jsonrpc.classify(message)
            if kind == "request" and message["method"] == handshake_protocol.INITIALIZE:
                self.check_accepts_sessions()
                refresh_description = self._service.refresh_description
                if self._shared_sessions is not None:
                    return self._initialize_shared(request, refresh_description, self._shared_sessions)
                if refresh_description is None:
                    return self._initialize(request)
                return self._refresh_and_initialize(request, refresh_description)
            if not self._versions:
                raise _unsupported_error(request.headers, self._service.protocol_versions)
        except ProtocolError as exc:
            return _send_refusal(request, jsonrpc.read_id(message), exc)
        if self._shared_sessions is not None:
            return self._handle_shared_message(request, kind, self._shared_sessions)
        session = self._find_session(request)
        if kind == "request":
            return self._handle_request(request, session)
        if kind == "notice":
            self._handle_notification(request, session, message)
        else:
            session.handle_response(message)
        return send_body(request.send, 202, request.cors_headers, b"")

    def check_accepts_sessions(self) -> None:
        """Raise Refusal if no session can be opened, because the process ends soon."""
        if self.is_draining:
            raise Refusal(503, "The server is shutting down", [(b"retry-after", b"1"), (b"connection", b"close")])

    async def _refresh_and_initialize(
        self, request: EndpointRequest, refresh_description: Callable[[], Awaitable[None]]
    ) -> None:
        await refresh_description()
        try:
            sending = self._initialize(request)
        except ProtocolError as exc:
            sending = _send_refusal(request, jsonrpc.read_id(request.message), exc)
        await sending

    def _initialize(self, request: EndpointRequest) -> Awaitable[None]:
        handshake = handshake_protocol.open_session(request.message, self._service, request.principal)
        response = handshake_protocol.encode_introduction(request.message["id"], handshake, self._service)
        headers = list(request.cors_headers)
        if self.is_stateful:
            session = self._create_session(handshake, request.client_address)
            headers.append((SESSION_HEADER, session.id.encode()))
        writer = ResponseWriter(request.send, request.response_mode, headers, self._timers, self._event_log.budget)
        return writer.finish(response)

    async def _handle_request(self, request: EndpointRequest, session: HandshakeSession) -> None:
        message = request.message
        try:
            exchange = self._admit(request, session, message)
            session_result = (
                session.handshake.handle_session_request(exchange, self._service)
                if self._shared_sessions is None
                else await self._shared_sessions.handle_session_request(session, exchange)
            )
            if session_result is not None:
                await send_json(
                    request.send,
                    200,
                    handshake_protocol.seal(exchange, session_result, self._limits.max_result_bytes),
                    request.cors_headers,
                )
                if exchange.method == "shutdown" and self._shared_sessions is None:
                    self._end_session(session)
                return
            session.add_running(exchange, self._limits.max_calls_per_connection)
        except ProtocolError as exc:
            await _send_refusal(request, message["id"], exc, session.revision)
            return
        writer = (
            SessionResponseWriter(request, session, self._timers, self._event_log)
            if self._cluster_streams is None
            else self._cluster_streams.create_writer(request, session, [exchange.id])
        )
        writer.watch_silence()
        try:
            try:
                response = await self._run(exchange, session, writer)
                final_write = writer.end() if response is None else writer.finish(response)
                del response  # Do not keep a large response in memory while the client reads.
            except (ServerBusy, InsufficientScope) as exc:
                refusal = handshake_protocol.refuse(session.revision, exchange.id, exc)
                final_write = writer.finish(refusal, get_http_status(exc), request.build_error_headers(exc))
            await final_write
        except BaseException:
            writer.drop()
            raise

    def _admit(self, request: EndpointRequest, session: HandshakeSession, message: dict[str, Any]) -> IncomingExchange:
        exchange = session.handshake.admit(message, self._service.requests)
        # The caller is the same, but its scopes may have changed.
        if request.principal is not exchange.caller.principal:
            exchange.caller = replace(exchange.caller, principal=request.principal)
        exchange.headers = request.headers
        exchange.buffer = self._event_log.budget
        exchange.origin = request.principal or request.client_address
        exchange.size = request.size
        if request.size > self._limits.max_meta_bytes:
            check_meta_size(exchange, self._limits.max_meta_bytes)
        return exchange

    async def _run(self, exchange: IncomingExchange, session: HandshakeSession, writer: SessionWriter) -> bytes | None:
        """Run a request and return its response, or None if it was cancelled."""
        writer.attach(exchange, self.is_stateful)
        loop = asyncio.get_running_loop()
        exchange.task = asyncio.current_task(loop)
        running = session.running_exchanges
        assert running is not None
        response: bytes | None = None
        try:
            response = handshake_protocol.seal(
                exchange, await self._service.handle(exchange), self._limits.max_result_bytes
            )
        except (ServerBusy, InsufficientScope):
            raise  # The calling method sends an HTTP status for these errors, except in a batch.
        except ProtocolError as exc:
            response = handshake_protocol.refuse(session.revision, exchange.id, exc)
        except asyncio.CancelledError:
            if exchange.verdict != "cancelled":
                raise
        except Exception as exc:
            log.error("the result of %s could not be sent: %s", exchange.method, type(exc).__name__)
            response = handshake_protocol.refuse(
                session.revision, exchange.id, InternalError("The result could not be encoded")
            )
        finally:
            running.discard(exchange)
            session.last_used_at = loop.time()
            if session.id in self._sessions:  # A stateless server does not store sessions.
                self._sessions.move_to_end(session.id)
        if exchange.verdict != "cancelled":
            return response
        exchange.task.uncancel()
        return _encode_cancelled(exchange)  # The result of a cancelled call is not sent.

    def _handle_notification(
        self, request: EndpointRequest, session: HandshakeSession, message: dict[str, Any]
    ) -> None:
        # Some clients omit the prefix "notifications/".
        if message["method"] in ("notifications/initialized", "initialized"):
            if self.is_stateful:
                session.mark_ready(self._service)
        elif message["method"] == "notifications/cancelled":
            session.cancel((message.get("params") or {}).get("requestId"))
        elif self.is_stateful:
            exchange = session.handshake.admit_notification(message)
            if exchange.method == "notifications/progress":
                exchange.params = session.read_progress(exchange.params)
            # The caller is the same, but its scopes may have changed.
            exchange.caller = replace(exchange.caller, principal=request.principal)
            exchange.headers = request.headers
            exchange.origin = request.principal or request.client_address
            exchange.size = request.size
            self._service.receive_notification(exchange)

    async def _handle_batch(self, request: EndpointRequest, messages: list[Any], session: HandshakeSession) -> None:
        """Handle a batch of messages. Only protocol version 2025-03 has batches. spec: handshake/basic#batching"""
        problem = None
        if not session.handshake.allows_batches:
            problem = "this protocol version does not support batches"
        elif not 0 < len(messages) <= self._limits.max_calls_per_connection:
            problem = f"a batch must have 1 to {self._limits.max_calls_per_connection} messages"
        if problem is not None:
            exc = InvalidRequest(f"Invalid request: {problem}")
            await send_json(
                request.send, 400, handshake_protocol.refuse(session.revision, None, exc), request.cors_headers
            )
            return
        writer = (
            SessionResponseWriter(request, session, self._timers, self._event_log)
            if self._cluster_streams is None
            else self._cluster_streams.create_writer(request, session, _list_request_ids(messages))
        )
        writer.watch_silence()
        try:
            results = await asyncio.gather(
                *(self._run_batch_message(request, session, message, writer) for message in messages)
            )
            responses = [result for result in results if result is not None]
            if responses:
                await writer.finish(b"[" + b",".join(responses) + b"]")
            else:
                await (writer.end() if writer.is_streaming else writer.send_accepted())
        except BaseException:
            writer.drop()
            raise

    async def _run_batch_message(
        self, request: EndpointRequest, session: HandshakeSession, message: Any, writer: SessionWriter
    ) -> bytes | None:
        try:
            kind = jsonrpc.classify(message)
            shared_sessions = self._shared_sessions
            if kind != "request" and shared_sessions is not None:
                await self._handle_shared_notification(request, session, message, kind, shared_sessions)
                return None
            if kind == "notice":
                self._handle_notification(request, session, message)
                return None
            if kind != "request":
                session.handle_response(message)
                return None
            exchange = self._admit(request, session, message)
            session_result = (
                session.handshake.handle_session_request(exchange, self._service)
                if shared_sessions is None
                else await shared_sessions.handle_session_request(session, exchange)
            )
            if session_result is not None:
                return handshake_protocol.seal(exchange, session_result, self._limits.max_result_bytes)
            session.add_running(exchange, self._limits.max_calls_per_connection)
            return await asyncio.get_running_loop().create_task(self._run(exchange, session, writer))
        except Refusal as exc:  # The shared state is not available.
            return handshake_protocol.refuse(session.revision, jsonrpc.read_id(message), ServerBusy(exc.message))
        except ProtocolError as exc:
            return handshake_protocol.refuse(session.revision, jsonrpc.read_id(message), exc)

    async def handle_get(self, request: EndpointRequest) -> None:
        """Handle a GET request. It opens the stream for unsolicited messages, or resumes an interrupted stream."""
        _check_has_sessions(request)
        if not parse_accept(request.headers.get(b"accept"))[1]:
            raise Refusal(406, "Accept must include text/event-stream")
        if self._shared_sessions is not None and self._cluster_streams is not None:
            session = await self._find_shared_session(request, self._shared_sessions)
            async with self._shared_sessions.stream_places.take(request.principal, request.client_address):
                await self._cluster_streams.handle_get(request, session)
            return
        session = self._find_session(request)
        self._check_streams(request.principal, request.client_address)
        last_event_id = request.headers.get(LAST_EVENT_HEADER)
        if last_event_id is None:
            stream = self._get_standalone_stream(session)
            position = stream.last_number
        else:
            stream, position = find_resume_point(session, last_event_id)
        reader = EventStreamReader(stream, position, request.send, self._timers.keep_alive, self._get_starter())
        stream.attach(reader, reader.wake)
        priming_id = stream.allocate_id() if last_event_id is None and session.has_priming_events else None
        if stream.name == STANDALONE_STREAM:
            session.send_pending(stream, request.principal)
        try:
            headers = [*STREAM_HEADERS, *request.cors_headers]
            await request.send({"type": "http.response.start", "status": 200, "headers": headers})
            if priming_id is not None:
                await reader.write(sse.encode_event(b"", id=priming_id))
            await reader.run(request.receive, request.valid_for)
        finally:
            stream.detach(reader)
            session.last_used_at = asyncio.get_running_loop().time()
            if not session.is_closed:
                self._sessions.move_to_end(session.id)

    def _get_starter(self) -> EagerTaskStarter:
        loop = asyncio.get_running_loop()
        starter = self._starters.get(loop)
        if starter is None:
            for other_loop in tuple(self._starters):
                if other_loop.is_closed():
                    self._starters.pop(other_loop, None)
            starter = self._starters[loop] = EagerTaskStarter()
        return starter

    def _get_standalone_stream(self, session: HandshakeSession) -> EventStream:
        stream = session.get_stream(STANDALONE_STREAM) or session.open_stream(self._event_log, STANDALONE_STREAM)
        if stream.reader is not None:
            raise Refusal(409, "This session already has an open GET stream")
        return stream

    async def handle_delete(self, request: EndpointRequest) -> None:
        """Handle a DELETE request. A client sends it to end its session."""
        _check_has_sessions(request)
        if self._shared_sessions is None:
            self._end_session(self._find_session(request))
        else:
            session = await self._find_shared_session(request, self._shared_sessions)
            await self._shared_sessions.end(session)
        await send_body(request.send, 204, request.cors_headers, b"")

    # Sessions that the workers of a cluster share.

    async def _initialize_shared(
        self,
        request: EndpointRequest,
        refresh_description: Callable[[], Awaitable[None]] | None,
        shared_sessions: "SharedSessions",
    ) -> None:
        await self._join_cluster()
        if refresh_description is not None:
            await refresh_description()
        try:
            handshake = handshake_protocol.open_session(request.message, self._service, request.principal)
            response = handshake_protocol.encode_introduction(request.message["id"], handshake, self._service)
        except ProtocolError as exc:
            await _send_refusal(request, jsonrpc.read_id(request.message), exc)
            return
        session = await shared_sessions.create(handshake, request.client_address)
        headers = [*request.cors_headers, (SESSION_HEADER, session.id.encode())]
        writer = ResponseWriter(request.send, request.response_mode, headers, self._timers, self._event_log.budget)
        await writer.finish(response)

    async def _join_cluster(self) -> None:
        """Join the cluster if the HTTP server has not started the application."""
        if self._cluster is not None and not self._cluster.is_started and self._start is not None:
            await self._start()

    async def _find_shared_session(
        self, request: EndpointRequest, shared_sessions: "SharedSessions", *, reads_record: bool = True
    ) -> HandshakeSession:
        await self._join_cluster()
        version = request.headers.get(VERSION_HEADER)
        self._check_version(version)
        id = request.headers.get(SESSION_HEADER)
        if id is None:
            raise Refusal(400, "Mcp-Session-Id is required. Open a session with initialize")
        session = await shared_sessions.find(id.decode("latin-1"), request.principal, reads_record=reads_record)
        _check_session_version(version, session)
        return session

    async def _handle_shared_message(
        self, request: EndpointRequest, kind: str, shared_sessions: "SharedSessions"
    ) -> None:
        # An answer to a question needs no current state, and must arrive while the shared state is away.
        session = await self._find_shared_session(request, shared_sessions, reads_record=kind != "response")
        if kind == "request":
            await self._handle_request(request, session)
            return
        await self._handle_shared_notification(request, session, request.message, kind, shared_sessions)
        await send_body(request.send, 202, request.cors_headers, b"")

    async def _handle_shared_notification(
        self,
        request: EndpointRequest,
        session: HandshakeSession,
        message: dict[str, Any],
        kind: str,
        shared_sessions: "SharedSessions",
    ) -> None:
        """Handle a notification, or the response to a question."""
        if kind != "notice":
            await shared_sessions.questions.handle_response(session, message)
            return
        match message["method"]:
            case "notifications/initialized" | "initialized":
                await shared_sessions.mark_ready(session)
            case "notifications/cancelled":
                await shared_sessions.questions.cancel(session, (message.get("params") or {}).get("requestId"))
            case "notifications/progress" if not await shared_sessions.questions.handle_progress(session, message):
                pass  # Another worker handles it, or the token is unknown.
            case _:
                self._handle_notification(request, session, message)

    async def _handle_shared_batch(
        self, request: EndpointRequest, messages: list[Any], shared_sessions: "SharedSessions"
    ) -> None:
        session = await self._find_shared_session(request, shared_sessions)
        await self._handle_batch(request, messages, session)

    # Sessions of one process.

    def _check_version(self, version: bytes | None) -> None:
        if version is not None and version not in self._versions:
            raise Refusal(
                400,
                f"Unsupported protocol version {clip(version.decode('latin-1'), 64)}. MCP-Protocol-Version must be "
                f"one of {', '.join(self._service.protocol_versions)}",
            )

    def _find_session(self, request: EndpointRequest) -> HandshakeSession:
        headers, principal = request.headers, request.principal
        version = headers.get(VERSION_HEADER, self._default_version)
        if version is not None and version not in self._versions:
            self._check_version(version)
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self.is_stateful:
            revision = None if version is None else version.decode("latin-1")
            return HandshakeSession("", handshake_protocol.create_implicit_session(revision, principal), None, loop)
        id = headers.get(SESSION_HEADER)
        if id is None:
            raise Refusal(400, "Mcp-Session-Id is required. Open a session with initialize")
        session = self._sessions.get(id.decode("latin-1"))
        if session is not None and self._is_expired(session, now):
            self._end_session(session)
            session = None
        # A session of another caller gets the same error as an unknown session.
        if session is None or session.handshake.caller.principal != principal:
            if session is None and not self._has_logged_unknown:
                self._has_logged_unknown = True
                log.warning(
                    "a client used an unknown session. If several processes serve this server, pass cluster= to the "
                    "server, or send all requests of a session to one process"
                )
            raise Refusal(404, "Unknown session. Open a session with initialize")
        if version is not None and version != session.revision.encode():
            _check_session_version(version, session)
        session.last_used_at = now
        self._sessions.move_to_end(session.id)
        return session

    def _create_session(self, handshake: handshake_protocol.HandshakeState, address: str | None) -> HandshakeSession:
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

        To limit the work, sessions with a reader or a running call move to the end of the order.
        """
        for _ in range(min(len(self._sessions), _MAX_EVICTION_STEPS)):
            session = next(iter(self._sessions.values()))
            if session.is_idle:
                self._end_session(session)
                return True
            self._sessions.move_to_end(session.id)
        return False

    def _check_streams(self, principal: Principal | None, address: str | None) -> None:
        owner = _get_owner(principal, address)
        sessions = self._sessions_by_owner.get(owner, {}) if owner is not None else {}
        if sum(not session.is_idle for session in sessions.values()) >= self._limits.max_streams_per_principal:
            raise Refusal(429, "Too many streams", [(b"retry-after", b"5")])

    def _end_session(self, session: HandshakeSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
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
            self._sweep_timers[loop] = loop.call_later(delay, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the sessions that have expired, and the sessions of closed event loops."""
        del self._sweep_timers[loop]
        now, limits = loop.time(), self._limits
        for session in tuple(self._sessions.values()):
            if session.loop is not loop and not session.loop.is_closed():
                continue
            if self._is_expired(session, now):
                self._end_session(session)
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

    async def end_shared_streams(self) -> None:
        """End the streams of shared sessions, so that their clients continue at other workers."""
        if self._cluster_streams is not None:
            await self._cluster_streams.end_readers()

    async def close(self) -> None:
        """End all sessions. Sessions that other workers share continue there."""
        if self._shared_sessions is not None:
            if self._cluster_streams is not None:
                await self._cluster_streams.close()
            await self._shared_sessions.close()
            return
        sweep_timer = self._sweep_timers.pop(asyncio.get_running_loop(), None)
        if sweep_timer is not None:
            sweep_timer.cancel()
        for session in list(self._sessions.values()):
            self._end_session(session)


def _share_sessions(
    service: Service, cluster: "ClusterWorker", sessions: OrderedDict[str, HandshakeSession]
) -> "SharedSessions":
    from dovetail.transports.http_server.shared_sessions import SharedSessions

    return SharedSessions(service, cluster, sessions)


def _share_streams(
    service: Service,
    cluster: "ClusterWorker",
    timers: ResponseTimers,
    budget: MemoryBudget,
    shared_sessions: "SharedSessions",
) -> "ClusterStreams":
    from dovetail.transports.http_server.cluster_streams import ClusterStreams

    return ClusterStreams(service, cluster, timers, budget, shared_sessions.update_record)


def _list_request_ids(messages: list[Any]) -> list[RequestId]:
    """Return the IDs of the requests in a batch."""
    return [
        message["id"]
        for message in messages
        if type(message) is dict and type(message.get("id")) in (int, str) and type(message.get("method")) is str
    ]


def _check_session_version(version: bytes | None, session: HandshakeSession) -> None:
    if version is not None and version != session.revision.encode():
        raise Refusal(
            400, f"Unsupported protocol version {version.decode('latin-1')}. This session uses {session.revision}"
        )


def _check_has_sessions(request: EndpointRequest) -> None:
    """Reject a GET or DELETE request in a protocol version without sessions. spec:
    streamable-http#receiving-messages
    """
    version = request.headers.get(VERSION_HEADER, b"").decode("latin-1")
    if version in STATELESS_REVISIONS:
        raise Refusal(405, f"Protocol version {version} only allows POST", [(b"allow", b"POST")])


def _get_owner(principal: Principal | None, address: str | None) -> Owner | None:
    """Return the owner whose limits apply to a session. Anonymous callers on this machine have no limits."""
    if principal is not None:
        return True, principal
    return None if address is None else (False, address)


def _unsupported_error(headers: Mapping[bytes, bytes], revisions: tuple[str, ...]) -> ProtocolError:
    """Return the error for a request in a handshake version, if the server supports only stateless versions.

    spec: streamable-http#protocol-version-header
    """
    version = headers.get(VERSION_HEADER)
    if version is None:
        return HeaderMismatch("Header mismatch: mcp-protocol-version is required")
    return UnsupportedProtocolVersion(version.decode("latin-1"), revisions)


def _encode_cancelled(exchange: IncomingExchange) -> bytes | None:
    if exchange.caller.protocol_version == DRAFT:
        return jsonrpc.encode_error(exchange.id, downgrade.DRAFT_CANCELLED, "Request cancelled")
    return None


async def _send_refusal(
    request: EndpointRequest, id: RequestId | None, exc: ProtocolError, revision: str | None = None
) -> None:
    body = jsonrpc.encode_protocol_error(id, exc) if revision is None else handshake_protocol.refuse(revision, id, exc)
    status = get_http_status(exc) if isinstance(exc, ServerBusy | InsufficientScope) or revision is None else 200
    await send_json(request.send, status, body, [*request.cors_headers, *request.build_error_headers(exc)])
