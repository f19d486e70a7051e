"""A handshake client that does not use dovetail. It sends each request to a random worker, and reports every event."""

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.server_pool import Address

HANDSHAKE = "2025-11-25"
STATELESS = "2026-07-28"
ACCEPT = "application/json, text/event-stream"
# The longest time without an answer or the end of a connection.
SILENCE_TIMEOUT_S = 10.0
MAX_IDLE_S = 2.0  # A server closes a connection after five idle seconds, and a request must not meet this moment.
IDLE_TIMEOUT_S = 60.0  # the longest time without a byte on a stream that may have nothing to report


class Silence(Exception):
    """Raised if a worker neither answers nor closes the connection."""


@dataclass
class Event:
    """One server-sent event."""

    data: Any  # the message, or None for an event without data
    id: str | None


class Response:
    """An HTTP response, whose body can be read once."""

    def __init__(
        self, pool: "ConnectionPool", address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.address = address
        self.request = ""  # a description of the request, for errors
        self._pool = pool
        self.silence_timeout = SILENCE_TIMEOUT_S
        self._is_released = False
        self._reader = reader
        self._writer = writer

    async def read_head(self) -> None:
        head = await self._wait_for(self._reader.readuntil(b"\r\n\r\n"))
        status, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status.split()[1])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()

    async def _wait_for(self, read: Any) -> bytes:
        try:
            async with asyncio.timeout(self.silence_timeout):
                return await read
        except TimeoutError:
            raise Silence(f"{self.request} at {self.address}: no byte for {self.silence_timeout} s") from None

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    async def read(self) -> Any:
        """Return the JSON of the body, or None if it is empty."""
        if self.headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self._read_chunks()])
        else:
            body = await self._wait_for(self._reader.readexactly(int(self.headers.get("content-length", 0))))
        self._release()
        return json.loads(body) if body else None

    async def read_events(self) -> AsyncGenerator[Event]:
        """Yield the events as they arrive. Comments are not events."""
        buffer = b""
        async for chunk in self._read_chunks():
            buffer += chunk
            *blocks, buffer = buffer.split(b"\n\n")
            for block in blocks:
                event = _parse_event(block.decode())
                if event is not None:
                    yield event
        self._release()

    async def _read_chunks(self) -> AsyncGenerator[bytes]:
        while True:
            size = int(await self._wait_for(self._reader.readuntil(b"\r\n")), 16)
            data = await self._wait_for(self._reader.readexactly(size + 2))
            if not size:
                return
            yield data[:-2]

    def _release(self) -> None:
        self._is_released = True
        if self._pool.keeps_connections and self.headers.get("connection", "").lower() != "close":
            connection = self._reader, self._writer, time.monotonic()
            self._pool.idle.setdefault(self.address, []).append(connection)
        else:
            self._pool.drop(self._writer)

    def close(self) -> None:
        """Close the connection, unless the whole response was read."""
        if not self._is_released:
            self._pool.drop(self._writer)


def _parse_event(block: str) -> Event | None:
    data: list[str] = []
    identifier: str | None = None
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "id":
            identifier = value
    text = "\n".join(data)
    if not text and identifier is None:
        return None
    is_json = text.startswith(("{", "["))
    return Event(json.loads(text) if is_json else text or None, identifier)


