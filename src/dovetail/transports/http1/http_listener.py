"""Serve an application over HTTP/1.1 on a socket, and stop in limited time.

During a stop, the server answers the requests that it is handling. It closes each connection after the response.
"""

import asyncio
import contextlib
import selectors
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http1.asgi_lifespan import run_lifespan
from dovetail.transports.http1.connection_group import ConnectionGroup
from dovetail.transports.http1.forwarded_addresses import read_trusted_proxies
from dovetail.transports.http1.http1_protocol import HTTP1Protocol
from dovetail.transports.http1.http1_request import HTTP1Request
from dovetail.transports.http1.server_request import RequestHandler
from dovetail.transports.http1.shared_listener import SharedListener

if TYPE_CHECKING:
    import ssl

_BACKLOG: Final = 2048
# On Windows, SO_REUSEADDR would let another program listen at the same address.
_BIND_OPTION: Final = socket.SO_EXCLUSIVEADDRUSE if sys.platform == "win32" else socket.SO_REUSEADDR
# A stopping worker keeps idle connections open for this time, because a client may just have sent a request.
_RELEASE_TIMEOUT_S: Final = 1.0
_MIN_RELEASE_S: Final = 0.1
_CALL_START_TIMEOUT_S: Final = 0.5  # the time that a call has to start after its request has arrived
_RELEASE_INTERVAL_S: Final = 0.005
_MIN_ACCEPT_S: Final = 0.05  # the time for connections that are being opened
_MAX_ACCEPT_ROUNDS: Final = 100
_CANCEL_TIMEOUT_S: Final = 1.0  # the time that cancelled requests have to end
_MIN_TLS_TIMEOUT_S: Final = 0.01  # The event loop rejects a timeout of 0.


class Release(Protocol):
    """Moves the clients of a stopping server to other servers."""

    def begin(self) -> None:
        """Refuse new sessions, and connections if no other process shares the socket."""
        ...

    async def end_streams(self) -> None:
        """End the long-lived streams, so that their clients reconnect to other servers."""
        ...


