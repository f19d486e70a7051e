"""Read lines from the keyboard without blocking the event loop. Ctrl-C ends the wait at once."""

import asyncio
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Final, Self


class LineReader:
    """Whoever sits at standard input. Within its context it is read on this loop; after that nothing comes any more."""

    def __init__(self) -> None:
        self._buffer = b""
        self._has_ended = False
        self._ready = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __exit__(self, *_: object) -> None:
        self._has_ended = True
        self._ready.set()

    async def read_line(self, prompt: str = "") -> str:
        """What was typed, with its end; nothing when the input has ended."""
        sys.stderr.write(prompt)
        sys.stderr.flush()
        if sys.platform == "win32":
            return await asyncio.to_thread(sys.stdin.readline)
        while b"\n" not in self._buffer and not self._has_ended:
            await self._read_chunk()
        line, end, self._buffer = self._buffer.partition(b"\n")
        return (line + end).decode("utf-8", "replace")

    def read_line_threadsafe(self) -> str:
        """The same, for another thread than the loop's."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self.read_line(), self._loop).result()

    async def _read_chunk(self) -> None:
        loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
        self._ready.clear()
        loop.add_reader(fd, self._ready.set)
        try:
            await self._ready.wait()
        finally:
            loop.remove_reader(fd)
        if not self._has_ended:
            chunk = os.read(fd, 65536)
            self._buffer += chunk
            self._has_ended = not chunk


_POLL_INTERVAL_S: Final = 0.1  # seconds between two looks whether anybody still wants to know


class BlockingLineReader:
    """The lines of standard input, or of what `read` gives; once this is left, none come any more."""

    def __init__(self, read: Callable[[], str] | None = None) -> None:
        self._read_function = read or self._read_stdin
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def read_line(self) -> str:
        """One line, with its end; EOFError if there is none any more."""
        line = self._read_function()
        if not line:
            raise EOFError
        return line

    def _read_stdin(self) -> str:
        # A read that has begun cannot be called off: it begins when there is something to read.
        while sys.platform != "win32" and not select.select([sys.stdin], [], [], _POLL_INTERVAL_S)[0]:
            if self._closed.is_set():
                return ""
        return sys.stdin.readline()
