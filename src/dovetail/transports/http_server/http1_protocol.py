"""HTTP/1.1 for one connection: requests in, responses out, within the limits of the server. RFC 9112

The parser is httptools. All data of one loop iteration is handled together: first the requests, then the writes. A
system call between two requests would slow down the second one, and each write wakes the process of a client. The first
step of a request runs at once, so a request that does not wait needs no task.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from math import inf
from typing import Any, Final
from urllib.parse import unquote

import httptools

from dovetail.eager_tasks import EagerTaskStarter
from dovetail.log import log
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http_server.forwarded_addresses import TrustedProxies
from dovetail.transports.http_server.http_request import JSON_HEADERS, Headers, Scope
from dovetail.transports.operator_warnings import warn_if_descriptors_run_out

# The time after which an idle connection is closed. nginx and cloud load balancers close their idle connections after
# 60 seconds. They must close first, because a request on a connection that the server is closing would be lost.
_KEEP_ALIVE_TIMEOUT_S: Final = 75.0
_MAX_SWEEP_INTERVAL_S: Final = 1.0  # the time between two searches for slow connections
_MIN_SWEEP_INTERVAL_S: Final = 0.01
# A rejected client has this time and this many bytes to notice the error. Closing at once could destroy the response.
_LINGER_S: Final = 2.0
_MAX_LINGER_BYTES: Final = 1024 * 1024
_MAX_UNREAD_BODY_BYTES: Final = 64 * 1024  # If more is unread, the connection stops reading.
_MAX_HELD_BYTES: Final = 16 * 1024  # Responses above this size are written immediately.
_CHUNK_OVERHEAD_BYTES: Final = 16  # the bytes of a chunk that do not count as chunk extensions
_HEADER_OVERHEAD_BYTES: Final = 4  # of each header: the colon, a space and the end of the line
_LONE_READS: Final = 8  # After this many iterations with one request each, requests are handled without a batch.
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_INVALID_NAME: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_INVALID_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_MAX_KNOWN_HOSTS: Final = 256
_AUTHORITY_END: Final = re.compile(rb"[/?]")
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ASGI_VERSION: Final = {"version": "3.0", "spec_version": "2.3"}
_METHODS: Final = {name.encode(): name for name in ("POST", "GET", "DELETE", "OPTIONS", "HEAD")}


class _BadRequest(Exception):
    """Raised for a request that is rejected before it is handled."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class ServerState:
    """What all connections of one server share: settings, the batch of received data, and the sweeper."""

    def __init__(
        self, handle: "Callable[[HTTP1Request], Awaitable[None]]", limits: ServerLimits, proxies: TrustedProxies | None
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.proxies = proxies
        self.loop = asyncio.get_running_loop()
        self.starter = EagerTaskStarter()
        self.connections: set[HTTP1Protocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()  # the requests that wait
        self.known_hosts: set[bytes] = set()  # valid Host headers of earlier requests
        self.closes_connections = False  # True if each response closes its connection
        self.is_in_batch = False
        self._batch: list[tuple[HTTP1Protocol, bytes]] = []
        self._unflushed: list[HTTP1Protocol] = []
        self._lone_reads = 0
        self._last_connection: HTTP1Protocol | None = None
        self._last_read_at = -1.0
        self._date = b""
        self._date_valid_until = -1.0
        timeouts = (limits.header_timeout, limits.body_timeout, _KEEP_ALIVE_TIMEOUT_S)
        self._sweep_interval = max(_MIN_SWEEP_INTERVAL_S, min(_MAX_SWEEP_INTERVAL_S, *timeouts))

    def get_date(self) -> bytes:
        """Return the Date header of a response. RFC 9110, section 6.6.1"""
        now = self.loop.time()
        if now >= self._date_valid_until:
            self._date = _format_date(time.gmtime())
            self._date_valid_until = now + 1.0
        return self._date

    def check_host(self, host: bytes) -> None:
        """Reject an invalid Host header. RFC 9112, section 3.2"""
        if _HOST.fullmatch(host) is None:
            raise _BadRequest(400)
        if len(self.known_hosts) < _MAX_KNOWN_HOSTS:
            self.known_hosts.add(host)

    def receive(self, connection: "HTTP1Protocol", data: bytes) -> None:
        """Handle data at the end of the loop iteration. If only one client is active, handle it now."""
        if self._lone_reads >= _LONE_READS:
            now = self.loop.time()  # This is the time at which the loop iteration began.
            if connection is self._last_connection or now != self._last_read_at:
                self._last_connection, self._last_read_at = connection, now
                connection.handle_data(data)
                return
            self._lone_reads = 0
        if not self._batch:
            self.loop.call_soon(self.run_batch)
        self._batch.append((connection, data))

    def run_batch(self) -> None:
        """Handle the data of all connections, and then write their responses."""
        batch, self._batch = self._batch, []
        self._lone_reads = self._lone_reads + 1 if len(batch) == 1 else 0
        self.is_in_batch = True
        try:
            for connection, data in batch:
                try:
                    connection.handle_data(data)
                except Exception as exc:  # The data of the other connections must still be handled.
                    log.error("a connection failed", exc_info=exc)
                    connection.abort()
        finally:
            self.is_in_batch = False
            self._flush()

    def flush_later(self, connection: "HTTP1Protocol") -> None:
        """Write the held data of a connection at the end of the batch, or else of the loop iteration."""
        if not self._unflushed and not self.is_in_batch:
            self.loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    def add_connection(self, connection: "HTTP1Protocol") -> None:
        """Watch a new connection."""
        if not self.connections:
            self.loop.call_later(self._sweep_interval, self._sweep)
        self.connections.add(connection)

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in tuple(self.connections):
            if now >= connection.deadline:
                connection.handle_timeout()
        if self.connections:
            self.loop.call_later(self._sweep_interval, self._sweep)


class HTTP1Request:
    """A request on a connection, and the response to it. It has the interface `ServerRequest`."""

    # These values are in the class, because most requests never change them.
    root_path = ""
    body: bytes | None = None
    awaits_continue = False
    is_body_complete = False
    is_started = False  # True if the response has begun
    is_complete = False  # True if the response was sent
    is_ended = False  # True if the function that handles the request has ended
    _is_running = False
    _chunks: list[bytes] | None = None
    _unread_bytes = 0
    _is_body_read = False
    _is_disconnected = False
    _has_body = True  # False if the response has no body
    _is_chunked = False
    _remaining_bytes: int | None = None  # of a response with Content-Length
    _held_head = b""
    _scope: Scope | None = None
    _waiters: list["asyncio.Future[None]"] | None = None

    def __init__(
        self,
        connection: "HTTP1Protocol",
        method: str,
        target: tuple[bytes, str, bytes],
        fields: dict[bytes, bytes],
        repeated: Headers,
        http_version: str,
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self._server = connection.server
        self.method = method
        self.raw_path, self.path, self.query = target
        self._fields = fields
        self._repeated = repeated
        self.http_version = http_version
        self.keep_alive = keep_alive

    # The request

    @property
    def unique_headers(self) -> dict[bytes, bytes] | None:
        """The headers by name, or None if a name is repeated."""
        return None if self._repeated else self._fields

    def get_framing(self) -> bytes:
        """Return the header lines that determine the length of the body."""
        names = (b"content-length", b"transfer-encoding")
        return b"".join(b"%b: %b\r\n" % (name, self._fields[name]) for name in names if name in self._fields)

    @property
    def headers(self) -> Headers:
        """All headers, with names in lower case."""
        return [*self._fields.items(), *self._repeated]

    @property
    def server_host(self) -> str | None:
        """The address at which the server listens."""
        return self._connection.server_host

    @property
    def client_host(self) -> str | None:
        """The address of the client."""
        client = self._find_client()
        return None if client is None else client[0]

    def _find_client(self) -> tuple[str, int] | None:
        client, proxies = self._connection.client_address, self._server.proxies
        return client if proxies is None else proxies.find_client(client, self.headers)

    @property
    def scope(self) -> Scope:
        """The request as an ASGI scope."""
        if self._scope is None:
            connection, proxies, scheme = self._connection, self._server.proxies, self._connection.scheme
            if proxies is not None:
                scheme = proxies.find_scheme(connection.client_address, self.headers, scheme)
            self._scope = {
                "type": "http",
                "asgi": _ASGI_VERSION,
                "http_version": self.http_version,
                "method": self.method,
                "scheme": scheme,
                "path": self.path,
                "raw_path": self.raw_path,
                "query_string": self.query,
                "root_path": "",
                "headers": self.headers,
                "client": self._find_client(),
                "server": connection.server_address,
                "state": {},
            }
        return self._scope

    def _take_body(self) -> bytes:
        chunks, self._chunks = self._chunks, None
        if self._unread_bytes > _MAX_UNREAD_BODY_BYTES:
            self._connection.resume_reading()
        self._unread_bytes = 0
        self._is_body_read = self.is_body_complete
        if self.body is not None:
            body, self.body = self.body, None
            return body
        return b"" if chunks is None else chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the body. After the body, wait until the client disconnects."""
        if self.awaits_continue and not self.is_started:
            self.awaits_continue = False
            if not self.is_body_complete and self._chunks is None:
                self._connection.write(_CONTINUE)
        while not (self._is_disconnected or self.is_complete):
            if not self._is_body_read and (self.is_body_complete or self._chunks is not None):
                return {"type": "http.request", "body": self._take_body(), "more_body": not self._is_body_read}
            waiter = self._server.loop.create_future()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            await waiter
        return {"type": "http.disconnect"}

    def feed_body(self, body: bytes) -> None:
        """Add a part of the body. If the application does not read the body, stop reading from the connection."""
        if self.is_complete:
            return
        if self._chunks is None:
            self._chunks = [body]
        else:
            self._chunks.append(body)
        self._unread_bytes += len(body)
        if self._unread_bytes > _MAX_UNREAD_BODY_BYTES:
            self._connection.pause_reading()
        if self._waiters is not None:
            self._wake()

    def end_body(self) -> None:
        """Handle the end of the body."""
        self.is_body_complete = True
        if not self._is_running:
            chunks, self._chunks = self._chunks, None
            self.body = b"" if chunks is None else chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._waiters is not None:
            self._wake()

    def disconnect(self) -> None:
        """Handle the end of the connection."""
        self._is_disconnected = True
        self._chunks = None
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    # The response

    async def run(self) -> None:
        """Let the server handle the request."""
        self._is_running = True
        try:
            await self._server.handle(self)
            if not self.is_complete and not self._is_disconnected:
                log.error("the application did not complete the response to %s %s", self.method, self.path)
                await self._fail()
        except asyncio.CancelledError:
            if not self.is_complete:
                self._connection.abort()
            raise
        except Exception as exc:
            log.error("the application failed in %s %s", self.method, self.path, exc_info=exc)
            await self._fail()
        finally:
            self.is_ended = True

    async def _fail(self) -> None:
        if self.is_started:
            self._connection.abort()
        else:
            self.keep_alive = False
            await self.respond(500, [(b"content-type", b"text/plain; charset=utf-8")], b"Internal Server Error")

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete response. This method adds the length of the body."""
        connection, server = self._connection, self._server
        if connection.is_write_paused:
            await connection.drain()
        if self._is_disconnected:
            return
        if self.is_started:
            raise RuntimeError("the response has already begun")
        if headers is JSON_HEADERS and status == 200 and self.keep_alive and not server.closes_connections:
            self.is_started = True
            head = b"%b%bcontent-length: %d\r\n\r\n" % (_JSON_HEAD, server.get_date(), len(body))
        else:
            head = self._build_head(status, headers)
            # A response without a body has no length. RFC 9110, section 8.6
            length = b"content-length: %d\r\n" % len(body) if self._has_body or self.method == "HEAD" else b""
            head = b"%b%b\r\n" % (head, length)
        connection.write(head + body if self._has_body else head)
        self._complete()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a part of the response, as an ASGI application does."""
        connection = self._connection
        if connection.is_write_paused:
            await connection.drain()
        if self._is_disconnected:
            return
        kind = message["type"]
        if kind != ("http.response.body" if self.is_started else "http.response.start") or self.is_complete:
            raise RuntimeError(f"unexpected ASGI message {kind!r} in a response")
        if self.is_started:
            self._write_body(message.get("body", b""), has_more=message.get("more_body", False))
            return
        # The headers are sent together with the first part of the body, or at the end of the loop iteration.
        self._held_head = self._build_head(message["status"], message.get("headers", ()))
        self._server.loop.call_soon(self._flush_head)

    def _flush_head(self) -> None:
        if self._held_head and not self._is_disconnected:
            self._connection.write(self._take_head(None), has_more=True)

    def _take_head(self, length: int | None) -> bytes:
        """Return the held headers with the framing of the body. RFC 9112, section 6"""
        head, self._held_head = self._held_head, b""
        if not self._has_body or self._remaining_bytes is not None:
            return head + b"\r\n"
        if length is not None:
            return b"%bcontent-length: %d\r\n\r\n" % (head, length)
        if self.http_version == "1.0":
            return head + b"\r\n"  # The end of the connection is the end of the body.
        self._is_chunked = True
        return head + b"transfer-encoding: chunked\r\n\r\n"

    def _write_body(self, body: bytes, *, has_more: bool) -> None:
        if not self._has_body:
            body = b""
        elif self._remaining_bytes is not None:
            self._remaining_bytes -= len(body)
            if self._remaining_bytes < 0 or (self._remaining_bytes and not has_more):
                raise RuntimeError("the body of the response has another length than its Content-Length")
        head = self._take_head(None if has_more else len(body)) if self._held_head else b""
        if self._is_chunked:
            data = b"%b%x\r\n%b\r\n" % (head, len(body), body) if body else head
            if not has_more:
                data += b"0\r\n\r\n"
        else:
            data = head + body if head else body
        if data:
            self._connection.write(data, has_more=has_more)
        if not has_more:
            self._complete()

    def _build_head(self, status: int, headers: Any) -> bytes:
        self.is_started = True
        self._has_body = self.method != "HEAD" and status not in (204, 304)
        awaits_continue = self.awaits_continue and not self.is_body_complete and self._chunks is None
        if awaits_continue or self._server.closes_connections:
            # A client that waits for status 100 may send its body or not, so the next request could not be found.
            self.keep_alive = False
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        has_date = False
        for name, value in headers:
            if not name or _INVALID_NAME.search(name) or _INVALID_VALUE.search(value):
                raise RuntimeError(f"invalid header in a response: {name!r}")
            name = name.lower()
            if name == b"content-length":
                self._remaining_bytes = int(value)
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            elif name == b"transfer-encoding":
                continue  # The server chooses the framing.
            elif name == b"date":
                has_date = True
            lines.append(b"%b: %b\r\n" % (name, value))
        if not has_date:
            lines.append(self._server.get_date())
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join(lines)

    def _complete(self) -> None:
        self.is_complete = True
        self._chunks = None
        if self._waiters is not None:
            self._wake()
        self._connection.finish_request(self)


class HTTP1Protocol(asyncio.Protocol):
    """One connection of a server."""

    _current: HTTP1Request | None = None  # the request that is being handled
    _parsed: HTTP1Request | None = None  # the request whose body is being received
    _upgrading: HTTP1Request | None = None  # a request with an Upgrade header, until its body is read
    _resumed: HTTP1Request | None = None  # a request whose headers another parser has read
    _pending_error: int | None = None  # the status to send after the queued requests
    _linger_bytes: int | None = None  # the bytes since the connection was rejected
    _is_starting = False
    _is_reading_head = True
    _is_reading_body = False
    _head_bytes = 0
    _overhead_bytes = 0  # the bytes of chunk sizes, chunk extensions and trailers
    _held = b""  # data that is written at the end of the batch or of the loop iteration
    _stall_timer: asyncio.TimerHandle | None = None
    _write_waiters: list["asyncio.Future[None]"] | None = None
    is_write_paused = False

    def __init__(self, server: ServerState) -> None:
        self.server = server
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._fields: dict[bytes, bytes] = {}
        self._repeated: Headers = []  # headers whose name occurred before
        self._queue: list[HTTP1Request] = []  # requests that wait for the current one
        self.deadline = inf  # the time at which `handle_timeout` is called

    # The connection

    def connection_made(self, transport: Any) -> None:
        """Start the time for the first headers."""
        self._transport: Any = transport
        self.client_address = _parse_socket_name(transport.get_extra_info("peername"))
        self.server_address = _parse_socket_name(transport.get_extra_info("sockname"))
        self.server_host = None if self.server_address is None else self.server_address[0]
        self.scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self.deadline = self.server.loop.time() + self.server.limits.header_timeout
        self.server.add_connection(self)
        warn_if_descriptors_run_out(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the requests of the connection."""
        self.server.connections.discard(self)
        self._stop_stall_timer()
        for request in (self._current, self._parsed, *self._queue):
            if request is not None:
                request.disconnect()
        self._queue.clear()
        self._wake_writers()
        self._parser = None

    def abort(self) -> None:
        """Close the connection at once, and discard the data that was not sent."""
        self._held = b""
        self._transport.abort()

    def _close(self) -> None:
        self.flush()
        self._transport.close()

    @property
    def is_waiting(self) -> bool:
        """Return whether the server waits for a request, or for the rest of a request."""
        return self._current is None or self._is_reading_body

    @property
    def is_lingering(self) -> bool:
        """Return whether the client has its last response, and only the end of the connection is missing."""
        return self._linger_bytes is not None

    def shut_down(self) -> None:
        """Close the connection if it is idle. Otherwise close it after the response."""
        if self._current is None:
            self._close()
        elif self._current is self._parsed:
            self._reject(503)  # The body is incomplete, so the request cannot be handled.
        else:
            self._current.keep_alive = False

    def handle_timeout(self) -> None:
        """End a connection that is idle or too slow."""
        self.deadline = inf
        if self._linger_bytes is not None:
            self.abort()
        elif self._is_reading_head or self._is_reading_body:
            self._fail(408)
        else:
            self._close()

    # Reading

    def data_received(self, data: bytes) -> None:
        """Collect data until the end of the loop iteration."""
        self.server.receive(self, data)

    def eof_received(self) -> None:
        """Handle the collected data before the connection is closed."""
        self.server.run_batch()

    def handle_data(self, data: bytes) -> None:
        """Parse requests and start them."""
        if self._parser is None or self._pending_error is not None or self._linger_bytes is not None:
            self._discard(data)
            return
        was_reading = self._is_reading_head or self._is_reading_body
        if self._is_reading_body:
            self._overhead_bytes += len(data)
        else:
            self._is_reading_head = True
            self._head_bytes += len(data)
        self._parse(data)
        if self._queue and not self._is_starting:
            self._start_requests()
        if self._is_reading_head or self._is_reading_body:
            self._check_incomplete(was_reading)

    def _check_incomplete(self, was_reading: bool) -> None:
        """Limit the size and the time of an incomplete request."""
        limits = self.server.limits
        # Trailers and chunk extensions are limited, because a client could send them without an end.
        if max(self._head_bytes if self._is_reading_head else 0, self._overhead_bytes) > limits.max_header_block_bytes:
            self._fail(431)
        elif self.deadline == inf or not was_reading:
            timeout = limits.header_timeout if self._is_reading_head else limits.body_timeout
            self.deadline = self.server.loop.time() + timeout

    def _parse(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as exc:
                rest = rest[exc.args[0] :]
                self._ignore_upgrade()
            except httptools.HttpParserError as exc:
                cause = exc.__context__
                self._fail(cause.status if isinstance(cause, _BadRequest) else 400)
                return

    def _ignore_upgrade(self) -> None:
        """Handle a request for another protocol as an ordinary request. RFC 9110, section 7.8

        The parser stops after the headers of such a request, so another parser reads the body.
        """
        request, self._upgrading = self._upgrading, None
        assert request is not None  # The parser stops only after the headers that `on_headers_complete` has checked.
        self._resumed = request
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % request.get_framing())

    def _discard(self, data: bytes) -> None:
        if self._linger_bytes is not None:
            self._linger_bytes += len(data)
            if self._linger_bytes > _MAX_LINGER_BYTES:
                self.abort()

    def on_message_begin(self) -> None:
        """Handle the first byte of a request."""
        self._url = b""
        self._fields = {}
        if self._repeated:
            self._repeated = []

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header or a trailer."""
        name = name.lower()
        if name in self._fields:
            self._repeated.append((name, value))
        else:
            # The parser keeps spaces at the end of a value. RFC 9110, section 5.5
            self._fields[name] = value.strip(b" \t")

    def on_headers_complete(self) -> None:
        """Check the headers, and queue the request. Its body may follow."""
        head_bytes, self._head_bytes = self._head_bytes, 0
        self._is_reading_head, self._is_reading_body = False, True
        self._overhead_bytes = 0
        self.deadline = inf
        if self._resumed is not None:
            self._parsed, self._resumed = self._resumed, None
            return
        parser, fields, repeated, target = self._parser, self._fields, self._repeated, self._url
        # If all headers together are smaller than the limit for one header, no check is needed.
        # If `head_bytes` is 0, the size is unknown, because the headers arrived with the previous request.
        if not 0 < head_bytes <= self.server.limits.max_header_bytes:
            _check_sizes(target, [*fields.items(), *repeated], self.server.limits)
        version = parser.get_http_version()
        method = _METHODS.get(name := parser.get_method()) or name.decode()
        if method == "CONNECT":
            raise _BadRequest(501)
        host = fields.get(b"host")
        if host is not None and host not in self.server.known_hosts:
            self.server.check_host(host)
        if version != "1.1" or b"host" not in fields or repeated or b"transfer-encoding" in fields:
            _check_framing(version, fields, repeated)
        if target[:1] != b"/":
            target = _resolve_target(method, target, fields)
        if not target.isascii() or b"#" in target:
            raise _BadRequest(400)
        raw_path, _, query = target.partition(b"?")
        path = raw_path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        keep_alive = version == "1.1" and parser.should_keep_alive()
        request = HTTP1Request(self, method, (raw_path, path, query), fields, repeated, version, keep_alive)
        if b"expect" in fields and version == "1.1":
            if fields[b"expect"].lower() != b"100-continue":
                raise _BadRequest(417)
            request.awaits_continue = True
        if b"upgrade" in fields and parser.should_upgrade():
            self._upgrading = request
        self._parsed = request
        self._queue.append(request)
        # Trailers must not count as headers, because no proxy or guard has checked them.
        self._fields, self._repeated = {}, []

    def on_body(self, body: bytes) -> None:
        """Add a part of the body to the request."""
        self._overhead_bytes -= len(body) + _CHUNK_OVERHEAD_BYTES
        if self._parsed is not None:
            self._parsed.feed_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        if self._upgrading is not None:
            return
        if self._fields:  # trailers
            _check_sizes(b"", [*self._fields.items(), *self._repeated], self.server.limits)
        self._is_reading_body = False
        self._overhead_bytes = 0
        self.deadline = inf
        request, self._parsed = self._parsed, None
        if request is not None:
            request.end_body()
            if request.is_complete and self._current is None:
                self._start_idle_time()

    def _start_requests(self) -> None:
        """Start the next request. A request that does not wait ends at once, so that another one can follow."""
        self._is_starting = True
        server, queue = self.server, self._queue
        while queue and self._current is None:
            if self._transport.is_closing():
                queue.clear()
                break
            request = self._current = queue.pop(0)
            task = server.starter.start(request.run())
            if not request.is_ended:
                server.tasks.add(task)
                task.add_done_callback(server.tasks.discard)
        self._is_starting = False
        if queue:
            self.pause_reading()
        elif self._pending_error is not None and self._current is None:
            self._reject(self._pending_error)

    def finish_request(self, request: HTTP1Request) -> None:
        """Continue after a response: close the connection, or handle the next request."""
        self._current = None
        if self._transport.is_closing():
            return
        if not request.keep_alive:
            if request.is_body_complete:
                self._queue.clear()
                self._close()
            else:
                self._linger()
        elif self._queue or self._pending_error is not None:
            if not self._is_starting:
                self.server.loop.call_soon(self._continue)
        elif request.is_body_complete:
            self.resume_reading()
            self._start_idle_time()
        else:
            self.resume_reading()  # The rest of the body is discarded.

    def _continue(self) -> None:
        if not self._is_starting and self._current is None:
            self._start_requests()
            if not self._queue:
                self.resume_reading()

    def _start_idle_time(self) -> None:
        self.deadline = self.server.loop.time() + _KEEP_ALIVE_TIMEOUT_S

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        if self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue to read."""
        if not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()

    # Errors

    def _fail(self, status: int) -> None:
        """Reject the received data. Complete requests before it are handled first."""
        broken, self._parsed = self._parsed, None
        if broken in self._queue:
            self._queue.remove(broken)
        self._is_reading_head = self._is_reading_body = False
        self.deadline = inf
        if self._queue or not (self._current is None or self._current is broken):
            self._pending_error = status
        elif broken is not None and broken.is_complete:
            self._close()  # The client has its response, and would not expect another one.
        else:
            self._reject(status)

    def _reject(self, status: int) -> None:
        self._pending_error = None
        if self._transport.is_closing() or self._linger_bytes is not None:
            return
        if self._current is not None:
            if self._current.is_started:
                self.abort()  # The client could mistake the error for a part of another response.
                return
            self._current.disconnect()
        retry = b"retry-after: 1\r\n" if status == 503 else b""
        head = b"%b%b%bconnection: close\r\n" % (_STATUS_LINES[status], self.server.get_date(), retry)
        if status == 400:
            head += b"content-type: text/plain\r\n"
        body = b"Invalid HTTP request" if status == 400 else b""
        self.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._linger()

    def _linger(self) -> None:
        """Close the connection after the client had time to read the response. RFC 9112, section 9.6"""
        self._linger_bytes = 0
        self._queue.clear()
        self._is_reading_head = self._is_reading_body = False
        self.flush()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self.resume_reading()
            self.deadline = self.server.loop.time() + _LINGER_S
        else:
            self._transport.close()

    # Writing

    def write(self, data: bytes, *, has_more: bool = False) -> None:
        """Send data. During a batch, or if more data follows, small data waits for the end of the loop iteration."""
        if (has_more or self.server.is_in_batch) and len(self._held) + len(data) <= _MAX_HELD_BYTES:
            if not self._held:
                self.server.flush_later(self)
            self._held += data
            return
        self.flush()
        if not self._transport.is_closing():
            self._transport.write(data)

    def flush(self) -> None:
        """Send the data that waits."""
        if self._held:
            data, self._held = self._held, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def pause_writing(self) -> None:
        """Handle a client that does not read. After a while, close the connection."""
        self.is_write_paused = True
        if self._stall_timer is None:
            self._stall_timer = self.server.loop.call_later(self.server.limits.write_timeout, self.abort)

    def resume_writing(self) -> None:
        """Handle a client that reads again."""
        self._stop_stall_timer()
        self._wake_writers()

    async def drain(self) -> None:
        """Wait until the client reads, or until the connection ends."""
        while self.is_write_paused:
            waiter = self.server.loop.create_future()
            if self._write_waiters is None:
                self._write_waiters = []
            self._write_waiters.append(waiter)
            await waiter

    def _wake_writers(self) -> None:
        self.is_write_paused = False
        waiters, self._write_waiters = self._write_waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def _check_sizes(target: bytes, headers: Headers, limits: ServerLimits) -> None:
    sizes = [len(name) + len(value) + _HEADER_OVERHEAD_BYTES for name, value in headers]
    if max(sizes, default=0) > limits.max_header_bytes or len(target) + sum(sizes) > limits.max_header_block_bytes:
        raise _BadRequest(431)


def _check_framing(version: str, fields: dict[bytes, bytes], repeated: Headers) -> None:
    """Reject headers that a proxy could understand differently. RFC 9112, sections 2.3, 3.2 and 6"""
    if version not in ("1.0", "1.1"):
        raise _BadRequest(505)
    if version == "1.1" and b"host" not in fields:
        raise _BadRequest(400)
    if not {b"host", b"content-length", b"transfer-encoding"}.isdisjoint(name for name, _ in repeated):
        raise _BadRequest(400)
    if b"transfer-encoding" in fields:
        if version == "1.0" or b"content-length" in fields:
            raise _BadRequest(400)
        if fields[b"transfer-encoding"].lower() != b"chunked":
            raise _BadRequest(501)


def _resolve_target(method: str, target: bytes, fields: dict[bytes, bytes]) -> bytes:
    """Return the path and the query of a target that does not begin with a slash. RFC 9112, section 3.2

    An absolute target must have the host of the Host header, because a proxy may have checked only the header.
    """
    if target == b"*" and method == "OPTIONS":
        return target
    scheme, separator, rest = target.partition(b"://")
    authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
    if (
        not separator
        or scheme.lower() not in (b"http", b"https")
        or fields.get(b"host", b"").lower() != authority.lower()
    ):
        raise _BadRequest(400)
    path = rest[len(authority) :]
    return path if path[:1] == b"/" else b"/" + path


def _format_date(moment: time.struct_time) -> bytes:
    """Return a Date header. `strftime` would use the language of the process."""
    day, month = _DAYS[moment.tm_wday], _MONTHS[moment.tm_mon - 1]
    clock = f"{moment.tm_hour:02}:{moment.tm_min:02}:{moment.tm_sec:02}"
    return f"date: {day}, {moment.tm_mday:02} {month} {moment.tm_year} {clock} GMT\r\n".encode()


def _parse_socket_name(name: Any) -> tuple[str, int] | None:
    """Return host and port of a TCP socket. A Unix socket has neither."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else None
