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
from dovetail.transports.command import advice, environment
from dovetail.transports.lines import Framer
from dovetail.transports.process import Child
from dovetail.transports.talking import Talking

# A process that closed its output is about to end: its exit code and last words say more than the closing did.
_LAST_WORDS = 0.5
_AWAY = "is the server running, and is that its address?"


class LineCaller(Talking, asyncio.Protocol):
    """One newline-delimited connection, as a protocol for asyncio's transports."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._framer = Framer(limit)
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
        for line in self._framer.feed(data):
            if line is None:
                self.skipped(f"a line of more than {self._framer.limit} bytes", self._framer.skipped)
            else:
                self.take(line)

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
        if len(self._waiting) <= 1:
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


class SocketCaller(LineCaller):
    """A server on a Unix socket or a TCP address."""

    def __init__(
        self,
        limit: int,
        *,
        path: str | None = None,
        host: str = "",
        port: int = 0,
        reaching: float = 10.0,
        leaving: float = 5.0,
    ) -> None:
        super().__init__(limit)
        self._reaching = reaching
        self._leaving = leaving
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._path = path
        self._host = host
        self._port = port

    async def connect(self) -> None:
        """Reach the socket."""
        where = self._path or f"{self._host}:{self._port}"
        time = asyncio.timeout(self._reaching)
        try:
            async with time:
                await self._reach()
        except OSError as exc:
            if time.expired():
                raise CannotConnect(f"no connection in {self._reaching:g} s to {where}").at(hint=_AWAY) from None
            reason = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc) or type(exc).__name__
            raise CannotConnect(f"nothing listens at {where}: {reason}").at(hint=_AWAY) from None

    async def _reach(self) -> None:
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
                await asyncio.wait([self._closed], timeout=self._leaving)
            finally:
                if not self._closed.done():
                    self._writer.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        super().connection_lost(exc)
        if not self._closed.done():
            self._closed.set_result(None)


class CommandCaller(LineCaller):
    """A server started as a process, spoken to over its standard streams. spec: stdio"""

    def __init__(
        self,
        limit: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        inherit: Any = "minimal",
        cwd: str | Path | None = None,
        stderr: Any = None,
    ) -> None:
        super().__init__(limit)
        self._command = command
        self._env = env
        self._inherit = inherit
        self._cwd = cwd
        self._stderr = stderr
        self._child: Child | None = None
        self._watching: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Start the process."""
        self._child = await Child.start(
            self._command, self, env=self._env, inherit=self._inherit, cwd=self._cwd, stderr=self._stderr
        )
        self._writer = self._child.stdin
        self._watching = self._loop.create_task(self._watch(self._child))

    def eof_received(self) -> bool:
        """It closed its output: how it ended is known in a moment."""
        self.data_received(b"\n")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Its output is over; a process that lives on without it is no server any more."""
        if self._ended is None:
            self._loop.call_later(_LAST_WORDS, self.end, Disconnected("the server closed its output"))
        self._writable.set()

    async def _watch(self, child: Child) -> None:
        code = await child.exited()
        self.end(
            Disconnected(f"the server's process ended {_how(code)}").at(exit_code=code, stderr=child.stderr_tail())
        )

    def facts(self, since: float | None = None) -> dict[str, Any]:
        """What is known of the process; of what it said on stderr, what came since a time."""
        child = self._child
        return {} if child is None else {"exit_code": child.returncode, "stderr": child.stderr_tail(since) or None}

    def advice(self) -> str | None:
        """What its last words and its environment suggest."""
        child = self._child
        if child is None or child.returncode is None:
            return None
        own = os.environ
        return advice(child.returncode, child.stderr_tail(), environment(self._env, self._inherit, own), own)

    async def disconnect(self) -> None:
        """Close its input, then terminate, then kill it."""
        if self._out:
            self._flush()
        if self._child is not None:
            await self._child.stop()
        if self._watching is not None:
            self._watching.cancel()


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"by signal {-code}"
