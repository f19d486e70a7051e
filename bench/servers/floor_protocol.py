"""The HTTP floor without a web server: an asyncio protocol on httptools and uvloop, with one write for each answer.

It checks nothing and limits nothing. Each answer is JSON or one event.
"""

import asyncio
from typing import Any

import httptools
import uvloop
from floor import create_floor
from workload import ServerOptions, open_socket

options = ServerOptions()
floor = create_floor(options)
streaming = options.responses == "sse"
json_head = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: floor\r\ncontent-length: %d\r\n\r\n%s"
)
sse_head = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\nmcp-session-id: floor\r\n"
    b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
)
accepted = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
not_allowed = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n"


class Connection(asyncio.Protocol):
    """Answers a POST with any path and headers."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._pieces: list[bytes] = []
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse the data."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Answer the request."""
        body, self._pieces = b"".join(self._pieces), []
        if self._parser.get_method() != b"POST":  # a client opens a stream or ends its session
            self._transport.write(not_allowed)
            return
        answer = _answer(body)
        if answer is None:
            self._transport.write(accepted)
        elif streaming:
            event = b"event: message\ndata: %s\n\n" % answer
            self._transport.write(sse_head % (len(event), event))
        else:
            self._transport.write(json_head % (len(answer), answer))


def _answer(body: bytes) -> bytes | None:
    """Return the response. The coroutine never waits, so it needs no task."""
    try:
        floor.answer(body).send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the floor must not wait")


async def serve() -> None:
    """Serve until the process is stopped."""
    server = await asyncio.get_running_loop().create_server(Connection, sock=open_socket())
    await server.serve_forever()


uvloop.run(serve())
