"""The client side of a connection with one message per line. It writes all requests of one loop iteration at once."""

import asyncio
from typing import Any

from dovetail.errors import ConnectionLost
from dovetail.transports.duplex_client import DuplexClient
from dovetail.transports.line_splitter import LineSplitter, OversizedMessage
from dovetail.transports.paced_queue import MAX_LINES_PER_ITERATION, PacedQueue


class LineClient(DuplexClient, asyncio.Protocol):
    """The client side of a connection with one message per line."""

    def __init__(self, max_line_bytes: int) -> None:
        super().__init__()
        self._splitter = LineSplitter(max_line_bytes)
        self._waiting_lines: PacedQueue[bytes | OversizedMessage] = PacedQueue(self.receive_message, self._loop)
        self._out: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._writer: Any = None

    # The event loop calls the following methods.

    def connection_made(self, transport: Any) -> None:
        if self._writer is None and hasattr(transport, "write"):
            self._writer = transport
        if hasattr(transport, "pause_reading"):
            self._waiting_lines.transport = transport

    def data_received(self, data: bytes) -> None:
        lines = self._splitter.feed(data)
        if self._waiting_lines.is_waiting or len(lines) > MAX_LINES_PER_ITERATION:
            self._waiting_lines.extend(lines)
            return
        for line in lines:
            self.receive_message(line)

    def eof_received(self) -> bool:
        """Handle the last line, which may have no newline, and end the connection."""
        self.drain_lines()
        self.end(ConnectionLost("the server closed the connection"))
        return False

    def drain_lines(self) -> None:
        """Handle all lines that have arrived, because the connection ends."""
        self._waiting_lines.extend(self._splitter.feed(b"\n"))
        self._waiting_lines.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.drain_lines()
        self.end(ConnectionLost("the connection was lost"))
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        self._flush()

    def write(self, data: bytes) -> None:
        """Send a message. While several requests are open, send the messages of a loop iteration together.

        While the server does not read, messages stay in the queue.
        """
        self._out.append(data)
        if len(self._pending) <= 1:
            self._flush()
        elif len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def withdraw(self, data: bytes) -> bool:
        """Remove a message that has not been sent to the server yet.

        Return False if the message was already sent.
        """
        if data in self._out:
            self._out.remove(data)
            return True
        return False

    def _flush(self) -> None:
        if not self._out or not self._writable.is_set():
            return
        data = b"\n".join(self._out) + b"\n"
        self._out.clear()
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    async def drain(self) -> None:
        """Wait until more data can be sent to the server."""
        if not self._writable.is_set():
            await self._writable.wait()
