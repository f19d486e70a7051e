"""One HTTP/1.1 request on a server connection, and the response to this request.

The MCP endpoint uses the interface `ServerRequest`. ASGI applications use `scope`, `receive` and `send`.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

from dovetail.log import log
from dovetail.transports.http1.forwarded_addresses import Address, TrustedProxies
from dovetail.transports.http1.http1_head import Header, RequestHead
from dovetail.transports.http1.server_request import JSON_HEADERS, STREAM_HEADERS, Headers, Scope

STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_MAX_UNREAD_BODY_BYTES: Final = 64 * 1024  # If more bytes are unread, the connection stops reading.
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON_HEAD, _STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % header for header in headers)
    for headers in (JSON_HEADERS, STREAM_HEADERS)
)
_INVALID_NAME: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_INVALID_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class RequestServer(Protocol):
    """The part of a server that a request uses."""

    handle: "Callable[[HTTP1Request], Awaitable[None]]"
    loop: asyncio.AbstractEventLoop
    closes_connections: bool  # True if each response closes its connection
    date: bytes  # the Date header of responses
    keep_alive: bytes  # the headers of responses that do not close the connection
    date_and_keep_alive: bytes

    @property
    def proxies(self) -> TrustedProxies | None: ...


class RequestConnection(Protocol):
    """The part of a connection that a request uses."""

    is_write_paused: bool
    client_address: Address | None
    server_address: Address | None
    server_host: str | None
    client_host: str | None  # the address of the peer, which may be a proxy
    scheme: str

    @property
    def server(self) -> RequestServer: ...
    def update_reading(self) -> None:
        """Stop reading if the request is full, and read on if it is not."""
        ...

    def write(self, data: bytes, *, has_more: bool = False) -> None:
        """Send data. If more data follows, the connection may hold a small amount of data."""
        ...

    async def drain(self) -> None:
        """Wait until the client reads, or until the connection ends."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...

    def finish_request(self, request: "HTTP1Request") -> None:
        """Continue after a response."""
        ...


