"""The HTTP/1.1 protocol of one server connection (RFC 9112). httptools parses the requests.

A connection runs a request at once until the request waits, and only then creates a task. In one turn, it handles a
limited number of requests for a limited time. The other connections have their turns before it continues.
"""

import asyncio
from math import inf
from time import monotonic
from typing import Any, Final

import httptools

from dovetail.transports.http1.connection_group import ConnectionGroup
from dovetail.transports.http1.connection_state import ConnectionState
from dovetail.transports.http1.http1_head import (
    BadRequest,
    Header,
    KnownHead,
    explain_unreadable,
    remember_head,
)
from dovetail.transports.http1.http1_request import STATUS_LINES, HTTP1Request
from dovetail.transports.http1.socket_buffers import has_unread_input, has_unread_output, set_reset_on_close
from dovetail.transports.operator_log import log_rejected_request, warn_if_descriptors_run_out

# After an error, the server reads on for this time and this many bytes. Closing at once could destroy the response.
_LINGER_S: Final = 2.0
_MAX_LINGER_BYTES: Final = 1024 * 1024
_MAX_HELD_BYTES: Final = 16 * 1024  # The server writes larger responses immediately.
_MAX_TURN_REQUESTS: Final = 16
_MAX_TURN_S: Final = 0.002
_MAX_PARSED_BYTES: Final = 4 * 1024  # The parser gets more bytes at once only if they belong to the same body.
_MAX_BACKLOG_BYTES: Final = 64 * 1024  # If more bytes wait for the parser, the connection stops reading.
# If the server waits until a client reads, the client must read this many bytes in each write timeout.
_MIN_READ_BYTES: Final = 64 * 1024
_CHUNK_OVERHEAD_BYTES: Final = 16  # For each part of a body, this many bytes are not counted as overhead.

_IDLE, _HEAD, _BODY, _FAILED, _LINGERING, _CLOSED = ConnectionState


