"""Serve an ASGI application with uvicorn, within the limits of the server.

uvicorn relies on a proxy to handle slow clients. This module closes a connection whose headers are too slow or too
large, or whose client does not read the response. A signal stops the server in limited time, even if a call blocks.
"""

import asyncio
import os
import re
import select
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dovetail.protocol.limits import ServerLimits
from dovetail.transports.operator_warnings import warn_if_descriptors_run_out

_BACKLOG = 2048  # the default of uvicorn
_MAX_HELD_BYTES = 16 * 1024  # Data above this size is written immediately.
_HEADERS_TOO_LARGE_RESPONSE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)
_BAD_REQUEST_RESPONSE = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_CLOSE_HEADER = (b"connection", b"close")
# A worker that stops keeps idle connections open for this time, because a request may be on its way.
_RELEASE_TIMEOUT_S = 1.0
_MIN_RELEASE_S = 0.1
_RELEASE_INTERVAL_S = 0.005
_MAX_ACCEPT_ROUNDS = 100
_AUTHORITY_END = re.compile(rb"[/?#]")
_REQUEST_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_SHUTTING_DOWN_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class FlushQueue:
    """All connections in one event loop that have data to write."""

    __slots__ = ("_transports",)

    def __init__(self) -> None:
        self._transports: list[CoalescingTransport] = []

    def add(self, transport: "CoalescingTransport", loop: asyncio.AbstractEventLoop) -> None:
        """Schedule a write at the end of the loop iteration. All connections share one callback."""
        if not self._transports:
            loop.call_soon(self._flush_all)
        self._transports.append(transport)

    def _flush_all(self) -> None:
        transports, self._transports = self._transports, []
        for transport in transports:
            transport.flush()


class CoalescingTransport:
    """A transport that collects writes until the end of the loop iteration. Headers and body are then sent together.

    uvicorn writes headers and body separately, and each write is a system call. The transport collects only small
    amounts, so that flow control works for slow clients.
    """

    __slots__ = (
        "_flush_queue",
        "_held_bytes",
        "_loop",
        "_pieces",
        "_transport",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, flush_queue: FlushQueue) -> None:
        self._transport = transport
        self._loop = loop
        self._flush_queue = flush_queue
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether the connection is closed or closing."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Stop receiving data until `resume_reading`."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume receiving data."""
        self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Collect data until the end of the loop iteration. Write large data immediately."""
        if not self._pieces:
            self._flush_queue.add(self, self._loop)
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _MAX_HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the collected data."""
        if self._pieces:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            self._held_bytes = 0
            # Writing to a closed transport could raise an exception, which would stop the writes of other connections.
            if not self.is_closing():
                self._transport.write(data)

    def close(self) -> None:
        """Write the collected data and close the connection."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection and discard the collected data."""
        self._pieces.clear()
        self._transport.abort()


class LightEvent(asyncio.Event):
    """An asyncio Event that stores its waiters in a list. A deque would need 0.6 KB more for each stream."""

    def __init__(self) -> None:
        self._value = False
        self._waiters = cast("deque[asyncio.Future[Any]]", [])


class LightFlowControl(FlowControl):
    """uvicorn's flow control, with an event object that needs less memory."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_writable_event = LightEvent()
        self._is_writable_event.set()


class Pipeline(list[Any]):
    """The waiting requests of one connection. This list replaces uvicorn's deque, which needs more memory."""

    __slots__ = ()

    def appendleft(self, entry: Any) -> None:
        self.insert(0, entry)


