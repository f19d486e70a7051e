"""A small HTTP/1.1 client for tests: one connection per request, with control over every byte.

`HttpServerAddress(port).open(...)` returns when the head of the response has arrived. Read the body as a whole or event
by event. The event stream parser is intentionally independent of the project's.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import h11

TIMEOUT_S = 10.0


@dataclass
class Event:
    """One block of an event stream. A comment has only `comment`, no data and no id."""

    data: str | None = None
    name: str | None = None
    id: str | None = None
    retry: int | None = None
    comment: bool = False

    @property
    def message(self) -> Any:
        return json.loads(self.data) if self.data else None


@dataclass
class Response:
    """A response whose head has arrived."""

    status: int
    raw_headers: list[tuple[bytes, bytes]]
    _connection: h11.Connection
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    events_seen: list[Event] = field(default_factory=list)

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers}

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            event = await _next_event(self._connection, self._reader)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                await self.close()
                return
            else:
                raise ConnectionResetError(f"incomplete response: {event}")

    async def read(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            return b"".join([chunk async for chunk in self.chunks()])

    async def json(self) -> Any:
        return json.loads(await self.read())

    async def events(self) -> AsyncIterator[Event]:
        """Yield the blocks of an event stream, including comments."""
        buffer = b""
        async for chunk in self.chunks():
            buffer += chunk
            *blocks, buffer = buffer.split(b"\n\n")
            for block in blocks:
                event = _parse_event(block)
                self.events_seen.append(event)
                yield event
        assert buffer == b"", f"the stream ended inside an event: {buffer!r}"

    async def close(self) -> None:
        """Close the connection without reading the rest."""
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()

    def abort(self) -> None:
        """Close the connection at once, as a crashed client does."""
        self._writer.transport.abort()


@dataclass
class HttpServerAddress:
    """The address of a server, and the responses of requests to it."""

    port: int
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    responses: list[Response] = field(default_factory=list)

    def close_connections(self) -> None:
        """Close all connections that a test left open."""
        for response in self.responses:
            response.abort()

    async def open(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str | None] | Iterable[tuple[str, str | None]] = (),
        body: bytes = b"",
    ) -> Response:
        """Send a request, and return the response. A header of None is left out, also a default one."""
        pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
        names = {name.lower() for name, _ in pairs}
        if "host" not in names:
            pairs.append(("host", f"{self.host}:{self.port}"))
        if "content-length" not in names and (body or method == "POST"):
            pairs.append(("content-length", str(len(body))))
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls)
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1024 * 1024)
            encoded = [(name.encode(), value.encode("latin-1")) for name, value in pairs if value is not None]
            try:
                head = connection.send(h11.Request(method=method, target=path, headers=encoded))
                # A server may respond before it has read everything, so ignore errors while writing.
                with contextlib.suppress(ConnectionError):
                    writer.write(head or b"")
                    if body:
                        writer.write(connection.send(h11.Data(data=body)) or b"")
                    writer.write(connection.send(h11.EndOfMessage()) or b"")
                    await writer.drain()
                while True:
                    event = await _next_event(connection, reader)
                    if isinstance(event, h11.Response):
                        response = Response(event.status_code, list(event.headers), connection, reader, writer)
                        self.responses.append(response)
                        return response
                    assert isinstance(event, h11.InformationalResponse), f"not a response: {event}"
            except BaseException:
                writer.transport.abort()
                raise


async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    try:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
    except h11.RemoteProtocolError as exc:
        raise ConnectionResetError(f"incomplete response: {exc}") from None
    return event


def _parse_event(block: bytes) -> Event:
    event, data = Event(), []
    for line in block.decode().split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "":
                event.comment = True
            case "data":
                data.append(value)
            case "event":
                event.name = value
            case "id":
                event.id = value
            case "retry":
                event.retry = int(value)
            case _:
                raise AssertionError(f"unknown event field: {line!r}")
    if data:
        event.data, event.comment = "\n".join(data), False
    return event
