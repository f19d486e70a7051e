"""A proxy between a client and a server that injects faults: over sockets, over pipes, or in memory.

Each proxy takes the target of a client and returns another target, to which the client connects instead.
"""

import asyncio
import functools
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

from dovetail.client.targets import ResolvedTarget
from dovetail.errors import ConnectionLost
from dovetail.protocol.interfaces.client_transport import InProcessServer
from dovetail.protocol.interfaces.message_tap import Receiver
from dovetail.testing.faults import FaultPlan, PlannedFault, corrupt_message
from dovetail.transports.memory import MemoryClient

_HEAD_END = b"\r\n\r\n"


class Piece(NamedTuple):
    """Bytes to forward. If they end a message, `message` contains the whole message."""

    data: bytes
    message: bytes | None = None


class MessageSplitter(Protocol):
    """Splits one direction of a connection into messages."""

    buffer: bytes  # The first bytes of a message that is not complete yet.

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Add bytes to the buffer, and yield a `Piece` for each complete message."""
        ...


class LineMessageSplitter:
    """Splits messages that are separated by newlines."""

    def __init__(self) -> None:
        self.buffer = b""

    def feed(self, data: bytes) -> Iterator[Piece]:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            yield Piece(line + b"\n", line)


class HTTPMessageSplitter:
    """Splits HTTP requests or responses. Each body, and each event of a stream, is one message."""

    def __init__(self) -> None:
        self.buffer = b""
        self._body = b""  # The bytes of a chunked body that have been received so far.
        self._is_chunked = self._is_stream = self._is_endless = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yield each message with its headers. For a stream, first yield the headers and then each event."""
        self.buffer += data
        while (piece := self._next()) is not None:
            yield piece

    def _next(self) -> Piece | None:
        if self._is_endless:
            return self._take(len(self.buffer)) if self.buffer else None
        return self._read_chunk() if self._is_chunked else self._read_message()

    def _take(self, size: int, message: bytes | None = None) -> Piece:
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return Piece(data, message or None)

    def _read_message(self) -> Piece | None:
        end = self.buffer.find(_HEAD_END)
        if end < 0:
            return None
        start = end + len(_HEAD_END)
        first, *lines = self.buffer[:end].split(b"\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        self._is_stream = b"event-stream" in headers.get(b"content-type", b"")
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._is_chunked, self._body = True, b""
            return self._take(start)
        if b"content-length" not in headers and first.startswith(b"HTTP/") and first.split()[1] not in (b"204", b"304"):
            self._is_endless = True
            return self._take(start)
        size = start + int(headers.get(b"content-length", b"0"))
        return self._take(size, self.buffer[start:size]) if len(self.buffer) >= size else None

    def _read_chunk(self) -> Piece | None:
        """Read a chunked body and encode it again, with one chunk for each event.

        A body without events becomes one chunk.
        """
        event = self._read_event()
        if event is not None:
            return event
        line, separator, rest = self.buffer.partition(b"\r\n")
        size = int(line, 16) if separator else 0
        if not separator or len(rest) < size + 2:
            return None
        self._body += rest[:size]
        self.buffer = rest[size + 2 :]
        if size:
            return Piece(b"")
        self._is_chunked = False
        body, self._body = self._body, b""
        return Piece((_encode_chunk(body) if body else b"") + b"0\r\n\r\n", None if self._is_stream else body or None)

    def _read_event(self) -> Piece | None:
        event, separator, rest = self._body.partition(b"\n\n")
        if not self._is_stream or not separator:
            return None
        self._body = rest
        data = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
        return Piece(_encode_chunk(event + separator), b"\n".join(data) or None)


def _encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_RELAY_SCRIPT = Path(__file__).with_name("stdio_relay.py")
_CHUNK_BYTES = 65536
_STREAM_LIMIT_BYTES = 1 << 30  # The proxy reads only bytes that have arrived, so it never reaches this limit.


class Backend(Protocol):
    """A server that can be restarted at the same address."""

    async def stop(self) -> None:
        """Stop the server suddenly, without a message to its clients."""
        ...

    async def start(self) -> None:
        """Start the server again."""
        ...


class ConnectionCut(Exception):
    """Raised if a fault closes the connection."""


@asynccontextmanager
async def insert_faults(faults: FaultPlan, target: Any, backend: Backend | None) -> AsyncGenerator[Any]:
    """Start a proxy in front of a target, and yield the proxy as a target for the client.

    At the end, raise the first error that occurred in a fault.
    """
    try:
        async with _open_proxy(faults, target, backend) as proxied_target:
            yield proxied_target
    except Exception:
        faults.raise_failure()
        raise
    faults.raise_failure()


@asynccontextmanager
async def _open_proxy(faults: FaultPlan, target: Any, backend: Backend | None) -> AsyncGenerator[Any]:
    if isinstance(target, InProcessServer):
        yield ResolvedTarget(target.name, None, functools.partial(FaultyMemoryClient, target, faults))
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
                yield proxy.open([str(argument) for argument in target])
            finally:
                await proxy.close()
    else:
        raise TypeError(f"faults= requires a Server, a command, or a URL with http://, unix: or tcp:, not {target!r}")


async def apply_faults(
    faults: FaultPlan, to: Receiver, piece: Piece, kill: Callable[[PlannedFault], Awaitable[None]]
) -> bytes:
    """Apply faults to a message and return the bytes to forward.

    Raise ConnectionCut if a fault closes the connection.
    """
    if piece.message is None:
        return piece.data
    try:
        return await _apply_due_faults(faults, to, piece.data, piece.message, kill)
    except ConnectionCut:
        raise
    except Exception as exc:
        faults.record_failure(exc)
        raise ConnectionCut from exc


async def _apply_due_faults(
    faults: FaultPlan, to: Receiver, data: bytes, message: bytes, kill: Callable[[PlannedFault], Awaitable[None]]
) -> bytes:
    for fault in faults.find_due(to, message):
        match fault.action:
            case "delay":
                await asyncio.sleep(fault.seconds)
            case "corrupt":
                data = corrupt_message(data, message)
            case "drop":
                raise ConnectionCut
            case "kill":
                await kill(fault)
                raise ConnectionCut
    return data


class StreamPair(NamedTuple):
    """The reader and writer of one end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class ProxiedConnection:
    """A connection through the proxy. It forwards messages in both directions."""

    def __init__(
        self,
        faults: FaultPlan,
        create_splitter: Callable[[], MessageSplitter],
        client_side: StreamPair,
        server_side: StreamPair,
        kill: Callable[[PlannedFault], Awaitable[None]],
    ) -> None:
        self._faults = faults
        self._create_splitter = create_splitter
        self._client_side, self._server_side = client_side, server_side
        self._kill = kill

    async def run(self) -> None:
        """Forward messages until both ends are closed or a fault cuts the connection."""
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self._forward(self._client_side.reader, self._server_side.writer, "server")),
            loop.create_task(self._forward(self._server_side.reader, self._client_side.writer, "client")),
        ]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            self.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: Receiver) -> None:
        splitter = self._create_splitter()
        try:
            while data := await reader.read(_CHUNK_BYTES):
                for piece in splitter.feed(data):
                    writer.write(await apply_faults(self._faults, to, piece, self._kill))
                await writer.drain()
            writer.write(splitter.buffer)
            writer.close()
        except (ConnectionCut, OSError):
            self.abort()

    def abort(self) -> None:
        """Close both ends immediately."""
        for side in (self._client_side, self._server_side):
            if not side.writer.is_closing():
                side.writer.transport.abort()


class SocketProxy:
    """A proxy for sockets: it listens for the client and connects to the server."""

    def __init__(self, faults: FaultPlan, target: str, backend: Backend | None) -> None:
        self._faults = faults
        self._target = target
        self._backend = backend
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._path: str | None = None
        self._port = 0
        self._create_splitter: Callable[[], MessageSplitter] = (
            HTTPMessageSplitter if target.startswith("http:") else LineMessageSplitter
        )
        self._listener: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], ProxiedConnection | None] = {}

    async def open(self) -> str:
        """Start listening and return the address for the client."""
        if self._target.startswith("unix:"):
            self._folder = tempfile.TemporaryDirectory(prefix="dovetail-")
            self._path = os.path.join(self._folder.name, "socket")
        await self._listen()
        if self._path is not None:
            return f"unix:{self._path}"
        return urlunsplit(urlsplit(self._target)._replace(netloc=f"127.0.0.1:{self._port}"))

    async def _listen(self) -> None:
        if self._path is not None:
            self._listener = await asyncio.start_unix_server(self._accept, self._path)
        else:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._listener.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._proxy_connection(StreamPair(reader, writer)))
        self._connections[task] = None
        task.add_done_callback(self._connections.pop)

    async def _proxy_connection(self, client_side: StreamPair) -> None:
        try:
            server_side = await self._connect_server()
        except OSError:
            client_side.writer.transport.abort()
            return
        connection = ProxiedConnection(self._faults, self._create_splitter, client_side, server_side, self._kill)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = connection
        await connection.run()

    async def _connect_server(self) -> StreamPair:
        if self._path is not None:
            return StreamPair(
                *await asyncio.open_unix_connection(self._target.removeprefix("unix:").removeprefix("//"))
            )
        parts = urlsplit(self._target)
        return StreamPair(*await asyncio.open_connection(parts.hostname, parts.port or 80))

    async def _kill(self, fault: PlannedFault) -> None:
        if self._backend is None:
            raise RuntimeError("Faults.kill requires a server that the test has started")
        if not fault.restart:
            self._stop_listening()
        await self._backend.stop()
        if fault.restart:
            # Start the new process first, so that clients can reconnect as soon as they lose the old connection.
            await self._backend.start()
            self._abort_connections()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._abort_connections()

    def _abort_connections(self) -> None:
        for connection in self._connections.values():
            if connection is not None:
                connection.abort()

    async def close(self) -> None:
        """Stop listening and close all connections."""
        self._stop_listening()
        await _cancel_tasks([*self._connections])
        if self._folder is not None:
            self._folder.cleanup()


class PipeProxy:
    """A proxy for pipes.

    The proxy runs a relay program, which starts the server and sends its pipes to this process.
    """

    def __init__(self, faults: FaultPlan, path: str) -> None:
        if sys.platform == "win32":
            raise OSError("faults on the pipes of a process do not work on Windows. Use an HTTP or TCP server")
        self._faults = faults
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, command: list[str]) -> list[str]:
        """Start listening for the relay program, and return the command that starts it."""
        self._listener.bind(self._path)
        self._listener.listen()
        self._listener.setblocking(False)
        self._spawn(self._accept())
        return [sys.executable, "-I", "-S", str(_RELAY_SCRIPT), self._path, *command]

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            self._spawn(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            await _wait_readable(connection)
            pid_text, descriptors, _, _ = socket.recv_fds(connection, 64, 4)
        pid = int(pid_text)
        source, sink, server_in, server_out = descriptors
        client_side = await _open_pipes(source, sink)
        server_side = await _open_pipes(server_out, server_in)

        async def kill(_: PlannedFault) -> None:
            os.kill(pid, signal.SIGKILL)

        await ProxiedConnection(self._faults, LineMessageSplitter, client_side, server_side, kill).run()

    async def close(self) -> None:
        """Stop accepting relay programs, and close all connections."""
        await _cancel_tasks([*self._tasks])
        self._listener.close()


async def _cancel_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _wait_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(connection, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


async def _open_pipes(source: int, sink: int) -> StreamPair:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_STREAM_LIMIT_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(_WriteOnlyProtocol, os.fdopen(sink, "wb", 0))
    return StreamPair(reader, asyncio.StreamWriter(transport, protocol, None, loop))


class _WriteOnlyProtocol(asyncio.streams.FlowControlMixin):
    async def _get_close_waiter(self, stream: asyncio.StreamWriter) -> None:
        return None


class FaultyMemoryClient(MemoryClient):
    """An in-memory connection that queues messages, so that faults can change them."""

    def __init__(self, server: InProcessServer, faults: FaultPlan) -> None:
        super().__init__(lambda _: server.open_connection(self._queue_received), server.start, server.stop)
        self._faults = faults
        self._queues: dict[Receiver, asyncio.Queue[bytes]] = {"server": asyncio.Queue(), "client": asyncio.Queue()}
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        """Connect to the server and start to deliver queued messages."""
        await super().connect()
        receivers: dict[Receiver, Callable[[bytes], None]] = {
            "server": super().write,
            "client": self.receive_message,
        }
        self._tasks += [self._loop.create_task(self._deliver(to, receiver)) for to, receiver in receivers.items()]

    async def _deliver(self, to: Receiver, receiver: Callable[[bytes], None]) -> None:
        while True:
            data = await self._queues[to].get()
            try:
                receiver(await apply_faults(self._faults, to, Piece(data, data), self._kill))
            except ConnectionCut:
                self.end(ConnectionLost("the connection was lost"))
                await self.disconnect()
                return

    async def _kill(self, _: PlannedFault) -> None:
        return

    def write(self, data: bytes) -> None:
        """Queue a message for the server."""
        self._queues["server"].put_nowait(data)

    def _queue_received(self, data: bytes) -> None:
        self._queues["client"].put_nowait(data)

    async def disconnect(self) -> None:
        """Stop delivering messages and close the connection."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        await super().disconnect()
