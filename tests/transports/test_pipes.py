"""Test pipes served by threads, for event loops that cannot poll them."""

import asyncio
import contextlib
import io
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop

from dovetail.transports.pipes import ThreadReader, ThreadWriter, open_reader, open_writer
from support.fake_service import run_pending_callbacks, wait_until


class Noted(asyncio.Protocol):
    """Notes what happens."""

    def __init__(self) -> None:
        self.got = b""
        self.events: list[Any] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(type(exc))

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


@pytest.fixture
async def reading() -> AsyncIterator[tuple[ThreadReader, Noted, int]]:
    source, sink = os.pipe()
    noted = Noted()
    reader = ThreadReader(asyncio.get_running_loop(), noted, os.fdopen(source, "rb", 0))
    yield reader, noted, sink
    reader.close()
    if is_open(sink):
        os.close(sink)
    await wait_until(lambda: not threads())


@pytest.fixture
async def writing() -> AsyncIterator[tuple[ThreadWriter, Noted, int]]:
    source, sink = os.pipe()
    noted = Noted()
    writer = ThreadWriter(asyncio.get_running_loop(), noted, os.fdopen(sink, "wb", 0))
    yield writer, noted, source
    writer.abort()
    if is_open(source):
        os.close(source)
    await wait_until(lambda: not threads())


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name in ("dovetail-reader", "dovetail-writer")]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_polled_pipe_is_closed_once(run: Callable[..., Any]) -> None:
    closed: list[Any] = []

    class Pipe(io.FileIO):
        def close(self) -> None:
            if not self.closed:
                os.fstat(self.fileno())  # fails if somebody has closed the number, which may be another's by now
                closed.append(self.name)
            super().close()

    async def open_and_close() -> None:
        source, sink = os.pipe()
        reader = await open_reader(Noted(), Pipe(source, "rb"))
        writer = await open_writer(Noted(), Pipe(sink, "wb"))
        descriptors = [pipe.get_extra_info("pipe").fileno() for pipe in (reader, writer)]
        writer.close()
        reader.close()
        await wait_until(lambda: not any(map(is_open, descriptors)))
        assert sorted(closed) == [source, sink]

    run(open_and_close())


async def test_what_is_written_is_delivered_and_then_the_end(reading: tuple[ThreadReader, Noted, int]) -> None:
    reader, noted, sink = reading
    assert reader.is_reading()
    os.write(sink, b"abc")
    await wait_until(lambda: noted.got == b"abc")
    os.close(sink)
    await wait_until(lambda: noted.events == ["made", "eof", type(None)])
    assert reader.is_closing()
    assert not reader.is_reading()


async def test_a_paused_reader_delivers_nothing_and_reads_little(reading: tuple[ThreadReader, Noted, int]) -> None:
    reader, noted, sink = reading
    reader.pause_reading()
    os.set_blocking(sink, False)
    written = 0

    def full() -> bool:
        nonlocal written
        try:
            written += os.write(sink, b"x" * 65536)
        except BlockingIOError:
            return True
        return False

    for _ in range(20):  # the thread may still make room for a while
        await wait_until(full)
        await asyncio.sleep(0.005)
    assert written <= 12 * 65536
    assert noted.got == b""
    os.close(sink)
    await run_pending_callbacks()
    assert noted.events == ["made"]
    reader.resume_reading()
    await wait_until(lambda: len(noted.got) == written and noted.events == ["made", "eof", type(None)])


async def test_nothing_comes_after_close(reading: tuple[ThreadReader, Noted, int]) -> None:
    reader, noted, sink = reading
    await run_pending_callbacks()
    reader.close()
    reader.close()
    os.write(sink, b"late")
    os.close(sink)
    await wait_until(lambda: not threads())
    await run_pending_callbacks()
    assert (noted.got, noted.events) == (b"", ["made", type(None)])


async def test_another_protocol_can_take_over(reading: tuple[ThreadReader, Noted, int]) -> None:
    reader, noted, sink = reading
    await run_pending_callbacks()
    other = Noted()
    reader.set_protocol(other)
    assert reader.get_protocol() is other
    os.write(sink, b"abc")
    await wait_until(lambda: other.got == b"abc")
    assert noted.got == b""


async def test_bytes_are_written_in_order_and_then_the_end(writing: tuple[ThreadWriter, Noted, int]) -> None:
    writer, noted, source = writing
    assert writer.can_write_eof()
    assert writer.get_protocol() is noted
    writer.write(b"a")
    writer.write(b"")
    writer.write(bytearray(b"bc"))
    writer.write_eof()
    writer.write(b"late")
    await wait_until(lambda: noted.events == ["made", type(None)])
    assert os.read(source, 100) == b"abc"
    assert os.read(source, 100) == b""
    assert writer.is_closing()


async def test_a_reader_that_is_slow_pauses_the_writer(writing: tuple[ThreadWriter, Noted, int]) -> None:
    writer, noted, source = writing
    for _ in range(8):
        writer.write(b"x" * 65536)
    assert writer.get_write_buffer_size() == 8 * 65536
    assert noted.events == ["made", "pause"]
    os.set_blocking(source, False)
    got = 0

    def drained() -> bool:
        nonlocal got
        with contextlib.suppress(BlockingIOError):
            got += len(os.read(source, 65536))
        return got == 8 * 65536 and "resume" in noted.events

    await wait_until(drained)
    assert noted.events == ["made", "pause", "resume"]
    await wait_until(lambda: writer.get_write_buffer_size() == 0)


async def test_a_reader_that_is_gone_ends_the_connection(writing: tuple[ThreadWriter, Noted, int]) -> None:
    writer, noted, source = writing
    os.close(source)
    writer.write(b"a")
    await wait_until(lambda: noted.events == ["made", BrokenPipeError])
    assert writer.is_closing()


async def test_an_abort_drops_what_waits(writing: tuple[ThreadWriter, Noted, int]) -> None:
    writer, noted, source = writing
    for _ in range(8):
        writer.write(b"x" * 65536)
    writer.abort()
    await asyncio.to_thread(os.read, source, 1 << 20)
    await wait_until(lambda: noted.events[-1] is type(None))
    rest = 0
    while data := os.read(source, 1 << 20):
        rest += len(data)
    assert rest <= 2 * 65536