class LimitedHTTPProtocol(HttpToolsProtocol):
    """The HTTP protocol of uvicorn with limits for time and size.

    The keep-alive timer of uvicorn runs between two requests. The head timer starts when a client connects or begins to
    send headers, even while the previous response is being sent. The body timer starts after the headers. The server
    sets a timer only for data that does not arrive in one piece.
    """

    limits: ServerLimits
    flush_queue: FlushQueue

    # Slots save 1.5 KB per connection, because an object with more than thirty attributes needs a large dict.
    __slots__ = (
        "_awaits_body",
        "_awaits_head",
        "_body_timer",
        "_bytes_since_body",
        "_head_bytes",
        "_head_timer",
        "_stall_timer",
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pipeline = cast("deque[Any]", Pipeline())
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._bytes_since_body = 0
        self._awaits_head = True
        self._awaits_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", CoalescingTransport(transport, self.loop, self.flush_queue)))
        self.flow = LightFlowControl(self.transport)
        self._start_head_timer()
        warn_if_descriptors_run_out(transport)

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
            # The headers are incomplete, so all bytes so far are headers.
            if self._head_bytes > self.limits.max_header_block_bytes:
                self._reject(_HEADERS_TOO_LARGE_RESPONSE)
            elif self._head_timer is None:
                self._start_head_timer()
        elif self._awaits_body:
            # Trailers and chunk extensions are limited, because a client could send them without an end.
            if self._bytes_since_body > self.limits.max_header_block_bytes:
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
        # If all headers together are smaller than the limit for one header, no check is needed.
        # If `size` is 0, the real size is unknown, because the headers arrived with the previous request.
        if not 0 < size <= self.limits.max_header_bytes and self._is_head_too_large():
            self._reject(_HEADERS_TOO_LARGE_RESPONSE)
        elif self.url[:1] != b"/" and not self._is_target_unambiguous():
            self._reject(_BAD_REQUEST_RESPONSE)
        elif not self.transport.is_closing():
            previous_cycle = self.cycle
            super().on_headers_complete()
            if self.cycle is not previous_cycle:
                self.cycle.message_event = LightEvent()  # No task waits for the old event, so it can be replaced.
        # The scope contains the list `self.headers`, and uvicorn would add trailers to this list.
        # Trailers must not count as headers, because no proxy or guard has checked them.
        self.headers = []

    def _is_head_too_large(self) -> bool:
        sizes = [len(name) + len(value) for name, value in self.headers]
        return (
            max(sizes, default=0) > self.limits.max_header_bytes
            or len(self.url) + sum(sizes) > self.limits.max_header_block_bytes
        )

    def _is_target_unambiguous(self) -> bool:
        """Return whether an absolute request target has the same host as the Host header.

        The server uses the host of the target, but a proxy may have checked the header. RFC 9112, section 3.2.2
        """
        scheme, separator, rest = self.url.partition(b"://")
        hosts = [value.strip(b" \t").lower() for name, value in self.headers if name == b"host"]
        is_web = separator and scheme.lower() in (b"http", b"https")
        return self.url == b"*" or bool(is_web and hosts == [_AUTHORITY_END.split(rest.lower(), maxsplit=1)[0]])

    def on_body(self, body: bytes) -> None:
        self._bytes_since_body = 0
        if not self.is_between_requests:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaits_body = False
        self._bytes_since_body = 0
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        if self.headers and self._are_trailers_too_large():
            self._reject(_HEADERS_TOO_LARGE_RESPONSE)
        elif not self.is_between_requests and not self.transport.is_closing():
            super().on_message_complete()

    def _are_trailers_too_large(self) -> bool:
        return sum(len(name) + len(value) for name, value in self.headers) > self.limits.max_header_block_bytes

    @property
    def is_between_requests(self) -> bool:
        """Return whether no request is being handled."""
        # uvicorn's annotation does not say that `cycle` is None before the first request.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

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
        if self._body_timer is not None:  # The body is incomplete, so the request cannot be handled.
            self._reject(_SHUTTING_DOWN_RESPONSE)
        else:
            super().shutdown()

    @property
    def is_waiting(self) -> bool:
        """Return whether the server waits for a request, or for the rest of a request."""
        return self.is_between_requests or self._awaits_body

    def close_after_response(self) -> None:
        """Close the connection after the response to the current request.

        An idle connection stays open, and so does the connection of a response that has begun, because its client does
        not know that the connection closes.
        """
        if not self.is_between_requests and not self.cycle.response_started:
            self.cycle.default_headers = [*self.cycle.default_headers, _CLOSE_HEADER]

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.header_timeout, self._reject, _REQUEST_TIMEOUT_RESPONSE)

    def _reject(self, response: bytes) -> None:
        # The stall timer keeps running, because the client may not have read all data yet.
        _cancel_timers(self._head_timer, self._body_timer)
        self._head_timer = self._body_timer = None
        if self.transport.is_closing():
            return
        if self.pipeline or (not self.is_between_requests and self.cycle.response_started):
            self.transport.abort()  # The client could mistake the error for a part of another response.
        else:
            self.transport.write(response)
            self.transport.close()


