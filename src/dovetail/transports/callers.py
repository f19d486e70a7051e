"""A client's ends of newline-delimited connections: a process's standard streams, a Unix socket, a TCP address.

Framing and flow only; what the lines mean is `talking`'s business. Time is linear in the bytes, however they are cut.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.errors import CannotConnect, Disconnected
from dovetail.transports.command import build_environment, suggest_fix
from dovetail.transports.lines import LineSplitter
from dovetail.transports.process import ChildProcess
from dovetail.transports.talking import DuplexClient

# A process that closed its output is about to end: its exit code and last words say more than the closing did.
_EXIT_WAIT_S = 0.5
_CONNECT_HINT = "is the server running, and is that its address?"


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
        self.end(Disconnected("the server closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.end(Disconnected("the connection was lost"))
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


class SocketClient(LineClient):
    """A server on a Unix socket or a TCP address."""

    def __init__(
        self,
        max_line_bytes: int,
        *,
        path: str | None = None,
        host: str = "",
        port: int = 0,
        connect_timeout: float = 10.0,
        close_timeout: float = 5.0,
    ) -> None:
        super().__init__(max_line_bytes)
        self._connect_timeout = connect_timeout
        self._close_timeout = close_timeout
        self._close_future: asyncio.Future[None] = self._loop.create_future()
        self._path = path
        self._host = host
        self._port = port

    async def connect(self) -> None:
        """Reach the socket."""
        address = self._path or f"{self._host}:{self._port}"
        timeout = asyncio.timeout(self._connect_timeout)
        try:
            async with timeout:
                await self._open_socket()
        except OSError as exc:
            if timeout.expired():
                raise CannotConnect(f"no connection in {self._connect_timeout:g} s to {address}").at(
                    hint=_CONNECT_HINT
                ) from None
            reason = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc) or type(exc).__name__
            raise CannotConnect(f"nothing listens at {address}: {reason}").at(hint=_CONNECT_HINT) from None

    async def _open_socket(self) -> None:
        if self._path is not None:
            await self._loop.create_unix_connection(lambda: self, self._path)
        else:
            await self._loop.create_connection(lambda: self, self._host, self._port)

    async def disconnect(self) -> None:
        """Close the socket, when what was said last has left; not waiting long for a server that does not read."""
        if self._out:
            self._flush()
        if self._writer is not None:
            self._writer.close()
            try:
                await asyncio.wait([self._close_future], timeout=self._close_timeout)
            finally:
                if not self._close_future.done():
                    self._writer.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        super().connection_lost(exc)
        if not self._close_future.done():
            self._close_future.set_result(None)


class StdioClient(LineClient):
    """A server started as a process, spoken to over its standard streams. spec: stdio"""

    def __init__(
        self,
        max_line_bytes: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        inherit: Any = "minimal",
        cwd: str | Path | None = None,
        stderr: Any = None,
    ) -> None:
        super().__init__(max_line_bytes)
        self._command = command
        self._env = env
        self._inherit = inherit
        self._cwd = cwd
        self._stderr = stderr
        self._child: ChildProcess | None = None
        self._watch_task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Start the process."""
        self._child = await ChildProcess.start(
            self._command, self, env=self._env, inherit=self._inherit, cwd=self._cwd, stderr=self._stderr
        )
        self._writer = self._child.stdin
        self._watch_task = self._loop.create_task(self._watch(self._child))

    def eof_received(self) -> bool:
        """It closed its output: how it ended is known in a moment."""
        self.data_received(b"\n")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Its output is over; a process that lives on without it is no server any more."""
        if self._end_error is None:
            self._loop.call_later(_EXIT_WAIT_S, self.end, Disconnected("the server closed its output"))
        self._writable.set()

    async def _watch(self, child: ChildProcess) -> None:
        code = await child.wait_exited()
        self.end(
            Disconnected(f"the server's process ended {_describe_exit(code)}").at(
                exit_code=code, stderr=child.stderr_tail()
            )
        )

    def get_diagnostics(self, since: float | None = None) -> dict[str, Any]:
        """What is known of the process; of what it said on stderr, what came since a time."""
        child = self._child
        return {} if child is None else {"exit_code": child.returncode, "stderr": child.stderr_tail(since) or None}

    def suggest_fix(self) -> str | None:
        """What its last words and its environment suggest."""
        child = self._child
        if child is None or child.returncode is None:
            return None
        parent_env = os.environ
        return suggest_fix(
            child.returncode, child.stderr_tail(), build_environment(self._env, self._inherit, parent_env), parent_env
        )

    async def disconnect(self) -> None:
        """Close its input, then terminate, then kill it."""
        if self._out:
            self._flush()
        if self._child is not None:
            await self._child.stop()
        if self._watch_task is not None:
            self._watch_task.cancel()


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"by signal {-code}"
