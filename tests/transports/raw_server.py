"""A server on loopback with control over every byte."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.certificates import write_certificate

TIMEOUT_S = 10.0


@dataclass
class ServerConnection:
    """A connection to the server."""

    server: "RawServer"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int

    async def request(self) -> tuple[bytes, bytes] | None:
        """Return head and body of the next request, or None if the client has disconnected."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            _, found, rest = head.lower().partition(b"\r\ncontent-length: ")
            body = await self.reader.readexactly(int(rest.partition(b"\r\n")[0]) if found else 0)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.server.requests.append((head, body))
        return head, body

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def wait_closed(self) -> None:
        """Wait until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.server.closed_count += 1


@dataclass
class RawServer:
    """A running server."""

    host: str
    port: int
    scheme: str = "http"
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    connection_count: int = 0
    closed_count: int = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/mcp"


ConnectionHandler = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def run_raw_server(
    serve: ConnectionHandler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncGenerator[RawServer]:
    """Run a server that calls the function for each connection, and closes the connection when the function returns."""
    here = RawServer(host, 0, "https" if tls else "http")
    tasks: set[asyncio.Task[Any]] = set()
    faults: list[Exception] = []

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        here.connection_count += 1
        try:
            await serve(ServerConnection(here, reader, writer, here.connection_count))
        except ConnectionError:
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception as fault:
            faults.append(fault)
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(meet, host, 0, ssl=tls, backlog=512)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not faults, faults


def reply_to_each(reply: bytes) -> ConnectionHandler:
    """Answer every request with these bytes."""

    async def serve(visit: ServerConnection) -> None:
        while await visit.request():
            visit.send(reply)

    return serve


def reply_once(reply: bytes) -> ConnectionHandler:
    """Answer the first request with these bytes, and close the connection."""

    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        visit.send(reply)

    return serve


def plain_reply(body: bytes, extra: bytes = b"") -> bytes:
    """Encode a response with a content length."""
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (extra, len(body), body)


def create_tls_contexts(folder: Path, *, host: str = "127.0.0.1") -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a TLS context for a server with this name, and one for clients that trust it."""
    certificate_file, key_file = write_certificate(folder, host)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate_file, key_file)
    return server, ssl.create_default_context(cafile=str(certificate_file))
