"""Read lines that a user types. Another thread can end the wait for a line, so Ctrl-C takes effect immediately."""

import asyncio
import contextlib
import os
import select
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Final, Self, TextIO

from dovetail.protocol.safe_text import quote_lines, wrap_lines

_POLL_INTERVAL_S: Final = 0.1  # seconds between checks for a closed reader
_MAX_READ_BYTES: Final = 64 * 1024


class LineReader:
    """Prints prompts and reads lines from stdin, in any thread. Leaving the context stops a running read.

    If `read` is set, it is called instead of reading stdin. It returns the next line, or an empty string at the end.
    `output` is stderr by default.
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
        """Write text unchanged. Text from servers must already be escaped."""
        stream = self._output or sys.stderr
        stream.write(text)
        stream.flush()

    def write_wrapped(self, text: str) -> bool:
        """Write escaped text, and break long lines. Return whether the whole text fits on the screen."""
        size = self._get_size()
        wrapped = wrap_lines(text, size.columns)
        self.write(wrapped)
        return wrapped.count("\n") < size.lines

    def write_quoted(self, text: str, end: str = "\n") -> None:
        """Write text from a server, escaped and with a bar before each line."""
        self.write_wrapped("\n".join(quote_lines(text)) + end)

    def get_columns(self) -> int:
        """Return the number of columns of the terminal."""
        return self._get_size().columns

    def _get_size(self) -> os.terminal_size:
        default = shutil.get_terminal_size()
        try:
            size = os.get_terminal_size((self._output or sys.stderr).fileno())
        except (OSError, ValueError, AttributeError):
            return default
        return os.terminal_size((size.columns or default.columns, size.lines or default.lines))

    def discard_typed(self) -> None:
        """Discard text that the user typed before a question appeared, because it cannot be the answer."""
        self._buffer = b""
        if self._read == self._read_stdin and sys.platform != "win32":
            import termios

            with contextlib.suppress(OSError, ValueError, termios.error):  # stdin is not a terminal
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)

    def read_line(self, prompt: str = "") -> str:
        """Return the next line without surrounding whitespace. Raise EOFError at the end of the input."""
        self.write(prompt)
        line = self._read()
        if not line:
            self.write("\n")  # A terminal shows nothing for Ctrl-D, so write a line end.
            raise EOFError
        return line.strip()

    async def read_line_async(self, prompt: str = "") -> str:
        """Return the next line without blocking the event loop. Cancelling this call closes the reader."""
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
        # On Windows, `select` works only with sockets.
        if sys.platform == "win32":
            return sys.stdin.readline()
        while b"\n" not in self._buffer and (chunk := self._read_chunk(descriptor)):
            self._buffer += chunk
        line, end, self._buffer = self._buffer.partition(b"\n")
        return (line + end).decode("utf-8", "replace")

    def _read_chunk(self, descriptor: int) -> bytes:
        """Wait for input with `select`, because a blocking read cannot be cancelled."""
        while not self._closed.is_set():
            is_readable = bool(select.select([descriptor], [], [], _POLL_INTERVAL_S)[0])
            # If this reader was closed, leave the input to the next reader.
            if is_readable and not self._closed.is_set():
                return os.read(descriptor, _MAX_READ_BYTES)
        return b""
