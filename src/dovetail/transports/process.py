"""A child process that is a server: started, watched, stopped; bytes in, bytes out.

It has a session of its own, so a Ctrl-C in the terminal is the host's alone, and so that a signal to its group reaches
what it started too. Nothing of the group outlives `stop`, or this process. spec: stdio#shutdown
"""

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from dovetail.transports import group
from dovetail.transports.command import Inherit, checked, environment, explained, windows_command
from dovetail.transports.group import Group
from dovetail.transports.pipes import open_reader, open_writer

log = logging.getLogger("dovetail")

Sink = Callable[[str], object] | TextIO

_RING = 65536
_TAIL_LINES = 20
_ARRIVALS = 256
_LINE = 16384
_LINE_END = re.compile(rb"[\r\n]+")
_DRAIN = 0.25  # for the last words of a process that is gone, if a stranger holds its pipe open


class Child:
    """A server process: what was started, what it wrote on stderr, how it ended."""

    stdin: asyncio.WriteTransport

    def __init__(self, process: subprocess.Popen[bytes], protocol: asyncio.Protocol, sink: Sink | None) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self._loop = loop
        self._group = Group(process)
        self._exited: asyncio.Future[int] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._input = _Input(protocol)
        self._output = _Output(protocol, loop.create_future())
        self._stderr = _Stderr(sink, loop.create_future())
        self._timers: list[asyncio.TimerHandle] | None = None
        self._kill = weakref.finalize(self, self._group.kill)

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
    ) -> "Child":
        """Start a command; its stdout goes to the protocol, which also hears when to pause writing to `stdin`.

        env: variables for the child, on top of those it inherits.
        inherit: "minimal" passes what a program needs to run and nothing that could be a secret; "all" passes
            everything; a list of names (patterns like "AWS_*" too) passes those besides the minimal ones.
        stderr: a function called with each line, or a text stream, or "inherit" for this process's own stderr.
        """
        words = checked(command, cwd)
        variables = environment(env, inherit, os.environ)
        process = _spawn(words, variables, cwd, None if stderr == "inherit" else subprocess.PIPE)
        child = cls(process, protocol, None if stderr == "inherit" else stderr)
        await child._connect(process)
        return child

    @property
    def returncode(self) -> int | None:
        """How it ended: the exit code, or minus the signal; None while it runs."""
        return self._group.process.returncode

    def stderr_tail(self, since: float | None = None) -> str:
        """The last lines it wrote on stderr, or those of them that came since a time of the loop; safe to show."""
        return self._stderr.tail(since)

    async def exited(self) -> int:
        """Wait until the process has ended, and its last words on stderr are here; its return code."""
        code = await asyncio.shield(self._exited)
        await self._settled(self._stderr.closed)
        return code

    async def stop(self) -> None:
        """End it: close its stdin; after 2 s terminate, after 2 more kill it and all it started.

        Once begun the stop goes on by itself, also when whoever waits here is cancelled.
        """
        self._begin_stop()
        done, _ = await asyncio.wait((self._gone,), timeout=4 * group.GRACE)
        if not done:
            log.warning("process %d cannot be killed; it is left behind", self.pid)
        await self._settled(self._stderr.closed, self._output.closed)
        self._release()

    def kill(self) -> None:
        """Kill it and all it started at once. A second call does nothing."""
        self._kill()

    async def _connect(self, process: subprocess.Popen[bytes]) -> None:
        # A pipe that is handed over belongs to its transport, also when opening that fails.
        pipes = [pipe for pipe in (process.stderr, process.stdout, process.stdin) if pipe is not None]
        try:
            self._group.keep(_told(self._loop, self._exited), _told(self._loop, self._gone))
            self.stdin = self._input.transport = await open_writer(self._input, pipes.pop())
            self._output.transport = await open_reader(self._output, pipes.pop())
            if pipes:
                self._stderr.transport = await open_reader(self._stderr, pipes.pop())
            else:
                self._stderr.connection_lost(None)
        except BaseException:
            self._kill()
            for pipe in pipes:
                pipe.close()
            self._release()
            raise

    def _begin_stop(self) -> None:
        if self._timers is None:
            self.stdin.close()
            self._timers = [
                self._loop.call_later(group.GRACE, self._group.terminate),
                self._loop.call_later(2 * group.GRACE, self._group.kill),
            ]
            self._gone.add_done_callback(self._cancel_timers)

    def _cancel_timers(self, _: object) -> None:
        for timer in self._timers or ():
            timer.cancel()

    async def _settled(self, *closed: asyncio.Future[None]) -> None:
        await asyncio.wait(closed, timeout=_DRAIN)

    def _release(self) -> None:
        self._kill.detach()
        self._input.drop()
        for half in (self._output.transport, self._stderr.transport):
            if half is not None:
                half.close()


