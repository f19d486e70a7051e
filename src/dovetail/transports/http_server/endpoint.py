"""The HTTP endpoint of a server as an ASGI application, with all protocol versions on one path.

The endpoint checks the host, origin, type and size of each request, runs the exchange in the task of the request, and
sends the response. `handshake_session_manager` handles sessions, and `sse_2024_server` handles the 2024 transport.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from dovetail.eager_tasks import SuspendNotifier
from dovetail.error_context import clip
from dovetail.errors import (
    AuthError,
    Forbidden,
    InsufficientScope,
    InternalError,
    InvalidRequest,
    ParseError,
    ProtocolError,
    ServerBusy,
    Unauthorized,
)
from dovetail.log import log
from dovetail.protocol import stateless
from dovetail.protocol.exchange import IncomingExchange, Service, check_meta_size
from dovetail.protocol.headers import VERSION_HEADER
from dovetail.protocol.http_checks import (
    JSON_MEDIA_TYPE,
    LOOPBACK,
    HostFilter,
    Refusal,
    collect_headers,
    get_http_status,
    parse_accept,
    parse_media_type,
)
from dovetail.protocol.principal import Authenticator, Principal, as_principal
from dovetail.protocol.stats import EndpointStats
from dovetail.transports.http1.server_request import Headers, Receive, Scope, Send, ServerRequest
from dovetail.transports.http_server.http_request import (
    ASGIRequest,
    EndpointGuard,
    EndpointRequest,
    OtherApps,
    ResponseMode,
    build_json_headers,
)
from dovetail.transports.http_server.route_call import FindRoute, MatchedRoute, RouteCall
from dovetail.transports.http_server.sessions.handshake_session_manager import HandshakeSessionManager
from dovetail.transports.http_server.sse_2024_server import SSE2024Server
from dovetail.transports.http_server.streams.http_response import (
    ResponseTimers,
    ResponseWriter,
    wait_for_disconnect,
)
from dovetail.transports.http_server.streams.shared_timer import DueTimes, SharedTimer
from dovetail.transports.operator_log import log_rejected_request
from dovetail.transports.spool import MemoryBudget, Spool, create_spool
from dovetail.wire import jsonrpc
from dovetail.wire.codec import decode
from dovetail.wire.revisions import STATELESS_REVISIONS

_CLIENT_CLOSED_REQUEST: Final = 499  # nginx logs this status if a client disconnects
_STATELESS_VERSIONS = frozenset(version.encode() for version in STATELESS_REVISIONS)
_EXPOSED_HEADERS = b"mcp-session-id, mcp-protocol-version, www-authenticate, dpop-nonce, retry-after"
_ALLOWED_HEADERS = (
    b"content-type, accept, authorization, dpop, last-event-id, mcp-session-id, mcp-protocol-version, mcp-method, "
    b"mcp-name"
)
_HEALTH_PATHS: Final = ("/live", "/ready")
_DOCUMENT_HEADERS = ((b"content-type", b"application/json"), (b"cache-control", b"public, max-age=300"))


_DISCONNECT_WATCH_DELAY_S: Final = 0.02  # During this time, a call is not cancelled if the client disconnects.


class Endpoint:
    """The HTTP endpoint of a server."""

    handles_server_requests = True

    def __init__(
        self,
        service: Service,
        *,
        path: str = "/mcp",
        public_url: str | None = None,
        allowed_hosts: Collection[str] = (),
        allowed_origins: Collection[str] = (),
        cors_origins: Collection[str] = (),
        response_mode: ResponseMode | str = "auto",
        sessions: bool = True,
        health: bool = False,
        http_sse: bool = True,
        authenticate: Authenticator | None = None,
        guard: EndpointGuard | None = None,
        on_start: Callable[[], Awaitable[None]] | None = None,
        on_stop: Callable[[], Awaitable[None]] | None = None,
        other_apps: OtherApps | None = None,
        find_route: FindRoute | None = None,
    ) -> None:
        self._service = service
        self._find_route = find_route
        self._other_apps = other_apps
        self._limits = service.limits
        self._budget = MemoryBudget(service.limits.max_buffered_bytes)
        self._path = "/" + path.strip("/")
        if response_mode not in ("auto", "json", "sse"):
            raise ValueError(f"response_mode must be 'auto', 'json' or 'sse', not {response_mode!r}")
        cors_origins, allowed_origins = _as_collection(cors_origins), _as_collection(allowed_origins)
        self._gate = HostFilter(_as_collection(allowed_hosts), (*allowed_origins, *cors_origins), public_url)
        self._cors_origins = frozenset(origin.lower().rstrip("/") for origin in cors_origins)
        self._response_mode: ResponseMode = response_mode
        self._health = health
        if health and self._path in _HEALTH_PATHS:
            raise ValueError(f"path must not be {self._path!r}, because health=True serves a health check there")
        self._authenticate = authenticate
        self._guard = guard
        self._on_start = on_start
        self._on_stop = on_stop
        self._stateless_protocol = stateless.StatelessProtocol(
            service, service.protocol_versions, service.limits.max_result_bytes
        )
        self._timers = ResponseTimers(service.limits.keep_alive_interval)
        self._disconnect_timer = SharedTimer(_DISCONNECT_WATCH_DELAY_S)
        self._sessions = HandshakeSessionManager(
            service, self._budget, self._timers, is_stateful=sessions, start=on_start
        )
        self._sse_2024 = (
            SSE2024Server(service, self._path, public_url, self._budget)
            if http_sse and self._sessions.is_stateful
            else None
        )
        self.is_ready = True
        self._is_draining = False  # True if the process ends soon, and other workers serve its clients

    @property
    def path(self) -> str:
        """The path of the MCP endpoint."""
        return self._path

    def is_mcp_path(self, scope: Scope) -> bool:
        """Return whether a request is for the MCP endpoint."""
        return _get_relative_path(scope["path"], scope.get("root_path") or "") == self._path

    def handles_path(self, scope: Scope) -> bool:
        """Return whether this endpoint handles the path of a request."""
        path = _get_relative_path(scope["path"], scope.get("root_path") or "")
        is_sse_2024 = self._sse_2024 is not None and self._sse_2024.handles_path(path)
        is_document = self._guard is not None and self._guard.has_document(path, scope)
        is_health = self._health and path in _HEALTH_PATHS
        has_other_app = self._other_apps is not None and self._other_apps.find(scope) is not None
        is_own_path = self.is_mcp_path(scope) or is_sse_2024 or is_document or is_health or has_other_app
        return is_own_path or self._match_route(path, scope) is not None

    def _match_route(self, path: str, scope: Scope) -> MatchedRoute | None:
        """Return the route of a path. Routes with placeholders cannot hide paths of the MCP endpoint."""
        if (
            self._find_route is None
            or (self._sse_2024 is not None and self._sse_2024.handles_path(path))
            or (self._guard is not None and self._guard.has_document(path, scope))
        ):
            return None
        return self._find_route(path, scope["method"])

    def check_routes(self, paths: Iterable[str]) -> None:
        """Raise ValueError if a route has a path that the endpoint uses itself."""
        for path in paths:
            is_sse_2024 = self._sse_2024 is not None and self._sse_2024.handles_path(path)
            is_health = self._health and path in _HEALTH_PATHS
            if path == self._path or is_sse_2024 or is_health:
                raise ValueError(f"the path {path} belongs to the MCP endpoint. Choose another path for the route")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request."""
        if scope["type"] == "http":
            await self.handle(ASGIRequest(scope, receive, send))
        else:
            await self._handle_non_http(scope, receive, send)

    async def handle(self, http: ServerRequest) -> None:
        """Handle an HTTP request."""
        cors_headers: Headers = []
        try:
            headers = http.unique_headers or collect_headers(http.headers)
            if self._cors_origins:
                cors_headers = self._build_cors_headers(headers)
            path = http.path
            if path != self._path:
                path = _get_relative_path(path, http.root_path)
            if (
                path != self._path
                and self._other_apps is not None
                and (other_app := self._other_apps.find(http.scope)) is not None
            ):
                await other_app(http.scope, http.receive, http.send)
                return
            if http.raw_path.find(b"%") >= 0:  # For bytes, `in` is slower.
                _check_encoding(http.raw_path, path)
            if self._health and path in _HEALTH_PATHS:
                await self._send_health(path, http)
                return
            if not self.is_ready:
                raise _create_shutdown_refusal()
            self._gate.check(headers, http.server_host)
            request = EndpointRequest(http, http.method, headers, cors_headers, _get_client_address(http.client_host))
            if request.method == "OPTIONS" and cors_headers:
                await http.respond(204, cors_headers + self._build_preflight_headers(path, http.scope, headers), b"")
                return
            route = None if path == self._path else self._match_route(path, http.scope)
            if route is not None and route.is_anonymous:
                await self._run_route(route, path, request)
                return
            guard = self._guard
            if guard is not None:
                if (
                    path != self._path
                    and self._other_apps is not None
                    and (other_path := self._other_apps.find_path(http.scope)) is not None
                ):
                    # Callers without credentials must not learn whether this path has an application.
                    guard = guard.at_path(other_path)
                document = guard.get_document(path, request)
                if document is not None:
                    await http.respond(200, [*_DOCUMENT_HEADERS, *cors_headers], document)
                    return
                request.principal = await self._resolve_caller(guard.authenticate(path, request))
            elif self._authenticate is not None:
                request.principal = await self._resolve_caller(self._authenticate(headers))
            if path == self._path and request.method == "POST":
                if not await self._read_message(request):
                    return
                if self._stateless_protocol.is_served and (
                    headers.get(VERSION_HEADER) in _STATELESS_VERSIONS
                    or (type(request.message) is dict and stateless.is_stateless_message(request.message))
                ):
                    await self._handle_stateless(request)
                else:
                    await self._sessions.handle_post(request)
            elif route is not None:
                await self._run_route(route, path, request)
            else:
                await self._route(path, request)
        except Refusal as refusal:
            # Clients often send a first request without credentials. It must not hide wrong credentials.
            has_credentials = refusal.status == 401 and any(name == b"authorization" for name, _ in http.headers)
            kind = "credentials" if has_credentials else ""
            log_path = None if http.path == self._path else http.path
            log_rejected_request(refusal.status, http.client_host, refusal.message, kind=kind, path=log_path)
            body = jsonrpc.encode_error(None, InvalidRequest.code, refusal.message)
            await http.respond(refusal.status, build_json_headers(refusal.headers + cors_headers), body)

    def _route(self, path: str, request: EndpointRequest) -> Awaitable[None]:
        if path != self._path:
            if self._sse_2024 is not None and self._sse_2024.handles_path(path):
                return self._serve_sse_2024(path, request, self._sse_2024)
            raise Refusal(404, f"Not found. The MCP server is at {request.http.root_path}{self._path}")
        method = request.method
        if request.headers.get(b"upgrade", b"").lower() == b"websocket":
            raise Refusal(400, "WebSocket is not supported. Send MCP messages with POST (streamable HTTP)")
        if method == "GET" and self._sessions.is_stateful:
            return self._sessions.handle_get(request)
        if method == "DELETE" and self._sessions.is_stateful:
            return self._sessions.handle_delete(request)
        allow = b"POST, GET, DELETE" if self._sessions.is_stateful else b"POST"
        raise Refusal(405, f"Method {method} is not allowed", [(b"allow", allow)])

    async def _run_route(self, route: MatchedRoute, path: str, request: EndpointRequest) -> None:
        call = RouteCall(route, path, request)
        call.check()
        await call.run(await self._read_body(request))

    async def _serve_sse_2024(self, path: str, request: EndpointRequest, server: SSE2024Server) -> None:
        if request.method == "GET" and self._is_draining:  # The stream would end soon, and its session with it.
            raise _create_shutdown_refusal()
        await server.wait_for_room(path, request)
        await server.handle(path, request, await self._read_sse_2024_body(request))

    async def _resolve_caller(self, pending: Awaitable[Principal | str | None]) -> Principal | None:
        try:
            caller = await pending
            return caller if caller is None or type(caller) is Principal else as_principal(caller)
        except AuthError as exc:
            headers: Headers = []
            if isinstance(exc, Unauthorized | Forbidden) and exc.challenge:
                headers.append((b"www-authenticate", exc.challenge.encode()))
            if isinstance(exc, Unauthorized) and exc.dpop_nonce is not None:
                headers.append((b"dpop-nonce", exc.dpop_nonce.encode()))
            if exc.status_code == 503:
                headers.append((b"retry-after", b"1"))
            # The log must not contain the cause of the error. The text of a KeyError can be the caller's token.
            raise Refusal(exc.status_code or 401, str(exc), headers) from None
        except Exception as exc:
            log.error("authenticate failed: %s", type(exc).__name__, exc_info=exc)
            raise Refusal(500, "The caller could not be authenticated. The log of the server has the details") from None

    async def _read_message(self, request: EndpointRequest) -> bool:
        """Read the message of a POST request.

        If the body is not valid JSON, send an error response and return False.
        """
        request.response_mode = self._choose_mode(request.headers)
        body = request.http.body
        if body is None:
            body = await self._read_body(request)
        elif len(body) > self._limits.max_body_bytes:
            raise self._create_too_large_refusal()
        try:
            request.message = decode(body)
        except ParseError as exc:
            error = exc if body else ParseError("Parse error: the request body is empty")
            log_rejected_request(400, request.http.client_host, str(error))
            await request.respond_json(400, jsonrpc.encode_protocol_error(None, error), request.cors_headers)
            return False
        request.size = len(body)
        request.http.body = None  # This frees memory.
        return True

    async def _handle_stateless(self, request: EndpointRequest) -> None:
        http, message = request.http, request.message
        if (
            request.response_mode == "json"
            and type(message) is dict
            and message.get("method") == "subscriptions/listen"
        ):
            if not parse_accept(request.headers.get(b"accept"))[1]:
                raise Refusal(406, "Accept must include text/event-stream for a subscription")
            request.response_mode = "auto"
        writer = ResponseWriter(request, request.cors_headers, self._timers, self._budget)
        try:
            kind = jsonrpc.classify(message)
            if kind == "notice":
                await writer.send_accepted()
                return
            if kind != "request":
                raise InvalidRequest("Invalid request: send answers in inputResponses, not as JSON-RPC responses")
            exchange = self._stateless_protocol.admit(message, request.headers, request.principal)
            if request.size > self._limits.max_meta_bytes:
                check_meta_size(exchange, self._limits.max_meta_bytes)
        except ProtocolError as exc:
            await self._refuse(request, writer, jsonrpc.read_id(message), exc, was_admitted=False)
            return
        del message
        request.message = None  # This frees memory, because the exchange has a copy of the message.
        exchange.loop = http.loop
        exchange.emit = writer.emit
        exchange.buffer = self._budget
        exchange.origin = request.principal or request.client_address
        exchange.client_address = http.client_host
        exchange.size = request.size
        watcher = _DisconnectWatcher(exchange, http.receive, writer, self._disconnect_timer)
        try:
            try:
                # No variable holds the result, so that a large result is freed while the client reads the response.
                final_write = writer.finish(
                    self._stateless_protocol.seal(
                        exchange, await SuspendNotifier(self._service.handle(exchange), watcher.start)
                    )
                )
            except ProtocolError as exc:
                final_write = self._refuse(request, writer, exchange.id, exc)
            except Exception as exc:
                log.error("the result of %s could not be sent: %s", exchange.method, type(exc).__name__)
                final_write = self._refuse(
                    request, writer, exchange.id, InternalError("The result could not be encoded")
                )
            finally:
                watcher.stop()
            await final_write
        except BaseException as exc:
            writer.abandon()
            if exchange.verdict != "gone" or not isinstance(exc, asyncio.CancelledError):
                raise
            exchange.task.uncancel()
            if not writer.is_streaming:
                # The client has disconnected, but middleware may still expect a response.
                await request.respond(_CLIENT_CLOSED_REQUEST, [])

    def _refuse(
        self,
        request: EndpointRequest,
        writer: ResponseWriter,
        id: jsonrpc.RequestId | None,
        exc: ProtocolError,
        *,
        was_admitted: bool = True,
    ) -> Awaitable[None]:
        status = get_http_status(exc)
        if isinstance(exc, ServerBusy | InsufficientScope) or (not was_admitted and status >= 400):
            log_rejected_request(status, request.http.client_host, str(exc))
        return writer.finish(
            self._stateless_protocol.refuse(id, exc),
            status,
            request.build_error_headers(exc, is_stateless=True),
        )

    def _choose_mode(self, headers: Mapping[bytes, bytes]) -> ResponseMode:
        content_type = headers.get(b"content-type")
        if content_type != JSON_MEDIA_TYPE and parse_media_type(content_type) != JSON_MEDIA_TYPE:
            raise Refusal(415, "Content-Type must be application/json")
        if b"content-encoding" in headers:
            _check_content_encoding(headers)
        accepts_json, accepts_sse = parse_accept(headers.get(b"accept"))
        if accepts_json and accepts_sse:
            return self._response_mode
        if not accepts_json and not accepts_sse:
            raise Refusal(406, "Accept must include application/json and text/event-stream")
        return "json" if accepts_json else "sse"

    async def _read_body(self, request: EndpointRequest) -> bytes:
        limit = self._limits.max_body_bytes
        length = request.headers.get(b"content-length")
        if length is None:
            if b"transfer-encoding" in request.headers:
                _check_transfer_encoding(request)
        elif not length.isdigit() or len(length) > 12 or int(length) > limit:
            # The connection is not closed, because a client that is still sending must be able to read this error.
            raise self._create_too_large_refusal()
        message = await request.http.receive()
        body = message.get("body", b"")
        if message.get("more_body"):
            spool = create_spool(body, self._budget)
            del message, body
            body = await self._read_remaining(spool, request.http.receive)
        if len(body) > limit:
            raise self._create_too_large_refusal()
        return body

    def _create_too_large_refusal(self) -> Refusal:
        return Refusal(413, f"The request body must be at most {self._limits.max_body_bytes} bytes (max_body_bytes)")

    async def _read_remaining(self, spool: Spool, receive: Receive) -> bytes:
        has_more = True
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                while has_more and spool.size <= self._limits.max_body_bytes:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "The connection closed before the request body was complete")
                    spool.append(message.get("body", b""))
                    has_more = message.get("more_body", False)
                    del message  # The buffer has a copy of this chunk.
                    if spool.is_disk_full:
                        raise Refusal(503, "The server has no space to store the body", [(b"retry-after", b"5")])
            return spool.read()
        except TimeoutError:
            reason = f"The body of the request took longer than {self._limits.body_timeout:g} s (body_timeout)"
            raise Refusal(408, reason, [(b"connection", b"close")]) from None
        finally:
            spool.close()

    async def _read_sse_2024_body(self, request: EndpointRequest) -> bytes:
        if request.method != "POST":
            return b""
        if parse_media_type(request.headers.get(b"content-type")) != JSON_MEDIA_TYPE:
            raise Refusal(415, "Content-Type must be application/json")
        _check_content_encoding(request.headers)
        return await self._read_body(request)

    def _build_cors_headers(self, headers: Mapping[bytes, bytes]) -> Headers:
        origin = headers.get(b"origin")
        if origin is None:
            return []
        name = origin.decode("latin-1").lower()
        if name not in self._cors_origins and "*" not in self._cors_origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED_HEADERS),
            (b"vary", b"origin"),
        ]

    def _build_preflight_headers(self, path: str, scope: Scope, headers: Mapping[bytes, bytes]) -> Headers:
        route = None if path == self._path else self._match_route(path, scope)
        methods = b"POST, GET, DELETE, OPTIONS" if route is None else ", ".join(route.allowed_methods).encode()
        return _build_preflight_headers(methods, headers)

    async def _send_health(self, path: str, http: ServerRequest) -> None:
        is_healthy = path == "/live" or (self.is_ready and not self._is_draining)
        body = b"ok" if is_healthy else b"no"
        if is_healthy and path == "/ready" and self._service.cluster is not None:
            problem = self._service.cluster.state.get_status().problem
            body = b"ok" if problem is None else f"degraded: {problem}".encode()
        await http.respond(200 if is_healthy else 503, [(b"content-type", b"text/plain; charset=utf-8")], body)

    async def _handle_non_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "lifespan":
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    self.is_ready, self._is_draining = True, False
                    if self._on_start is not None:
                        await self._on_start()
                except Exception as exc:
                    await send({"type": "lifespan.startup.failed", "message": str(exc)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def stats(self) -> EndpointStats:
        """Return the number of open sessions and streams, and the number of buffered bytes."""
        sessions, old = self._sessions, self._sse_2024
        connections = 0 if old is None else old.connections
        return EndpointStats(
            sessions=sessions.session_count + connections,
            streams=sessions.reader_count + connections,
            buffered_bytes=self._budget.used_bytes,
            replay_bytes=sessions.replay_bytes,
        )

    def begin_drain(self) -> None:
        """Report that the server is not ready. Requests are still served, because other workers continue its sessions.

        Only sessions of the HTTP+SSE transport are refused, because no other worker can continue them.
        """
        self._is_draining = True

    async def end_streams(self) -> None:
        """End the GET streams of shared sessions, so that their clients open them at other workers."""
        await self._sessions.end_streams()

    async def close(self) -> None:
        """Reject new requests, and end all sessions and streams."""
        if not self.is_ready:
            return
        self.is_ready = False
        await self.end_streams()
        if self._on_stop is not None:
            await self._on_stop()
        await self._sessions.close()
        if self._sse_2024 is not None:
            await self._sse_2024.close()
        if self._other_apps is not None:
            await self._other_apps.close()


def _create_shutdown_refusal() -> Refusal:
    return Refusal(503, "The server is shutting down", [(b"retry-after", b"1"), (b"connection", b"close")])


class _DisconnectWatcher:
    """Ends a call when the client disconnects. spec: cancellation

    Most calls are short, and a task that watches each call would cost more than the rest of the call. The watch
    therefore begins after a delay. The response counts as silent as soon as the call waits.
    """

    __slots__ = ("_due_times", "_exchange", "_receive", "_task", "_timer", "_writer")

    def __init__(
        self, exchange: IncomingExchange, receive: Receive, writer: ResponseWriter, timer: SharedTimer
    ) -> None:
        self._exchange = exchange
        self._receive = receive
        self._writer = writer
        self._timer = timer
        self._due_times: DueTimes | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._writer.watch_silence()
        self._due_times = self._timer.add(self)
        if self._exchange.task is None:
            self._exchange.task = asyncio.current_task()

    def handle_timer(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch_disconnect())

    async def _watch_disconnect(self) -> None:
        await wait_for_disconnect(self._receive)
        self._exchange.end("gone")

    def stop(self) -> None:
        if self._due_times is not None:
            self._due_times.pop(self, None)
        if self._task is not None:
            self._task.cancel()
            self._task = None  # This breaks the reference cycle between the task and this object.


def _as_collection(names: Collection[str]) -> Collection[str]:
    return (names,) if isinstance(names, str) else names


def _get_relative_path(path: str, root: str) -> str:
    if root and path.startswith(root):
        path = path[len(root) :]
    return path.removesuffix("/") or "/"


def _check_encoding(raw_path: bytes, path: str) -> None:
    """Reject a path such as /%6dcp, because a proxy's rule for /mcp would not match the encoded path."""
    if not raw_path.removesuffix(b"/").endswith(quote(path.removesuffix("/")).encode()):
        if b"%2f" in raw_path.lower():
            raise Refusal(404, "Not found. A path cannot contain an encoded slash (%2F). Send the value in the query")
        raise Refusal(404, "Not found. Write the path without unnecessary percent-encoding")


def _check_transfer_encoding(request: EndpointRequest) -> None:
    """Reject a Transfer-Encoding that a proxy may interpret differently from this server. RFC 9112, section 6.1"""
    if request.http.http_version == "1.0":
        raise Refusal(400, "HTTP/1.0 requests cannot have Transfer-Encoding", [(b"connection", b"close")])
    if request.headers[b"transfer-encoding"].lower() != b"chunked":
        raise Refusal(501, "Transfer-Encoding must be chunked", [(b"connection", b"close")])


def _check_content_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Reject a compressed body. The Accept-Encoding header names what is supported. RFC 9110, section 12.5.3"""
    encoding = headers.get(b"content-encoding", b"").lower()
    if encoding not in (b"", b"identity"):
        name = clip(encoding.decode("latin-1"))
        message = f"Content-Encoding {name} is not supported. Send the body without compression"
        raise Refusal(415, message, [(b"accept-encoding", b"identity")])


def _get_client_address(host: str | None) -> str | None:
    """Return the client's IPv4 address or IPv6 network. Return None if the client is on this machine."""
    address = None if host in LOOPBACK else host
    return address if address is None or ":" not in address else _normalize_ipv6_address(address)


@lru_cache(1024)
def _normalize_ipv6_address(address: str) -> str | None:
    from dovetail.protocol.rate_limiter import group_address  # imported here, because few servers need it

    normalized = group_address(address)
    return None if normalized in LOOPBACK else normalized


def _build_preflight_headers(methods: bytes, headers: Mapping[bytes, bytes]) -> Headers:
    requested = headers.get(b"access-control-request-headers", b"").lower()
    params = [name for header in requested.split(b",") if (name := header.strip()).startswith(b"mcp-param-")]
    return [
        (b"access-control-allow-methods", methods),
        (b"access-control-allow-headers", b", ".join([_ALLOWED_HEADERS, *params])),
        (b"access-control-max-age", b"600"),
    ]
