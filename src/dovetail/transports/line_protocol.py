"""Newline-delimited messages over a byte stream: standard streams, Unix and TCP sockets.

Framing only: bytes become whole lines for a Duplex, and what it writes is gathered so that all answers of one turn of
the loop leave in one write. Time is linear in the bytes, however they are cut. spec: stdio
"""

import asyncio
from collections import deque
from typing import Any, Protocol

from dovetail.errors import ConnectionLost, InvalidRequest
from dovetail.protocol.exchange import Service
from dovetail.transports.duplex_client import DuplexClient
from dovetail.transports.duplex_server import DuplexServer
from dovetail.transports.spool import SLICE_BYTES, MemoryBudget, Spool

_PREFIX_BYTES = 256
MIN_PIECE_BYTES = 4096  # bytes from which on a piece of a line is worth its own place


class LineSplitter:
    """Cuts a byte stream into lines; a line over the limit is skipped and reported once."""

    __slots__ = ("_held_bytes", "_is_skipping", "_pieces", "max_line_bytes", "skipped_prefix")

    def __init__(self, max_line_bytes: int) -> None:
        self.max_line_bytes = max_line_bytes
        self._pieces: list[bytes | bytearray] = []  # of a line that is not yet complete
        self._held_bytes = 0
        self._is_skipping = False
        self.skipped_prefix = b""  # how the last line over the limit began

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines completed by these bytes; None stands for one that was too long."""
        lines: list[bytes | None] = []
        # Looking for a newline is several times quicker than splitting where there is none.
        *complete_pieces, rest = data.split(b"\n") if b"\n" in data else (data,)
        for piece in complete_pieces:
            if self._is_skipping:
                self._is_skipping = False
            elif self._held_bytes + len(piece) > self.max_line_bytes:
                self._add_piece(piece[:_PREFIX_BYTES])
                self._drop_line(lines)
            else:
                if self._pieces:
                    piece = b"".join((*self._pieces, piece))
                    self._pieces.clear()
                    self._held_bytes = 0
                if piece and piece != b"\r":
                    lines.append(piece)
        if rest and not self._is_skipping:
            self._add_piece(rest)
            if self._held_bytes > self.max_line_bytes:
                self._drop_line(lines)
                self._is_skipping = True
        return lines

    def _add_piece(self, piece: bytes) -> None:
        """Keep a piece; small ones together, because each alone would take many times its size."""
        self._held_bytes += len(piece)
        last = self._pieces[-1] if self._pieces else None
        if len(piece) >= MIN_PIECE_BYTES:
            self._pieces.append(piece)
        elif type(last) is bytearray and len(last) < MIN_PIECE_BYTES:
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def _drop_line(self, lines: list[bytes | None]) -> None:
        self.skipped_prefix = b"".join(piece[:_PREFIX_BYTES] for piece in self._pieces[:_PREFIX_BYTES])[:_PREFIX_BYTES]
        self._pieces.clear()
        self._held_bytes = 0
        lines.append(None)


class ByteWriter(Protocol):
    """The writing half of an asyncio transport."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def close(self) -> None: ...


