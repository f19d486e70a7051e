"""An HTTP/1.1 connection of a client, which sends one request at a time.

This module does not handle pools, proxies or TLS. It reports when a response is complete and when the connection
is lost.
"""

import asyncio
import re
import select
import sys
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from io import BytesIO
from typing import Self, cast

import httptools

from dovetail.errors import TransportError
from dovetail.protocol.limits import FetchLimits

_STEP_BYTES = 64 * 1024  # the maximum number of bytes to decompress at once


class ResponseTooLarge(TransportError):
    """Raised if an HTTP response is larger than a limit."""


class InvalidHTTPResponse(TransportError):
    """Raised if a response is not valid HTTP/1.1."""


class Decompressor:
    """Decompresses gzip or deflate data in small steps. It rejects data that expands too much."""

    __slots__ = ("_has_more", "_input_bytes", "_is_gzip", "_limits", "_output_bytes", "_stream", "_tail")

    def __init__(self, *, is_gzip: bool, limits: FetchLimits) -> None:
        self._is_gzip = is_gzip
        self._limits = limits
        self._stream: zlib._Decompress | None = None  # pyright: ignore[reportPrivateUsage]
        self._tail = b""
        self._has_more = False
        self._input_bytes = 0
        self._output_bytes = 0

    def feed(self, piece: bytes) -> None:
        """Add compressed data. Call `feed` only after `read` has returned no bytes."""
        if self._stream is None:
            # Some servers send deflate data without a zlib header.
            # The low four bits of the first byte are 8 only if the data has a zlib header.
            self._stream = zlib.decompressobj(31 if self._is_gzip else 15 if piece[0] & 15 == 8 else -15)
        self._tail = piece
        self._has_more = True
        self._input_bytes += len(piece)

    def read(self) -> bytes:
        """Return the next decompressed bytes, or b"" if more data is needed."""
        stream = self._stream
        if stream is None:
            return b""
        piece = b""
        while self._has_more and not piece:
            try:
                piece = stream.decompress(self._tail, _STEP_BYTES)
            except zlib.error:
                raise InvalidHTTPResponse("The compressed body of the response is damaged") from None
            self._tail = stream.unconsumed_tail
            self._has_more = bool(self._tail) or len(piece) == _STEP_BYTES
            if stream.unused_data:
                raise InvalidHTTPResponse("The compressed body of the response has extra data after its end")
        self._output_bytes += len(piece)
        if self._output_bytes > self._limits.ratio_check_bytes and self._output_bytes > self._limits.max_ratio * (
            self._input_bytes - len(self._tail)
        ):
            raise ResponseTooLarge(
                f"The compressed response expands to more than {self._limits.max_ratio} times its size"
            )
        return piece

    def check_end(self) -> None:
        """Raise InvalidHTTPResponse if the compressed data is incomplete. An empty body is allowed."""
        if self._stream is not None and not self._stream.eof:
            raise InvalidHTTPResponse("The compressed body of the response is incomplete")


_PIECE_OVERHEAD_BYTES = 64  # the memory that a queued chunk needs in addition to its bytes

# The text between two Set-Cookie headers of a response. Cookies may contain commas, but no header contains a line end.
COOKIE_SEPARATOR = b"\n"

_KEEP_ALIVE_PATTERN = re.compile(rb"(?:^|[\s,])timeout\s*=\s*(\d{1,9})", re.IGNORECASE)
_IDLE_MARGIN_S = 2.0
_LINGER_S = 0.5  # the seconds to wait for the rest of a response that is no longer needed


class ConnectionBroken(TransportError):
    """The connection was lost.

    `sent` is True if the server may have received some data. `has_head` is True if the response has started.
    """

    def __init__(self, message: str, *, sent: bool, has_head: bool) -> None:
        super().__init__(message)
        self.sent = sent
        self.has_head = has_head


