"""Reply: the HTTP answer to one POST. Plain JSON, unless something has to be said before the result: then, from that
moment, an event stream on the same reply. A reply that stays silent for long becomes an event stream as well.

Knows ASGI and event streams, nothing about the messages it carries.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from dovetail.protocol import sse
from dovetail.transports.request import Headers, Responses, Send
from dovetail.transports.spool import SLICE, Budget, Spool, spooled
from dovetail.transports.suspending import Suspending

# Proxies wait a minute or less for the first byte, and a client can resume only a stream that has begun.
_OPEN_AFTER_S = 10.0
# Where streams are preferred they begin at once. The short delay lets a quick call send head and result in one write.
_OPEN_PREFERRED_AFTER_S = 0.05
SPOOL_AFTER_S = 0.5  # seconds without any progress after which a reply goes to disk
_JSON = (b"content-type", b"application/json")
# Proxies must neither keep nor hold back a stream. spec: streamable-http#receiving-messages
STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


async def send_body(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """A complete answer."""
    length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]  # RFC 9110: 204 has none
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})


async def send_spool(send: Send, spool: Spool, *, more: bool) -> None:
    """Part of an answer too large for one write: in slices, and laid on disk if the client does not keep up."""
    patience = _Patience(spool)
    try:
        for part in spool.slices():
            sent = _sent(send, {"type": "http.response.body", "body": part, "more_body": True})
            await Suspending(sent, patience.begin)
            patience.end()
    finally:
        patience.end()
        spool.close()
    if not more:
        await send({"type": "http.response.body", "body": b""})


class _Patience:
    """Gives memory back when sending a slice takes long; one that is sent at once costs nothing."""

    __slots__ = ("_spool", "_timer")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SPOOL_AFTER_S, self._spool.to_disk)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _sent(send: Send, message: dict[str, Any]) -> None:
    await send(message)


async def send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A complete answer of one JSON document."""
    await send(_json_start(status, len(body), headers))
    await send({"type": "http.response.body", "body": body})


def _json_start(status: int, length: int, headers: Headers) -> dict[str, Any]:
    given = [_JSON, (b"content-length", b"%d" % length), *headers]
    return {"type": "http.response.start", "status": status, "headers": given}


