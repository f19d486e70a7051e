"""An HTTP server that answers with exactly the bytes a test chooses, and records all requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any, NamedTuple

JSON = "application/json"
EVENTS = "text/event-stream"


class HttpRequest(NamedTuple):
    """An HTTP request."""

    verb: str
    headers: dict[str, str]
    message: Any
    target: str = ""


RequestHandler = Callable[["ScriptedHttpServer", HttpRequest], Any]


class ScriptedHttpServer:
    """The server. `answer` is a coroutine function that returns the bytes of the response to a request."""

    def __init__(self, answer: RequestHandler) -> None:
        self.told: list[HttpRequest] = []
        self.url = ""
        self._answer = answer
        self._connections: set[asyncio.Task[None]] = set()

    def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.create_task(self._serve(reader, writer)))

    async def close(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in rest)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                verb, target, _ = first.split()
                told = HttpRequest(verb, headers, json.loads(body) if body else None, target)
                self.told.append(told)
                writer.write(await self._answer(self, told))


@asynccontextmanager
async def run_scripted_server(answer: RequestHandler) -> AsyncIterator[ScriptedHttpServer]:
    """Run the server."""
    server = ScriptedHttpServer(answer)
    async with await asyncio.start_server(server.handle_connection, "127.0.0.1", 0) as listening:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        try:
            yield server
        finally:
            await server.close()


def encode_reply(*messages: Any, kind: str = JSON, status: str = "200 OK") -> bytes:
    """Encode messages as a response: one as JSON, or any number as events."""
    if kind == EVENTS:
        body = "".join(f"data: {json.dumps(message)}\n\n" for message in messages).encode()
    else:
        body = b"".join(json.dumps(message).encode() for message in messages)
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def create_result_response(request: HttpRequest, **fields: Any) -> dict[str, Any]:
    """Return the response to a request."""
    return {"jsonrpc": "2.0", "id": request.message["id"], "result": fields}


ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
REFUSED = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