class HTTPServer:
    """An HTTP server on one socket. It serves a `RequestHandler` or an ASGI application.

    Args:
        shares_socket: Whether other processes accept connections from the same socket.
    """

    def __init__(
        self, app: Any, limits: ServerLimits, tls: "ssl.SSLContext | None" = None, *, shares_socket: bool = False
    ) -> None:
        self._app = app
        self._limits = limits
        self._tls = tls
        self._shares_socket = shares_socket
        self._state: ConnectionGroup | None = None
        self._sockets: list[socket.socket] = []
        self._listener: asyncio.Server | SharedListener | None = None
        self._lifespan = contextlib.AsyncExitStack()
        self._is_forced = False

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return 0 if self._state is None else len(self._state.connections)

    async def start(self, listener: socket.socket) -> None:
        """Start the application, and accept connections."""
        app_state = await self._lifespan.enter_async_context(run_lifespan(self._app))
        handler = _get_handler(self._app, app_state)
        state = self._state = ConnectionGroup(handler, self._limits, read_trusted_proxies())
        state.starter.acquire()
        self._sockets = [listener]
        # `header_timeout` also limits the TLS handshake, and `write_timeout` the end of TLS.
        tls_options: dict[str, Any] = {}
        if self._tls is not None:
            tls_options = {
                "ssl": self._tls,
                "ssl_handshake_timeout": max(_MIN_TLS_TIMEOUT_S, self._limits.header_timeout),
                "ssl_shutdown_timeout": max(_MIN_TLS_TIMEOUT_S, self._limits.write_timeout),
            }

        def create_protocol() -> HTTP1Protocol:
            return HTTP1Protocol(state)

        if self._shares_socket:
            self._listener = SharedListener(listener, create_protocol, tls_options)
        else:
            self._listener = await state.loop.create_server(
                create_protocol, sock=listener, backlog=_BACKLOG, **tls_options
            )

    def force_stop(self) -> None:
        """Make `stop` end without waiting for the running requests."""
        self._is_forced = True

    async def stop(self, drain: Callable[[], Awaitable[None]], release: Release | None = None) -> None:
        """Stop accepting connections, wait for running requests, and close all connections.

        Args:
            drain: A function that ends the calls and streams of the application.
            release: Moves the clients to other servers, if there are any.
        """
        if release is not None:
            release.begin()
            self._close_after_responses()
            await self._accept_waiting()
        self._close_listener()
        if release is not None:
            await release.end_streams()
            await self._answer_last_requests()
        await drain()
        state = self._state
        if state is not None:
            state.closes_connections = True
            for connection in tuple(state.connections):
                connection.shut_down()
            await self._wait_for_requests(state)
            self._end_connections(state)
            state.starter.release()
        await self._lifespan.aclose()

    async def abort(self) -> None:
        """Close all connections at once, and stop."""
        self._close_listener()
        state = self._state
        if state is not None:
            self._end_connections(state)
            if state.tasks:
                await asyncio.wait(state.tasks, timeout=_CANCEL_TIMEOUT_S)
            state.starter.release()
        await self._lifespan.aclose()

    def _end_connections(self, state: ConnectionGroup) -> None:
        state.is_stopped = True
        for connection in tuple(state.connections):
            connection.abort()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _wait_for_requests(self, state: ConnectionGroup) -> None:
        deadline = state.loop.time() + self._limits.drain_timeout + 1.0
        while state.loop.time() < deadline and not self._is_forced:
            if not state.tasks and all(connection.is_done for connection in state.connections):
                break
            await asyncio.sleep(_RELEASE_INTERVAL_S)
        tasks = set(state.tasks)
        for task in tasks:
            task.cancel()
        if tasks and not self._is_forced:
            await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)

    async def _accept_waiting(self) -> None:
        """Accept the connections in the queue of the socket. Closing the socket would reset them."""
        await asyncio.sleep(_MIN_ACCEPT_S)
        for _ in range(_MAX_ACCEPT_ROUNDS):
            with selectors.DefaultSelector() as selector:
                for listener in self._sockets:
                    selector.register(listener, selectors.EVENT_READ)
                if not selector.select(0):
                    return
            await asyncio.sleep(_RELEASE_INTERVAL_S)

    def _close_after_responses(self) -> None:
        """Close each connection after its next response. Do not close idle connections yet."""
        if self._state is not None:
            self._state.closes_connections = True

    async def _answer_last_requests(self) -> None:
        """Answer requests that clients have just sent, for a limited time.

        If the server closed idle connections at once, a request that a client has just sent would be lost.
        """
        state = self._state
        if state is None:
            return
        # `state.connections` does not contain a connection that the loop has just accepted.
        earliest_end = state.loop.time() + _MIN_RELEASE_S
        deadline = state.loop.time() + _RELEASE_TIMEOUT_S
        while state.loop.time() < earliest_end or (
            state.loop.time() < deadline and any(connection.is_waiting for connection in state.connections)
        ):
            if self._is_forced:
                return
            await asyncio.sleep(_RELEASE_INTERVAL_S)
        for connection in tuple(state.connections):
            connection.shut_down()
        # A request that has just arrived may wait for its session before its call starts.
        if state.tasks:
            await asyncio.wait(tuple(state.tasks), timeout=_CALL_START_TIMEOUT_S)


def _get_handler(app: Any, state: dict[str, Any]) -> Callable[[HTTP1Request], Awaitable[None]]:
    """Return the function that handles requests.

    ASGI applications find a copy of the state of their lifespan in each request.
    """
    if isinstance(app, RequestHandler):
        return app.handle

    def handle(request: HTTP1Request) -> Awaitable[None]:
        return app({**request.scope, "state": dict(state)}, request.receive, request.send)

    return handle


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. If the port is in use, raise an OSError before the server starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The event loop disables Nagle's algorithm only for sockets with an explicit protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, _BIND_OPTION, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise OSError(exc.errno, f"cannot listen on {host}:{port}: {exc.strerror}") from None
    return listener
