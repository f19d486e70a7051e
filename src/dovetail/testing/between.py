"""What stands between a client and a server to make faults happen: a proxy of sockets, of pipes, or of calls in memory.

Each takes what a client would connect to and gives what it is to connect to instead.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

from dovetail.connect import Way
from dovetail.errors import Disconnected
from dovetail.protocol.recording import To
from dovetail.testing.faults import Fault, Faults, corrupted
from dovetail.testing.spotting import Http, Lines, Piece, Spotter
from dovetail.transports.memory import Memory

_RELAY = Path(__file__).with_name("relay.py")
_CHUNK = 65536
_LINE = 1 << 30  # readers are only asked for what is there


class Backend(Protocol):
    """A server that can be taken away and put back where it was."""

    async def stop(self) -> None:
        """Take it away, without a word to its clients."""
        ...

    async def start(self) -> None:
        """Put it back."""
        ...


class Cut(Exception):
    """The connection is not to go on."""


@asynccontextmanager
async def between(faults: Faults, target: Any, backend: Backend | None) -> AsyncGenerator[Any]:
    """Stand before a target; what to connect to instead. What went wrong in a fault itself is raised in the end."""
    try:
        async with _standing(faults, target, backend) as instead:
            yield instead
    except Exception:
        faults.tell()
        raise
    faults.tell()


@asynccontextmanager
async def _standing(faults: Faults, target: Any, backend: Backend | None) -> AsyncGenerator[Any]:
    if callable(getattr(target, "link", None)):
        yield Way(str(target.name), None, lambda: Intercepted(target, faults))
    elif isinstance(target, str) and target.startswith(("http://", "unix:", "tcp:")):
        proxy = SocketProxy(faults, target, backend)
        try:
            yield await proxy.open()
        finally:
            await proxy.close()
    elif isinstance(target, Sequence) and not isinstance(target, str):
        with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
            proxy = PipeProxy(faults, os.path.join(folder, "relay"))
            try:
                yield proxy.open([str(word) for word in target])
            finally:
                await proxy.close()
    else:
        raise TypeError(f"faults can be put before a Server, a command, or a plain address, not {target!r}")


async def weather(faults: Faults, to: To, piece: Piece, kill: Callable[[Fault], Awaitable[None]]) -> bytes:
    """What becomes of a piece on its way; Cut if it goes no further, as where a fault itself goes wrong."""
    if piece.message is None:
        return piece.data
    try:
        return await _befallen(faults, to, piece.data, piece.message, kill)
    except Cut:
        raise
    except Exception as exc:
        faults.failed(exc)
        raise Cut from exc


async def _befallen(
    faults: Faults, to: To, data: bytes, message: bytes, kill: Callable[[Fault], Awaitable[None]]
) -> bytes:
    for fault in faults.due(to, message):
        match fault.action:
            case "delay":
                await asyncio.sleep(fault.seconds)
            case "corrupt":
                data = corrupted(data, message)
            case "drop":
                raise Cut
            case "kill":
                await kill(fault)
                raise Cut
    return data


class End(NamedTuple):
    """One end of a connection, as streams."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Crossing:
    """One connection, passed on piece by piece in both directions."""

    def __init__(
        self,
        faults: Faults,
        spotter: Callable[[], Spotter],
        near: End,
        far: End,
        kill: Callable[[Fault], Awaitable[None]],
    ) -> None:
        self._faults = faults
        self._spotter = spotter
        self._near, self._far = near, far
        self._kill = kill

    async def run(self) -> None:
        """Until both ends are closed, or it is cut."""
        loop = asyncio.get_running_loop()
        ways = [
            loop.create_task(self._pass_on(self._near.reader, self._far.writer, "server")),
            loop.create_task(self._pass_on(self._far.reader, self._near.writer, "client")),
        ]
        try:
            await asyncio.wait(ways)
        finally:
            for one in ways:
                one.cancel()
            self.cut()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: To) -> None:
        spotter = self._spotter()
        try:
            while data := await reader.read(_CHUNK):
                for piece in spotter.feed(data):
                    writer.write(await weather(self._faults, to, piece, self._kill))
                await writer.drain()
            writer.write(spotter.held)
            writer.close()
        except (Cut, OSError):
            self.cut()

    def cut(self) -> None:
        """End it without another word."""
        for end in (self._near, self._far):
            if not end.writer.is_closing():
                end.writer.transport.abort()


# Sockets


