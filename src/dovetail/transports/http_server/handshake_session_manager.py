"""All handshake sessions over Streamable HTTP: ids, the GET stream, DELETE, resumption and expiry.

A session is bound to the principal that opened it and to nothing else; a request is answered on its own reply,
whatever its id; a lost connection does not stop the work. spec: handshake/transports#streamable-http
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from dovetail.errors import (
    HeaderMismatch,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    ProtocolError,
    ServerBusy,
    UnsupportedProtocolVersion,
)
from dovetail.protocol import downgrade, sse
from dovetail.protocol import handshake as handshake_protocol
from dovetail.protocol.exchange import Exchange, Service, check_meta_size
from dovetail.protocol.http_checks import Refusal, get_http_status, parse_accept
from dovetail.protocol.limits import CallerBusy
from dovetail.protocol.principal import Principal
from dovetail.protocol.stateless import VERSION_HEADER
from dovetail.transports.http_server.event_log import EventLog, EventStream
from dovetail.transports.http_server.handshake_session import STANDALONE_STREAM, HandshakeSession, encode_change
from dovetail.transports.http_server.http_request import EndpointRequest, ResponseMode
from dovetail.transports.http_server.http_response import (
    STREAM_HEADERS,
    ResponseWriter,
    SilentResponses,
    send_body,
    send_json,
)
from dovetail.transports.http_server.resumption import EventStreamReader, SessionResponseWriter, find_resume_point
from dovetail.transports.spool import MemoryBudget
from dovetail.wire import jsonrpc
from dovetail.wire.base import replace
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.revisions import DEFAULT_HTTP_REVISION, DRAFT, is_stateless

log = logging.getLogger("dovetail")

SESSION_HEADER: Final = b"mcp-session-id"
LAST_EVENT_HEADER: Final = b"last-event-id"
_SWEEP_INTERVAL_S: Final = 5.0


class HandshakeSessionManager:
    """All sessions of one endpoint."""

    def __init__(
        self,
        service: Service,
        budget: MemoryBudget,
        silent_responses: Mapping[ResponseMode, SilentResponses],
        *,
        is_stateful: bool,
    ) -> None:
        # What a version header may name.
        self._versions = frozenset(
            revision.encode() for revision in service.protocol_versions if not is_stateless(revision)
        )
        self.is_stateful = is_stateful and bool(self._versions)
        self._default_version = None if self.is_stateful else DEFAULT_HTTP_REVISION.encode()  # a session knows its own
        self._service = service
        self._limits = service.limits
        self._event_log = EventLog(service.limits, budget)
        self._silent_responses = silent_responses
        self._sessions: dict[str, HandshakeSession] = {}
        self._sweep_timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def streams(self) -> int:
        """How many streams are read now."""
        return sum(session.streams_read for session in tuple(self._sessions.values()))

    @property
    def replay_bytes(self) -> int:
        """How many bytes of events are kept for clients that reconnect."""
        return self._event_log.stored_bytes

    # POST

    def handle_post(self, request: EndpointRequest) -> Awaitable[None]:
        """What to await for one POST."""
        message = request.message
        if type(message) is list:
            return self._handle_batch(request, message)
        try:
            kind = jsonrpc.classify(message)
            if kind == "request" and message["method"] == handshake_protocol.INITIALIZE:
                return self._initialize(request)
            if not self._versions:
                raise _unsupported_error(request.headers, self._service.protocol_versions)
        except ProtocolError as exc:
            return _send_refusal(request, jsonrpc.read_id(message), exc)
        session = self._find_session(request)
        if kind == "request":
            return self._handle_request(request, session)
        if kind == "notice":
            self._handle_notification(session, message)
        else:
            session.handle_response(message)
        return send_body(request.send, 202, request.cors_headers, b"")

    def _initialize(self, request: EndpointRequest) -> Awaitable[None]:
        handshake, response = handshake_protocol.open_session(request.message, self._service, request.principal)
        headers = list(request.cors_headers)
        if self.is_stateful:
            session = self._create_session(handshake, request.client_address)
            headers.append((SESSION_HEADER, session.id.encode()))
        writer = ResponseWriter(
            request.send, request.response_mode, headers, self._limits.keep_alive_interval, self._event_log.budget
        )
        return writer.finish(response)

    async def _handle_request(self, request: EndpointRequest, session: HandshakeSession) -> None:
        message = request.message
        try:
            exchange = self._admit(request, session, message)
            session_result = session.handshake.handle_session_request(exchange, self._service)
            if session_result is not None:
                await send_json(
                    request.send,
                    200,
                    handshake_protocol.seal(exchange, session_result, self._limits.max_result_bytes),
                    request.cors_headers,
                )
                if exchange.method == "shutdown":
                    self._end_session(session)
                return
            self._add_running(session, exchange)
        except ProtocolError as exc:
            await _send_refusal(request, message["id"], exc, session.revision)
            return
        writer = SessionResponseWriter(request, session, self._limits, self._event_log)
        writer.watch_silence(self._silent_responses)
        try:
            try:
                response = await self._run(exchange, session, writer)
                final_write = writer.end() if response is None else writer.finish(response)
                del response  # a large one is not kept while the client reads it
            except (ServerBusy, InsufficientScope) as exc:
                refusal = handshake_protocol.refuse(session.revision, exchange.id, exc)
                final_write = writer.finish(refusal, get_http_status(exc), request.build_error_headers(exc))
            await final_write
        except BaseException:
            writer.drop()
            raise

    def _admit(self, request: EndpointRequest, session: HandshakeSession, message: dict[str, Any]) -> Exchange:
        exchange = session.handshake.admit(message)
        if request.principal is not exchange.caller.principal:  # the same one, perhaps with more scopes by now
            exchange.caller = replace(exchange.caller, principal=request.principal)
        exchange.headers = request.headers
        exchange.origin = request.principal or request.client_address
        exchange.size = request.size
        if request.size > self._limits.max_meta_bytes:
            check_meta_size(exchange, self._limits.max_meta_bytes)
        return exchange

    def _add_running(self, session: HandshakeSession, exchange: Exchange) -> None:
        """Count a request among those of the session, if there is room."""
        if session.running_exchanges is None:
            session.running_exchanges = set()
        if len(session.running_exchanges) >= self._limits.max_calls_per_connection:
            raise CallerBusy("Too many requests are in flight in this session")
        session.running_exchanges.add(exchange)

    async def _run(self, exchange: Exchange, session: HandshakeSession, writer: SessionResponseWriter) -> bytes | None:
        """Run one exchange to its response; None if it was cancelled."""
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
            raise  # has a status of its own, where it is not one answer of several
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
        if exchange.verdict != "cancelled":
            return response
        exchange.task.uncancel()
        return _encode_cancelled(exchange)  # even if the work went on to a result of its own

    def _handle_notification(self, session: HandshakeSession, message: dict[str, Any]) -> None:
        if message["method"] == "notifications/initialized":
            if self.is_stateful:
                session.mark_ready(self._service)
        elif message["method"] == "notifications/cancelled":
            session.cancel((message.get("params") or {}).get("requestId"))

    async def _handle_batch(self, request: EndpointRequest, messages: list[Any]) -> None:
        """Several messages at once, in the one revision that had them. spec: handshake/basic#batching"""
        session = self._find_session(request)
        if (
            not session.handshake.allows_batches
            or not messages
            or len(messages) > self._limits.max_calls_per_connection
        ):
            problem = (
                "are not part of this revision"
                if not session.handshake.allows_batches
                else "hold something, and not too much"
            )
            exc = InvalidRequest(f"Invalid request: batches {problem}")
            await send_json(
                request.send, 400, handshake_protocol.refuse(session.revision, None, exc), request.cors_headers
            )
            return
        writer = SessionResponseWriter(request, session, self._limits, self._event_log)
        writer.watch_silence(self._silent_responses)
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
        self, request: EndpointRequest, session: HandshakeSession, message: Any, writer: SessionResponseWriter
    ) -> bytes | None:
        try:
            kind = jsonrpc.classify(message)
            if kind == "notice":
                self._handle_notification(session, message)
                return None
            if kind != "request":
                session.handle_response(message)
                return None
            exchange = self._admit(request, session, message)
            session_result = session.handshake.handle_session_request(exchange, self._service)
            if session_result is not None:
                return handshake_protocol.seal(exchange, session_result, self._limits.max_result_bytes)
            self._add_running(session, exchange)
            return await asyncio.get_running_loop().create_task(self._run(exchange, session, writer))
        except ProtocolError as exc:
            return handshake_protocol.refuse(session.revision, jsonrpc.read_id(message), exc)

    # GET and DELETE

    async def handle_get(self, request: EndpointRequest) -> None:
        """The stream of what the server says unasked, or the rest of one that broke off."""
        if not parse_accept(request.headers.get(b"accept"))[1]:
            raise Refusal(406, "Accept must take text/event-stream")
        session = self._find_session(request)
        self._check_streams(request.principal, request.client_address)
        last_event_id = request.headers.get(LAST_EVENT_HEADER)
        if last_event_id is None:
            stream = self._get_standalone_stream(session)
            position = stream.last_number
        else:
            stream, position = find_resume_point(session, last_event_id)
        reader = EventStreamReader(stream, request.send, request.receive, self._limits, request.valid_for)
        stream.attach(reader)
        stream.wakeup.set()  # whoever read it before lets go
        priming_id = stream.allocate_id() if last_event_id is None and session.has_priming_events else None
        if stream.name == STANDALONE_STREAM:
            for method, uri in session.pending_changes or {}:
                stream.append(encode_change(method, uri))
            session.pending_changes = None
        try:
            headers = [*STREAM_HEADERS, *request.cors_headers]
            await request.send({"type": "http.response.start", "status": 200, "headers": headers})
            if priming_id is not None:
                await reader.write(sse.encode_event(b"", id=priming_id))
            await reader.run(position)
        finally:
            stream.detach(reader)
            session.last_used_at = asyncio.get_running_loop().time()

    def _get_standalone_stream(self, session: HandshakeSession) -> EventStream:
        stream = session.get_stream(STANDALONE_STREAM) or session.open_stream(self._event_log, STANDALONE_STREAM)
        if stream.reader is not None:
            raise Refusal(409, "This session already has a stream open")
        return stream

    async def handle_delete(self, request: EndpointRequest) -> None:
        """End a session on the client's wish."""
        self._end_session(self._find_session(request))
        await send_body(request.send, 204, request.cors_headers, b"")

    # Keeping

    def _find_session(self, request: EndpointRequest) -> HandshakeSession:
        headers, principal = request.headers, request.principal
        version = headers.get(VERSION_HEADER, self._default_version)
        if version is not None and version not in self._versions:
            raise Refusal(400, f"MCP-Protocol-Version must be one of {', '.join(self._service.protocol_versions)}")
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self.is_stateful:
            revision = None if version is None else version.decode("latin-1")
            return HandshakeSession("", handshake_protocol.create_implicit_session(revision, principal), None, loop)
        id = headers.get(SESSION_HEADER)
        if id is None:
            raise Refusal(400, "Mcp-Session-Id is required; open a session with initialize")
        session = self._sessions.get(id.decode("latin-1"))
        if session is not None and self._is_expired(session, now):
            self._end_session(session)
            session = None
        # Someone else's session is not told apart from one that never was.
        if session is None or session.handshake.caller.principal != principal:
            raise Refusal(404, "There is no such session; open one with initialize")
        session.last_used_at = now
        return session

    def _create_session(self, handshake: handshake_protocol.HandshakeState, address: str | None) -> HandshakeSession:
        limits, principal = self._limits, handshake.caller.principal
        if principal is not None:
            open_count = sum(
                1 for other in tuple(self._sessions.values()) if other.handshake.caller.principal == principal
            )
            if open_count >= limits.max_sessions_per_principal:
                raise Refusal(429, "Too many sessions", [(b"retry-after", b"60")])
        elif address is not None:
            open_count = sum(1 for other in tuple(self._sessions.values()) if other.address == address)
            if open_count >= limits.max_sessions_per_address:
                raise Refusal(429, "Too many sessions from this address", [(b"retry-after", b"60")])
        if len(self._sessions) >= limits.max_sessions and not self._evict_idle():
            raise Refusal(503, "Too many sessions", [(b"retry-after", b"60")])
        session = HandshakeSession(secrets.token_urlsafe(24), handshake, address, asyncio.get_running_loop())
        self._sessions[session.id] = session
        self._schedule_sweep()
        return session

    def _evict_idle(self) -> bool:
        """Let the longest unused session go; its client will open another if it ever comes back."""
        idle_sessions = [session for session in tuple(self._sessions.values()) if session.is_idle]
        if not idle_sessions:
            return False
        self._end_session(min(idle_sessions, key=lambda session: session.last_used_at))
        return True

    def _check_streams(self, principal: Principal | None, address: str | None) -> None:
        if principal is None and address is None:
            return
        count = 0
        for session in tuple(self._sessions.values()):
            if (principal is not None and session.handshake.caller.principal == principal) or (
                principal is None and session.address == address
            ):
                count += not session.is_idle
        if count >= self._limits.max_streams_per_principal:
            raise Refusal(429, "Too many streams", [(b"retry-after", b"5")])

    def _end_session(self, session: HandshakeSession) -> None:
        self._sessions.pop(session.id, None)
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
        """End what is over of the sessions of this event loop, and of event loops that have ended."""
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
            return False  # its calls have a time of their own
        limits, age = self._limits, now - session.created_at
        is_unopened = not session.handshake.is_ready and age > limits.initialize_timeout
        is_unused = now - session.last_used_at > limits.session_idle_timeout and session.is_idle
        return is_unopened or is_unused or age > limits.session_lifetime

    async def close(self) -> None:
        """End all sessions."""
        sweep_timer = self._sweep_timers.pop(asyncio.get_running_loop(), None)
        if sweep_timer is not None:
            sweep_timer.cancel()
        for session in list(self._sessions.values()):
            self._end_session(session)


def _unsupported_error(headers: Mapping[bytes, bytes], revisions: tuple[str, ...]) -> ProtocolError:
    """What a server without this era says to a request of it. spec: streamable-http#protocol-version-header"""
    version = headers.get(VERSION_HEADER)
    if version is None:
        return HeaderMismatch("Header mismatch: mcp-protocol-version is required")
    return UnsupportedProtocolVersion(version.decode("latin-1"), revisions)


def _encode_cancelled(exchange: Exchange) -> bytes | None:
    if exchange.caller.protocol_version == DRAFT:
        return jsonrpc.encode_error(exchange.id, downgrade.DRAFT_CANCELLED, "Request cancelled")
    return None


async def _send_refusal(
    request: EndpointRequest, id: RequestId | None, exc: ProtocolError, revision: str | None = None
) -> None:
    body = jsonrpc.encode_protocol_error(id, exc) if revision is None else handshake_protocol.refuse(revision, id, exc)
    status = get_http_status(exc) if isinstance(exc, ServerBusy | InsufficientScope) or revision is None else 200
    await send_json(request.send, status, body, [*request.cors_headers, *request.build_error_headers(exc)])