class ClientResponse:
    """A response whose headers have arrived. Read the whole body with `read`, or read its chunks with `chunks`."""

    __slots__ = (
        "_connection",
        "_decompressor",
        "_error",
        "_is_complete",
        "_limits",
        "_loop",
        "_queue",
        "_queued_bytes",
        "_waiter",
        "headers",
        "status",
        "url",
    )  # fmt: skip

    def __init__(self, url: str, connection: "HTTP1Connection", loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._connection: HTTP1Connection | None = connection
        self._limits = connection.limits
        self._loop = loop
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_complete = False
        self._error: TransportError | None = None
        self._decompressor: Decompressor | None = None
        # `wait` creates this future. The future ends when headers or more bytes of the body arrive.
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """Return the whole body.

        Raises:
            ResponseTooLarge: the body is larger than the limit.
            ConnectionBroken, InvalidHTTPResponse: the body did not arrive completely.
        """
        if self._decompressor is None:
            declared = int(self.headers.get(b"content-length", 0))
            if declared > self._limits.max_body_bytes and not self._is_complete:
                raise self._abort_with(
                    ResponseTooLarge(
                        f"The response has {declared} bytes, more than the limit of {self._limits.max_body_bytes}"
                    )
                )
            if self._is_complete and len(self._queue) == 1 and len(self._queue[0]) <= self._limits.max_body_bytes:
                return self._take_piece()
        body = BytesIO()
        async for piece in self:
            if body.tell() + len(piece) > self._limits.max_body_bytes:
                raise self._abort_with(
                    ResponseTooLarge(f"The response is larger than {self._limits.max_body_bytes} bytes")
                )
            body.write(piece)
        return body.getvalue()

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the decompressed body as it arrives. The size is not limited."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not (piece := self._next_piece()):
            if self._error is not None:
                raise self._error
            if self._is_complete:
                raise StopAsyncIteration
            await self.wait()
        return piece

    def close(self) -> None:
        """Stop reading. If the body is incomplete, close the connection, which cancels the request."""
        if self._connection is not None:
            self._connection.drop("was closed by this client")
        self._queue.clear()
        self._queued_bytes = 0

    def release(self) -> None:
        """Stop reading the body. If the rest of the body arrives soon, other requests can reuse the connection."""
        if self._connection is not None:
            self._loop.call_later(_LINGER_S, self.close)

    async def wait(self) -> None:
        """Wait for the next part of the response. If this task is cancelled, the request is cancelled, too."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._waiter = None

    def start(self, status: int) -> None:
        """Handle the complete headers of the response."""
        self.status = status
        encoding = self.headers.get(b"content-encoding", b"identity").lower()
        if encoding in (b"gzip", b"x-gzip", b"deflate"):
            self._decompressor = Decompressor(is_gzip=encoding != b"deflate", limits=self._limits)
        elif encoding not in (b"identity", b""):
            raise InvalidHTTPResponse("The response has a Content-Encoding that the client did not ask for")
        self._wake()

    def add_piece(self, piece: bytes) -> bool:
        """Add a chunk of the body to the queue. Return True if reading should pause."""
        self._queue.append(piece)
        self._queued_bytes += len(piece) + _PIECE_OVERHEAD_BYTES
        self._wake()
        return self._queued_bytes > self._limits.max_queued_bytes

    def complete(self) -> None:
        """Handle the end of the response body."""
        self._connection = None
        self._is_complete = True
        self._wake()

    def fail(self, error: TransportError) -> None:
        """Handle an error before the response body is complete."""
        self._connection = None
        self._error = error
        self._wake()

    @property
    def error(self) -> TransportError | None:
        return self._error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take_piece(self) -> bytes:
        piece = self._queue.popleft()
        self._queued_bytes -= len(piece) + _PIECE_OVERHEAD_BYTES
        if self._connection is not None and self._queued_bytes <= self._limits.max_queued_bytes // 2:
            self._connection.resume()
        return piece

    def _next_piece(self) -> bytes:
        decompressor = self._decompressor
        if decompressor is None:
            return self._take_piece() if self._queue else b""
        try:
            while not (piece := decompressor.read()) and self._queue:
                decompressor.feed(self._take_piece())
            if not piece and self._is_complete:
                decompressor.check_end()
        except TransportError as fault:
            raise self._abort_with(fault) from None
        return piece

    def _abort_with(self, error: TransportError) -> TransportError:
        self.close()
        self._is_complete = False
        self._error = error
        return error


class HTTP1Connection(asyncio.Protocol):
    """An HTTP/1.1 connection of a client.

    A callback reports when a response is complete, and whether the connection can be reused.
    """

    __slots__ = (
        "_bytes_since_progress",
        "_error",
        "_has_no_body",
        "_has_unread_data",
        "_header_bytes",
        "_header_count",
        "_is_closed",
        "_is_corrupt",
        "_is_paused",
        "_is_reusable",
        "_keep_alive_headers",
        "_loop",
        "_on_done",
        "_on_lost",
        "_parser",
        "_reads_until_eof",
        "_response",
        "_transport",
        "idle_limit_s",
        "idle_until",
        "limits",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: FetchLimits,
        on_done: Callable[["HTTP1Connection", bool], None],
        on_lost: Callable[["HTTP1Connection"], None],
    ) -> None:
        self.limits = limits
        self.idle_until = 0.0  # the time at which the pool closes the idle connection
        # The time for which the server promises to keep an idle connection open, or None.
        self.idle_limit_s: float | None = None
        self._keep_alive_headers: tuple[bytes | None, bytes | None] = (None, None)
        self._loop = loop
        self._on_done = on_done
        self._on_lost = on_lost
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._has_unread_data: Callable[[], bool] = bool
        self._response: ClientResponse | None = None
        self._is_closed = False
        self._is_paused = False
        self._is_corrupt = False
        self._error: TransportError | None = None
        self._has_no_body = False
        self._reads_until_eof = False
        self._is_reusable = False
        self._header_bytes = 0
        self._header_count = 0
        self._bytes_since_progress = 0

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def is_dead(self) -> bool:
        """Return whether the connection is closed or has unexpected data.

        The event loop may not have noticed this yet.
        """
        return self._is_closed or self.transport.is_closing() or self._has_unread_data()

    async def send(self, request: bytes, url: str, *, has_no_body: bool = False) -> ClientResponse:
        """Send a request and wait for the headers of the response. Pass `has_no_body` if the response cannot have a
        body.
        """
        if self._is_closed or self.transport.is_closing():
            self.abort()
            raise ConnectionBroken("The connection was closed before the request was sent", sent=False, has_head=False)
        self._response = response = ClientResponse(url, self, self._loop)
        self._has_no_body = has_no_body
        self._header_bytes = self._header_count = self._bytes_since_progress = 0
        self.transport.write(request)
        while not response.status:
            await response.wait()
            if response.error is not None and not response.status:
                raise response.error
        return response

    def abort(self) -> None:
        """Close the connection immediately."""
        self._is_closed = True
        self._response = None
        if self._transport is not None:
            self._transport.abort()

    def drop(self, reason: str) -> None:
        """Close the connection, and raise an error in the task that waits for the response."""
        if self._response is not None:
            has_head = self._response.status > 0
            moment = "during the response" if has_head else "before the response"
            self._fail(ConnectionBroken(f"The connection {reason} {moment}", sent=True, has_head=has_head))
        else:
            self.abort()

    def resume(self) -> None:
        """Resume reading from the connection."""
        if self._is_paused:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # The event loop calls the following methods.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._has_unread_data = _create_poller(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._parser is None:
            self.abort()
            return
        self._bytes_since_progress += len(data)
        error_found = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._is_corrupt = True
            error_found = self._error or InvalidHTTPResponse(f"The response is not valid HTTP: {error}")
        if self._bytes_since_progress > self.limits.max_header_block_bytes and error_found is None:
            error_found = ResponseTooLarge(
                f"The response has more than {self.limits.max_header_block_bytes} bytes of headers"
            )
        if not self._response:
            # The response is already complete, so this data is unexpected.
            self._finish()
        elif error_found is not None:
            self._fail(error_found)

    def eof_received(self) -> None:
        if self._response is not None and self._reads_until_eof:
            self._complete()
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._parser = None  # This breaks the reference cycle between the parser and the connection.
        self.drop("was lost" if exc is not None else "was closed by the server")
        self._on_lost(self)

    # The HTTP parser calls the following methods.

    def on_message_begin(self) -> None:
        if self._response is None:
            self._is_corrupt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is None or response.status:
            return  # A trailer is ignored.
        self._header_bytes += len(name) + len(value) + 4
        self._header_count += 1
        if self._header_bytes > self.limits.max_header_block_bytes:
            self._reject(
                ResponseTooLarge(f"The response has more than {self.limits.max_header_block_bytes} bytes of headers")
            )
        if self._header_count > self.limits.max_headers:
            self._reject(ResponseTooLarge(f"The response has more than {self.limits.max_headers} headers"))
        name = name.lower()
        existing = response.headers.get(name)
        if existing is not None:
            value = existing + (COOKIE_SEPARATOR if name == b"set-cookie" else b", ") + value
        response.headers[name] = value

    def on_headers_complete(self) -> None:
        response, parser = self._response, self._parser
        if response is None or parser is None:
            return
        status = parser.get_status_code()
        if not parser.get_http_version().startswith("1.") or status < 100 or status == 101:
            self._reject(InvalidHTTPResponse("The response is not HTTP/1.1"))
        if status < 200:
            response.headers.clear()
            return
        encoding = response.headers.get(b"transfer-encoding")
        if encoding is not None and encoding.lower() != b"chunked":
            self._reject(InvalidHTTPResponse("The response has a transfer encoding other than chunked"))
        self._is_reusable = parser.should_keep_alive()
        keep_alive_headers = response.headers.get(b"keep-alive"), response.headers.get(b"connection")
        if keep_alive_headers != self._keep_alive_headers:  # Servers repeat the same headers in each response.
            self._keep_alive_headers = keep_alive_headers
            self.idle_limit_s = _find_idle_limit(response.headers)
        self._reads_until_eof = encoding is None and b"content-length" not in response.headers
        try:
            response.start(status)
        except InvalidHTTPResponse as fault:
            self._reject(fault)
        self._bytes_since_progress = 0
        if self._has_no_body:
            self._is_reusable = False
            self._complete()

    def on_body(self, piece: bytes) -> None:
        self._bytes_since_progress = 0
        if self._response is None:
            self._is_corrupt = True
        elif self._response.add_piece(piece) and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._response is not None and self._response.status:
            self._complete()

    def _complete(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.complete()

    def _finish(self) -> None:
        self.resume()
        if self._is_corrupt:
            self.abort()
        self._on_done(self, self._is_reusable and not self._is_closed and not self.transport.get_write_buffer_size())

    def _fail(self, error: TransportError) -> None:
        response = self._response
        self.abort()
        if response is not None:
            response.fail(error)

    def _reject(self, error: TransportError) -> None:
        self._error = error
        raise error


def _find_idle_limit(headers: Mapping[bytes, bytes]) -> float | None:
    """Return the seconds for which an idle connection is safe to use, or None if the server does not promise a time.

    The last two seconds are left out, because a request needs time to arrive. The server must also name the header in
    Connection. Otherwise, a proxy may have forwarded the header of another connection. RFC 9110, section 7.6.1
    """
    match = _KEEP_ALIVE_PATTERN.search(headers.get(b"keep-alive", b""))
    if match is None or b"keep-alive" not in headers.get(b"connection", b"").lower():
        return None
    seconds = float(match[1])
    return seconds - min(_IDLE_MARGIN_S, seconds / 2)


if sys.platform == "win32":

    def _create_poller(fd: int) -> Callable[[], bool]:
        """Return a function that checks, without waiting, whether a socket has data to read."""
        return lambda: bool(select.select([fd], [], [], 0)[0])

else:

    def _create_poller(fd: int) -> Callable[[], bool]:
        """Return a function that checks, without waiting, whether a socket has data to read."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return lambda: bool(poll.poll(0))
