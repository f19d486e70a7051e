"""Start, watch and stop the process of a server, and connect its standard streams.

The process runs in a separate session. Ctrl-C in the terminal therefore reaches only the host, and a signal to the
group reaches the processes that the server started, too. `stop` and the exit of this process end the whole group. spec:
stdio#shutdown
"""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from dovetail.log import log
from dovetail.transports.paced_queue import PacedQueue
from dovetail.transports.pipes import open_reader, open_writer
from dovetail.transports.process import process_group
from dovetail.transports.process.command import (
    Inherit,
    build_environment,
    check_command,
    explain_start_error,
    windows_command,
)
from dovetail.transports.process.process_group import ProcessGroup

Sink = Callable[[str], object] | TextIO

_STDERR_BUFFER_BYTES = 65536
_MAX_TAIL_LINES = 20
_MAX_ARRIVALS = 256
_MAX_LINE_BYTES = 16384
_LINE_END = re.compile(rb"[\r\n]+")
_DRAIN_TIMEOUT_S = 0.25  # After the process has exited, its output is read for this long.


class ChildProcess:
    """A server process, with its stderr and exit code."""

    stdin: asyncio.WriteTransport

    def __init__(self, process: subprocess.Popen[bytes], protocol: asyncio.Protocol, sink: Sink | None) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self._loop = loop
        self._group = ProcessGroup(process)
        self._exit_code: asyncio.Future[int] = loop.create_future()
        self._group_gone: asyncio.Future[None] = loop.create_future()
        self._input = _Input(protocol)
        self._output = _Output(protocol, loop.create_future())
        self._stderr = _Stderr(sink, loop.create_future())
        self._timers: list[asyncio.TimerHandle] | None = None
        self._kill_finalizer = weakref.finalize(self, self._group.kill)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        protocol: asyncio.Protocol,
        *,
        env: Mapping[str, str] | None = None,
        inherit: Inherit = "minimal",
        cwd: str | Path | None = None,
        stderr: Sink | Literal["inherit"] | None = None,
    ) -> "ChildProcess":
        """Start a command and pass its stdout to the protocol. The protocol is paused while the pipe to stdin is full.

        env: variables for the child, in addition to the inherited variables.
        inherit: "minimal" passes the variables that a program needs to run, and none that could be a secret. "all"
            passes all variables. A list of names or patterns such as "AWS_*" passes these in addition to the minimal
            ones.
        stderr: a function that receives each line, a text stream, or "inherit" for this process's stderr.
        """
        argv = check_command(command, cwd)
        child_env = build_environment(env, inherit, os.environ)
        process = _spawn(argv, child_env, cwd, None if stderr == "inherit" else subprocess.PIPE)
        child = cls(process, protocol, None if stderr == "inherit" else stderr)
        await child._connect(process)
        return child

    @property
    def returncode(self) -> int | None:
        """Return the exit code, or None while the process is running. After a signal, the code is negative."""
        return self._group.process.returncode

    def stderr_tail(self, since: float | None = None) -> str:
        """Return the last lines of stderr, escaped. Leave out lines that arrived before the loop time `since`."""
        return self._stderr.tail(since)

    async def wait_exited(self) -> int:
        """Wait until the process has exited and all its output was read. Return the exit code."""
        code = await asyncio.shield(self._exit_code)
        await self._wait_closed(self._stderr.closed, self._output.closed)
        return code

    async def stop(self) -> None:
        """Stop the process. Close its stdin, terminate it after 2 s, and kill its group after 2 s more.

        If the calling task is cancelled, the process is stopped anyway.
        """
        self._begin_stop()
        done, _ = await asyncio.wait((self._group_gone,), timeout=4 * process_group.GRACE_PERIOD_S)
        if not done:
            log.warning("process %d cannot be killed and keeps running", self.pid)
        await self._wait_closed(self._stderr.closed, self._output.closed)
        self._release()

    def kill(self) -> None:
        """Kill the process and its group. A second call does nothing."""
        self._kill_finalizer()

    async def _connect(self, process: subprocess.Popen[bytes]) -> None:
        # A transport closes its pipe, even if the transport could not be opened.
        pipes = [pipe for pipe in (process.stderr, process.stdout, process.stdin) if pipe is not None]
        try:
            self._group.start_watching(
                _create_resolver(self._loop, self._exit_code), _create_resolver(self._loop, self._group_gone)
            )
            self.stdin = self._input.transport = await open_writer(self._input, pipes.pop())
            self._output.transport = await open_reader(self._output, pipes.pop())
            if pipes:
                self._stderr.transport = await open_reader(self._stderr, pipes.pop())
            else:
                self._stderr.connection_lost(None)
        except BaseException:
            self._kill_finalizer()
            for pipe in pipes:
                pipe.close()
            self._release()
            raise

    def _begin_stop(self) -> None:
        if self._timers is None:
            self.stdin.close()
            self._timers = [
                self._loop.call_later(process_group.GRACE_PERIOD_S, self._group.terminate),
                self._loop.call_later(2 * process_group.GRACE_PERIOD_S, self._group.kill),
            ]
            self._group_gone.add_done_callback(self._cancel_timers)

    def _cancel_timers(self, _: object) -> None:
        for timer in self._timers or ():
            timer.cancel()

    async def _wait_closed(self, *closed: asyncio.Future[None]) -> None:
        await asyncio.wait(closed, timeout=_DRAIN_TIMEOUT_S)

    def _release(self) -> None:
        self._kill_finalizer.detach()
        self._input.drop()
        for transport in (self._output.transport, self._stderr.transport):
            if transport is not None:
                transport.close()