def _cancel_timers(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()


def create_limited_protocol(server_limits: ServerLimits) -> type[HttpToolsProtocol]:
    """Return a subclass of uvicorn's HTTP protocol with these limits."""

    class ConfiguredProtocol(LimitedHTTPProtocol):
        __slots__ = ()
        limits = server_limits
        flush_queue = FlushQueue()

    return ConfiguredProtocol


class Release(Protocol):
    """Lets the clients of a server that stops continue at other servers."""

    def begin(self) -> None:
        """Refuse new sessions."""
        ...

    async def end_streams(self) -> None:
        """End the streams that have no end, so that their clients connect again."""
        ...


class UvicornServer(uvicorn.Server):
    """A uvicorn server that calls `on_stop` for each stop signal. The first signal starts the shutdown timeout.

    `serve` first awaits `on_start` and raises its exceptions. The server calls `on_ready` after the application has
    started and the sockets accept connections.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_stop: Callable[[int], None],
        drain: Callable[[], Awaitable[None]],
        *,
        on_start: Callable[[], Awaitable[None]] | None = None,
        on_ready: Callable[[], None] | None = None,
        ignores_repeated_sigterm: bool = False,
        release: Release | None = None,
    ) -> None:
        super().__init__(config)
        self._ignores_repeated_sigterm = ignores_repeated_sigterm
        self._release = release
        self._on_stop = on_stop
        self._drain = drain
        self._on_start = on_start
        self._on_ready = on_ready
        self._signal_count = 0

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle a stop signal."""
        if self._ignores_repeated_sigterm and self._signal_count and sig == signal.SIGTERM:
            return
        self._signal_count += 1
        self._on_stop(self._signal_count)
        super().handle_exit(sig, frame)
        # Without this line, uvicorn would send the signal again and the process would exit with an error.
        self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and serve the sockets."""
        if self._on_start is not None:
            await self._on_start()
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, wait for running requests, and close all connections."""
        release = self._release
        if release is not None:
            release.begin()
            self._ask_clients_to_reconnect()
            await self._accept_waiting(sockets or ())
        for server in self.servers:
            server.close()
        if release is not None:
            await release.end_streams()
            await self._answer_last_requests()
        await self._drain()
        await super().shutdown(sockets)

    async def _accept_waiting(self, sockets: Sequence[socket.socket]) -> None:
        """Accept the connections that the system has accepted. It would reset them when the socket is closed."""
        for _ in range(_MAX_ACCEPT_ROUNDS):
            if not select.select(sockets, (), (), 0)[0]:
                return
            await asyncio.sleep(_RELEASE_INTERVAL_S)

    def _ask_clients_to_reconnect(self) -> None:
        """Send the header `Connection: close` with each response."""
        self.config.encoded_headers.append(_CLOSE_HEADER)
        self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE_HEADER]
        for connection in cast("set[LimitedHTTPProtocol]", self.server_state.connections):
            connection.close_after_response()

    async def _answer_last_requests(self) -> None:
        """Answer requests that are already on their way, for a limited time.

        If the server closed its idle connections at once, it would lose a request that a client sends at this moment.
        """
        connections = cast("set[LimitedHTTPProtocol]", self.server_state.connections)
        loop = asyncio.get_running_loop()
        # A connection that was accepted a moment ago is not in the set yet.
        earliest_end = loop.time() + _MIN_RELEASE_S
        deadline = loop.time() + _RELEASE_TIMEOUT_S
        while loop.time() < earliest_end or (
            loop.time() < deadline and any(connection.is_waiting for connection in connections)
        ):
            if self.force_exit:
                return
            await asyncio.sleep(_RELEASE_INTERVAL_S)
        for connection in tuple(connections):
            connection.shutdown()


def create_uvicorn_config(app: Any, limits: ServerLimits, **options: Any) -> uvicorn.Config:
    """Create a uvicorn configuration with these limits. The configuration does not change the logging."""
    return uvicorn.Config(
        app,
        http=create_limited_protocol(limits),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        # By default, uvicorn trusts X-Forwarded-For from every program on this machine.
        # The variable FORWARDED_ALLOW_IPS names the trusted proxies.
        proxy_headers=bool(os.environ.get("FORWARDED_ALLOW_IPS")),
        timeout_graceful_shutdown=int(limits.drain_timeout) + 1,
        h11_max_incomplete_event_size=limits.max_header_block_bytes,
        **options,
    )


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. If the port is in use, raise an OSError before uvicorn starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The event loop disables Nagle's algorithm only for sockets with an explicit protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise OSError(exc.errno, f"cannot listen on {host}:{port}: {exc.strerror}") from None
    return listener
