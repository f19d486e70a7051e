"""Run a program at a pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cli.command_process import TIMEOUT_S
from cli.screen import Screen


class TerminalSession:
    """A pseudo-terminal and the program that runs at it."""

    def __init__(self, process: subprocess.Popen[bytes], end: int, columns: int) -> None:
        self.process = process
        self.columns = columns
        self.output = ""
        self._end = end

    def wait_for(self, text: str) -> None:
        """Read until a text appears."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.output:
            assert self._read_more(deadline), f"never saw {text!r} in {self.output!r}"

    def until_match(self, pattern: str) -> None:
        """Read until a pattern matches."""
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.output):
            assert self._read_more(deadline), f"never saw {pattern!r} in {self.output!r}"

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def read_rest(self) -> str:
        """Read everything until the program exits."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._read_more(deadline):
            pass
        return self.output

    def read_screen(self) -> Screen:
        """Read everything until the program exits, and return the screen that a user sees."""
        return Screen(self.columns).feed(self.read_rest())

    def _read_more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))
        try:
            piece = os.read(self._end, 65536) if ready else b""
        except OSError:  # the other end is closed
            return False
        self.output += piece.decode("utf-8", "replace")
        return bool(piece)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # shells look for their controlling terminal


@contextmanager
def open_terminal(
    environment: dict[str, str],
    *words: str,
    command: list[str] | None = None,
    columns: int | None = None,
    term: str = "xterm",
) -> Iterator[TerminalSession]:
    columns = columns or int(environment.get("COLUMNS", "100"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        command or [sys.executable, "-m", "dovetail", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={name: value for name, value in environment.items() if name != "COLUMNS"} | {"TERM": term},
        close_fds=True,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    try:
        yield TerminalSession(process, ours, columns)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
