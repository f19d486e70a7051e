"""A proxy between a client and a server that injects faults: one for each call, as long as `armed` has any.

Before the request reaches the server: fin, rst, garbage, busy. After the server has done its work: late-fin, late-rst,
half, corrupt, stall.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

FAULTS = ("fin", "rst", "garbage", "late-fin", "late-rst", "half", "corrupt", "stall")
BUSY = b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nretry-after: 0\r\n\r\nbusy"
MARK = b'"tools/call"'


class FaultProxy:
    """The proxy. Each fault in `armed` applies to one call."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.armed: deque[str] = deque()
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FaultProxy"]:
        tasks: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                    await self._relay(reader, writer)
            finally:
                tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tuple(tasks):
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self._to)
        fault = ""

        async def back() -> None:
            nonlocal fault
            with contextlib.suppress(ConnectionError):
                while data := await inner.read(65536):
                    mode, fault = fault, fault if fault == "stall" else ""
                    if mode == "stall":
                        continue
                    if mode == "corrupt":
                        data = data[:-8] + bytes(byte ^ 0xA5 for byte in data[-8:])
                    if mode == "half":
                        data = data[: len(data) // 2]
                    if mode not in ("late-fin", "late-rst"):
                        writer.write(data)
                        await writer.drain()
                    if mode in ("late-fin", "late-rst", "half"):
                        hang_up(writer, reset=mode == "late-rst")
                        return
            writer.close()

        answering = asyncio.get_running_loop().create_task(back())
        try:
            while data := await reader.read(65536):
                if MARK in data and self.armed:
                    fault = self.armed.popleft()
                if fault in ("fin", "rst", "garbage", "busy"):
                    if fault == "garbage":
                        writer.write(b"\x00\xff\x00 not what was asked for\r\n\r\n")
                    elif fault == "busy":
                        writer.write(BUSY)
                        fault = ""
                        continue
                    hang_up(writer, reset=fault == "rst")
                    return
                outer.write(data)
                await outer.drain()
        finally:
            outer.close()
            answering.cancel()
            await asyncio.wait([answering])


def hang_up(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    """Close or reset a connection."""
    if reset:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
