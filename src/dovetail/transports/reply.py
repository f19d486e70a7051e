"""Reply: the HTTP answer to one POST. Plain JSON, unless something has to be said before the result: then, from that
moment, an event stream on the same reply.

Knows ASGI and event streams, nothing about the messages it carries.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from dovetail.protocol import sse

Send = Callable[[dict[str, Any]], Awaitable[None]]
Responses = Literal["auto", "json", "sse"]
Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
# Proxies must neither keep nor hold back a stream. spec: streamable-http#receiving-messages
STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


async def send_body(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """A complete answer."""
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]}
    )
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A complete answer of one JSON document."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [_JSON, (b"content-length", b"%d" % len(body)), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


class Reply:
    """One answer in the making."""

    __slots__ = ("_beat", "_headers", "_keep_alive", "_mode", "_send", "ended", "streaming")

    def __init__(self, send: Send, mode: Responses, headers: Headers, keep_alive: float) -> None:
        self._send = send
        self._mode = mode
        self._headers = headers
        self._keep_alive = keep_alive
        self._beat: asyncio.TimerHandle | None = None
        self.streaming = False
        self.ended = False

    async def emit(self, data: bytes) -> None:
        """Say something before the result."""
        if self._mode == "json" or self.ended:
            return
        if not self.streaming:
            await self.open()
        await self._write(self._event(data))

    async def finish(self, data: bytes, status: int = 200, headers: Headers | None = None) -> None:
        """Give the result, and end."""
        if self.ended:
            return
        if self._mode == "sse" and status == 200 and not self.streaming:
            await self.open()
        self.ended = True
        if self.streaming:
            self._quiet()
            await self._send({"type": "http.response.body", "body": self._event(data)})
        else:
            await send_json(self._send, status, data, self._headers + (headers or []))

    async def accept(self) -> None:
        """Say that a message needing no answer was taken."""
        self.ended = True
        await send_body(self._send, 202, self._headers, b"")

    async def end(self) -> None:
        """End without a result: the request was cancelled."""
        if self.ended:
            return
        if not self.streaming:
            await self.open()
        self.ended = True
        self._quiet()
        await self._send({"type": "http.response.body", "body": b""})

    async def open(self) -> None:
        """Become an event stream."""
        self.streaming = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._headers]})
        self._arm()

    def abandon(self) -> None:
        """The client is gone: nothing more will be sent."""
        self.ended = True
        self._quiet()

    def _event(self, data: bytes) -> bytes:
        return sse.event(data)

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def _arm(self) -> None:
        self._beat = asyncio.get_running_loop().call_later(self._keep_alive, self._pulse)

    def _pulse(self) -> None:
        if not self.ended:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._write(sse.comment()))
            task.add_done_callback(_heard)
            self._arm()

    def _quiet(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None


def _heard(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # a client that is gone is noticed elsewhere
