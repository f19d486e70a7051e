"""Serves newline-delimited messages over a byte stream, such as standard streams, Unix sockets and TCP sockets.

The server writes all responses of one loop iteration at once. spec: stdio
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from dovetail.errors import InvalidRequest
from dovetail.log import log
from dovetail.protocol.exchange import Service
from dovetail.transports.duplex_server import DuplexServer
from dovetail.transports.line_splitter import LineSplitter, OversizedMessage
from dovetail.transports.paced_queue import MAX_LINES_PER_ITERATION
from dovetail.transports.spool import SLICE_BYTES, MemoryBudget, Spool

_INPUT_CHECK_INTERVAL_S = 0.5


class ByteWriter(Protocol):
    """The writing half of an asyncio transport."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def close(self) -> None: ...


class LineProtocol(asyncio.Protocol):
    """The server side of a connection with one message per line."""

    def __init__(self, service: Service, *, principal: str | None = None, budget: MemoryBudget | None = None) -> None:
        self._service = service
        self._splitter = LineSplitter(service.limits.max_message_bytes)
        self._loop = asyncio.get_running_loop()
        # These lines wait until the client has read the responses to earlier lines.
        self._pending_lines: deque[bytes | OversizedMessage] = deque()
        self._is_input_complete = False  # True if the input has ended
        self._out: list[bytes] = []
        self._queued_bytes = 0  # the number of bytes in `_out`
        # True while `_take_lines` handles lines. Responses are queued in the meantime.
        self._is_taking_lines = False
        self._is_continuing = False  # True if the next iteration of the event loop handles more lines
        self._is_reading_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._reader: Any = None
        self._writer: Any = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._input_timer: asyncio.TimerHandle | None = None
        # Returns whether the client has closed the input.
        # This function works even while the server has paused reading.
        self.has_input_ended: Callable[[], bool] | None = None
        self._budget = budget or MemoryBudget(service.limits.max_buffered_bytes)
        self._spool: Spool | None = None
        self._spool_offset = 0
        self.is_lost = False  # True if the client has stopped reading
        self.duplex = DuplexServer(
            service,
            self.write,
            drain=self._drain,
            principal=principal,
            on_shutdown=self._end_after_shutdown,
            buffer=self._budget,
            context=contextvars.copy_context(),  # Reading may continue in the context of a request.
        )
        self.done: asyncio.Future[None] = self._loop.create_future()

    # The event loop calls the following methods.

    def connection_made(self, transport: Any) -> None:
        """Store the transport for reading. If this transport can also write, use it for responses, too."""
        self._reader = transport
        if self._writer is None and hasattr(transport, "write"):
            self._writer = transport

    def set_writer(self, writer: ByteWriter) -> None:
        """Set the transport for responses. Connections over two pipes need a separate transport for writing."""
        self._writer = writer

    def data_received(self, data: bytes) -> None:
        self._pending_lines += self._splitter.feed(data)
        if not self._is_continuing:
            self._take_lines()

    def _take_lines(self) -> None:
        lines_left = MAX_LINES_PER_ITERATION
        self._is_taking_lines = True
        try:
            while self._pending_lines and self._writable.is_set() and lines_left:
                lines_left -= 1
                line = self._pending_lines.popleft()
                if type(line) is OversizedMessage:
                    self.duplex.send_refusal(
                        InvalidRequest(f"Invalid request: longer than {self._splitter.max_line_bytes} bytes")
                    )
                else:
                    self.duplex.receive(line)
                if self._queued_bytes > SLICE_BYTES:
                    self.flush()
        except BaseException:
            self.abort()  # Without this call, the transport would stay paused and the client would wait forever.
            raise
        finally:
            self._is_taking_lines = False
        self.flush()
        if self._pending_lines:
            if self._writable.is_set():
                self._is_continuing = True
                self._pause_reading()
                self._loop.call_soon(self._continue_taking_lines)
        elif self._is_input_complete:
            self.end()

    def _continue_taking_lines(self) -> None:
        self._is_continuing = False
        if self._writable.is_set() and not self.done.done():
            self._take_lines()
            self._resume_reading()

    def _pause_reading(self) -> None:
        if self._reader is not None and not self._is_reading_paused:
            self._is_reading_paused = True
            self._reader.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused and self._writable.is_set() and not self._pending_lines:
            self._is_reading_paused = False
            if not self._reader.is_closing():
                self._reader.resume_reading()

    def eof_received(self) -> bool:
        """Handle the end of the input. Running requests still get their responses."""
        self._is_input_complete = True
        if not self._writable.is_set():
            self._shorten_stall()
        self.data_received(b"\n")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection. If the output is a separate pipe, responses can still be sent."""
        self.is_lost = self.is_lost or self._reader is self._writer
        self._writable.set()
        self._cancel_timers()
        self.end()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its responses. After a timeout, abort the connection."""
        self._writable.clear()
        self._pause_reading()
        self._cancel_timers()
        self._stall_timer = self._loop.call_later(self._service.limits.write_timeout, self.abort)
        self._watch_input_end()

    def _watch_input_end(self) -> None:
        """Shorten the timeout when the input ends. A client that has closed its input rarely reads more responses."""
        if self._is_input_complete or (self.has_input_ended is not None and self.has_input_ended()):
            self._shorten_stall()
        elif self.has_input_ended is not None:
            self._input_timer = self._loop.call_later(_INPUT_CHECK_INTERVAL_S, self._watch_input_end)

    def _shorten_stall(self) -> None:
        self._cancel_timers()
        limits = self._service.limits
        self._stall_timer = self._loop.call_later(min(limits.write_timeout, limits.drain_timeout), self.abort)

    def _cancel_timers(self) -> None:
        for timer in (self._stall_timer, self._input_timer):
            if timer is not None:
                timer.cancel()

    def resume_writing(self) -> None:
        """Resume writing to the client and reading from the client."""
        self._writable.set()
        self._cancel_timers()
        self._write_spooled()
        if self._writable.is_set() and not self._is_continuing:
            self._take_lines()
        self._resume_reading()

    def write(self, data: bytes) -> None:
        """Queue a message for the client. All messages of a loop iteration are sent together."""
        if not self._out and not self._is_taking_lines:
            self._loop.call_soon(self.flush)
        self._out.append(data)
        self._queued_bytes += len(data)
        if self._queued_bytes > SLICE_BYTES and not self._is_taking_lines:
            self.flush()  # Large messages wait in a buffer on disk, so that they do not fill the memory.

    def flush(self) -> None:
        """Send the queued messages to the client."""
        if self._out and self._writer is not None:
            out, self._out = self._out, []
            queued_bytes, self._queued_bytes = self._queued_bytes, 0
            if self._spool is None and queued_bytes <= SLICE_BYTES and self._writable.is_set():
                self._send(b"\n".join(out) + b"\n")
            else:
                self._add_to_spool(out)
                del out
                self._write_spooled()

    def _send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    def _add_to_spool(self, out: list[bytes]) -> None:
        if self._spool is None:
            self._spool, self._spool_offset = Spool(self._budget), 0
            self._spool.on_exhausted = self._drop_slow_client
        else:
            self._spool.is_single_message = False
        # Joining a large message with the newline would copy the message.
        self._spool.append(out[0] if len(out) == 1 else b"\n".join(out))
        self._spool.append(b"\n")

    def _write_spooled(self) -> None:
        while self._spool is not None and self._writable.is_set():
            part = self._spool.read_slice(self._spool_offset)
            self._spool_offset += len(part)
            if part:
                self._send(part)
            else:
                self._spool.close()
                self._spool = None

    async def _drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    def _drop_slow_client(self) -> None:
        if not self._writable.is_set():
            log.warning("disconnected a client that reads too slowly, because the disk for buffered messages is full")
            self.abort()

    def abort(self) -> None:
        """Close the connection and discard the unsent responses."""
        # In uvloop, a transport that reads a pipe has no `abort`.
        if self._writer is not None and hasattr(self._writer, "abort"):
            self._writer.abort()
        if self._reader is not None and self._reader is not self._writer:
            self._reader.close()
        self.end()

    def _end_after_shutdown(self) -> None:
        self._loop.call_soon(self.end)

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    async def close(self, grace: float) -> None:
        """Wait at most `grace` seconds for running requests, and then close the transports."""
        await self.duplex.close(grace)
        self.flush()
        self._writable.set()  # The transport now has all remaining bytes in its buffer.
        self._write_spooled()
        for transport in {self._reader, self._writer}:
            if transport is not None:
                transport.close()


async def serve_connection(protocol: LineProtocol, grace: float) -> None:
    """Wait until a connection ends, and close it. A client that still reads receives the remaining responses."""
    try:
        await protocol.done
    except asyncio.CancelledError:
        grace = 0.0  # After a cancellation, running requests get no more time.
        raise
    finally:
        await protocol.close(0.0 if protocol.is_lost else grace)
