"""The HTTP/1.1 protocol of one server connection (RFC 9112). httptools parses the requests.

A connection runs a request at once until the request waits, and only then creates a task.
"""

import asyncio
from math import inf
from typing import Any, Final

import httptools

from dovetail.transports.http_server.connection_group import ConnectionGroup
from dovetail.transports.http_server.http1_head import BadRequest, KnownHead, explain_unreadable, remember_head
from dovetail.transports.http_server.http1_request import STATUS_LINES, HTTP1Request
from dovetail.transports.http_server.http_request import Headers
from dovetail.transports.http_server.socket_buffers import has_unread_output, set_reset_on_close
from dovetail.transports.operator_log import log_rejected_request, warn_if_descriptors_run_out

# After an error, the server reads on for this time and this many bytes. Closing at once could destroy the response.
_LINGER_S: Final = 2.0
_MAX_LINGER_BYTES: Final = 1024 * 1024
_MAX_HELD_BYTES: Final = 16 * 1024  # The server writes larger responses immediately.
_MAX_QUEUED_BYTES: Final = 64 * 1024  # If a client sends more bytes during a request, the connection stops reading.
_MIN_READ_BYTES: Final = 64 * 1024  # A client must read this many bytes of a large response in each write timeout.
_CHUNK_OVERHEAD_BYTES: Final = 16  # For each part of a body, this many bytes are not counted as overhead.


