"""The HTTP response to one POST: JSON, or an event stream once something must be sent before the result.

Knows ASGI and event streams, nothing about the messages it carries.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from dovetail.protocol import sse
from dovetail.transports.eager_tasks import SuspendNotifier
from dovetail.transports.http_server.http_request import Headers, ResponseMode, Send
from dovetail.transports.spool import SLICE_BYTES, MemoryBudget, Spool, create_spool

# Proxies wait a minute or less for the first byte, and a client can resume only a stream that has begun.
_OPEN_AFTER_S = 10.0
# Where streams are preferred they begin at once. The short delay lets a quick call send head and result in one write.
_OPEN_PREFERRED_AFTER_S = 0.05
SPOOL_AFTER_S = 0.5  # seconds without any progress after which a reply goes to disk
_JSON_CONTENT_TYPE = (b"content-type", b"application/json")
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


async def send_spool(send: Send, spool: Spool, *, has_more: bool) -> None:
    """Part of an answer too large for one write: in slices, and laid on disk if the client does not keep up."""
    stall_timer = _StallTimer(spool)
    try:
        for piece in spool.iter_slices():
            sending = _send_message(send, {"type": "http.response.body", "body": piece, "more_body": True})
            await SuspendNotifier(sending, stall_timer.start)
            stall_timer.stop()
    finally:
        stall_timer.stop()
        spool.close()
    if not has_more:
        await send({"type": "http.response.body", "body": b""})


class _StallTimer:
    """Gives memory back when sending a slice takes long; one that is sent at once costs nothing."""

    __slots__ = ("_spool", "_timer")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SPOOL_AFTER_S, self._spool.move_to_disk)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _send_message(send: Send, message: dict[str, Any]) -> None:
    await send(message)


async def send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A complete answer of one JSON document."""
    await send(_build_json_start(status, len(body), headers))
    await send({"type": "http.response.body", "body": body})


def _build_json_start(status: int, length: int, headers: Headers) -> dict[str, Any]:
    all_headers = [_JSON_CONTENT_TYPE, (b"content-length", b"%d" % length), *headers]
    return {"type": "http.response.start", "status": status, "headers": all_headers}


class ResponseWriter:
    """One answer in the making."""

    __slots__ = (
        "_budget",
        "_due_times",
        "_headers",
        "_keep_alive_interval",
        "_keep_alive_task",
        "_keep_alive_timer",
        "_mode",
        "_send",
        "_write_lock",
        "is_ended",
        "is_streaming",
    )

    def __init__(
        self, send: Send, mode: ResponseMode, headers: Headers, keep_alive_interval: float, budget: MemoryBudget
    ) -> None:
        self._send = send
        self._budget = budget
        self._mode: ResponseMode = mode
        self._headers = headers
        self._keep_alive_interval = keep_alive_interval
        self._due_times: dict[ResponseWriter, float] | None = None  # where this reply waits to become a stream
        self._keep_alive_timer: asyncio.TimerHandle | None = None  # of the next comment on a stream
        self.is_streaming = False
        self.is_ended = False

    async def emit(self, data: bytes) -> None:
        """Say something before the result."""
        if self._mode == "json" or self.is_ended:
            return
        if not self.is_streaming:
            await self.open_stream()
        await self._write(self._encode_event(data))

    def finish(self, data: bytes, status: int = 200, headers: Headers | None = None) -> Awaitable[None]:
        """Give the result, and end.

        Not a coroutine itself: one would hold on to the bytes of a large result for as long as the client takes.
        """
        if self.is_streaming:
            return self._finish_stream(data)
        if self._mode == "sse" and status == 200:
            return self._finish_single_event(data)
        all_headers = self._headers + headers if headers else self._headers
        if len(data) > SLICE_BYTES:
            return self._finish_large(create_spool(data, self._budget), status, all_headers)
        return self._finish_json(data, status, all_headers)

    async def _finish_json(self, data: bytes, status: int, headers: Headers) -> None:
        if not self.is_ended:
            self._stop_sending()
            await send_json(self._send, status, data, headers)

    async def _finish_large(self, spool: Spool, status: int, headers: Headers) -> None:
        if self.is_ended:
            spool.close()
            return
        self._stop_sending()
        try:
            await self._send(_build_json_start(status, spool.size, headers))
            await send_spool(self._send, spool, has_more=False)
        finally:
            spool.close()

    async def _finish_stream(self, data: bytes) -> None:
        if self.is_ended:
            return
        self._stop_sending()
        final_write = self._write(self._encode_event(data), has_more=False)
        del data
        await final_write

    async def _finish_single_event(self, data: bytes) -> None:
        """A stream of the result and nothing else: all at once, with nobody to wait for and nothing to keep alive."""
        if self.is_ended:
            return
        self.is_streaming = True
        self._stop_sending()
        events = self._build_first_event() + self._encode_event(data)
        del data
        await self._send(self._build_stream_start())
        if len(events) <= SLICE_BYTES:
            await self._send({"type": "http.response.body", "body": events})
        else:
            spool = create_spool(events, self._budget)
            del events
            await send_spool(self._send, spool, has_more=False)

    async def send_accepted(self) -> None:
        """Say that a message needing no answer was taken."""
        self._stop_sending()
        await send_body(self._send, 202, self._headers, b"")

    async def end(self) -> None:
        """End without a result: the request was cancelled."""
        if self.is_ended:
            return
        if not self.is_streaming and self._mode == "json":
            self._stop_sending()
            await send_body(self._send, 204, self._headers, b"")
            return
        if not self.is_streaming:
            await self.open_stream()
        self._stop_sending()
        await self._write(b"", has_more=False)

    async def open_stream(self, first_event: bytes = b"") -> None:
        """Become an event stream, which begins with `first`."""
        self.is_streaming = True
        self._write_lock = asyncio.Lock()
        async with self._write_lock:  # a result that comes meanwhile follows the head
            first_event = self._build_first_event() + first_event
            await self._send(self._build_stream_start())
            if first_event:
                await self._send({"type": "http.response.body", "body": first_event, "more_body": True})
        if not self.is_ended:
            self._schedule_keep_alive()

    def _build_first_event(self) -> bytes:
        """What a stream begins with, if with anything."""
        return b""

    def _build_stream_start(self) -> dict[str, Any]:
        return {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._headers]}

    def abandon(self) -> None:
        """The client is gone: nothing more will be sent."""
        self._stop_sending()

    def _stop_sending(self) -> None:
        """Send nothing more, except perhaps the end."""
        self.is_ended = True
        if self._due_times is not None:
            self._due_times.pop(self, None)
        if self._keep_alive_timer is not None:
            self._stop_keep_alive()

    def _encode_event(self, data: bytes) -> bytes:
        return sse.encode_event(data)

    def _write(self, data: bytes, *, has_more: bool = True) -> Awaitable[None]:
        if len(data) > SLICE_BYTES:
            return self._write_large(create_spool(data, self._budget), has_more=has_more)
        return self._write_small(data, has_more=has_more)

    async def _write_small(self, data: bytes, *, has_more: bool) -> None:
        async with self._write_lock:
            await self._send({"type": "http.response.body", "body": data, "more_body": has_more})

    async def _write_large(self, spool: Spool, *, has_more: bool) -> None:
        try:
            async with self._write_lock:  # nothing else may come between two slices of an event
                await send_spool(self._send, spool, has_more=has_more)
        finally:
            spool.close()

    # Silence

    def watch_silence(self, silent_responses: "Mapping[ResponseMode, SilentResponses]") -> None:
        """Become an event stream if nothing is sent for a while."""
        responses = silent_responses.get(self._mode)
        if responses is not None:
            self._due_times = responses.add(self)

    async def open_if_silent(self) -> None:
        """Become an event stream because nothing has been sent for a while."""
        if not self.is_streaming and not self.is_ended:
            await self.open_stream(sse.encode_comment())

    def _schedule_keep_alive(self) -> None:
        self._keep_alive_timer = asyncio.get_running_loop().call_later(
            self._keep_alive_interval, self._keep_stream_alive
        )

    def _keep_stream_alive(self) -> None:
        self._schedule_keep_alive()
        self._keep_alive_task = _start_task(self._send_comment())

    async def _send_comment(self) -> None:
        if (
            self._keep_alive_timer is not None and not self._write_lock.locked()
        ):  # what is being sent keeps the stream alive by itself
            await self._write(sse.encode_comment())

    def _stop_keep_alive(self) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
            self._keep_alive_timer = None


