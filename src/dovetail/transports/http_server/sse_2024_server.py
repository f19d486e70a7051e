"""The server side of the deprecated HTTP+SSE transport of 2024, with a GET stream and a URL for POST requests.

spec: handshake/transports#http-with-sse
"""

import asyncio
import secrets
from collections import Counter, deque
from typing import Final
from urllib.parse import parse_qs, urlsplit

from dovetail.protocol import sse
from dovetail.protocol.exchange import Service
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.interfaces.shared_state import ConnectionRouter
from dovetail.protocol.principal import Principal
from dovetail.transports.duplex_server import DuplexServer
from dovetail.transports.http1.server_request import Receive, Send
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.streams.http_response import STREAM_HEADERS, wait_for_disconnect
from dovetail.transports.spool import MemoryBudget

# If this many bytes wait to be sent to a client, the server stops reading the client's messages.
_MAX_QUEUED_BYTES: Final = 1024 * 1024
# If this many messages of a client wait, the connection ends. They wait only if they came from another worker.
_MAX_WAITING_MESSAGES: Final = 256
_MAX_WAITING_BYTES: Final = 32 * 1024 * 1024  # the maximum size of the waiting messages of all clients


class SSE2024Server:
    """The HTTP+SSE transport of 2024, for older clients."""

    def __init__(
        self, service: Service, path: str, public_url: str | None = None, budget: MemoryBudget | None = None
    ) -> None:
        self._service = service
        self._budget = budget or MemoryBudget(service.limits.max_buffered_bytes)
        self._limits = service.limits
        prefix = path.rstrip("/")
        self._post_path_by_stream = {"/sse": "/messages", f"{prefix}/sse": f"{prefix}/messages"}
        # `_public_root` is the part of the public path that a proxy removes before it forwards a request.
        public_path = "" if public_url is None else urlsplit(public_url).path.rstrip("/")
        self._public_root = public_path.removesuffix(prefix) if public_path.endswith(prefix) else None
        self._post_paths = frozenset(self._post_path_by_stream.values())
        self._connections: dict[str, _SSEConnection] = {}
        self._open_counts: Counter[str | None] = Counter()  # the number of connections of each principal or address
        self._router: ConnectionRouter | None = None  # None if this process is the only worker
        if service.cluster is not None:
            name = service.implementation.name
            self._router = service.cluster.create_connection_router(name, service.limits, self._receive_forwarded)

    @property
    def connections(self) -> int:
        """Return the number of connected clients."""
        return len(self._connections)

    def handles_path(self, path: str) -> bool:
        """Return whether a path belongs to this transport."""
        return path in self._post_path_by_stream or path in self._post_paths

    async def wait_for_room(self, path: str, request: EndpointRequest) -> None:
        """Check the session of a POST request before its body is read. Wait if too many bytes are queued for the
        client.
        """
        if path in self._post_paths and request.method == "POST":
            router = self._router
            connection = self._find_connection(request) if router is None else self._find_own(request, router)
            if connection is not None:
                await connection.wait_for_room()

    async def handle(self, path: str, request: EndpointRequest, body: bytes) -> None:
        """Handle a request to a path of this transport."""
        if path in self._post_path_by_stream:
            if request.method != "GET":
                raise Refusal(405, "Open the stream with GET", [(b"allow", b"GET")])
            root = self._public_root or request.scope.get("root_path") or ""
            await self._open_stream(root + self._post_path_by_stream[path], request)
        elif request.method != "POST":
            raise Refusal(405, "Send messages with POST", [(b"allow", b"POST")])
        elif self._router is not None:
            await self._forward(request, body, self._router)
        else:
            connection = self._find_connection(request)
            connection.set_expiry(request.valid_for)
            connection.duplex.set_principal(request.principal)
            connection.duplex.receive(body)
            await request.respond(202, request.cors_headers)

    async def _open_stream(self, address: str, request: EndpointRequest) -> None:
        if len(self._connections) >= self._limits.max_sessions:
            raise Refusal(503, "Too many sessions", [(b"retry-after", b"60")])
        router = self._router
        if router is not None:
            async with router.count_stream(request.principal, request.client_address):
                await self._run_stream(address, request, *router.create_id(request.principal))
            return
        origin = request.principal or request.client_address
        if origin is not None and self._open_counts[origin] >= self._limits.max_streams_per_principal:
            raise Refusal(429, "Too many streams", [(b"retry-after", b"5")])
        key = secrets.token_urlsafe(24)
        await self._run_stream(address, request, key, key)

    async def _run_stream(self, address: str, request: EndpointRequest, key: str, id: str) -> None:
        """Send an event stream to a client. The client uses `id` as its session ID. This worker uses `key`."""
        origin = request.principal or request.client_address
        connection, send = _SSEConnection(self._service, request.principal, self._budget), request.send
        connection.duplex.origin = origin
        connection.duplex.client_address = request.http.client_host
        connection.set_expiry(request.valid_for)
        self._connections[key] = connection
        self._open_counts[origin] += 1
        try:
            headers = [*STREAM_HEADERS, *request.cors_headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _write(send, sse.encode_event(f"{address}?session_id={id}".encode(), name="endpoint"))
            await connection.run(request.receive, send, self._limits.keep_alive_interval)
        finally:
            del self._connections[key]
            self._open_counts[origin] -= 1
            if not self._open_counts[origin]:
                del self._open_counts[origin]
            await connection.duplex.close()

    def _find_connection(self, request: EndpointRequest) -> "_SSEConnection":
        connection = self._connections.get(_read_session_id(request))
        if connection is None or connection.principal != request.principal:
            raise _create_unknown_error()
        return connection

    # Connections of a server with several workers.

    def _find_own(self, request: EndpointRequest, router: ConnectionRouter) -> "_SSEConnection | None":
        """Return the connection of a request, or None if another worker has it."""
        address = router.read_id(_read_session_id(request), request.principal)
        if address is None:
            raise _create_unknown_error()
        worker, key = address
        if not router.is_own(worker):
            return None
        connection = self._connections.get(key)
        if connection is None:
            raise _create_unknown_error()
        return connection

    async def _forward(self, request: EndpointRequest, body: bytes, router: ConnectionRouter) -> None:
        address = router.read_id(_read_session_id(request), request.principal)
        if address is None or not await router.forward(*address, request.principal, request.valid_for, body):
            raise _create_unknown_error()
        await request.respond(202, request.cors_headers)

    def _receive_forwarded(self, key: str, principal: Principal | None, valid_for: float | None, body: bytes) -> None:
        connection = self._connections.get(key)
        if connection is None or connection.principal != principal:
            return
        connection.receive_later(principal, valid_for, body)
        # One client may use as much as it may send at once in one process: one message while its queue is full.
        max_bytes = _MAX_QUEUED_BYTES + self._limits.max_body_bytes
        if connection.waiting_bytes and (
            connection.waiting_bytes > max_bytes
            or sum(other.waiting_bytes for other in self._connections.values()) > _MAX_WAITING_BYTES
        ):
            connection.end()

    async def close(self) -> None:
        """Close the streams of all clients."""
        for connection in list(self._connections.values()):
            connection.end()


class _SSEConnection:
    def __init__(self, service: Service, principal: Principal | None, budget: MemoryBudget) -> None:
        self.principal = principal
        self.duplex = DuplexServer(
            service,
            self._enqueue,
            drain=self.wait_for_room,
            principal=principal,
            on_shutdown=self.end,
            buffer=budget,
        )
        self._pending: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()
        self._is_ended = False
        self._expiry_timer: asyncio.TimerHandle | None = None
        # The messages of the client that another worker has sent here, and the task that handles them in order.
        self._waiting: deque[tuple[Principal | None, float | None, bytes]] = deque()
        self.waiting_bytes = 0
        self._receive_task: asyncio.Task[None] | None = None

    def receive_later(self, principal: Principal | None, valid_for: float | None, body: bytes) -> None:
        """Handle a message of the client as soon as there is room for the response."""
        self._waiting.append((principal, valid_for, body))
        self.waiting_bytes += len(body)
        if len(self._waiting) > _MAX_WAITING_MESSAGES:
            self.end()
        elif self._receive_task is None:
            self._receive_task = asyncio.get_running_loop().create_task(self._receive_waiting())

    async def _receive_waiting(self) -> None:
        try:
            while self._waiting and not self._is_ended:
                await self.wait_for_room()
                if self._is_ended:
                    break
                principal, valid_for, body = self._waiting.popleft()
                self.waiting_bytes -= len(body)
                self.set_expiry(valid_for)
                self.duplex.set_principal(principal)
                self.duplex.receive(body)
        finally:
            self._receive_task = None

    def _enqueue(self, data: bytes) -> None:
        self._pending.append(data)
        self._queued_bytes += len(data)
        self._wake.set()

    async def wait_for_room(self) -> None:
        while self._queued_bytes > _MAX_QUEUED_BYTES and not self._is_ended:
            self._sent.clear()
            await self._sent.wait()

    def set_expiry(self, seconds: float | None) -> None:
        """End the connection when the caller's credentials expire.

        A message with newer credentials extends this time.
        """
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self._expiry_timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        self.set_expiry(None)
        self._is_ended = True
        self._waiting.clear()
        self.waiting_bytes = 0
        self._wake.set()
        self._sent.set()

    async def run(self, receive: Receive, send: Send, keep_alive: float) -> None:
        watch_task = asyncio.get_running_loop().create_task(self._watch_disconnect(receive))
        try:
            while not self._is_ended or self._pending:
                while self._pending:
                    data = self._pending.popleft()
                    await _write(send, sse.encode_event(data, name="message"))
                    self._queued_bytes -= len(data)
                    self._sent.set()
                self._wake.clear()
                if not self._is_ended:
                    await self._wait(send, keep_alive)
        finally:
            self.end()
            watch_task.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _wait(self, send: Send, keep_alive: float) -> None:
        try:
            async with asyncio.timeout(keep_alive):
                await self._wake.wait()
        except TimeoutError:
            await _write(send, sse.encode_comment())

    async def _watch_disconnect(self, receive: Receive) -> None:
        await wait_for_disconnect(receive)
        self._pending.clear()
        self.end()


def _read_session_id(request: EndpointRequest) -> str:
    query = parse_qs(request.scope.get("query_string", b"").decode("latin-1"))
    return (query.get("session_id") or query.get("sessionId") or [""])[0]


def _create_unknown_error() -> Refusal:
    return Refusal(404, "Unknown session. Open a stream with GET")


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
