"""Serve an ASGI application with uvicorn, within our limits.

uvicorn leaves slow clients to a proxy in front of it; here a connection that sends its head too slowly, sends too much
of it, or does not read its reply is ended. Signals stop the server in bounded time, whatever blocks.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dovetail.protocol.limits import ServerLimits

log = logging.getLogger("dovetail")

_BACKLOG = 2048  # as uvicorn
_MAX_HELD_BYTES = 16 * 1024  # bytes of an answer that may wait for the end of the turn
_HEADERS_TOO_LARGE_RESPONSE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)
_REQUEST_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_SHUTTING_DOWN_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class CoalescingTransport:
    """A connection that sends at the end of the loop's turn: the head of an answer and its body leave in one write.

    uvicorn writes them apart, and each write is a call into the system. More than a little is never held back, so
    the pressure of a slow client is felt as before.
    """

    __slots__ = (
        "_held_bytes",
        "_loop",
        "_pieces",
        "_transport",
        "get_extra_info",
        "is_closing",
        "pause_reading",
        "resume_reading",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        """Hold a piece until the turn is over, or there is enough."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _MAX_HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what is held."""
        if self._pieces:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self._held_bytes = 0
            self._transport.write(data)

    def close(self) -> None:
        """Send what is held, and close."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close without another word."""
        self._pieces.clear()
        self._transport.abort()


class LimitedHTTPProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on what a connection may send or withhold.

    Between two requests uvicorn's keep-alive timer watches. From the first byte of a head, or of a connection, the
    timer of the head does, also while the answer to the request before is still on its way; then that of the body.
    Timers are set only for what is not here in one piece.
    """

    limits: ServerLimits
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _bytes_since_body = 0
    _awaits_head = True
    _awaits_body = False

    # What comes in

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", CoalescingTransport(transport, self.loop)))
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel_timers(self._head_timer, self._body_timer, self._stall_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaits_body:
            self._bytes_since_body += len(data)
        else:
            self._awaits_head = True
            self._head_bytes += len(data)
        super().data_received(data)
        if self._awaits_head:
            # Still no complete head: everything so far counts.
            if self._head_bytes > self.limits.max_header_block_bytes:
                self._reject(_HEADERS_TOO_LARGE_RESPONSE)
            elif self._head_timer is None:
                self._start_head_timer()
        elif self._awaits_body:
            if (
                self._bytes_since_body > self.limits.max_header_block_bytes
            ):  # trailers or chunk extensions, and no end of them
                self._reject(_HEADERS_TOO_LARGE_RESPONSE)
            elif self._body_timer is None:
                self._body_timer = self.loop.call_later(
                    self.limits.body_timeout, self._reject, _REQUEST_TIMEOUT_RESPONSE
                )

    def on_headers_complete(self) -> None:
        size, self._head_bytes = self._head_bytes, 0
        self._awaits_head, self._awaits_body = False, True
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        # What came in no more bytes than one header may have needs no counting; nothing is known of a second head in
        # the same bytes.
        if not 0 < size <= self.limits.max_header_bytes and self._is_head_too_large():
            self._reject(_HEADERS_TOO_LARGE_RESPONSE)
        elif not self.transport.is_closing():
            super().on_headers_complete()
        # uvicorn goes on to append trailers to `self.headers`, which was the scope's list until now. Trailers must
        # never count as headers: a proxy has not checked them, and the request may already have been authenticated.
        self.headers = []

    def _is_head_too_large(self) -> bool:
        sizes = [len(name) + len(value) for name, value in self.headers]
        return (
            max(sizes, default=0) > self.limits.max_header_bytes
            or len(self.url) + sum(sizes) > self.limits.max_header_block_bytes
        )

    def on_body(self, body: bytes) -> None:
        self._bytes_since_body = 0
        if not self._is_between_requests:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaits_body = False
        self._bytes_since_body = 0
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        if self.headers and self._are_trailers_too_large():
            self._reject(_HEADERS_TOO_LARGE_RESPONSE)
        elif not self._is_between_requests and not self.transport.is_closing():
            super().on_message_complete()

    def _are_trailers_too_large(self) -> bool:
        return sum(len(name) + len(value) for name, value in self.headers) > self.limits.max_header_block_bytes

    @property
    def _is_between_requests(self) -> bool:
        # None before the first request, whatever uvicorn's annotation says.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    # What goes out

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def shutdown(self) -> None:
        if self._body_timer is not None:  # a request that is not all here will never be at work
            self._reject(_SHUTTING_DOWN_RESPONSE)
        else:
            super().shutdown()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.header_timeout, self._reject, _REQUEST_TIMEOUT_RESPONSE)

    def _reject(self, response: bytes) -> None:
        # A stalled connection stays watched: closing waits for it to read.
        _cancel_timers(self._head_timer, self._body_timer)
        self._head_timer = self._body_timer = None
        if self.transport.is_closing():
            return
        if self.pipeline or (not self._is_between_requests and self.cycle.response_started):
            self.transport.abort()  # words of ours would land in the middle of that answer
        else:
            self.transport.write(response)
            self.transport.close()


def _cancel_timers(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()


def create_limited_protocol(server_limits: ServerLimits) -> type[HttpToolsProtocol]:
    """uvicorn's protocol within these limits."""

    class ConfiguredProtocol(LimitedHTTPProtocol):
        limits = server_limits

    return ConfiguredProtocol


class UvicornServer(uvicorn.Server):
    """uvicorn, which tells of each signal that asks it to stop: the first starts the clock of the hard stop.

    start: awaited before anything else; what it raises, `serve` raises.
    on_ready: called once the application has started and the sockets are served.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_stop: Callable[[int], None],
        drain: Callable[[], Awaitable[None]],
        *,
        on_start: Callable[[], Awaitable[None]] | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._drain = drain
        self._on_start = on_start
        self._on_ready = on_ready
        self._signal_count = 0

    def handle_exit(self, sig: int, frame: Any) -> None:
        """A signal came."""
        self._signal_count += 1
        self._on_stop(self._signal_count)
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # a stop that was asked for is a success, not a death by signal

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and serve the sockets."""
        if self._on_start is not None:
            await self._on_start()
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more, let what runs come to its end, then close what is left."""
        for server in self.servers:
            server.close()
        await self._drain()
        await super().shutdown(sockets)


def create_uvicorn_config(app: Any, limits: ServerLimits, **options: Any) -> uvicorn.Config:
    """A uvicorn configuration that keeps its hands off logging and signals, and holds our limits."""
    return uvicorn.Config(
        app,
        http=create_limited_protocol(limits),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=int(limits.drain_timeout) + 1,
        h11_max_incomplete_event_size=limits.max_header_block_bytes,
        **options,
    )


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening socket, made before anything else so that a taken port is a plain error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio leaves Nagle on
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # from here on a client waits instead of being turned away
    except OSError as exc:
        listener.close()
        raise OSError(exc.errno, f"cannot listen on {host}:{port}: {exc.strerror}") from None
    return listener
