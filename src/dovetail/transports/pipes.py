"""Use a pipe as an asyncio transport, which the event loop polls or a thread reads and writes.

On Windows, only one of the two event loops can poll pipes, and only special pipes. A thread works with every
loop.
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
_MAX_CHUNKS_AHEAD = 4  # The thread reads at most this many chunks ahead of the event loop.
_HIGH_WATER_BYTES = 65536


async def open_reader(protocol: asyncio.Protocol, pipe: IO[bytes]) -> asyncio.ReadTransport:
    """Read a pipe and pass the bytes to a protocol. The transport closes the pipe."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        return ThreadReader(loop, protocol, pipe)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, prepare_pipe(pipe, loop))
    return transport


async def read_into(reader: asyncio.StreamReader, descriptor: int) -> asyncio.ReadTransport:
    """Read a file descriptor and pass the bytes to a reader. The transport closes the descriptor.

    A thread reads the descriptor if the event loop cannot poll it.
    """
    protocol = asyncio.StreamReaderProtocol(reader)
    pipe, mode = os.fdopen(descriptor, "rb", 0), os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return await open_reader(protocol, pipe)
    return ThreadReader(asyncio.get_running_loop(), protocol, pipe)


async def open_writer(protocol: asyncio.Protocol, pipe: IO[bytes]) -> asyncio.WriteTransport:
    """Open a transport that writes to a pipe. Closing the transport closes the pipe.

    The transport calls `pause_writing` and `resume_writing` of the protocol.
    """
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        return ThreadWriter(loop, protocol, pipe)
    transport, _ = await loop.connect_write_pipe(lambda: protocol, prepare_pipe(pipe, loop))
    return transport


def prepare_pipe(pipe: IO[bytes], loop: asyncio.AbstractEventLoop) -> Any:
    """Prepare a pipe so that this event loop can close it safely."""
    if not type(loop).__module__.startswith("uvloop"):
        return pipe
    with pipe:
        return _Descriptor(os.dup(pipe.fileno()))


class _Descriptor:
    """Wraps a file descriptor for uvloop, which closes the descriptor by number.

    A file object would be closed twice, and another thread may have opened a file with the same number by then.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        pass


class ThreadReader(asyncio.ReadTransport):
    """Reads a pipe in a thread, at most a few chunks ahead of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, pipe: IO[bytes]) -> None:
        super().__init__()
        self._loop, self._protocol, self._pipe = loop, protocol, pipe
        self._slots = threading.Semaphore(_MAX_CHUNKS_AHEAD)
        self._pending: list[bytes] = []
        self._is_paused = self._is_closing = False
        protocol.connection_made(self)
        threading.Thread(target=self._run, name="dovetail-reader", daemon=True).start()

    def _run(self) -> None:
        # Closing the pipe during a read may hang, so only this thread closes it.
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
            pass  # The event loop is closed.

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
        """Stop passing data to the protocol. The sender has to wait when the pipe is full."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Pass data to the protocol again. Data that arrived during the pause comes first."""
        self._is_paused = False
        pending, self._pending = self._pending, []
        for data in pending:
            self._handle_chunk(data)

    def is_reading(self) -> bool:
        """Return whether data is passed to the protocol."""
        return not (self._is_paused or self._is_closing)

    def is_closing(self) -> bool:
        """Return whether the transport is closed or closing."""
        return self._is_closing

    def close(self) -> None:
        """Stop passing data to the protocol. The thread closes the pipe after its current read."""
        if not self._is_closing:
            self._is_closing = True
            self._slots.release()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol that receives the data."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that receives the data."""
        return self._protocol


class ThreadWriter(asyncio.WriteTransport):
    """Writes to a pipe in a thread, and pauses the protocol if too many bytes are queued."""

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
        """Queue bytes for writing."""
        if self._is_closing or not data:
            return
        self._queue.put(bytes(data))
        self._queued_bytes += len(data)
        if self._queued_bytes > _HIGH_WATER_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are queued for writing."""
        return self._queued_bytes

    def can_write_eof(self) -> bool:
        """Return True, because closing a pipe sends an end of file."""
        return True

    def write_eof(self) -> None:
        """Close the pipe after the queued bytes are written."""
        self.close()

    def close(self) -> None:
        """Close the pipe after the queued bytes are written."""
        if not self._is_closing:
            self._is_closing = True
            self._queue.put(None)

    def abort(self) -> None:
        """Close the pipe and discard the queued bytes."""
        self._is_aborted = True
        self._queue.put(None)
        self._is_closing = True

    def is_closing(self) -> bool:
        """Return whether the transport is closed or closing."""
        return self._is_closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that this writer pauses and resumes."""
        return self._protocol


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _call_in_loop(loop: asyncio.AbstractEventLoop, function: Any, argument: object) -> None:
    with contextlib.suppress(RuntimeError):  # The event loop is closed.
        loop.call_soon_threadsafe(function, argument)