class HTTP1Request:
    """A request on a connection, and the response to this request. The class implements `ServerRequest`."""

    # Class attributes hold these defaults, because most requests never change them.
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
    _remaining_bytes: int | None = None  # the unsent bytes of a response with Content-Length
    _held_head = b""
    _scope: Scope | None = None
    _waiters: list["asyncio.Future[None]"] | None = None

    def __init__(self, connection: RequestConnection, head: RequestHead) -> None:
        self._connection = connection
        self._server = server = connection.server
        self.loop = server.loop
        self.head = head
        self.method = head.method
        self.path = head.path
        self.raw_path = head.raw_path
        self.keep_alive = head.keep_alive
        self.unique_headers = head.fields if head.repeated_headers is None else None
        self.server_host = connection.server_host
        self.client_host = connection.client_host if server.proxies is None else self._find_client_host()

    # The request

    @property
    def headers(self) -> Headers:
        """All headers, with names in lower case."""
        return self.head.headers

    @property
    def http_version(self) -> str:
        """The version of HTTP, such as "1.1"."""
        return self.head.http_version

    def _find_client_host(self) -> str | None:
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
                "asgi": {"version": "3.0", "spec_version": "2.3"},
                "http_version": self.head.http_version,
                "method": self.method,
                "scheme": scheme,
                "path": self.path,
                "raw_path": self.raw_path,
                "query_string": self.head.query,
                "root_path": "",
                "headers": self.headers,
                "client": self._find_client(),
                "server": connection.server_address,
                "state": {},
            }
        return self._scope

    def _take_body(self) -> bytes:
        chunks, self._chunks = self._chunks, None
        was_full, self._unread_bytes = self.is_full, 0
        if was_full:
            self._connection.update_reading()
        self._is_body_read = self.is_body_complete
        if self.body is not None:
            body, self.body = self.body, None
            return body
        return b"" if chunks is None else chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the body. After the body, wait until the client disconnects."""
        if self.awaits_continue and not self.is_started:
            self.awaits_continue = False
            if not (self.is_body_complete or self._is_disconnected) and self._chunks is None:
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

    @property
    def is_full(self) -> bool:
        """Return whether too much of the body waits for the application."""
        return self._unread_bytes > _MAX_UNREAD_BODY_BYTES and not self.is_complete

    def feed_body(self, body: bytes) -> None:
        """Add a part of the body. If the application does not read the body, stop reading from the connection."""
        if self.is_complete:
            return
        if self._chunks is None:
            self._chunks = [body]
        else:
            self._chunks.append(body)
        self._unread_bytes += len(body)
        if self.is_full:
            self._connection.update_reading()
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
        """Call the handler of the server with this request."""
        self._is_running = True
        try:
            await self._server.handle(self)
            if not self.is_complete and not self._is_disconnected:
                log.error("the application did not complete the response to %s %s", self.method, self.path)
                await self._fail()
        except asyncio.CancelledError:
            # The first step of a request runs in the batch of all connections, so no exception may leave this method.
            if not self.is_complete:
                self._connection.abort()
        except Exception as exc:
            log.error("the application failed in %s %s", self.method, self.path, exc_info=exc)
            if not self.is_complete:  # The connection may already handle the next request.
                await self._fail()
        finally:
            self.is_ended = True

    async def _fail(self) -> None:
        if self.is_started:
            self._connection.abort()
        else:
            self.keep_alive = False
            await self.respond(500, [(b"content-type", b"text/plain; charset=utf-8")], b"Internal Server Error")

    async def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a complete response. This method adds the Content-Length header."""
        connection, server = self._connection, self._server
        if connection.is_write_paused:
            await connection.drain()
        if self._is_disconnected:
            return
        if self.is_started:
            raise RuntimeError("the response has already begun")
        known_head = _JSON_HEAD if headers is JSON_HEADERS else _STREAM_HEAD if headers is STREAM_HEADERS else None
        if (
            known_head is not None
            and status == 200
            and self.keep_alive
            and not (server.closes_connections or self.awaits_continue)
            and self.method != "HEAD"
        ):
            self.is_started = True
            head = b"%b%bcontent-length: %d\r\n\r\n" % (known_head, server.date_and_keep_alive, len(body))
        else:
            head = self._build_head(status, headers)
            # A response that cannot have a body has no Content-Length header. RFC 9110, section 8.6
            length = b"content-length: %d\r\n" % len(body) if self._has_body or self.method == "HEAD" else b""
            head = b"%b%b\r\n" % (head, length)
        connection.write(head + body if self._has_body else head)
        self._complete()

    async def send(self, message: dict[str, Any]) -> None:
        """Send an ASGI message of the response."""
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
        # Hold the headers, to send them together with the first part of the body or at the end of the loop iteration.
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
        if self.head.http_version == "1.0":
            return head + b"\r\n"  # In HTTP/1.0, the server marks the end of the body by closing the connection.
        self._is_chunked = True
        return head + b"transfer-encoding: chunked\r\n\r\n"

    def _write_body(self, body: bytes, *, has_more: bool) -> None:
        if not self._has_body:
            body = b""
        elif self._remaining_bytes is not None:
            self._remaining_bytes -= len(body)
            if self._remaining_bytes < 0 or (self._remaining_bytes and not has_more):
                raise RuntimeError("the length of the response body differs from its Content-Length header")
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
        self._has_body = self.method != "HEAD" and status not in (204, 304)
        awaits_continue = self.awaits_continue and not self.is_body_complete and self._chunks is None
        if awaits_continue or self._server.closes_connections:
            # A client that waits for status 100 may send its body or the next request. The server cannot know which.
            self.keep_alive = False
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
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
            elif name in (b"transfer-encoding", b"keep-alive"):
                continue  # The server sets these headers itself.
            elif name == b"date":
                has_date = True
            lines.append(b"%b: %b\r\n" % (name, value))
        if not has_date:
            lines.append(self._server.date)
        lines.append(self._server.keep_alive if self.keep_alive else b"connection: close\r\n")
        self.is_started = True
        return b"".join(lines)

    def _complete(self) -> None:
        self.is_complete = True
        self._chunks = None
        if self._waiters is not None:
            self._wake()
        self._connection.finish_request(self)