class LineProtocol(asyncio.Protocol):
    """One connection of newline-delimited messages, as a protocol for asyncio's transports."""

    def __init__(self, service: Service, *, principal: str | None = None, budget: MemoryBudget | None = None) -> None:
        self._service = service
        self._splitter = LineSplitter(service.limits.max_message_bytes)
        self._loop = asyncio.get_running_loop()
        self._pending_lines: deque[bytes | None] = deque()  # not yet taken, because the peer does not read
        self._is_input_complete = False  # no more of them will come
        self._out: list[bytes] = []
        self._queued_bytes = 0  # bytes of it
        self._is_taking_lines = False  # lines are being read: what is said at once leaves when they all are
        self._writable = asyncio.Event()
        self._writable.set()
        self._reader: Any = None
        self._writer: Any = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._budget = budget or MemoryBudget(service.limits.max_buffered_bytes)
        self._spool: Spool | None = None
        self._spool_offset = 0
        self.is_lost = False  # nobody reads what is written any more
        self.duplex = DuplexServer(
            service, self.write, drain=self._drain, principal=principal, on_shutdown=self._end_after_shutdown
        )
        self.done: asyncio.Future[None] = self._loop.create_future()

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        """The connection is there, at least the half that is read."""
        self._reader = transport
        if self._writer is None and hasattr(transport, "write"):
            self._writer = transport

    def set_writer(self, writer: ByteWriter) -> None:
        """Where answers go, if not back on the transport that is read."""
        self._writer = writer

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        self._pending_lines += self._splitter.feed(data)
        self._take_lines()

    def _take_lines(self) -> None:
        """Hand on the lines that are here, while the peer reads what is answered."""
        self._is_taking_lines = True
        try:
            while self._pending_lines and self._writable.is_set():
                line = self._pending_lines.popleft()
                if line is None:
                    self.duplex.send_refusal(
                        InvalidRequest(f"Invalid request: longer than {self._splitter.max_line_bytes} bytes")
                    )
                else:
                    self.duplex.receive(line)
                if self._queued_bytes > SLICE_BYTES:
                    self.flush()
        finally:
            self._is_taking_lines = False
        self.flush()
        if self._is_input_complete and not self._pending_lines:
            self.end()

    def eof_received(self) -> bool:
        """The peer says no more: answer what is running, then go. A last line may lack its newline."""
        self._is_input_complete = True
        self.data_received(b"\n")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone, or, where reading and writing are two pipes, says no more."""
        self.is_lost = self.is_lost or self._reader is self._writer
        self._writable.set()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self.end()

    def pause_writing(self) -> None:
        """The peer does not read: stop taking more work from it, and drop it if it never reads again."""
        self._writable.clear()
        if self._reader is not None:
            self._reader.pause_reading()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._stall_timer = self._loop.call_later(self._service.limits.write_timeout, self._abort)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writable.set()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._write_spooled()
        if self._writable.is_set():
            self._take_lines()
        if self._writable.is_set() and self._reader is not None and not self._reader.is_closing():
            self._reader.resume_reading()

    # Writing

    def write(self, data: bytes) -> None:
        """Queue one message; all of one turn go out together."""
        if not self._out and not self._is_taking_lines:
            self._loop.call_soon(self.flush)
        self._out.append(data)
        self._queued_bytes += len(data)

    def flush(self) -> None:
        """Send what is queued."""
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
        else:
            self._spool.is_single_message = False
        # A large message is alone: it is held as it is, its end beside it.
        self._spool.append(out[0] if len(out) == 1 else b"\n".join(out))
        self._spool.append(b"\n")

    def _write_spooled(self) -> None:
        """Let out what is held, a slice at a time, as the peer reads: what it leaves lying is not all in memory."""
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

    def _abort(self) -> None:
        # Only what is written can be aborted: uvloop's reading pipes cannot.
        if self._writer is not None and hasattr(self._writer, "abort"):
            self._writer.abort()
        if self._reader is not None and self._reader is not self._writer:
            self._reader.close()
        self.end()

    def _end_after_shutdown(self) -> None:
        self._loop.call_soon(self.end)

    def end(self) -> None:
        """Take nothing more; `done` tells whoever waits."""
        if not self.done.done():
            self.done.set_result(None)

    async def close(self, grace: float) -> None:
        """End the conversation and let go of the channel."""
        await self.duplex.close(grace)
        self.flush()
        self._writable.set()  # the channel itself keeps the rest until it is read
        self._write_spooled()
        for transport in {self._reader, self._writer}:
            if transport is not None:
                transport.close()


async def serve_connection(protocol: LineProtocol, grace: float) -> None:
    """Stay until the peer is done, then clean up; one that may still read gets the answers it waits for."""
    try:
        await protocol.done
    except asyncio.CancelledError:
        grace = 0.0  # whoever ends this has waited already
        raise
    finally:
        await protocol.close(0.0 if protocol.is_lost else grace)


class LineClient(DuplexClient, asyncio.Protocol):
    """One newline-delimited connection, as a protocol for asyncio's transports."""

    def __init__(self, max_line_bytes: int) -> None:
        super().__init__()
        self._splitter = LineSplitter(max_line_bytes)
        self._out: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._writer: Any = None

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        """The connection is there."""
        if self._writer is None and hasattr(transport, "write"):
            self._writer = transport

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        for line in self._splitter.feed(data):
            if line is None:
                self.reject_oversized(
                    f"a line of more than {self._splitter.max_line_bytes} bytes", self._splitter.skipped_prefix
                )
            else:
                self.receive_message(line)

    def eof_received(self) -> bool:
        """The server says no more; a last line may lack its newline."""
        self.data_received(b"\n")
        self.end(ConnectionLost("the server closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.end(ConnectionLost("the connection was lost"))
        self._writable.set()

    def pause_writing(self) -> None:
        """The server does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The server reads again."""
        self._writable.set()

    # What talking calls

    def write(self, data: bytes) -> None:
        """Send one message at once if nothing else is under way; otherwise all of one turn of the loop together."""
        self._out.append(data)
        if len(self._pending) <= 1:
            self._flush()
        elif len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if not self._out:
            return
        data = b"\n".join(self._out) + b"\n"
        self._out.clear()
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    async def drain(self) -> None:
        """Wait while the server does not read."""
        if not self._writable.is_set():
            await self._writable.wait()