class ConnectionPool:
    """Connections to workers. Without `keeps_connections`, each request has its own connection."""

    def __init__(self, addresses: Sequence[Address], chance: random.Random, *, keeps_connections: bool = True) -> None:
        self.addresses = list(addresses)
        self.chance = chance
        self.keeps_connections = keeps_connections
        # connections that can be used again, and since when they are idle
        self.idle: dict[Address, list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]]] = {}
        self._writers: set[asyncio.StreamWriter] = set()

    async def send(
        self,
        method: str,
        headers: dict[str, str],
        body: bytes = b"",
        address: Address | None = None,
        path: str = "/mcp",
    ) -> Response:
        """Send a request to a random worker, and return the response when its head has arrived.

        A worker that does not listen has not received the request, so another one gets it.
        """
        addresses = [address] if address is not None else self.chance.sample(self.addresses, len(self.addresses))
        for number, candidate in enumerate(addresses):
            try:
                reader, writer = await self._connect(candidate)
                break
            except OSError:
                if number == len(addresses) - 1:
                    raise
        lines = [f"{method} {path} HTTP/1.1", f"host: {candidate[0]}:{candidate[1]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if method != "GET":
            lines.append(f"content-length: {len(body)}")
        if not self.keeps_connections:
            lines.append("connection: close")
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        response = Response(self, candidate, reader, writer)
        response.request = f"{method} {headers.get('last-event-id', '')} {body[:200]!r}"
        try:
            await response.read_head()
        except BaseException:
            self.drop(writer)
            raise
        return response

    async def _connect(self, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connections = self.idle.get(address, [])
        while connections:
            reader, writer, idle_since = connections.pop()
            if not reader.at_eof() and time.monotonic() - idle_since < MAX_IDLE_S:
                return reader, writer
            self.drop(writer)
        reader, writer = await asyncio.open_connection(*address, limit=2**22)
        self._writers.add(writer)
        return reader, writer

    def drop(self, writer: asyncio.StreamWriter) -> None:
        """Close a connection."""
        self._writers.discard(writer)
        writer.transport.abort()

    async def close(self) -> None:
        for writer in tuple(self._writers):
            self.drop(writer)
        self.idle.clear()
        await asyncio.sleep(0)  # The transports close in the next iteration of the event loop.


class RawSession:
    """A handshake session whose requests go to random workers."""

    def __init__(self, pool: ConnectionPool, name: str, principal: str | None = None) -> None:
        self.pool = pool
        self.name = name
        self.id: str | None = None
        self.request_count = 0
        self._ids = itertools.count(1)
        self._headers = {"content-type": "application/json", "accept": ACCEPT}
        if principal is not None:
            self._headers["authorization"] = f"Bearer {principal}"

    async def open(self) -> None:
        params = {
            "protocolVersion": HANDSHAKE,
            "capabilities": {"elicitation": {}, "sampling": {}},
            "clientInfo": {"name": self.name, "version": "1"},
        }
        response = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert response.status == 200, (response.status, await response.read())
        reply = await self.read_reply(response)
        assert reply["result"]["protocolVersion"] == HANDSHAKE
        self.id = response.headers["mcp-session-id"]
        self._headers |= {"mcp-session-id": self.id, "mcp-protocol-version": HANDSHAKE}
        response = await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        body = await response.read()
        assert response.status == 202, (response.status, body)

    async def post(self, message: Any, address: Address | None = None) -> Response:
        self.request_count += 1
        return await self.pool.send("POST", self._headers, json.dumps(message).encode(), address)

    async def get(self, last_event_id: str | None = None, address: Address | None = None) -> Response:
        self.request_count += 1
        headers = self._headers if last_event_id is None else self._headers | {"last-event-id": last_event_id}
        return await self.pool.send("GET", headers, address=address)

    async def delete(self, address: Address | None = None) -> Response:
        self.request_count += 1
        return await self.pool.send("DELETE", self._headers, address=address)

    async def send_request(
        self, method: str, params: dict[str, Any] | None = None, address: Address | None = None
    ) -> tuple[int, Response]:
        """Send a request. Return its ID and the response."""
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
        return number, await self.post(message, address)

    async def send_call(
        self, tool: str, address: Address | None = None, progress: bool = False, **arguments: Any
    ) -> tuple[int, Response]:
        """Call a tool. Return the ID of the request and the response."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if progress:
            params["_meta"] = {"progressToken": arguments["token"]}
        return await self.send_request("tools/call", params, address)

    async def request(self, method: str, params: dict[str, Any] | None = None, address: Address | None = None) -> Any:
        """Send a request that succeeds, and return its result."""
        number, response = await self.send_request(method, params, address)
        reply = await self.read_reply(response)
        assert response.status == 200, (response.status, reply)
        assert reply["id"] == number
        return reply["result"]

    async def call(self, tool: str, address: Address | None = None, **arguments: Any) -> str:
        """Call a tool that sends no other messages, and return its text."""
        result = await self.request("tools/call", {"name": tool, "arguments": arguments}, address)
        return result["content"][0]["text"]

    async def notify(self, method: str, params: dict[str, Any], address: Address | None = None) -> int:
        """Send a notification, and return the status."""
        response = await self.post({"jsonrpc": "2.0", "method": method, "params": params}, address)
        await response.read()
        return response.status

    async def answer(self, question: Any, result: Any, address: Address | None = None) -> int:
        """Answer a question of the server, and return the status."""
        response = await self.post({"jsonrpc": "2.0", "id": question["id"], "result": result}, address)
        await response.read()
        return response.status

    async def read_reply(self, response: Response) -> Any:
        """Return the last message of a response."""
        if not response.is_stream:
            return await response.read()
        messages = [event.data async for event in response.read_events() if event.data is not None]
        return messages[-1]


class SSESession:
    """A client of the HTTP+SSE transport of 2024."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self.path = ""  # the path for messages, which the first event of the stream names
        self._headers = {"content-type": "application/json"}

    async def open_stream(self, address: Address) -> Response:
        return await self.pool.send("GET", {"accept": "text/event-stream"}, address=address, path="/sse")

    async def post(self, message: Any, address: Address) -> int:
        response = await self.pool.send("POST", self._headers, json.dumps(message).encode(), address, self.path)
        if response.headers.get("transfer-encoding") or int(response.headers.get("content-length", 0)):
            response.close()  # The body is text.
        else:
            await response.read()
        return response.status


def create_stateless_request(
    method: str, params: dict[str, Any], capabilities: dict[str, Any] | None = None, **meta: Any
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a stateless request."""
    meta |= {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities or {},
    }
    headers = {
        "content-type": "application/json",
        "accept": ACCEPT,
        "mcp-protocol-version": STATELESS,
        "mcp-method": method,
    }
    if (name := params.get("name", params.get("uri"))) is not None:
        headers["mcp-name"] = name
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": meta}}
    return headers, json.dumps(message).encode()


@contextlib.asynccontextmanager
async def open_session(
    addresses: Sequence[Address], name: str = "raw", seed: int = 1, principal: str | None = None, *, keeps: bool = True
) -> AsyncGenerator[RawSession]:
    """Open a session, and close its connections at the end."""
    pool = ConnectionPool(addresses, random.Random(seed), keeps_connections=keeps)
    session = RawSession(pool, name, principal)
    try:
        await session.open()
        yield session
    finally:
        await pool.close()
