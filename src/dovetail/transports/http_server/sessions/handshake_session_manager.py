"""Requests of handshake sessions over Streamable HTTP: POST, GET and DELETE.

Only the principal that opened a session can use it. The server answers each request on the HTTP response of its POST,
even if two requests have the same ID. A lost connection does not stop a call. spec:
handshake/transports#streamable-http
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

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
from dovetail.protocol import downgrade
from dovetail.protocol import handshake as handshake_protocol
from dovetail.protocol.exchange import IncomingExchange, Service, check_meta_size
from dovetail.protocol.headers import SESSION_HEADER, VERSION_HEADER
from dovetail.protocol.http_checks import Refusal, get_http_status, parse_accept
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.sessions.handshake_sessions import HandshakeSessions, SessionVersions
from dovetail.transports.http_server.sessions.memory_sessions import MemorySessions
from dovetail.transports.http_server.sessions.session_writer import SessionWriter
from dovetail.transports.http_server.streams.http_response import ResponseTimers, ResponseWriter
from dovetail.transports.operator_log import log_rejected_request
from dovetail.transports.spool import MemoryBudget
from dovetail.wire import jsonrpc
from dovetail.wire.base import replace
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.revisions import DRAFT, STATELESS_REVISIONS


class HandshakeSessionManager:
    """Handles the requests of one endpoint, in protocol versions with a handshake."""

    def __init__(
        self,
        service: Service,
        budget: MemoryBudget,
        timers: ResponseTimers,
        *,
        is_stateful: bool,
        start: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        versions = SessionVersions(service)
        self._has_versions = bool(versions.allowed)
        self.is_stateful = is_stateful and self._has_versions
        self._service = service
        self._limits = service.limits
        self._budget = budget
        self._timers = timers
        self._sessions: HandshakeSessions
        if self.is_stateful and service.cluster is not None:
            self._sessions = service.cluster.create_sessions(service, versions, budget, timers, start)
        else:
            self._sessions = MemorySessions(service, versions, budget, timers, is_stateful=self.is_stateful)

    @property
    def session_count(self) -> int:
        """Return the number of sessions in the memory of this process."""
        return len(self._sessions)

    @property
    def reader_count(self) -> int:
        """Return the number of streams with a reader."""
        return self._sessions.reader_count

    @property
    def replay_bytes(self) -> int:
        """Return the number of bytes that are stored for clients that reconnect."""
        return self._sessions.replay_bytes

    def handle_post(self, request: EndpointRequest) -> Awaitable[None]:
        """Return the awaitable that handles a POST request."""
        message = request.message
        if type(message) is list:
            return self._handle_batch(request, message)
        try:
            kind = jsonrpc.classify(message)
            if kind == "request" and message["method"] == handshake_protocol.INITIALIZE:
                return self._initialize(request)
            if not self._has_versions:
                raise _unsupported_error(request.headers, self._service.protocol_versions)
        except ProtocolError as exc:
            return _send_refusal(request, jsonrpc.read_id(message), exc)
        return self._handle_request(request) if kind == "request" else self._handle_one_way(request, kind)

    async def _initialize(self, request: EndpointRequest) -> None:
        await self._sessions.start()
        if self._service.refresh_description is not None:
            await self._service.refresh_description()
        try:
            handshake = handshake_protocol.open_session(request.message, self._service, request.principal)
            response = handshake_protocol.encode_introduction(request.message["id"], handshake, self._service)
        except ProtocolError as exc:
            await _send_refusal(request, jsonrpc.read_id(request.message), exc)
            return
        headers = request.cors_headers
        if self.is_stateful:
            session = await self._sessions.create(handshake, request.client_address)
            headers = [*headers, (SESSION_HEADER, session.id.encode())]
        await ResponseWriter(request, headers, self._timers, self._budget).finish(response)

    async def _handle_request(self, request: EndpointRequest) -> None:
        session = await self._sessions.find(request)
        try:
            message = request.message
            try:
                exchange = self._admit(request, session, message)
                if exchange.method in handshake_protocol.SESSION_METHODS:
                    session_result = await self._sessions.handle_session_request(session, exchange)
                    body = handshake_protocol.seal(exchange, session_result, self._limits.max_result_bytes)
                    await request.respond_json(200, body, request.cors_headers)
                    return
                session.add_running(exchange, self._limits.max_calls_per_connection)
            except ProtocolError as exc:
                await _send_refusal(request, message["id"], exc, session.revision)
                return
            writer = self._sessions.create_writer(request, session, (exchange.id,))
            writer.watch_silence(exchange.loop)
            try:
                try:
                    response = await self._run(exchange, session, writer)
                    final_write = writer.end() if response is None else writer.finish(response)
                    del response  # Do not keep a large response in memory while the client reads.
                except (ServerBusy, InsufficientScope) as exc:
                    status = get_http_status(exc)
                    log_rejected_request(status, request.http.client_host, str(exc))
                    refusal = handshake_protocol.refuse(session.revision, exchange.id, exc)
                    final_write = writer.finish(refusal, status, request.build_error_headers(exc))
                await final_write
            except BaseException:
                writer.drop()
                raise
        finally:
            self._sessions.release(session)

    def _admit(self, request: EndpointRequest, session: HandshakeSession, message: dict[str, Any]) -> IncomingExchange:
        exchange = session.handshake.admit(message, self._service.requests)
        # The caller is the same, but its scopes may have changed.
        if request.principal is not exchange.caller.principal:
            exchange.caller = replace(exchange.caller, principal=request.principal)
        exchange.loop = request.http.loop
        exchange.headers = request.headers
        exchange.buffer = self._budget
        exchange.origin = request.principal or request.client_address
        exchange.client_address = request.http.client_host
        exchange.size = request.size
        if request.size > self._limits.max_meta_bytes:
            check_meta_size(exchange, self._limits.max_meta_bytes)
        return exchange

    async def _run(
        self, exchange: IncomingExchange, session: HandshakeSession, writer: SessionWriter[Any, Any]
    ) -> bytes | None:
        """Run a request and return its response, or None if it was cancelled."""
        writer.attach(exchange, self.is_stateful)
        exchange.task = asyncio.current_task(exchange.loop)
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
        if exchange.verdict != "cancelled":
            return response
        exchange.task.uncancel()
        return _encode_cancelled(exchange)  # The result of a cancelled call is not sent.

    async def _handle_one_way(self, request: EndpointRequest, kind: str) -> None:
        """Handle a message that needs no response: a notification, or the answer to a question."""
        session = await self._sessions.find(request, is_answer=kind != "notice")
        try:
            await self._receive(request, session, request.message, kind)
        finally:
            self._sessions.release(session)
        await request.respond(202, request.cors_headers)

    async def _receive(
        self, request: EndpointRequest, session: HandshakeSession, message: dict[str, Any], kind: str
    ) -> None:
        if kind != "notice":
            await self._sessions.handle_answer(session, message)
            return
        match message["method"]:
            case "notifications/initialized" | "initialized":  # Some clients omit the prefix "notifications/".
                await self._sessions.mark_ready(session)
            case "notifications/cancelled":
                await self._sessions.cancel(session, (message.get("params") or {}).get("requestId"))
            case "notifications/progress" if not await self._sessions.accept_progress(session, message):
                pass  # Another worker handles it, or the token is unknown.
            case _ if self.is_stateful:
                self._deliver_notification(request, session, message)
            case _:
                pass

    def _deliver_notification(
        self, request: EndpointRequest, session: HandshakeSession, message: dict[str, Any]
    ) -> None:
        exchange = session.handshake.admit_notification(message)
        if exchange.method == "notifications/progress":
            exchange.params = session.read_progress(exchange.params)
        # The caller is the same, but its scopes may have changed.
        exchange.caller = replace(exchange.caller, principal=request.principal)
        exchange.headers = request.headers
        exchange.origin = request.principal or request.client_address
        exchange.client_address = request.http.client_host
        exchange.size = request.size
        self._service.receive_notification(exchange)

    async def _handle_batch(self, request: EndpointRequest, messages: list[Any]) -> None:
        """Handle a batch of messages. Only protocol version 2025-03 has batches. spec: handshake/basic#batching"""
        session = await self._sessions.find(request)
        try:
            problem = None
            if not session.handshake.allows_batches:
                problem = "this protocol version does not support batches"
            elif not 0 < len(messages) <= self._limits.max_calls_per_connection:
                problem = f"a batch must have 1 to {self._limits.max_calls_per_connection} messages"
            if problem is None:
                await self._run_batch(request, session, messages)
            else:
                log_rejected_request(400, request.http.client_host, problem)
                refusal = handshake_protocol.refuse(
                    session.revision, None, InvalidRequest(f"Invalid request: {problem}")
                )
                await request.respond_json(400, refusal, request.cors_headers)
        finally:
            self._sessions.release(session)

    async def _run_batch(self, request: EndpointRequest, session: HandshakeSession, messages: list[Any]) -> None:
        writer = self._sessions.create_writer(request, session, _list_request_ids(messages))
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
        self, request: EndpointRequest, session: HandshakeSession, message: Any, writer: SessionWriter[Any, Any]
    ) -> bytes | None:
        try:
            kind = jsonrpc.classify(message)
            if kind != "request":
                await self._receive(request, session, message, kind)
                return None
            exchange = self._admit(request, session, message)
            if exchange.method in handshake_protocol.SESSION_METHODS:
                session_result = await self._sessions.handle_session_request(session, exchange)
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
        session = await self._sessions.find(request)
        try:
            await self._sessions.serve_stream(request, session)
        finally:
            self._sessions.release(session)

    async def handle_delete(self, request: EndpointRequest) -> None:
        """Handle a DELETE request. A client sends it to end its session."""
        _check_has_sessions(request)
        session = await self._sessions.find(request)
        try:
            await self._sessions.end(session)
        finally:
            self._sessions.release(session)
        await request.respond(204, request.cors_headers)

    async def end_streams(self) -> None:
        """End the streams that clients can continue at other workers."""
        await self._sessions.end_streams()

    async def close(self) -> None:
        """End all sessions of this worker. Sessions in the shared state continue at other workers."""
        await self._sessions.close()


def _list_request_ids(messages: list[Any]) -> list[RequestId]:
    """Return the IDs of the requests in a batch."""
    return [
        message["id"]
        for message in messages
        if type(message) is dict and type(message.get("id")) in (int, str) and type(message.get("method")) is str
    ]


def _check_has_sessions(request: EndpointRequest) -> None:
    """Reject a GET or DELETE request in a protocol version without sessions. spec:
    streamable-http#receiving-messages
    """
    version = request.headers.get(VERSION_HEADER, b"").decode("latin-1")
    if version in STATELESS_REVISIONS:
        raise Refusal(405, f"Protocol version {version} only allows POST", [(b"allow", b"POST")])


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
    if status != 200:
        log_rejected_request(status, request.http.client_host, str(exc))
    await request.respond_json(status, body, [*request.cors_headers, *request.build_error_headers(exc)])