class HTTP1Protocol(asyncio.Protocol):
    """One connection of a server."""

    _current: HTTP1Request | None = None  # the request that is being handled
    _receiving: HTTP1Request | None = None  # the request whose body is being received
    _upgrading: HTTP1Request | None = None  # a request with an Upgrade header, until its body is read
    _resumed: HTTP1Request | None = None  # an upgrade request whose body a new parser reads
    _pending_error: BadRequest | None = None  # the error to send after the queued requests
    _linger_bytes: int | None = None  # the number of bytes received while the connection lingers
    _known_head: KnownHead | None = None  # the head of an earlier request, if the parser need not read it again
    _is_starting = False
    _is_between_requests = True  # True if no byte of the next request has arrived
    _is_first_in_read = True  # True if the next request begins with the first byte of a read
    _is_size_known = True  # True if `_head_bytes` contains all bytes of the head
    _is_reading_head = True
    _is_reading_body = False
    _is_reading_paused = False
    _head_bytes = 0
    _overhead_bytes = 0  # the bytes of chunk sizes, chunk extensions and trailers
    _trailer_bytes = 0
    _queued_bytes = 0  # the bytes that arrived while requests were waiting
    _held = b""  # data that is written at the end of the batch or of the loop iteration
    _stall_timer: asyncio.TimerHandle | None = None
    _write_waiters: list["asyncio.Future[None]"] | None = None
    is_write_paused = False
    is_done = False  # True if the server has sent its last response, and does not wait for this connection to close

    def __init__(self, server: ConnectionGroup) -> None:
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
        for request in (self._current, self._receiving, *self._queue):
            if request is not None:
                request.disconnect()
        self._queue.clear()
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
        return self._current is None or self._is_reading_body

    def shut_down(self) -> None:
        """Close the connection if it is idle. Otherwise close it after the response."""
        if self._current is None:
            self._close()
            if not self._transport.get_write_buffer_size():
                # Over TLS, the transport waits until the client closes. The shutdown does not wait for idle clients.
                self.is_done = True
        elif self._current is self._receiving:
            # The server does not wait for the rest of the body.
            self._reject(BadRequest(503, "The server is shutting down"))
        else:
            self._current.keep_alive = False

    def handle_timeout(self) -> None:
        """End a connection that is idle or too slow."""
        self.deadline = inf
        if self._linger_bytes is not None and not self._transport.get_write_buffer_size():
            self.abort()
        elif self._linger_bytes is not None:  # The client still reads earlier responses.
            self._start_stall_timer()
            self.deadline = self.server.loop.time() + _LINGER_S
        elif self._is_reading_head or self._is_reading_body:
            self._handle_slow_client()
        elif has_unread_output(self._transport):
            self._handle_stall(f"{self.server.keep_alive_timeout:g} s")
        else:
            self._close()

    def _handle_slow_client(self) -> None:
        if not self._transport.is_reading():  # The client cannot send, because the server does not read.
            self._start_read_time()
            return
        limits, is_head = self.server.limits, self._is_reading_head
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

    def eof_received(self) -> None:
        """Handle the collected data before the connection is closed."""
        self.server.run_batch()

    def handle_data(self, data: bytes) -> None:
        """Parse requests and start them."""
        if self._parser is None or self._pending_error is not None or self._linger_bytes is not None:
            self._discard(data)
            return
        was_reading = self._is_reading_head or self._is_reading_body
        known_head = self._known_head
        is_idle = not was_reading and self._current is None and not self._queue  # False for the first request
        if (
            is_idle
            and known_head is not None
            and len(data) == known_head.message_bytes
            and data.startswith(known_head.data)
        ):
            # The parser has read and checked these bytes before.
            request = HTTP1Request(self, known_head.head, known_head.fields.copy())
            request.body, request.is_body_complete = data[len(known_head.data) :], True
            self.deadline = inf
            self._queue.append(request)
            self._start_requests()
            return
        if self._queue:
            self._queued_bytes += len(data)
        self._is_first_in_read = self._is_between_requests
        if self._is_reading_body:
            self._overhead_bytes += len(data)
        else:
            self._is_reading_head = True
            self._head_bytes += len(data)
        self._parse(data)
        if self._queue and not self._is_starting:
            # The first request of a connection may also be the last one, so its head need not be kept.
            if is_idle and len(self._queue) == 1 and (body := self._queue[0].body) is not None:
                self._known_head = remember_head(data, self._queue[0].head, body)
            self._start_requests()
        if self._is_reading_head or self._is_reading_body:
            self._check_incomplete(was_reading)
        elif self.deadline == inf and self._current is None:  # The client had its response before it sent the body.
            self.deadline = self.server.loop.time() + self.server.keep_alive_timeout

    def _check_incomplete(self, was_reading: bool) -> None:
        """Reject an incomplete request that is too large, and set the deadline for its remaining data."""
        limits = self.server.limits
        # The limit includes trailers and chunk extensions, because a client could send them without end.
        if max(self._head_bytes if self._is_reading_head else 0, self._overhead_bytes) > limits.max_header_block_bytes:
            self._fail(self.server.head_checker.create_block_error())
        elif self.deadline == inf or not was_reading:
            self._start_read_time()

    def _start_read_time(self) -> None:
        limits = self.server.limits
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
                self._fail(cause if isinstance(cause, BadRequest) else explain_unreadable(data, exc))
                return

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
        if self._linger_bytes is not None:
            self._linger_bytes += len(data)
            if self._linger_bytes > _MAX_LINGER_BYTES:
                self.abort()

    def on_message_begin(self) -> None:
        """Handle the first byte of a request."""
        self._is_reading_head = True
        self._is_between_requests = False
        self._is_size_known, self._is_first_in_read = self._is_first_in_read, False
        self._url = b""
        self._fields = {}
        if self._repeated:
            self._repeated = []

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, or count a trailer.

        Trailers are ignored, because no proxy or guard has checked them. RFC 9110, section 6.5.1
        """
        if not self._is_reading_head:
            self._trailer_bytes += len(name) + len(value)
            self.server.head_checker.check_trailer(name, value, self._trailer_bytes)
            return
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
        self._overhead_bytes = self._trailer_bytes = 0
        self.deadline = inf
        if self._resumed is not None:
            self._receiving, self._resumed = self._resumed, None
            return
        parser, fields = self._parser, self._fields
        head = self.server.head_checker.check(
            (parser.get_method(), self._url, parser.get_http_version()),
            fields,
            self._repeated,
            size=head_bytes if self._is_size_known else None,
            keep_alive=parser.should_keep_alive(),
        )
        request = HTTP1Request(self, head, head.fields)
        if b"expect" in fields:
            request.awaits_continue = head.has_expectation()
        if b"upgrade" in fields and parser.should_upgrade():
            self._upgrading = request
        self._receiving = request
        self._queue.append(request)

    def on_body(self, body: bytes) -> None:
        """Add a part of the body to the request."""
        self._overhead_bytes = max(0, self._overhead_bytes - len(body) - _CHUNK_OVERHEAD_BYTES)
        if self._receiving is not None:
            self._receiving.feed_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        if self._upgrading is not None:
            return
        self._is_reading_body = False
        self._is_between_requests = True
        self._overhead_bytes = 0
        self.deadline = inf
        request, self._receiving = self._receiving, None
        if request is not None:
            request.end_body()

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
            # The server reads on up to a limit, because it has to notice if the client disconnects.
            if self._queued_bytes > _MAX_QUEUED_BYTES:
                self.pause_reading()
            return
        self._queued_bytes = 0
        if self._pending_error is not None and self._current is None:
            self._reject(self._pending_error)

    def finish_request(self, request: HTTP1Request) -> None:
        """Continue after a response: close the connection, or handle the next request."""
        self._current = None
        if self._transport.is_closing():
            return
        if not request.keep_alive:
            if not request.is_body_complete or self._queue or self._pending_error is not None:
                self._linger()  # The client has sent more. Closing at once could destroy the response.
            else:
                self._close()
        elif self._queue or self._pending_error is not None:
            if not self._is_starting:
                self.server.loop.call_soon(self._continue)
        else:
            # If the body is incomplete, the connection reads and discards the rest.
            if self._is_reading_paused:
                self.resume_reading()
            if request.is_body_complete and not self._is_reading_head:  # The deadline of the next request continues.
                self.deadline = self.server.loop.time() + self.server.keep_alive_timeout

    def _continue(self) -> None:
        if not self._is_starting and self._current is None:
            self._start_requests()
            if not self._queue:
                self.resume_reading()
                if self._is_reading_head or self._is_reading_body:
                    self._start_read_time()  # The client could not send while the server did not read.

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        if not self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue to read."""
        if self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = False
            self._transport.resume_reading()

    # Errors

    def _fail(self, error: BadRequest) -> None:
        """Reject the received data. First handle the complete requests that arrived before this data."""
        broken, self._receiving = self._receiving, None
        if broken in self._queue:
            self._queue.remove(broken)
        self._is_reading_head = self._is_reading_body = False
        self.deadline = inf
        if self._queue or not (self._current is None or self._current is broken):
            self._pending_error = error
        elif broken is not None and broken.is_complete:
            self._close()  # The client already has its response and does not expect a second response.
        else:
            self._reject(error)

    def _reject(self, error: BadRequest) -> None:
        self._pending_error = None
        if self._transport.is_closing() or self._linger_bytes is not None:
            return
        if self._current is not None:
            if self._current.is_started:
                self.abort()  # The client could mistake the error for a part of another response.
                return
            self._current.disconnect()
        log_rejected_request(error.status, self.client_host, error.reason)
        retry = b"retry-after: 1\r\n" if error.status == 503 else b""
        head = b"%b%b%bconnection: close\r\n" % (STATUS_LINES[error.status], self.server.date, retry)
        body = error.reason.encode()
        self.write(b"%bcontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._linger()

    def _linger(self) -> None:
        """Give the client time to read the response, and then close the connection. RFC 9112, section 9.6"""
        self._linger_bytes = 0
        self.is_done = True
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