class SilentResponses:
    """Replies on which nothing has been sent. Each becomes an event stream after the same delay, in its event loop.

    They come due in the order in which they were added, so one timer in each event loop serves them all.
    """

    __slots__ = ("_delay", "_due_times_by_loop", "_tasks")

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._due_times_by_loop: dict[
            asyncio.AbstractEventLoop, dict[ResponseWriter, float]
        ] = {}  # of event loops with a timer
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, writer: ResponseWriter) -> dict[ResponseWriter, float]:
        """Begin to count the time of a reply. Remove it from what is returned when it has ended."""
        loop = asyncio.get_running_loop()
        due_at = loop.time() + self._delay
        due_times = self._due_times_by_loop.get(loop)
        if due_times is None:
            due_times = self._set_timer(loop, due_at)
        due_times[writer] = due_at
        return due_times

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due_at: float) -> dict[ResponseWriter, float]:
        for other_loop in tuple(self._due_times_by_loop):
            if other_loop.is_closed():
                self._due_times_by_loop.pop(other_loop, None)
        due_times = self._due_times_by_loop[loop] = {}
        loop.call_at(due_at, self._open_due, loop, due_times)
        return due_times

    def _open_due(self, loop: asyncio.AbstractEventLoop, due_times: dict[ResponseWriter, float]) -> None:
        now = loop.time()
        while due_times:
            writer, due_at = next(iter(due_times.items()))
            if due_at > now:
                loop.call_at(due_at, self._open_due, loop, due_times)
                return
            del due_times[writer]
            task = _start_task(writer.open_if_silent())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._due_times_by_loop.pop(loop, None)


def create_silent_responses(keep_alive: float) -> dict[ResponseMode, SilentResponses]:
    """The silent replies of an endpoint by their mode. Those that must be JSON stay silent, so they have none."""
    return {
        "auto": SilentResponses(min(_OPEN_AFTER_S, keep_alive)),
        "sse": SilentResponses(min(_OPEN_PREFERRED_AFTER_S, keep_alive)),
    }


def _start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(coroutine)
    task.add_done_callback(_ignore_exception)
    return task


def _ignore_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # a client that is gone is noticed elsewhere
