"""Lines a person types, waited for in a thread that can be called off."""

import select
import sys
import threading
from collections.abc import Callable
from typing import Final, Self

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
