"""Test standard streams: messages over pipes, sockets and files, without other output of the process."""

import asyncio
import errno
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.protocol.exchange import IncomingExchange
from dovetail.transports.line_protocol import LineProtocol, serve_connection
from dovetail.transports.stdio_server import attach_streams
from support.fake_service import (
    FakeService,
    PausedWork,
    run_pending_callbacks,
    stateless_request,
    text_result,
    wait_until,
)

posix = pytest.mark.skipif(sys.platform == "win32", reason="platform: pipes cannot be polled")


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Ends:
    """The client's ends of two pipes."""

    def __init__(self, writes: int, reads: int) -> None:
        self.writes, self.reads = writes, reads
        os.set_blocking(reads, False)

    def send(self, *messages: Any) -> None:
        os.write(self.writes, b"".join(map(line, messages)))

    def read(self) -> bytes:
        try:
            return os.read(self.reads, 1 << 20)
        except BlockingIOError:
            return b""

    async def answers(self, count: int) -> list[Any]:
        data = b""

        def enough() -> bool:
            nonlocal data
            data += self.read()
            return data.count(b"\n") >= count

        await wait_until(enough)
        return [json.loads(one) for one in data.splitlines()]


@pytest.fixture(params=["pipes", "sockets"])
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Ends, int, int]]:
    """The client's ends, and the descriptors the server reads and writes."""
    if request.param == "pipes":
        (source, writes), (reads, sink) = os.pipe(), os.pipe()
    else:
        (one, two), (three, four) = socket.socketpair(), socket.socketpair()
        source, writes, reads, sink = one.detach(), two.detach(), three.detach(), four.detach()
    client = Ends(writes, reads)
    yield client, source, sink
    for descriptor in (client.writes, client.reads, source, sink):
        try:
            os.close(descriptor)
        except OSError:
            continue


pytestmark = posix


async def open_stdio(service: Any, source: int, sink: int) -> LineProtocol:
    lines = LineProtocol(service)
    await attach_streams(lines, source, sink)
    return lines


async def test_a_conversation_over_what_can_be_polled(ends: tuple[Ends, int, int]) -> None:
    client, source, sink = ends
    lines = await open_stdio(FakeService(), source, sink)
    serving = asyncio.create_task(serve_connection(lines, 1.0))
    client.send(*(stateless_request(id=number, text="x" * 1000) for number in range(20)))
    assert {one["id"] for one in await client.answers(20)} == set(range(20))
    os.close(client.writes)
    client.writes = -1
    await serving


async def test_a_client_that_closes_its_end_gets_what_was_running(ends: tuple[Ends, int, int]) -> None:
    client, source, sink = ends
    held = PausedWork()
    lines = await open_stdio(FakeService(held), source, sink)
    serving = asyncio.create_task(serve_connection(lines, 10.0))
    client.send(stateless_request(text="a"))
    await wait_until(lambda: held.started)
    os.close(client.writes)
    client.writes = -1
    await wait_until(lines.done.done)
    held.release("a")
    (answer,) = await client.answers(1)
    assert answer["result"]["content"][0]["text"] == "a"
    await serving


async def test_a_client_that_closed_its_end_and_reads_nothing_is_not_waited_for(ends: tuple[Ends, int, int]) -> None:
    client, source, sink = ends

    async def work(exchange: IncomingExchange) -> Any:
        return text_result("x" * 4_000_000)

    lines = await open_stdio(FakeService(work, write_timeout=60.0, drain_timeout=0.01), source, sink)
    client.send(*(stateless_request(id=number) for number in range(20)))
    await wait_until(
        lambda: select.select([client.reads], [], [], 0)[0]
    )  # the server answers, and the pipe is full soon
    client.send(stateless_request(id=99))  # unread input must not hide the end
    os.close(client.writes)
    client.writes = -1
    async with asyncio.timeout(10):
        await lines.done
    await lines.close(0)


async def test_a_client_that_reads_no_more_ends_the_connection(ends: tuple[Ends, int, int]) -> None:
    client, source, sink = ends
    lines = await open_stdio(FakeService(), source, sink)
    os.close(client.reads)
    client.reads = -1
    for _ in range(3):
        client.send(stateless_request())
        await run_pending_callbacks()
    async with asyncio.timeout(10):
        await lines.done
    await lines.close(0)


async def test_a_client_that_does_not_read_is_not_read_from(ends: tuple[Ends, int, int]) -> None:
    client, source, sink = ends

    async def work(exchange: IncomingExchange) -> Any:
        return text_result("x" * 4_000_000)

    stand = FakeService(work)
    lines = await open_stdio(stand, source, sink)
    client.send(stateless_request(id=0))
    await wait_until(lambda: bool(select.select([client.reads], [], [], 0)[0]))  # the answer has begun to come
    client.send(stateless_request(id=1))
    await run_pending_callbacks(50)
    assert len(stand.seen) == 1
    assert len(await client.answers(2)) == 2
    assert len(stand.seen) == 2
    await lines.close(0)


async def test_a_client_that_never_reads_is_dropped(ends: tuple[Ends, int, int]) -> None:
    client, source, sink = ends

    async def work(exchange: IncomingExchange) -> Any:
        return text_result("x" * 4_000_000)

    lines = await open_stdio(FakeService(work, write_timeout=0.05), source, sink)
    client.send(stateless_request())
    async with asyncio.timeout(10):
        await lines.done
    await lines.close(0)


# Files, which cannot be polled


async def test_a_conversation_over_files(tmp_path: Path) -> None:
    script, output = tmp_path / "in", tmp_path / "out"
    script.write_bytes(b"".join(line(stateless_request(id=number, text=str(number))) for number in range(5)))
    with script.open("rb") as reading, output.open("wb") as writing:
        lines = await open_stdio(FakeService(), reading.fileno(), writing.fileno())
        async with asyncio.timeout(10):
            await serve_connection(lines, 5.0)
    answers = [json.loads(one) for one in output.read_bytes().splitlines()]
    assert [one["result"]["content"][0]["text"] for one in answers] == ["0", "1", "2", "3", "4"]


async def test_a_file_closed_under_the_reader_ends_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, output = tmp_path / "in", tmp_path / "out"
    script.write_bytes(b"")
    threads, failures, read = set(threading.enumerate()), list[Any](), os.read
    monkeypatch.setattr(threading, "excepthook", failures.append)
    with script.open("rb") as reading, output.open("wb") as writing:
        closed = reading.fileno()

        def fail(descriptor: int, size: int) -> bytes:
            if descriptor == closed:
                raise OSError(errno.EBADF, "closed")
            return read(descriptor, size)

        monkeypatch.setattr(os, "read", fail)
        lines = await open_stdio(FakeService(), closed, writing.fileno())
        await wait_until(lambda: set(threading.enumerate()) <= threads)
        await lines.close(0)
    assert not failures


# Nothing else reaches the client

PROGRAM = """
import os, subprocess, sys
from dovetail.transports.stdio_server import isolate_streams

sys.stdout.write("before|")
with isolate_streams() as (source, sink):
    print("printed")
    os.write(1, b"written to 1\\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    assert sys.stdin.read() == "" and os.read(0, 10) == b""
    assert os.read(source, 10) == b"hello"
    os.write(sink, b"for the client|")
print("after")
"""


def test_whatever_this_process_prints_goes_to_stderr() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, input=b"hello", capture_output=True, check=True, timeout=60, env=buffered)
    assert ran.stdout == b"for the client|after\n"
    for words in (b"before|", b"printed", b"written to 1", b"from a child"):
        assert words in ran.stderr