def _spawn(
    argv: list[str], child_env: dict[str, str], cwd: str | Path | None, stderr: int | None
) -> subprocess.Popen[bytes]:
    flags = 0
    if sys.platform == "win32":
        argv = windows_command(argv, child_env)
        flags = subprocess.CREATE_NO_WINDOW
    try:
        return subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=child_env,
            cwd=cwd,
            start_new_session=True,
            creationflags=flags,
        )
    except (OSError, ValueError) as error:
        raise explain_start_error(error, argv) from error


def _create_resolver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> Callable[..., None]:
    def resolve(value: Any = None) -> None:
        with contextlib.suppress(RuntimeError):  # The event loop is closed, so no task waits for the future.
            loop.call_soon_threadsafe(settle, value)

    def settle(value: Any) -> None:
        if not future.done():
            future.set_result(value)

    return resolve


class _Input(asyncio.Protocol):
    """Writes to the stdin of a child process. While the pipe is full, the protocol must not write."""

    transport: asyncio.WriteTransport | None = None

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._is_paused = False

    def pause_writing(self) -> None:
        self._is_paused = True
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._is_paused:
            self.resume_writing()  # Wake the tasks that wait to write, so that they notice the closed pipe.

    def drop(self) -> None:
        pipe = self.transport
        if pipe is not None and (pipe.get_write_buffer_size() or not pipe.is_closing()):
            pipe.abort()


class _Output(asyncio.Protocol):
    transport: asyncio.ReadTransport | None = None

    def __init__(self, protocol: asyncio.Protocol, closed: asyncio.Future[None]) -> None:
        self._protocol = protocol
        self.closed = closed
        self.connection_made = protocol.connection_made
        self.data_received = protocol.data_received
        self.eof_received = protocol.eof_received

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self._protocol.connection_lost(exc)


class _Stderr(asyncio.Protocol):
    """Reads the stderr of a child process, keeps the last lines, and passes each line to a function or stream."""

    transport: asyncio.ReadTransport | None = None

    def __init__(self, sink: Sink | None, closed: asyncio.Future[None]) -> None:
        self.closed = closed
        self._sink = sink
        self._buffer = bytearray()
        self._total_bytes = 0
        # Each entry contains the arrival time of a chunk and the byte position at which the chunk starts.
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=_MAX_ARRIVALS)
        self._loop = closed.get_loop()
        self._line = bytearray()
        # Each entry contains a piece of a line, and True if the piece is the last one of its line.
        self._waiting_pieces: PacedQueue[tuple[bytes, bool]] = PacedQueue(self._handle_piece, self._loop)
        self._has_logged_failure = False

    def data_received(self, data: bytes) -> None:
        self._arrivals.append((self._loop.time(), self._total_bytes))
        self._total_bytes += len(data)
        self._buffer += data
        if len(self._buffer) > 2 * _STDERR_BUFFER_BYTES:
            del self._buffer[:-_STDERR_BUFFER_BYTES]
        if self._sink is not None:
            *complete_pieces, rest = _LINE_END.split(data)
            self._waiting_pieces.transport = self.transport
            self._waiting_pieces.extend([*((piece, True) for piece in complete_pieces), (rest, False)])

    def _handle_piece(self, piece: tuple[bytes, bool]) -> None:
        data, is_complete = piece
        self._extend_line(data)
        if is_complete:
            self._emit_line()

    def _extend_line(self, piece: bytes) -> None:
        self._line += piece[: _MAX_LINE_BYTES - len(self._line)]

    def _emit_line(self) -> None:
        if not self._line:
            return
        text = self._line.decode("utf-8", "replace")
        self._line.clear()
        try:
            if callable(self._sink):
                self._sink(text)
            elif self._sink is not None:
                self._sink.write(text + "\n")
        except Exception:
            if not self._has_logged_failure:
                self._has_logged_failure = True
                log.exception("the handler for a server's stderr failed. Further failures are not reported")

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting_pieces.drain()
        if self._sink is not None:
            self._emit_line()
        if not self.closed.done():
            self.closed.set_result(None)

    def tail(self, since: float | None) -> str:
        lines = _LINE_END.split(bytes(self._buffer[self._find_start(since) :]).strip(b"\r\n"))
        return "\n".join(_printable(line.decode("utf-8", "replace")) for line in lines[-_MAX_TAIL_LINES:])

    def _find_start(self, since: float | None) -> int:
        buffer_start = max(0, len(self._buffer) - _STDERR_BUFFER_BYTES)
        if since is None:
            return buffer_start
        bytes_before = next((before for when, before in self._arrivals if when >= since), self._total_bytes)
        offset = max(buffer_start, len(self._buffer) - (self._total_bytes - bytes_before))
        return max(buffer_start, self._buffer.rfind(b"\n", 0, offset) + 1)


def _printable(line: str) -> str:
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode("ascii") for char in line
    )
