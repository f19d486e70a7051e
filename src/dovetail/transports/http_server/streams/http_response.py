"""The HTTP response to a POST, as JSON or as an event stream if other messages precede the result.

This module handles ASGI and event streams, but does not read the messages.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from dovetail.eager_tasks import SuspendNotifier
from dovetail.log import log, log_failure
from dovetail.protocol import sse
from dovetail.transports.http1.server_request import JSON_HEADERS, STREAM_HEADERS, Headers, Receive, Send
from dovetail.transports.http_server.http_request import EndpointRequest, ResponseMode, build_json_headers
from dovetail.transports.http_server.streams.shared_timer import DueTimes, SharedTimer
from dovetail.transports.spool import SLICE_BYTES, MemoryBudget, Spool, create_spool

# If a response has sent no data after this time, it becomes an event stream.
# The stream starts early, because some proxies wait only a minute for the first byte.
_OPEN_AFTER_S = 10.0
# In mode "sse", a call that ends within this time sends its headers and its result in one write.
_OPEN_PREFERRED_AFTER_S = 0.05
_MAX_SLICE_BYTES = 512 * 1024
SPOOL_AFTER_S = 0.5  # the seconds after which an unread response moves to disk


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects. Ignore what it sends."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_spool(send: Send, spool: Spool, *, has_more: bool) -> None:
    """Send a large response in slices, which grow while the client keeps up. If it does not, move the rest to disk.

    If several large responses are being sent, the slices do not grow. The connection of a client that stops reading
    keeps its last slice in memory, and many large slices would need too much.

    If the disk and the memory for slow clients are full, the response ends incomplete. The HTTP server then
    closes the connection.
    """
    stall_timer = _StallTimer(spool)
    try:
        position, slice_bytes = 0, SLICE_BYTES
        while position < spool.size:
            piece = spool.read_slice(position, slice_bytes)
            position += len(piece)
            sending = _send_message(send, {"type": "http.response.body", "body": piece, "more_body": True})
            del piece
            await SuspendNotifier(sending, stall_timer.start)
            is_slow = stall_timer.stop() or not spool.is_only_one
            slice_bytes = SLICE_BYTES if is_slow else min(2 * slice_bytes, _MAX_SLICE_BYTES)
    except asyncio.CancelledError:
        if stall_timer.dropped_task is None:
            raise
        stall_timer.dropped_task.uncancel()
        return
    finally:
        stall_timer.stop()
        spool.close()
    if not has_more:
        await send({"type": "http.response.body", "body": b""})


class _StallTimer:
    """Moves a slow response to disk. If disk and memory are full, cancels the response."""

    __slots__ = ("_spool", "_task", "_timer", "dropped_task")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.dropped_task: asyncio.Task[Any] | None = None  # the task that this timer has cancelled

    def start(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(SPOOL_AFTER_S, self._handle_stall)

    def _handle_stall(self) -> None:
        self._spool.on_exhausted = self._drop
        self._spool.move_to_disk()

    def _drop(self) -> None:
        self._spool.on_exhausted = None
        if self._task is not None:
            log.warning("disconnected a client that reads too slowly, because the disk for buffered messages is full")
            self.dropped_task = self._task
            self._task.cancel()

    def stop(self) -> bool:
        """Stop the timer. Return whether it was running, because the client was slow."""
        if self._timer is None:
            return False
        self._timer.cancel()
        self._timer = None
        self._spool.on_exhausted = None
        return True


async def _send_message(send: Send, message: dict[str, Any]) -> None:
    await send(message)


class ResponseWriter:
    """Writes the response to one HTTP request."""

    __slots__ = (
        "_budget",
        "_due_times",
        "_headers",
        "_mode",
        "_respond",
        "_send",
        "_timer_task",
        "_timers",
        "_write_lock",
        "is_ended",
        "is_streaming",
    )

    def __init__(
        self, request: EndpointRequest, headers: Headers, timers: "ResponseTimers", budget: MemoryBudget
    ) -> None:
        self._send = request.http.send
        self._respond = request.http.respond
        self._budget = budget
        self._mode: ResponseMode = request.response_mode
        self._headers = headers
        self._timers = timers
        self._due_times: DueTimes | None = None
        self.is_streaming = False
        self.is_ended = False

    async def emit(self, data: bytes) -> None:
        """Send a message before the result, such as a notification."""
        if self._mode == "json" or self.is_ended:
            return
        if not self.is_streaming:
            await self.open_stream()
        await self._write(self._encode_event(data))

    def finish(self, data: bytes, status: int = 200, headers: Headers | None = None) -> Awaitable[None]:
        """Send the result and end the response.

        This method is not a coroutine, because a coroutine would keep a large result in memory while the client reads.
        """
        if self.is_streaming:
            return self._finish_stream(data)
        if self._mode == "sse" and status == 200:
            return self._finish_single_event(data)
        all_headers = self._headers + headers if headers else self._headers
        if len(data) > SLICE_BYTES:
            return self._finish_large(create_spool(data, self._budget), status, all_headers)
        if self.is_ended:
            return _do_nothing()
        self._stop_sending()
        return self._respond(status, build_json_headers(all_headers) if all_headers else JSON_HEADERS, data)

    async def _finish_large(self, spool: Spool, status: int, headers: Headers) -> None:
        if self.is_ended:
            spool.close()
            return
        self._stop_sending()
        try:
            length = (b"content-length", b"%d" % spool.size)
            all_headers = [*JSON_HEADERS, length, *headers]
            await self._send({"type": "http.response.start", "status": status, "headers": all_headers})
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
        if self.is_ended:
            return
        self.is_streaming = True
        self._stop_sending()
        events = self._build_first_event() + self._encode_event(data)
        del data
        if len(events) <= SLICE_BYTES:
            await self._respond_stream(events)
        else:
            await self._send(self._build_stream_start())
            spool = create_spool(events, self._budget)
            del events
            await send_spool(self._send, spool, has_more=False)

    async def send_accepted(self) -> None:
        """Send status 202 for a message that needs no response."""
        self._stop_sending()
        await self._respond(202, self._headers, b"")

    async def end(self) -> None:
        """End the response without a result, because the request was cancelled."""
        if self.is_ended:
            return
        if not self.is_streaming and self._mode == "json":
            self._stop_sending()
            await self._respond(204, self._headers, b"")
            return
        if not self.is_streaming:
            await self.open_stream()
        self._stop_sending()
        await self._write(b"", has_more=False)

    async def open_stream(self, first_event: bytes = b"") -> None:
        """Turn the response into an event stream that starts with `first_event`."""
        self.is_streaming = True
        self._write_lock = asyncio.Lock()
        async with self._write_lock:  # A result must not be written before the headers.
            first_event = self._build_first_event() + first_event
            await self._send(self._build_stream_start())
            if first_event:
                await self._send({"type": "http.response.body", "body": first_event, "more_body": True})
        self._start_keep_alive()

    def _build_first_event(self) -> bytes:
        return b""

    def _respond_stream(self, events: bytes) -> Awaitable[None]:
        """Send a complete event stream."""
        return self._respond(200, [*STREAM_HEADERS, *self._headers] if self._headers else STREAM_HEADERS, events)

    def _build_stream_start(self) -> dict[str, Any]:
        return {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._headers]}

    def abandon(self) -> None:
        """Stop sending the response, because the client has disconnected."""
        self._stop_sending()

    def _stop_sending(self) -> None:
        self.is_ended = True
        self._stop_timer()

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
            async with self._write_lock:  # No other data may be sent between two slices of an event.
                await send_spool(self._send, spool, has_more=has_more)
        finally:
            spool.close()

    def watch_silence(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Turn the response into an event stream if no data is sent for a while."""
        if not self.is_streaming and (timer := self._timers.open_by_mode.get(self._mode)) is not None:
            self._start_timer(timer, loop)

    def handle_timer(self) -> None:
        """Open the event stream if no data was sent for a while. If the stream is already open, send a comment."""
        self._due_times = None
        if self.is_streaming:
            self._start_keep_alive()
            self._start_task(self._send_comment())
        else:
            self._start_task(self._open_if_silent())

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._timer_task = asyncio.get_running_loop().create_task(work)
        self._timer_task.add_done_callback(log_failure)

    async def _open_if_silent(self) -> None:
        if not self.is_streaming and not self.is_ended:
            await self.open_stream(sse.encode_comment())

    async def _send_comment(self) -> None:
        # While data is being written, no comment is needed.
        if self._due_times is not None and not self._write_lock.locked():
            await self._write(sse.encode_comment())

    def _start_keep_alive(self) -> None:
        self._start_timer(self._timers.keep_alive)

    def _start_timer(self, timer: SharedTimer, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Wait in this timer and in no other. A response that has ended waits in no timer."""
        self._stop_timer()
        if not self.is_ended:
            self._due_times = timer.add(self, loop)

    def _stop_timer(self) -> None:
        if self._due_times is not None:
            self._due_times.pop(self, None)
            self._due_times = None


class ResponseTimers:
    """Timers for responses that send no data for a while.

    One kind of timer opens an event stream, and the other kind sends comments on an open stream.
    """

    __slots__ = ("keep_alive", "open_by_mode")

    def __init__(self, keep_alive_interval: float) -> None:
        self.keep_alive = SharedTimer(keep_alive_interval)
        # A response in mode "json" never becomes a stream.
        self.open_by_mode: dict[ResponseMode, SharedTimer] = {
            "auto": SharedTimer(min(_OPEN_AFTER_S, keep_alive_interval)),
            "sse": SharedTimer(min(_OPEN_PREFERRED_AFTER_S, keep_alive_interval)),
        }


async def _do_nothing() -> None:
    pass
