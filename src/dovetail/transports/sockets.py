"""The newline framing over a Unix socket or TCP: many connections, each a conversation of its own."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from dovetail.protocol.exchange import Service
from dovetail.transports.lines import Lines, serve_connection

MAX_CONNECTIONS = 1000


class _Door:
    """Makes a protocol for each connection and keeps its task."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self) -> Lines:
        lines = _Guest(self._service, full=len(self._tasks) >= MAX_CONNECTIONS)
        task = asyncio.get_running_loop().create_task(serve_connection(lines, 0.0))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return lines

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)


class _Guest(Lines):
    """A connection; one too many is closed at once."""

    def __init__(self, service: Service, *, full: bool) -> None:
        super().__init__(service)
        self._full = full

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if self._full:
            transport.abort()


@asynccontextmanager
async def listening(
    service: Service, *, path: str | None = None, host: str | None = None, port: int | None = None
) -> AsyncGenerator[asyncio.Server]:
    """Serve on a Unix socket (`path`) or on TCP (`host`, `port`) while the context lasts."""
    loop = asyncio.get_running_loop()
    door = _Door(service)
    if path is not None:
        server = await loop.create_unix_server(door, path)
    else:
        server = await loop.create_server(door, host or "127.0.0.1", port or 0)
    try:
        yield server
    finally:
        server.close()
        await door.close()