class Reply:
    """One answer in the making."""

    __slots__ = (
        "_budget",
        "_due",
        "_headers",
        "_keep_alive",
        "_mode",
        "_send",
        "_task",
        "_timer",
        "_turn",
        "ended",
        "streaming",
    )

    def __init__(self, send: Send, mode: Responses, headers: Headers, keep_alive: float, budget: Budget) -> None:
        self._send = send
        self._budget = budget
        self._mode: Responses = mode
        self._headers = headers
        self._keep_alive = keep_alive
        self._due: dict[Reply, float] | None = None  # where this reply waits to become a stream
        self._timer: asyncio.TimerHandle | None = None  # of the next comment on a stream
        self.streaming = False
        self.ended = False

    async def emit(self, data: bytes) -> None:
        """Say something before the result."""
        if self._mode == "json" or self.ended:
            return
        if not self.streaming:
            await self.open()
        await self._write(self._event(data))

    def finish(self, data: bytes, status: int = 200, headers: Headers | None = None) -> Awaitable[None]:
        """Give the result, and end.

        Not a coroutine itself: one would hold on to the bytes of a large result for as long as the client takes.
        """
        if self.streaming:
            return self._finish_stream(data)
        if self._mode == "sse" and status == 200:
            return self._only_event(data)
        whole = self._headers + headers if headers else self._headers
        if len(data) > SLICE:
            return self._finish_large(spooled(data, self._budget), status, whole)
        return self._finish(data, status, whole)

    async def _finish(self, data: bytes, status: int, headers: Headers) -> None:
        if not self.ended:
            self._stop_sending()
            await send_json(self._send, status, data, headers)

    async def _finish_large(self, spool: Spool, status: int, headers: Headers) -> None:
        if self.ended:
            spool.close()
            return
        self._stop_sending()
        try:
            await self._send(_json_start(status, spool.size, headers))
            await send_spool(self._send, spool, more=False)
        finally:
            spool.close()

    async def _finish_stream(self, data: bytes) -> None:
        if self.ended:
            return
        self._stop_sending()
        last = self._write(self._event(data), more=False)
        del data
        await last

    async def _only_event(self, data: bytes) -> None:
        """A stream of the result and nothing else: all at once, with nobody to wait for and nothing to keep alive."""
        if self.ended:
            return
        self.streaming = True
        self._stop_sending()
        events = self._opening() + self._event(data)
        del data
        await self._send(self._stream_start())
        if len(events) <= SLICE:
            await self._send({"type": "http.response.body", "body": events})
        else:
            spool = spooled(events, self._budget)
            del events
            await send_spool(self._send, spool, more=False)

    async def accept(self) -> None:
        """Say that a message needing no answer was taken."""
        self._stop_sending()
        await send_body(self._send, 202, self._headers, b"")

    async def end(self) -> None:
        """End without a result: the request was cancelled."""
        if self.ended:
            return
        if not self.streaming and self._mode == "json":
            self._stop_sending()
            await send_body(self._send, 204, self._headers, b"")
            return
        if not self.streaming:
            await self.open()
        self._stop_sending()
        await self._write(b"", more=False)

    async def open(self, first: bytes = b"") -> None:
        """Become an event stream, which begins with `first`."""
        self.streaming = True
        self._turn = asyncio.Lock()
        async with self._turn:  # a result that comes meanwhile follows the head
            first = self._opening() + first
            await self._send(self._stream_start())
            if first:
                await self._send({"type": "http.response.body", "body": first, "more_body": True})
        if not self.ended:
            self._set_timer()

    def _opening(self) -> bytes:
        """What a stream begins with, if with anything."""
        return b""

    def _stream_start(self) -> dict[str, Any]:
        return {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._headers]}

    def abandon(self) -> None:
        """The client is gone: nothing more will be sent."""
        self._stop_sending()

    def _stop_sending(self) -> None:
        """Send nothing more, except perhaps the end."""
        self.ended = True
        if self._due is not None:
            self._due.pop(self, None)
        if self._timer is not None:
            self._quiet()

    def _event(self, data: bytes) -> bytes:
        return sse.event(data)

    def _write(self, data: bytes, *, more: bool = True) -> Awaitable[None]:
        if len(data) > SLICE:
            return self._write_large(spooled(data, self._budget), more=more)
        return self._write_small(data, more=more)

    async def _write_small(self, data: bytes, *, more: bool) -> None:
        async with self._turn:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _write_large(self, spool: Spool, *, more: bool) -> None:
        try:
            async with self._turn:  # nothing else may come between two slices of an event
                await send_spool(self._send, spool, more=more)
        finally:
            spool.close()

    # Silence

    def watch_silence(self, silent: "Mapping[Responses, SilentReplies]") -> None:
        """Become an event stream if nothing is sent for a while."""
        replies = silent.get(self._mode)
        if replies is not None:
            self._due = replies.add(self)

    async def open_in_silence(self) -> None:
        """Become an event stream because nothing has been sent for a while."""
        if not self.streaming and not self.ended:
            await self.open(sse.comment())

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._keep_alive, self._keep_stream_alive)

    def _keep_stream_alive(self) -> None:
        self._set_timer()
        self._task = _start(self._send_comment())

    async def _send_comment(self) -> None:
        if self._timer is not None and not self._turn.locked():  # what is being sent keeps the stream alive by itself
            await self._write(sse.comment())

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class SilentReplies:
    """Replies on which nothing has been sent. Each becomes an event stream after the same delay, in its event loop.

    They come due in the order in which they were added, so one timer in each event loop serves them all.
    """

    __slots__ = ("_delay", "_due", "_tasks")

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._due: dict[asyncio.AbstractEventLoop, dict[Reply, float]] = {}  # of event loops with a timer
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, reply: Reply) -> dict[Reply, float]:
        """Begin to count the time of a reply. Remove it from what is returned when it has ended."""
        loop = asyncio.get_running_loop()
        at = loop.time() + self._delay
        due = self._due.get(loop)
        if due is None:
            due = self._set_timer(loop, at)
        due[reply] = at
        return due

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at: float) -> dict[Reply, float]:
        for other in tuple(self._due):
            if other.is_closed():
                self._due.pop(other, None)
        due = self._due[loop] = {}
        loop.call_at(at, self._open_due, loop, due)
        return due

    def _open_due(self, loop: asyncio.AbstractEventLoop, due: dict[Reply, float]) -> None:
        now = loop.time()
        while due:
            reply, at = next(iter(due.items()))
            if at > now:
                loop.call_at(at, self._open_due, loop, due)
                return
            del due[reply]
            task = _start(reply.open_in_silence())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._due.pop(loop, None)


def silent_replies(keep_alive: float) -> dict[Responses, SilentReplies]:
    """The silent replies of an endpoint by their mode. Those that must be JSON stay silent, so they have none."""
    return {
        "auto": SilentReplies(min(_OPEN_AFTER_S, keep_alive)),
        "sse": SilentReplies(min(_OPEN_PREFERRED_AFTER_S, keep_alive)),
    }


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_heard)
    return task


def _heard(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # a client that is gone is noticed elsewhere
