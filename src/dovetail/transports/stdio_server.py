"""Serve a client on the standard streams of this process.

Only this module can write to the client. File descriptor 1 points to stderr, so the output of print, C libraries and
child processes goes to stderr. File descriptor 0 is empty. spec: stdio
"""

import asyncio
import os
import select
import stat
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

from dovetail.transports.line_protocol import LineProtocol
from dovetail.transports.pipes import prepare_pipe

_PIPE_BYTES = 1024 * 1024


@contextmanager
def isolate_streams() -> Generator[tuple[int, int]]:
    """Yield separate file descriptors for the MCP messages, and restore stdin and stdout at the end."""
    source, sink = os.dup(0), os.dup(1)
    stdin, stdout = sys.stdin, sys.stdout
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.dup2(2, 1)
    sys.stdout.flush()  # Output that is still in the buffer of stdout also goes to stderr.
    sys.stdout = sys.stderr
    try:
        yield source, sink
    finally:
        sys.stdin, sys.stdout = stdin, stdout
        os.dup2(source, 0)
        os.dup2(sink, 1)
        os.close(source)
        os.close(sink)


async def attach_streams(protocol: LineProtocol, source: int, sink: int) -> None:
    """Connect a protocol to one file descriptor for reading and another one for writing."""
    await _attach_writer(protocol, sink)
    await _attach_reader(protocol, source)


def _can_poll(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


async def _attach_reader(protocol: LineProtocol, descriptor: int) -> None:
    if _can_poll(descriptor):
        _enlarge_pipe(descriptor)
        loop = asyncio.get_running_loop()
        protocol.has_input_ended = lambda: _has_hung_up(descriptor)
        pipe = prepare_pipe(os.fdopen(os.dup(descriptor), "rb", 0), loop)
        await loop.connect_read_pipe(lambda: protocol, pipe)
    else:
        # A thread is needed, because event loops cannot poll files, terminals or Windows pipes.
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=_read_in_thread, args=(protocol, loop, descriptor), name="dovetail-stdin", daemon=True
        ).start()


def _has_hung_up(descriptor: int) -> bool:
    """Return whether the peer has closed its end of a pipe. This function does not read from the pipe."""
    if sys.platform == "win32":  # Windows cannot poll pipes.
        return False
    poll = select.poll()
    poll.register(descriptor, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def _read_in_thread(protocol: LineProtocol, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    try:
        while data := os.read(descriptor, 65536):
            loop.call_soon_threadsafe(protocol.data_received, data)
        loop.call_soon_threadsafe(protocol.eof_received)
    except (OSError, RuntimeError):
        pass  # The process is ending and has closed the file descriptor.


async def _attach_writer(protocol: LineProtocol, descriptor: int) -> None:
    if _can_poll(descriptor):
        _enlarge_pipe(descriptor)
        loop = asyncio.get_running_loop()
        pipe = prepare_pipe(os.fdopen(os.dup(descriptor), "wb", 0), loop)
        transport, _ = await loop.connect_write_pipe(lambda: _Backpressure(protocol), pipe)
        protocol.set_writer(transport)
    else:
        protocol.set_writer(_BlockingWriter(descriptor))


def _enlarge_pipe(descriptor: int) -> None:
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class _Backpressure(asyncio.Protocol):
    def __init__(self, line_protocol: LineProtocol) -> None:
        self._line_protocol = line_protocol

    def pause_writing(self) -> None:
        self._line_protocol.pause_writing()

    def resume_writing(self) -> None:
        self._line_protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._line_protocol.is_lost = True
        self._line_protocol.connection_lost(exc)


class _BlockingWriter:
    """Writes to a file descriptor that cannot be polled, such as a file or a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass
