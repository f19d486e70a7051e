"""The server side of Unix and TCP sockets: many connections, each with its own state."""

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from dovetail.protocol.exchange import Service
from dovetail.transports.line_protocol import LineProtocol, serve_connection
from dovetail.transports.spool import MemoryBudget

MAX_CONNECTIONS = 1000
_HTTP_REQUEST_PATTERN = re.compile(rb"[A-Z]{3,8} ")  # an HTTP method and a space. No MCP message starts with a letter


class _ConnectionFactory:
    """Creates a protocol and a task for each connection."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()
        self._budget = MemoryBudget(service.limits.max_buffered_bytes)

    def __call__(self) -> LineProtocol:
        connection = _SocketConnection(self._service, self._budget, is_full=len(self._tasks) >= MAX_CONNECTIONS)
        task = asyncio.get_running_loop().create_task(serve_connection(connection, self._service.limits.drain_timeout))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return connection

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)


class _SocketConnection(LineProtocol):
    """One connection. It is closed immediately if there are too many, or if the client sends HTTP. A web page could
    make a browser send messages this way.
    """

    def __init__(self, service: Service, budget: MemoryBudget, *, is_full: bool) -> None:
        super().__init__(service, budget=budget)
        self._is_full = is_full
        self._is_first_chunk = True

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if self._is_full:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_first_chunk:
            self._is_first_chunk = False
            if _HTTP_REQUEST_PATTERN.match(data):
                self._abort()
                return
        super().data_received(data)


@asynccontextmanager
async def serve_socket(
    service: Service, *, path: str | None = None, host: str | None = None, port: int | None = None
) -> AsyncGenerator[asyncio.Server]:
    """Serve on a Unix socket (`path`) or on TCP (`host`, `port`) while the context is open."""
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
    """Raise OSError if another server is using the Unix socket. A socket without a server can be replaced."""
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return
    writer.close()
    raise OSError(errno.EADDRINUSE, f"another server is already listening on {path}")
