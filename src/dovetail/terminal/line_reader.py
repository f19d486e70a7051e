"""Read lines that a user types. Another thread can end the wait for a line, so Ctrl-C takes effect immediately."""

import asyncio
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Final, Self, TextIO

_POLL_INTERVAL_S: Final = 0.1  # seconds between two checks whether the reader was closed
_MAX_READ_BYTES: Final = 64 * 1024


class LineReader:
    """Writes prompts to a stream and reads lines from standard input, in any thread. Leaving the context of the reader
    ends its wait.

    `read` replaces standard input. It returns the next line, or an empty string at the end. `output` is stderr by
    default.
    """

    def __init__(self, read: Callable[[], str] | None = None, output: TextIO | None = None) -> None:
        self._read = read or self._read_stdin
        self._output = output
        self._buffer = b""
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def write(self, text: str) -> None:
        """Write text unchanged. The caller must escape text of servers first."""
        stream = self._output or sys.stderr
        stream.write(text)
        stream.flush()

    def read_line(self, prompt: str = "") -> str:
        """Return the next line without surrounding whitespace. Raise EOFError at the end of the input."""
        self.write(prompt)
        line = self._read()
        if not line:
            raise EOFError
        return line.strip()

    async def read_line_async(self, prompt: str = "") -> str:
        """Return the next line as `read_line` does, without blocking the event loop. If the call is cancelled, the
        reader is closed.
        """
        try:
            return await asyncio.to_thread(self.read_line, prompt)
        except asyncio.CancelledError:
            self._closed.set()
            raise

    def _read_stdin(self) -> str:
        try:
            descriptor = sys.stdin.fileno()
        except (OSError, ValueError):
            return sys.stdin.readline()
        if sys.platform == "win32":  # on Windows, select accepts only sockets
            return sys.stdin.readline()
        while b"\n" not in self._buffer and (chunk := self._read_chunk(descriptor)):
            self._buffer += chunk
        line, end, self._buffer = self._buffer.partition(b"\n")
        return (line + end).decode("utf-8", "replace")

    def _read_chunk(self, descriptor: int) -> bytes:
        """Return the typed bytes, or empty bytes at the end. Wait with `select` first, because a read cannot be
        cancelled.
        """
        while not self._closed.is_set():
            is_readable = bool(select.select([descriptor], [], [], _POLL_INTERVAL_S)[0])
            # A reader that was closed in the meantime must leave the input to the next reader.
            if is_readable and not self._closed.is_set():
                return os.read(descriptor, _MAX_READ_BYTES)
        return b""
