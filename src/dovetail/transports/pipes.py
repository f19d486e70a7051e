"""A pipe as an asyncio transport: polled by the event loop, or by a thread where the loop cannot.

Windows polls pipes only on one of its two loops, and only pipes of a special kind; a thread works with every loop.
"""

import asyncio
import contextlib
import os
import queue
import stat
import sys
import threading
from typing import IO, Any, cast

_CHUNK_BYTES = 65536
_MAX_CHUNKS_AHEAD = 4  # chunks read ahead of a busy loop
_HIGH_WATER_BYTES = 65536


async def open_reader(protocol: asyncio.Protocol, pipe: IO[bytes]) -> asyncio.ReadTransport:
    """Bytes of the pipe go to the protocol; the transport owns the pipe."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        return ThreadReader(loop, protocol, pipe)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, prepare_pipe(pipe, loop))
    return transport


async def read_into(reader: asyncio.StreamReader, descriptor: int) -> asyncio.ReadTransport:
    """What a descriptor holds goes to a reader, whether it can be polled or not; the transport owns the descriptor."""
    protocol = asyncio.StreamReaderProtocol(reader)
    pipe, mode = os.fdopen(descriptor, "rb", 0), os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return await open_reader(protocol, pipe)
    return ThreadReader(asyncio.get_running_loop(), protocol, pipe)


async def open_writer(protocol: asyncio.Protocol, pipe: IO[bytes]) -> asyncio.WriteTransport:
    """What is written goes into the pipe; the protocol hears when to pause; the transport owns the pipe."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        return ThreadWriter(loop, protocol, pipe)
    transport, _ = await loop.connect_write_pipe(lambda: protocol, prepare_pipe(pipe, loop))
    return transport


def prepare_pipe(pipe: IO[bytes], loop: asyncio.AbstractEventLoop) -> Any:
    """The pipe for a transport of this loop, which will close it."""
    if not type(loop).__module__.startswith("uvloop"):
        return pipe
    with pipe:
        return _Descriptor(os.dup(pipe.fileno()))


class _Descriptor:
    """A descriptor that uvloop closes by its number.

    It would then close a file too, a second time: by then the number may be that of a file another thread has opened.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        pass


class ThreadReader(asyncio.ReadTransport):
    """Reads in a thread, at most a few chunks ahead of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, pipe: IO[bytes]) -> None:
        super().__init__()
        self._loop, self._protocol, self._pipe = loop, protocol, pipe
        self._slots = threading.Semaphore(_MAX_CHUNKS_AHEAD)
        self._pending: list[bytes] = []
        self._is_paused = self._is_closing = False
        protocol.connection_made(self)
        threading.Thread(target=self._run, name="dovetail-reader", daemon=True).start()

    def _run(self) -> None:
        # Closing a pipe under a thread that reads it may hang: only this thread closes it.
        try:
            with self._pipe:
                while self._slots.acquire() and not self._is_closing:
                    data = os.read(self._pipe.fileno(), _CHUNK_BYTES)
                    self._loop.call_soon_threadsafe(self._handle_chunk, data)
                    if not data:
                        break
        except OSError:
            _call_in_loop(self._loop, self._handle_chunk, b"")
        except RuntimeError:
            pass  # the loop is closed

    def _handle_chunk(self, data: bytes) -> None:
        if self._is_paused and not self._is_closing:
            self._pending.append(data)
        else:
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        self._slots.release()
        if self._is_closing:
            return
        if data:
            self._protocol.data_received(data)
        else:
            self._protocol.eof_received()
            self.close()

    def pause_reading(self) -> None:
        """Deliver nothing until told otherwise; the pipe fills up meanwhile."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Deliver again."""
        self._is_paused = False
        pending, self._pending = self._pending, []
        for data in pending:
            self._handle_chunk(data)

    def is_reading(self) -> bool:
        """Whether data is delivered."""
        return not (self._is_paused or self._is_closing)

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._is_closing

    def close(self) -> None:
        """Deliver nothing any more. The pipe itself is closed when its writers are gone."""
        if not self._is_closing:
            self._is_closing = True
            self._slots.release()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Deliver to another protocol."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whom data is delivered to."""
        return self._protocol


class ThreadWriter(asyncio.WriteTransport):
    """Writes in a thread; what waits for it is counted, and the protocol told to pause beyond a limit."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, pipe: IO[bytes]) -> None:
        super().__init__()
        self._loop, self._protocol, self._pipe = loop, protocol, pipe
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._is_paused = self._is_closing = self._is_aborted = False
        protocol.connection_made(self)
        threading.Thread(target=self._run, name="dovetail-writer", daemon=True).start()

    def _run(self) -> None:
        error: OSError | None = None
        try:
            with self._pipe:
                while (data := self._queue.get()) is not None and not self._is_aborted:
                    _write(self._pipe.fileno(), data)
                    _call_in_loop(self._loop, self._handle_written, len(data))
        except OSError as failure:
            error = failure
        _call_in_loop(self._loop, self._handle_lost, error)

    def _handle_written(self, size: int) -> None:
        self._queued_bytes -= size
        if self._is_paused and self._queued_bytes <= _HIGH_WATER_BYTES // 4:
            self._is_paused = False
            self._protocol.resume_writing()

    def _handle_lost(self, error: OSError | None) -> None:
        self._is_closing = True
        self._protocol.connection_lost(error)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes."""
        if self._is_closing or not data:
            return
        self._queue.put(bytes(data))
        self._queued_bytes += len(data)
        if self._queued_bytes > _HIGH_WATER_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """How much waits to be written."""
        return self._queued_bytes

    def can_write_eof(self) -> bool:
        """A pipe can end."""
        return True

    def write_eof(self) -> None:
        """Close after what is queued."""
        self.close()

    def close(self) -> None:
        """Close after what is queued."""
        if not self._is_closing:
            self._is_closing = True
            self._queue.put(None)

    def abort(self) -> None:
        """Close without what is queued."""
        self._is_aborted = True
        self._queue.put(None)
        self._is_closing = True

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._is_closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told to pause."""
        return self._protocol


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _call_in_loop(loop: asyncio.AbstractEventLoop, function: Any, argument: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(function, argument)