def _spawn(
    words: list[str], variables: dict[str, str], cwd: str | Path | None, stderr: int | None
) -> subprocess.Popen[bytes]:
    flags = 0
    if sys.platform == "win32":
        words = windows_command(words, variables)
        flags = subprocess.CREATE_NO_WINDOW
    try:
        return subprocess.Popen(
            words,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=variables,
            cwd=cwd,
            start_new_session=True,
            creationflags=flags,
        )
    except (OSError, ValueError) as error:
        raise explained(error, words, variables) from error


def _told(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> Callable[..., None]:
    """A function for another thread that resolves a future of this loop."""

    def resolve(value: Any = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, value)

    def settle(value: Any) -> None:
        if not future.done():
            future.set_result(value)

    return resolve


class _Input(asyncio.Protocol):
    """The child's stdin: tells the connection when to pause writing."""

    transport: asyncio.WriteTransport | None = None

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._paused = False

    def pause_writing(self) -> None:
        self._paused = True
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._paused:
            self.resume_writing()  # whoever waits to write must learn that nobody reads

    def drop(self) -> None:
        """Forget what was not read; a transport that is closing already minds to be told again."""
        pipe = self.transport
        if pipe is not None and (pipe.get_write_buffer_size() or not pipe.is_closing()):
            pipe.abort()


class _Output(asyncio.Protocol):
    """The child's stdout: everything goes to the connection; its end is noted."""

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
    """The child's stderr: always read, the end of it kept, each line given to a sink if there is one."""

    transport: asyncio.ReadTransport | None = None

    def __init__(self, sink: Sink | None, closed: asyncio.Future[None]) -> None:
        self.closed = closed
        self._sink = sink
        self._ring = bytearray()
        self._seen = 0
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=_ARRIVALS)  # when, and after how many bytes
        self._loop = closed.get_loop()
        self._line = bytearray()
        self._complained = False

    def data_received(self, data: bytes) -> None:
        self._arrivals.append((self._loop.time(), self._seen))
        self._seen += len(data)
        self._ring += data
        if len(self._ring) > 2 * _RING:
            del self._ring[:-_RING]
        if self._sink is not None:
            *ended, rest = _LINE_END.split(data)
            for piece in ended:
                self._extend(piece)
                self._pass_on()
            self._extend(rest)

    def _extend(self, piece: bytes) -> None:
        self._line += piece[: _LINE - len(self._line)]

    def _pass_on(self) -> None:
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
            if not self._complained:
                self._complained = True
                log.exception("the sink for a server's stderr failed; further failures are not reported")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sink is not None:
            self._pass_on()
        if not self.closed.done():
            self.closed.set_result(None)

    def tail(self, since: float | None) -> str:
        lines = _LINE_END.split(bytes(self._ring[self._from(since) :]).strip(b"\r\n"))
        return "\n".join(_printable(line.decode("utf-8", "replace")) for line in lines[-_TAIL_LINES:])

    def _from(self, since: float | None) -> int:
        """Where in the ring to begin: at the line in which the first byte since then stands."""
        first = max(0, len(self._ring) - _RING)
        if since is None:
            return first
        come = next((before for when, before in self._arrivals if when >= since), self._seen)
        place = max(first, len(self._ring) - (self._seen - come))
        return max(first, self._ring.rfind(b"\n", 0, place) + 1)


def _printable(text: str) -> str:
    return "".join(
        one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode("ascii") for one in text
    )
