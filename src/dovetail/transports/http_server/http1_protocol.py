"""The HTTP/1.1 protocol of one server connection (RFC 9112). httptools parses the requests.

The server handles the data of all connections once per event loop iteration. It handles all requests first, and then
writes all responses. A write between two requests would slow down the second request, because a write is a system call
and wakes the client process. The server runs a request at once until the request waits, and only then creates a task.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final
from urllib.parse import unquote

import httptools

from dovetail.eager_tasks import EagerTaskStarter
from dovetail.log import log
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http_server.forwarded_addresses import TrustedProxies
from dovetail.transports.http_server.http1_request import STATUS_LINES, HTTP1Request
from dovetail.transports.http_server.http_request import Headers
from dovetail.transports.operator_warnings import warn_if_descriptors_run_out

# The server closes a connection that is idle for this time. nginx and cloud load balancers close idle connections
# after 60 seconds. The proxy must close first. Otherwise a request of the proxy could reach a closed connection.
_KEEP_ALIVE_TIMEOUT_S: Final = 75.0
_MAX_SWEEP_INTERVAL_S: Final = 1.0  # the time between two searches for slow connections
_MIN_SWEEP_INTERVAL_S: Final = 0.01
# After an error, the server reads on for this time and this many bytes. Closing at once could destroy the response.
_LINGER_S: Final = 2.0
_MAX_LINGER_BYTES: Final = 1024 * 1024
_MAX_HELD_BYTES: Final = 16 * 1024  # The server writes larger responses immediately.
_CHUNK_OVERHEAD_BYTES: Final = 16  # the bytes of each chunk that are not counted as overhead
_HEADER_OVERHEAD_BYTES: Final = 4  # the colon, a space and the line end of each header
_LONE_READS: Final = 8  # After this many batches with only one read, the server stops batching.
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_MAX_KNOWN_HOSTS: Final = 256
_AUTHORITY_END: Final = re.compile(rb"[/?]")
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_METHODS: Final = {name.encode(): name for name in ("POST", "GET", "DELETE", "OPTIONS", "HEAD")}


class _BadRequest(Exception):
    """Raised if a request is invalid or exceeds a limit."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class ServerState:
    """The state that all connections of a server share: settings, the batch of received data, and the sweep timer."""

    def __init__(
        self, handle: Callable[[HTTP1Request], Awaitable[None]], limits: ServerLimits, proxies: TrustedProxies | None
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.proxies = proxies
        self.loop = asyncio.get_running_loop()
        self.starter = EagerTaskStarter()
        self.connections: set[HTTP1Protocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()  # the tasks of requests that have not ended
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
        self._is_sweep_scheduled = False

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
        """Add data to the batch of this loop iteration. If only one client is active, handle the data at once."""
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
                except Exception as exc:  # Continue with the data of the other connections.
                    log.error("a connection failed", exc_info=exc)
                    connection.abort()
        finally:
            self.is_in_batch = False
            self._flush()

    def flush_later(self, connection: "HTTP1Protocol") -> None:
        """Write the held data of a connection at the end of the batch. Without a batch, write after this iteration."""
        if not self._unflushed and not self.is_in_batch:
            self.loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    def add_connection(self, connection: "HTTP1Protocol") -> None:
        """Watch a new connection."""
        self.connections.add(connection)
        if not self._is_sweep_scheduled:
            self._schedule_sweep()

    def _schedule_sweep(self) -> None:
        self._is_sweep_scheduled = True
        self.loop.call_later(self._sweep_interval, self._sweep)

    def _sweep(self) -> None:
        self._is_sweep_scheduled = False
        now = self.loop.time()
        for connection in tuple(self.connections):
            if now >= connection.deadline:
                connection.handle_timeout()
        if self.connections:
            self._schedule_sweep()


class HTTP1Protocol(asyncio.Protocol):
    """One connection of a server."""

    _current: HTTP1Request | None = None  # the request that is being handled
    _parsed: HTTP1Request | None = None  # the request whose body is being received
    _upgrading: HTTP1Request | None = None  # a request with an Upgrade header, until its body is read
    _resumed: HTTP1Request | None = None  # an upgrade request whose body a new parser reads
    _pending_error: int | None = None  # the status to send after the queued requests
    _linger_bytes: int | None = None  # the number of bytes received while the connection lingers
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
        self._queue: list[HTTP1Request] = []  # requests that wait until the current request ends
        self.deadline = inf  # the time at which `handle_timeout` is called

    # The connection

    def connection_made(self, transport: Any) -> None:
        """Set the deadline for the first headers."""
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
        """Return whether the server waits for data from the client."""
        return self._current is None or self._is_reading_body

    @property
    def is_lingering(self) -> bool:
        """Return whether the server has sent its last response, and waits for the client to close the connection."""
        return self._linger_bytes is not None

    def shut_down(self) -> None:
        """Close the connection if it is idle. Otherwise close it after the response."""
        if self._current is None:
            self._close()
        elif self._current is self._parsed:
            self._reject(503)  # The server does not wait for the rest of the body.
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
        """Reject an incomplete request that is too large, and set the deadline for its remaining data."""
        limits = self.server.limits
        # The limit includes trailers and chunk extensions, because a client could send them without end.
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

        The parser stops after the headers of a request with an Upgrade header, so a new parser reads the body.
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
        """Check the headers, and queue the request. The body may still be incomplete."""
        head_bytes, self._head_bytes = self._head_bytes, 0
        self._is_reading_head, self._is_reading_body = False, True
        self._overhead_bytes = 0
        self.deadline = inf
        if self._resumed is not None:
            self._parsed, self._resumed = self._resumed, None
            return
        parser, fields, repeated, target = self._parser, self._fields, self._repeated, self._url
        # If all headers together are smaller than the limit for one header, no check is needed.
        # If the headers arrived in the same read as the previous request, their size is unknown, and `head_bytes` is 0.
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
        """Start the queued requests, until one of them has to wait."""
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
            self.resume_reading()  # The connection reads and discards the rest of the body.

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
        """Reject the received data. First handle the complete requests that arrived before this data."""
        broken, self._parsed = self._parsed, None
        if broken in self._queue:
            self._queue.remove(broken)
        self._is_reading_head = self._is_reading_body = False
        self.deadline = inf
        if self._queue or not (self._current is None or self._current is broken):
            self._pending_error = status
        elif broken is not None and broken.is_complete:
            self._close()  # The client already has its response and does not expect a second response.
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
        head = b"%b%b%bconnection: close\r\n" % (STATUS_LINES[status], self.server.get_date(), retry)
        if status == 400:
            head += b"content-type: text/plain\r\n"
        body = b"Invalid HTTP request" if status == 400 else b""
        self.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._linger()

    def _linger(self) -> None:
        """Give the client time to read the response, and then close the connection. RFC 9112, section 9.6"""
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
        """Send data. During a batch, or if more data follows, hold a small amount of data until `flush`."""
        if (has_more or self.server.is_in_batch) and len(self._held) + len(data) <= _MAX_HELD_BYTES:
            if not self._held:
                self.server.flush_later(self)
            self._held += data
            return
        self.flush()
        if not self._transport.is_closing():
            self._transport.write(data)

    def flush(self) -> None:
        """Send the held data."""
        if self._held:
            data, self._held = self._held, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def pause_writing(self) -> None:
        """Start the write timeout, because the client does not read. After the timeout, abort the connection."""
        self.is_write_paused = True
        if self._stall_timer is None:
            self._stall_timer = self.server.loop.call_later(self.server.limits.write_timeout, self.abort)

    def resume_writing(self) -> None:
        """Stop the write timeout, because the client reads again."""
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
    sizes = [len(name) + len(value) for name, value in headers]
    block_bytes = len(target) + sum(sizes) + _HEADER_OVERHEAD_BYTES * len(sizes)
    if max(sizes, default=0) > limits.max_header_bytes or block_bytes > limits.max_header_block_bytes:
        raise _BadRequest(431)


def _check_framing(version: str, fields: dict[bytes, bytes], repeated: Headers) -> None:
    """Reject headers that a proxy could interpret differently. RFC 9112, sections 2.3, 3.2 and 6"""
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

    The host in an absolute target must equal the Host header, because a proxy may have checked only the Host header.
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
    """Return a Date header in English. `strftime` would use the locale of the process."""
    day, month = _DAYS[moment.tm_wday], _MONTHS[moment.tm_mon - 1]
    clock = f"{moment.tm_hour:02}:{moment.tm_min:02}:{moment.tm_sec:02}"
    return f"date: {day}, {moment.tm_mday:02} {month} {moment.tm_year} {clock} GMT\r\n".encode()


def _parse_socket_name(name: Any) -> tuple[str, int] | None:
    """Return host and port of a TCP socket. A Unix socket has neither."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else None
