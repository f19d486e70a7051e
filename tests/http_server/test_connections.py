"""Test many idle connections, and a stop of the server while clients send calls without a pause."""

import asyncio
import json
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from http_server.mcp_calls import encode_call
from http_server.raw_connection import RawConnection, RunningServer, run_server
from http_server.rfc9112_cases import get

TIMEOUT_S = 60.0
CALLERS = 24
IDLE = 16
CALLS_BEFORE_STOP = 400
SPARE_DESCRIPTORS = 200
MAX_CONNECTION_BYTES = 8 * 1024


class Load:
    """Clients that call a tool again and again, each on one connection, until the server closes the connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answered: set[str] = set()
        self.refused: set[str] = set()
        self.idle_ends: list[str] = []
        self.enough = asyncio.Event()

    async def call_repeatedly(self, client: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        number = 0
        try:
            while True:
                name, number = f"{client}-{number}", number + 1
                seconds = 0.2 if number % 50 == 0 else 0.002 * (client % 4)
                writer.write(encode_call("work", {"name": name, "seconds": seconds}, id=name))
                try:
                    head, text = await read_response(reader)
                except (EOFError, ConnectionError):
                    self.refused.add(name)
                    return
                if head.startswith(b"HTTP/1.1 503 "):  # The server is stopping, and has not begun the call.
                    assert b"\r\nconnection: close\r\n" in head
                    self.refused.add(name)
                    return
                assert head.startswith(b"HTTP/1.1 200 "), head
                assert json.loads(text)["result"]["content"][0]["text"] == name
                self.answered.add(name)
                if len(self.answered) >= CALLS_BEFORE_STOP:
                    self.enough.set()
                if b"\r\nconnection: close\r\n" in head:
                    assert await reader.read() == b""
                    return
        finally:
            writer.close()

    async def wait_idle(self) -> None:
        """Keep a connection without a request, and store how it ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(get())
        await read_response(reader)
        try:
            self.idle_ends.append("closed" if await reader.read() == b"" else "data")
        except ConnectionError:
            self.idle_ends.append("reset")
        finally:
            writer.close()


async def read_response(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower().replace(b"http/", b"HTTP/")
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(length)


@pytest.mark.parametrize("workers", [1, 2])
async def test_no_call_is_lost_when_the_server_stops(tmp_path: Path, workers: int) -> None:
    """Each call that began is answered, and each connection is closed in order."""
    log = tmp_path / "calls.txt"
    with run_server(tmp_path, log=str(log), workers=workers) as server:
        load = Load(server.port)
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            for client in range(CALLERS):
                tasks.create_task(load.call_repeatedly(client))
            for _ in range(IDLE):
                tasks.create_task(load.wait_idle())
            await load.enough.wait()
            server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 0
    begun = log.read_text().split()
    assert len(begun) == len(set(begun))
    assert set(begun) == load.answered
    assert not load.refused & set(begun)
    assert load.idle_ends == ["closed"] * IDLE


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Allow this process and the server as many open sockets as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_idle_connections_cost_little(tmp_path: Path, count: int) -> None:
    available = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS
    if available < count:
        pytest.skip(f"platform: a process may open only {available} sockets")
    with run_server(tmp_path, limits={"header_timeout": 600}) as server:
        process = psutil.Process(server.process.pid)
        server.settle(())
        descriptors, memory = process.num_fds(), process.memory_info().rss
        connections = [RawConnection(server.port) for _ in range(count)]
        try:
            wait_until(lambda: process.num_fds() >= descriptors + count)
            assert (process.memory_info().rss - memory) / count < MAX_CONNECTION_BYTES
            check_samples(server, connections[:: count // 50])
        finally:
            for connection in connections:
                connection.close()
        wait_until(lambda: process.num_fds() <= descriptors + 5)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_samples(server: RunningServer, connections: list[RawConnection]) -> None:
    """Check that connections which were idle still serve requests."""
    for connection in connections:
        connection.send(get())
    server.settle(connections)
    assert {connection.outcome().statuses for connection in connections} == {(200,)}