class HTTP1Protocol(asyncio.Protocol):
    """One connection of a server."""

    _receiving: HTTP1Request | None = None  # the request whose body is being received
    _upgrading: HTTP1Request | None = None  # a request with an Upgrade header, until its body is read
    _resumed: HTTP1Request | None = None  # an upgrade request whose body a new parser reads
    _pending_error: BadRequest | None = None  # the error to send after the queued requests
    _known_head: KnownHead | None = None  # the head of the last request, if the parser need not read it again
    _headers: list[Header] | None = None  # the headers of an incomplete head
    _is_starting = False
    _is_first_in_piece = True  # True if the next request begins with the first byte of a piece
    _is_size_known = True  # True if `_head_bytes` contains all bytes of the head
    _is_reading_paused = False
    _is_shutting_down = False
    _is_half_closed = False  # True if the client sends nothing more, but waits for responses
    _linger_bytes = 0  # the number of bytes received while the connection lingers
    _head_bytes = 0
    _body_bytes = 0
    _overhead_bytes = 0  # the bytes of chunk sizes, chunk extensions and trailers
    _trailer_bytes = 0
    _queued_bytes = 0  # the bytes that were parsed while requests were waiting
    _backlog_bytes = 0
    _held = b""  # data that is written at the end of the batch or of the loop iteration
    _stall_timer: asyncio.TimerHandle | None = None
    _write_waiters: list["asyncio.Future[None]"] | None = None
    state = _HEAD
    current: HTTP1Request | None = None  # the request that is being handled
    has_turn = False  # True if the server will call `take_turn`
    is_write_paused = False
    is_done = False  # True if the server has sent its last response, and does not wait for this connection to close

    def __init__(self, server: ConnectionGroup) -> None:
        self.server = server
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._queue: list[HTTP1Request] = []  # requests that wait until the current request ends
        self._backlog: list[bytes | memoryview] = []  # received data that waits for the parser
        self.deadline = inf  # the time at which `handle_timeout` is called

    # The connection

    def connection_made(self, transport: Any) -> None:
        """Set the deadline for the first headers."""
        self._transport: Any = transport
        self.client_address = _parse_socket_name(transport.get_extra_info("peername"))
        self.server_address = _parse_socket_name(transport.get_extra_info("sockname"))
        self.server_host = None if self.server_address is None else self.server_address[0]
        self.client_host = None if self.client_address is None else self.client_address[0]
        self.scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self.deadline = self.server.loop.time() + self.server.limits.header_timeout
        if self.server.is_stopped:  # The client has just ended its TLS handshake.
            transport.abort()
            return
        self.server.add_connection(self)
        warn_if_descriptors_run_out(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the requests of the connection."""
        self.server.connections.discard(self)
        if self.server.lone_reader is self:
            self.server.lone_reader = None
        self._stop_stall_timer()
        for request in (self.current, self._receiving, *self._queue):
            if request is not None:
                request.disconnect()
        self.state = _CLOSED
        self._drop_requests()
        self._wake_writers()
        self._parser = None

    def abort(self) -> None:
        """Close the connection at once, and discard the data that was not sent."""
        self._held = b""
        self._transport.abort()

    def _reset(self) -> None:
        """Abort the connection, and discard the data in the buffers of the operating system, too.

        Otherwise the system would keep the data for minutes, because it waits for a client that does not read.
        """
        set_reset_on_close(self._transport)
        self.abort()

    def _close(self) -> None:
        self.flush()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._start_stall_timer()

    @property
    def is_waiting(self) -> bool:
        """Return whether the server waits for data from the client."""
        return self.current is None or self.state is _BODY

    def shut_down(self) -> None:
        """Close the connection if it is idle. Otherwise close it after the response."""
        self._is_shutting_down = True
        if self.has_turn:
            return  # The connection is closed after its next response, or after its turns.
        if self.current is None:
            self._close()
            if not self._transport.get_write_buffer_size():
                # Over TLS, the transport waits until the client closes. The shutdown does not wait for idle clients.
                self.is_done = True
        elif self.current is self._receiving:
            # The server does not wait for the rest of the body.
            self._reject(BadRequest(503, "The server is shutting down"))
        else:
            self.current.keep_alive = False

    def handle_timeout(self) -> None:
        """End a connection that is idle or too slow."""
        self.deadline = inf
        if self.state is _LINGERING and not self._transport.get_write_buffer_size():
            self.abort()
        elif self.state is _LINGERING:  # The client still reads earlier responses.
            self._start_stall_timer()
            self.deadline = self.server.loop.time() + _LINGER_S
        elif self.state is _HEAD or self.state is _BODY:
            self._handle_slow_client()
        elif has_unread_input(self._transport):  # A request arrived while the event loop was busy.
            self.deadline = self.server.loop.time()
        elif has_unread_output(self._transport):
            self._handle_stall(f"{self.server.limits.idle_timeout:g} s (idle_timeout)")
        else:
            self._close()

    def _handle_slow_client(self) -> None:
        request = self._receiving
        awaits_continue = request is not None and request.awaits_continue and request is not self.current
        # The server has not read or asked for the rest, because other requests come first.
        if self._backlog or awaits_continue or not self._transport.is_reading():
            self._start_read_time()
            return
        limits, is_head = self.server.limits, self.state is _HEAD
        part, name = ("headers", "header_timeout") if is_head else ("body", "body_timeout")
        timeout = limits.header_timeout if is_head else limits.body_timeout
        self._fail(BadRequest(408, f"The {part} of the request took longer than {timeout:g} s ({name})"))

    # Reading

    def data_received(self, data: bytes) -> None:
        """Handle the data at once if no other client is active. Otherwise collect it until the end of the iteration."""
        if self.server.lone_reader is self:
            self.handle_data(data)
        else:
            self.server.receive(self, data)

    def eof_received(self) -> bool:
        """Handle the collected data before the connection is closed."""
        self.server.run_batch()
        # The event loop cannot keep a TLS connection open.
        self._is_half_closed = self.has_turn and self.scheme == "http"
        return self._is_half_closed

    def handle_data(self, data: bytes) -> None:
        """Parse and start requests. If the connection had its turn, keep the data for the next turn."""
        known_head = self._known_head
        if (
            known_head is not None
            and len(data) == known_head.message_bytes
            and self._is_quiet()
            and data.startswith(known_head.data)
        ):
            # The parser has read and checked these bytes before.
            request = HTTP1Request(self, known_head.head)
            request.body, request.is_body_complete = data[len(known_head.data) :], True
            self.deadline = inf
            self._queue.append(request)
            self._start_requests()
        elif self.state is _FAILED or self.state is _LINGERING or self.state is _CLOSED:
            self._discard(data)
        elif self._backlog or self.has_turn or not self._can_parse():
            self._add_to_backlog(data)
        else:
            self._read(data)

    def defer_data(self, data: bytes) -> None:
        """Keep data for a turn in the next loop iteration."""
        if self.state is _FAILED or self.state is _LINGERING or self.state is _CLOSED:
            self._discard(data)
        else:
            self._add_to_backlog(data)
            self._plan_turn(is_first=True)

    def _add_to_backlog(self, data: bytes) -> None:
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        self.update_reading()

    def _can_parse(self) -> bool:
        """Return whether the queue has room for more requests. A client must not fill the memory with them."""
        return len(self._queue) < _MAX_TURN_REQUESTS and (
            self.current is None or self._queued_bytes <= _MAX_BACKLOG_BYTES
        )

    def _is_quiet(self) -> bool:
        """Return whether nothing is left to read, to handle or to answer. False for a connection without requests."""
        return self.state is _IDLE and self.current is None and not self.has_turn

    def _read(self, data: bytes | memoryview) -> None:
        """Parse data and start the requests in it. Keep the rest for the next turn."""
        was_reading, was_quiet = self.state is not _IDLE, self._is_quiet()
        rest = self._parse(data)
        if rest:
            self._backlog.insert(0, rest)
            self._backlog_bytes += len(rest)
        # The first request of a connection may also be the last one, so its head need not be kept.
        elif was_quiet and isinstance(data, bytes) and len(self._queue) == 1:
            request = self._queue[0]
            self._known_head = None if request.body is None else remember_head(data, request.head, request.body)
        if self._queue:
            self._start_requests()
        if self._backlog:
            self._plan_turn()
        if self._is_reading_paused:
            self.update_reading()
        if self._backlog:
            return
        if self.state is _HEAD or self.state is _BODY:
            self._check_incomplete(was_reading)
        elif self.state is _IDLE and self.current is None and self.deadline == inf:
            # The client had its response before it sent the body.
            self.deadline = self.server.loop.time() + self.server.limits.idle_timeout

    def take_turn(self) -> None:
        """Continue with the requests that wait for a turn."""
        self.has_turn = False
        if self.state is _CLOSED:
            return
        earlier_request, was_full = self.current, self._backlog_bytes > _MAX_BACKLOG_BYTES
        if self._backlog and self._can_parse():
            data = self._backlog.pop(0)
            self._backlog_bytes -= len(data)
            self._read(data)
        else:
            self._start_requests()
        self._plan_turn()
        if self.has_turn:
            return
        if self._is_half_closed:
            self._close()
            return
        if self._is_shutting_down:
            self.shut_down()
            return
        self.update_reading()
        has_asked = self.current is self._receiving is not earlier_request  # The client may wait for status 100.
        if (was_full or has_asked) and (self.state is _HEAD or self.state is _BODY):
            self._start_read_time()  # The client could not send before.

    def _check_incomplete(self, was_reading: bool) -> None:
        """Reject an incomplete request that is too large, and set the deadline for its remaining data."""
        limits = self.server.limits
        # The limit includes trailers and chunk extensions, because a client could send them without end.
        if max(self._head_bytes if self.state is _HEAD else 0, self._overhead_bytes) > limits.max_header_block_bytes:
            self._fail(self.server.head_checker.create_block_error())
        elif self.deadline == inf or not was_reading:
            self._start_read_time()

    def _start_read_time(self) -> None:
        limits = self.server.limits
        timeout = limits.header_timeout if self.state is _HEAD else limits.body_timeout
        self.deadline = self.server.loop.time() + timeout

    def _parse(self, data: bytes | memoryview) -> bytes | memoryview:
        """Pass data to the parser in pieces, until the turn ends or its requests are queued. Return the rest."""
        turn_end = 0.0
        while data and self._can_parse():
            size = len(data)
            if size > _MAX_PARSED_BYTES:
                if not turn_end:
                    turn_end = monotonic() + _MAX_TURN_S
                elif monotonic() >= turn_end:
                    break
                data = memoryview(data)
                size = min(size, max(_MAX_PARSED_BYTES, self._count_missing_bytes()))
            if self.state is _BODY:
                self._overhead_bytes += size
                self._is_first_in_piece = False
            else:
                self.state = _HEAD
                self._head_bytes += size
                self._is_first_in_piece = self._headers is None
            try:
                self._parser.feed_data(data[:size])
            except httptools.HttpParserUpgrade as exc:
                size = exc.args[0]
                self._ignore_upgrade()
            except httptools.HttpParserError as exc:
                cause = exc.__context__
                self._fail(cause if isinstance(cause, BadRequest) else explain_unreadable(bytes(data), exc))
                return b""
            if self._queue and self.current is not None:
                self._queued_bytes += size
            data = data[size:]
        return data

    def _count_missing_bytes(self) -> int:
        """Return the size of the rest of the body, if its length is known."""
        if self._receiving is None:
            return 0
        return int(self._receiving.head.fields.get(b"content-length", 0)) - self._body_bytes

    def _ignore_upgrade(self) -> None:
        """Handle a request for another protocol as an ordinary request. RFC 9110, section 7.8

        The parser stops after the headers of a request with an Upgrade header, so a new parser reads the body.
        """
        request, self._upgrading = self._upgrading, None
        assert request is not None  # The parser stops only after the headers that `on_headers_complete` has checked.
        self._resumed = request
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % request.head.get_framing())

    def _discard(self, data: bytes) -> None:
        if self.state is _LINGERING:
            self._linger_bytes += len(data)
            if self._linger_bytes > _MAX_LINGER_BYTES:
                self.abort()

    def on_message_begin(self) -> None:
        """Handle the first byte of a request."""
        if self._resumed is not None:
            return
        self.state = _HEAD
        self._is_size_known, self._is_first_in_piece = self._is_first_in_piece, False
        self._known_head = None
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, or count a trailer.

        Trailers are ignored, because no proxy or guard has checked them. RFC 9110, section 6.5.1
        """
        if self._headers is None:
            self._trailer_bytes += len(name) + len(value)
            self.server.head_checker.check_trailer(name, value, self._trailer_bytes)
            return
        # The parser keeps spaces at the end of a value. RFC 9110, section 5.5
        self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """Check the headers, and queue the request. The body may still be incomplete."""
        head_bytes, self._head_bytes = self._head_bytes, 0
        headers, self._headers = self._headers, None
        self.state = _BODY
        self._body_bytes = self._overhead_bytes = self._trailer_bytes = 0
        self.deadline = inf
        if self._resumed is not None:
            self._receiving, self._resumed = self._resumed, None
            return
        parser = self._parser
        head = self.server.head_checker.check(
            (parser.get_method(), self._url, parser.get_http_version()),
            headers or (),
            size=head_bytes if self._is_size_known else None,
            keep_alive=parser.should_keep_alive(),
        )
        request = HTTP1Request(self, head)
        if b"expect" in head.fields:
            request.awaits_continue = head.has_expectation()
        if b"upgrade" in head.fields and parser.should_upgrade():
            self._upgrading = request
        self._receiving = request
        self._queue.append(request)

    def on_body(self, body: bytes) -> None:
        """Add a part of the body to the request."""
        self._body_bytes += len(body)
        self._overhead_bytes = max(0, self._overhead_bytes - len(body) - _CHUNK_OVERHEAD_BYTES)
        if self._receiving is not None:
            self._receiving.feed_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        if self._upgrading is not None:
            return
        self.state = _IDLE
        self._overhead_bytes = 0
        self.deadline = inf
        request, self._receiving = self._receiving, None
        if request is not None:
            request.end_body()

    def _start_requests(self) -> None:
        """Start the queued requests, until one of them has to wait or the turn of this connection ends."""
        self._is_starting = True
        server, queue, count = self.server, self._queue, 0
        turn_end = monotonic() + _MAX_TURN_S if len(queue) > 1 else inf
        while queue and self.current is None:
            if self._transport.is_closing():
                self._drop_requests()
                break
            if count and (count == _MAX_TURN_REQUESTS or monotonic() >= turn_end):
                break
            count += 1
            request = self.current = queue.pop(0)
            task = server.starter.start(request.run())
            if not request.is_ended:
                server.tasks.add(task)
                task.add_done_callback(server.tasks.discard)
        self._is_starting = False
        if not queue:
            self._queued_bytes = 0
        if self.current is not None:
            return
        if queue:
            self._plan_turn()
        elif self._pending_error is not None:
            self._reject(self._pending_error)

    def _plan_turn(self, *, is_first: bool = False) -> None:
        """Ask for another turn if a request can be started or parsed."""
        can_start = self.current is None and (self._queue or self._pending_error is not None)
        if not self.has_turn and (can_start or (self._backlog and self._can_parse())):
            self.has_turn = True
            self.update_reading()
            self.server.add_turn(self, is_first=is_first)

    def _drop_requests(self) -> None:
        self._queue.clear()
        self._backlog.clear()
        self._backlog_bytes = 0

    @property
    def has_more(self) -> bool:
        """Return whether the connection has something to handle or to answer after the current request."""
        return bool(self._queue or self._backlog) or self._pending_error is not None

    def finish_request(self, request: HTTP1Request) -> None:
        """Continue after a response: close the connection, or handle the next request."""
        self.current = None
        if self._transport.is_closing():
            return
        if not request.keep_alive:
            if not request.is_body_complete or self.has_more:
                self._linger()  # The client has sent more. Closing at once could destroy the response.
            else:
                self._close()
        elif self.has_more:
            if not self._is_starting:
                self._plan_turn()
        else:
            # If the body is incomplete, the connection reads and discards the rest.
            if self._is_reading_paused:
                self.update_reading()
            if request.is_body_complete and self.state is _IDLE:  # The deadline of the next request continues.
                self.deadline = self.server.loop.time() + self.server.limits.idle_timeout

    def update_reading(self) -> None:
        """Stop reading while data waits for a turn, for the parser or for the application. Otherwise read on.

        The server reads on up to a limit while a request runs, because it has to notice if the client disconnects.
        """
        is_full = self.state is not _LINGERING and (
            self.has_turn
            or self._backlog_bytes > _MAX_BACKLOG_BYTES
            or (self._receiving is not None and self._receiving.is_full)
        )
        if is_full is self._is_reading_paused or self._transport.is_closing():
            return
        self._is_reading_paused = is_full
        if is_full:
            self._transport.pause_reading()
        else:
            # Otherwise asyncio would keep the context of the request that runs now for the next reads.
            self.server.context.copy().run(self._transport.resume_reading)

    # Errors

    def _fail(self, error: BadRequest) -> None:
        """Reject the received data. First handle the complete requests that arrived before this data."""
        broken, self._receiving = self._receiving, None
        if broken in self._queue:
            self._queue.remove(broken)
        self._backlog.clear()
        self._backlog_bytes = 0
        self.state = _FAILED
        self.deadline = inf
        if self._queue or not (self.current is None or self.current is broken):
            self._pending_error = error
        elif broken is not None and broken.is_complete:
            self._close()  # The client already has its response and does not expect a second response.
        else:
            self._reject(error)

    def _reject(self, error: BadRequest) -> None:
        self._pending_error = None
        if self._transport.is_closing() or self.state is _LINGERING:
            return
        if self.current is not None:
            if self.current.is_started:
                self.abort()  # The client could mistake the error for a part of another response.
                return
            self.current.disconnect()
        log_rejected_request(error.status, self.client_host, error.reason)
        retry = b"retry-after: 1\r\n" if error.status == 503 else b""
        head = b"%b%b%bconnection: close\r\n" % (STATUS_LINES[error.status], self.server.date, retry)
        body = error.reason.encode()
        self.write(b"%bcontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._linger()

    def _linger(self) -> None:
        """Give the client time to read the response, and then close the connection. RFC 9112, section 9.6"""
        self.state = _LINGERING
        self.is_done = True
        self._pending_error = None
        self._drop_requests()
        self.flush()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self.update_reading()
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
        if self._held:
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
        """Start the write timeout, because the client does not read fast enough."""
        self.is_write_paused = True
        self._start_stall_timer()

    def resume_writing(self) -> None:
        """Continue after the client has read most of the data. Stop the write timeout."""
        if not self._transport.is_closing():
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

    def _start_stall_timer(self) -> None:
        if self._stall_timer is None:
            unsent_bytes = self._transport.get_write_buffer_size()
            timeout = self.server.limits.write_timeout
            self._stall_timer = self.server.loop.call_later(timeout, self._check_stall, unsent_bytes)

    def _check_stall(self, unsent_bytes: int) -> None:
        """Reset the connection if the client has read nothing, or almost nothing, since the timer was started."""
        self._stall_timer = None
        if self._transport.get_write_buffer_size() <= unsent_bytes - _MIN_READ_BYTES:
            self._start_stall_timer()
        else:
            self._handle_stall(f"{self.server.limits.write_timeout:g} s (write_timeout)")

    def _handle_stall(self, limit: str) -> None:
        self.server.stall_warning.log(
            "disconnected the client %s, because it read almost nothing for %s", self.client_host, limit
        )
        self._reset()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def _parse_socket_name(name: Any) -> tuple[str, int] | None:
    """Return host and port of a TCP socket. A Unix socket has neither."""
    if not isinstance(name, tuple) or len(name) < 2:
        return None
    # A socket for both versions of IP reports an IPv4 address as an IPv6 address, such as ::ffff:127.0.0.1.
    return str(name[0]).removeprefix("::ffff:"), int(name[1])