class SocketProxy:
    """Listens where the client connects, and connects where the server listens."""

    def __init__(self, faults: Faults, target: str, backend: Backend | None) -> None:
        self._faults = faults
        self._target = target
        self._backend = backend
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._path: str | None = None
        self._port = 0
        self._spotter: Callable[[], Spotter] = Http if target.startswith("http:") else Lines
        self._door: asyncio.Server | None = None
        self._crossings: dict[asyncio.Task[None], Crossing | None] = {}

    async def open(self) -> str:
        """Begin to listen; the address for the client."""
        if self._target.startswith("unix:"):
            self._folder = tempfile.TemporaryDirectory(prefix="dovetail-")
            self._path = os.path.join(self._folder.name, "socket")
        await self._listen()
        if self._path is not None:
            return f"unix:{self._path}"
        return urlunsplit(urlsplit(self._target)._replace(netloc=f"127.0.0.1:{self._port}"))

    async def _listen(self) -> None:
        if self._path is not None:
            self._door = await asyncio.start_unix_server(self._accept, self._path)
        else:
            self._door = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._door.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._cross(End(reader, writer)))
        self._crossings[task] = None
        task.add_done_callback(self._crossings.pop)

    async def _cross(self, near: End) -> None:
        try:
            far = await self._reach()
        except OSError:
            near.writer.transport.abort()
            return
        crossing = Crossing(self._faults, self._spotter, near, far, self._kill)
        task = asyncio.current_task()
        assert task is not None
        self._crossings[task] = crossing
        await crossing.run()

    async def _reach(self) -> End:
        if self._path is not None:
            return End(*await asyncio.open_unix_connection(self._target.removeprefix("unix:").removeprefix("//")))
        parts = urlsplit(self._target)
        return End(*await asyncio.open_connection(parts.hostname, parts.port or 80))

    async def _kill(self, fault: Fault) -> None:
        if self._backend is None:
            raise RuntimeError("only a server that the test started itself can be killed")
        if not fault.restart:
            self._shut()
        await self._backend.stop()
        if fault.restart:
            # It is back before its clients see that it was gone: when they may try again is not left to luck.
            await self._backend.start()
            self._cut()

    def _shut(self) -> None:
        if self._door is not None:
            self._door.close()
        self._cut()

    def _cut(self) -> None:
        for crossing in self._crossings.values():
            if crossing is not None:
                crossing.cut()

    async def close(self) -> None:
        """Stop listening, and cut what goes on."""
        self._shut()
        tasks = [*self._crossings]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._folder is not None:
            self._folder.cleanup()


# Pipes


class PipeProxy:
    """Has a relay started in the server's place, which starts the server and sends the ends of all pipes here."""

    def __init__(self, faults: Faults, path: str) -> None:
        self._faults = faults
        self._path = path
        self._door = socket.socket(socket.AF_UNIX)
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, command: list[str]) -> list[str]:
        """Wait for relays; the command for the client."""
        self._door.bind(self._path)
        self._door.listen()
        self._door.setblocking(False)
        self._spawn(self._accept())
        return [sys.executable, "-I", "-S", str(_RELAY), self._path, *command]

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            line, _ = await loop.sock_accept(self._door)
            self._spawn(self._serve(line))

    async def _serve(self, line: socket.socket) -> None:
        with line:
            await _readable(line)
            told, descriptors, _, _ = socket.recv_fds(line, 64, 4)
        pid = int(told)
        source, sink, server_in, server_out = descriptors
        near = await _piped(source, sink)
        far = await _piped(server_out, server_in)

        async def kill(_: Fault) -> None:
            os.kill(pid, signal.SIGKILL)

        await Crossing(self._faults, Lines, near, far, kill).run()

    async def close(self) -> None:
        """Take no more relays, and cut what goes on."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._door.close()


async def _readable(line: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(line, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(line)


async def _piped(source: int, sink: int) -> End:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(_Flow, os.fdopen(sink, "wb", 0))
    return End(reader, asyncio.StreamWriter(transport, protocol, None, loop))


class _Flow(asyncio.streams.FlowControlMixin):
    """A pipe that is only written to."""

    async def _get_close_waiter(self, stream: asyncio.StreamWriter) -> None:
        return None


# Memory


class Intercepted(Memory):
    """A connection in memory on which messages wait their turn, so that faults can happen to them."""

    def __init__(self, server: Any, faults: Faults) -> None:
        super().__init__(server.link, server.start, server.stop)
        self._faults = faults
        self._queues: dict[To, asyncio.Queue[bytes]] = {"server": asyncio.Queue(), "client": asyncio.Queue()}
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        """Make the server's end, with something before it."""
        await super().connect()
        ways: dict[To, Callable[[bytes], None]] = {"server": super().write, "client": super().take}
        self._tasks += [self._loop.create_task(self._deliver(to, deliver)) for to, deliver in ways.items()]

    async def _deliver(self, to: To, deliver: Callable[[bytes], None]) -> None:
        while True:
            data = await self._queues[to].get()
            try:
                deliver(await weather(self._faults, to, Piece(data, data), self._kill))
            except Cut:
                self.end(Disconnected("the connection was lost"))
                await self.disconnect()
                return

    async def _kill(self, _: Fault) -> None:
        return

    def write(self, data: bytes) -> None:
        """Hand a message on."""
        self._queues["server"].put_nowait(data)

    def take(self, data: bytes) -> None:
        """Take a message of the server's."""
        self._queues["client"].put_nowait(data)

    async def disconnect(self) -> None:
        """Let go of the server's end."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        await super().disconnect()
