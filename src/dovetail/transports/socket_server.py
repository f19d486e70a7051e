"""The server side of Unix and TCP sockets."""

import asyncio
import contextlib
import errno
import os
import re
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from dovetail.log import ThrottledLog
from dovetail.protocol.exchange import Service
from dovetail.transports.line_protocol import LineProtocol, serve_connection
from dovetail.transports.operator_log import warn_if_descriptors_run_out
from dovetail.transports.spool import MemoryBudget

MAX_CONNECTIONS = 1000  # If this many connections are open, a new connection replaces an idle connection.
# This matches an HTTP method and a space. No MCP message starts with a letter.
_HTTP_REQUEST_PATTERN = re.compile(rb"[A-Z]{3,8} ")


class _ConnectionFactory:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()
        self._budget = MemoryBudget(service.limits.max_buffered_bytes)
        self._connections: set[_SocketConnection] = set()
        self._full_warning = ThrottledLog()
        self._silence_warning = ThrottledLog()

    def __call__(self) -> LineProtocol:
        is_full = len(self._connections) >= MAX_CONNECTIONS and not self._evict_idle()
        connection = _SocketConnection(self._service, self._budget, self._silence_warning, is_full=is_full)
        self._connections.add(connection)
        connection.done.add_done_callback(lambda _: self._connections.discard(connection))
        task = asyncio.get_running_loop().create_task(serve_connection(connection, self._service.limits.drain_timeout))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return connection

    def _evict_idle(self) -> bool:
        """Close an idle connection to make room. Connections that have sent no message are closed first."""
        idle_connections = [connection for connection in self._connections if connection.is_idle]
        if idle_connections:
            min(idle_connections, key=_SocketConnection.get_eviction_order).abort()
        self._full_warning.log(
            "all %d connections of the socket are in use. New clients %s",
            MAX_CONNECTIONS,
            "replace idle ones" if idle_connections else "are refused",
        )
        return bool(idle_connections)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)


class _SocketConnection(LineProtocol):
    """A connection to a socket. It is closed immediately if the client sends HTTP or there are too many connections.

    A web page could make a browser send messages as HTTP. A client must send its first message within `header_timeout`.
    """

    def __init__(self, service: Service, budget: MemoryBudget, silence_warning: ThrottledLog, *, is_full: bool) -> None:
        super().__init__(service, budget=budget)
        self._is_full = is_full
        self._is_first_chunk = True
        self._received_at = time.monotonic()
        self._silence_warning = silence_warning
        self._silence_timer: asyncio.TimerHandle | None = None  # The timer runs until the first message.

    @property
    def is_idle(self) -> bool:
        return self.duplex.running_count == 0

    def get_eviction_order(self) -> tuple[bool, float]:
        """Return a sort key for idle connections. The connection with the smallest key is closed first."""
        return self._silence_timer is None, self._received_at

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if self._is_full:
            transport.abort()
            return
        self._silence_timer = self._loop.call_later(self._service.limits.header_timeout, self._end_silence)
        warn_if_descriptors_run_out(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_silence_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received_at = time.monotonic()
        if self._silence_timer is not None:
            if self._is_first_chunk and _HTTP_REQUEST_PATTERN.match(data):
                self.abort()
                return
            self._is_first_chunk = False
            if b"\n" in data:
                self._stop_silence_timer()
        super().data_received(data)

    def _end_silence(self) -> None:
        self._silence_warning.log(
            "closed a connection whose client sent no message in %g seconds", self._service.limits.header_timeout
        )
        self.abort()

    def _stop_silence_timer(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None


@asynccontextmanager
async def serve_socket(
    service: Service, *, path: str | None = None, host: str | None = None, port: int | None = None
) -> AsyncGenerator[asyncio.Server]:
    """Serve on a Unix socket (`path`) or a TCP socket (`host`, `port`) while the context is open."""
    loop = asyncio.get_running_loop()
    factory = _ConnectionFactory(service)
    if path is not None:
        await _check_free(path)
        server = await loop.create_unix_server(factory, path)
    else:
        server = await loop.create_server(factory, host or "127.0.0.1", port or 0)
    try:
        yield server
    finally:
        server.close()
        await factory.close()
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


async def _check_free(path: str) -> None:
    """Raise OSError if another server uses a Unix socket. A socket file without a server may be replaced."""
    if sys.platform == "win32":
        raise OSError("Unix sockets do not work on Windows. Use a TCP socket")
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return
    writer.close()
    raise OSError(errno.EADDRINUSE, f"another server is already listening on {path}")
