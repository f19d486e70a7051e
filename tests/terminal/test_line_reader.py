"""Test reading lines from a function and from standard input, and none after the reader is closed."""

import asyncio
import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from dovetail.terminal.line_reader import LineReader

posix = pytest.mark.skipif(sys.platform == "win32", reason="platform: one cannot wait for standard input there")


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as source, os.fdopen(write_end, "w", buffering=1) as sink:
        monkeypatch.setattr(sys, "stdin", source)
        yield sink


def test_the_end_of_the_input_is_an_error() -> None:
    typed, output = iter(["a\n", " b", ""]), io.StringIO()
    with LineReader(lambda: next(typed), output) as lines:
        assert [lines.read_line("> "), lines.read_line()] == ["a", "b"]
        with pytest.raises(EOFError):
            lines.read_line("more: ")
    assert output.getvalue() == "> more: \n"


@posix
def test_lines_that_arrive_together_are_read_one_by_one(keyboard: TextIO) -> None:
    keyboard.write("one\ntwo\nthr")
    keyboard.flush()
    keyboard.write("ee")
    keyboard.close()
    with LineReader() as lines:
        assert [lines.read_line(), lines.read_line(), lines.read_line()] == ["one", "two", "three"]
        with pytest.raises(EOFError):
            lines.read_line()


def test_a_stream_without_a_descriptor_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("typed\n"))
    assert LineReader().read_line() == "typed"


@posix
def test_closing_ends_a_wait(keyboard: TextIO) -> None:
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(EOFError):
            lines.read_line()
        ended.set()

    with LineReader() as lines:
        thread = threading.Thread(target=wait)
        thread.start()
        assert not ended.wait(0.05)
    assert ended.wait(30)
    thread.join()


@posix
async def test_cancelling_a_wait_leaves_the_next_line_to_others(keyboard: TextIO) -> None:
    with LineReader() as lines:
        reading = asyncio.create_task(lines.read_line_async())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    keyboard.write("typed\n")
    with LineReader() as others:
        async with asyncio.timeout(30):
            assert await others.read_line_async() == "typed"
