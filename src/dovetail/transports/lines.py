"""Newline-delimited messages over a byte stream: standard streams, Unix and TCP sockets.

Framing only: bytes become whole lines for a Duplex, and what it writes is gathered so that all answers of one turn of
the loop leave in one write. Time is linear in the bytes, however they are cut. spec: stdio
"""

import asyncio
from collections import deque
from typing import Any, Protocol

from dovetail.errors import InvalidRequest
from dovetail.protocol.exchange import Service
from dovetail.transports.duplex import Duplex
from dovetail.transports.spool import SLICE, Budget, Spool

_BEGINNING = 256
MIN_PIECE_BYTES = 4096  # bytes from which on a piece of a line is worth its own place


class Framer:
    """Cuts a byte stream into lines; a line over the limit is skipped and reported once."""

    __slots__ = ("_held", "_size", "_skipping", "limit", "skipped")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: list[bytes | bytearray] = []  # of a line that is not yet complete
        self._size = 0
        self._skipping = False
        self.skipped = b""  # how the last line over the limit began

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines completed by these bytes; None stands for one that was too long."""
        lines: list[bytes | None] = []
        # Looking for a newline is several times quicker than splitting where there is none.
        *ended, rest = data.split(b"\n") if b"\n" in data else (data,)
        for piece in ended:
            if self._skipping:
                self._skipping = False
            elif self._size + len(piece) > self.limit:
                self._hold(piece[:_BEGINNING])
                self._drop(lines)
            else:
                if self._held:
                    piece = b"".join((*self._held, piece))
                    self._held.clear()
                    self._size = 0
                if piece and piece != b"\r":
                    lines.append(piece)
        if rest and not self._skipping:
            self._hold(rest)
            if self._size > self.limit:
                self._drop(lines)
                self._skipping = True
        return lines

    def _hold(self, piece: bytes) -> None:
        """Keep a piece; small ones together, because each alone would take many times its size."""
        self._size += len(piece)
        last = self._held[-1] if self._held else None
        if len(piece) >= MIN_PIECE_BYTES:
            self._held.append(piece)
        elif type(last) is bytearray and len(last) < MIN_PIECE_BYTES:
            last += piece
        else:
            self._held.append(bytearray(piece))

    def _drop(self, lines: list[bytes | None]) -> None:
        self.skipped = b"".join(piece[:_BEGINNING] for piece in self._held[:_BEGINNING])[:_BEGINNING]
        self._held.clear()
        self._size = 0
        lines.append(None)


class Channel(Protocol):
    """The writing half of an asyncio transport."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def close(self) -> None: ...


class Lines(asyncio.Protocol):
    """One connection of newline-delimited messages, as a protocol for asyncio's transports."""

    def __init__(self, service: Service, *, principal: str | None = None, budget: Budget | None = None) -> None:
        self._service = service
        self._framer = Framer(service.limits.line)
        self._loop = asyncio.get_running_loop()
        self._lines: deque[bytes | None] = deque()  # not yet taken, because the peer does not read
        self._complete = False  # no more of them will come
        self._out: list[bytes] = []
        self._queued = 0  # bytes of it
        self._taking = False  # lines are being read: what is said at once leaves when they all are
        self._writable = asyncio.Event()
        self._writable.set()
        self._reader: Any = None
        self._writer: Any = None
        self._stall: asyncio.TimerHandle | None = None
        self._budget = budget or Budget(service.limits.waiting_bytes)
        self._held: Spool | None = None
        self._poured = 0
        self.lost = False  # nobody reads what is written any more
        self.duplex = Duplex(
            service, self.write, drain=self._drain, principal=principal, on_shutdown=self._after_shutdown
        )
        self.done: asyncio.Future[None] = self._loop.create_future()

    # What asyncio calls

    def connection_made(self, transport: Any) -> None:
        """The connection is there, at least the half that is read."""
        self._reader = transport
        if self._writer is None and hasattr(transport, "write"):
            self._writer = transport

    def writes_to(self, channel: Channel) -> None:
        """Where answers go, if not back on the transport that is read."""
        self._writer = channel

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        self._lines += self._framer.feed(data)
        self._take()

    def _take(self) -> None:
        """Hand on the lines that are here, while the peer reads what is answered."""
        self._taking = True
        try:
            while self._lines and self._writable.is_set():
                line = self._lines.popleft()
                if line is None:
                    self.duplex.refuse(InvalidRequest(f"Invalid request: longer than {self._framer.limit} bytes"))
                else:
                    self.duplex.receive(line)
                if self._queued > SLICE:
                    self.flush()
        finally:
            self._taking = False
        self.flush()
        if self._complete and not self._lines:
            self.end()

    def eof_received(self) -> bool:
        """The peer says no more: answer what is running, then go. A last line may lack its newline."""
        self._complete = True
        self.data_received(b"\n")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone, or, where reading and writing are two pipes, says no more."""
        self.lost = self.lost or self._reader is self._writer
        self._writable.set()
        if self._stall is not None:
            self._stall.cancel()
        self.end()

    def pause_writing(self) -> None:
        """The peer does not read: stop taking more work from it, and drop it if it never reads again."""
        self._writable.clear()
        if self._reader is not None:
            self._reader.pause_reading()
        if self._stall is not None:
            self._stall.cancel()
        self._stall = self._loop.call_later(self._service.limits.write_stall, self._abort)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writable.set()
        if self._stall is not None:
            self._stall.cancel()
        self._pour()
        if self._writable.is_set():
            self._take()
        if self._writable.is_set() and self._reader is not None and not self._reader.is_closing():
            self._reader.resume_reading()

    # Writing

    def write(self, data: bytes) -> None:
        """Queue one message; all of one turn go out together."""
        if not self._out and not self._taking:
            self._loop.call_soon(self.flush)
        self._out.append(data)
        self._queued += len(data)

    def flush(self) -> None:
        """Send what is queued."""
        if self._out and self._writer is not None:
            out, self._out = self._out, []
            queued, self._queued = self._queued, 0
            if self._held is None and queued <= SLICE and self._writable.is_set():
                self._send(b"\n".join(out) + b"\n")
            else:
                self._hold(out)
                del out
                self._pour()

    def _send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    def _hold(self, out: list[bytes]) -> None:
        if self._held is None:
            self._held, self._poured = Spool(self._budget), 0
        else:
            self._held.one_message = False
        # A large message is alone: it is held as it is, its end beside it.
        self._held.append(out[0] if len(out) == 1 else b"\n".join(out))
        self._held.append(b"\n")

    def _pour(self) -> None:
        """Let out what is held, a slice at a time, as the peer reads: what it leaves lying is not all in memory."""
        while self._held is not None and self._writable.is_set():
            part = self._held.part(self._poured)
            self._poured += len(part)
            if part:
                self._send(part)
            else:
                self._held.close()
                self._held = None

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

    def _after_shutdown(self) -> None:
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
        self._pour()
        for half in {self._reader, self._writer}:
            if half is not None:
                half.close()


async def serve_connection(lines: Lines, grace: float) -> None:
    """Stay until the peer is done, then clean up; one that may still read gets the answers it waits for."""
    try:
        await lines.done
    except asyncio.CancelledError:
        grace = 0.0  # whoever ends this has waited already
        raise
    finally:
        await lines.close(0.0 if lines.lost else grace)
