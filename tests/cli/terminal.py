"""A terminal with a program at it."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cli.program import PATIENCE


class Screen:
    """A terminal with a program at it."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self.seen = ""
        self._end = end

    def until(self, text: str) -> None:
        """Read until a text was seen."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert self._more(deadline), f"never saw {text!r} in {self.seen!r}"

    def until_match(self, pattern: str) -> None:
        """Read until a pattern was seen."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, self.seen):
            assert self._more(deadline), f"never saw {pattern!r} in {self.seen!r}"

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def rest(self) -> str:
        """Everything until the program is gone."""
        deadline = time.monotonic() + PATIENCE
        while self._more(deadline):
            pass
        return self.seen

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))
        try:
            piece = os.read(self._end, 65536) if ready else b""
        except OSError:  # the last one to hold the other end has closed it
            return False
        self.seen += piece.decode("utf-8", "replace")
        return bool(piece)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # shells look for the terminal that is theirs


@contextmanager
def screen(environment: dict[str, str], *words: str, command: list[str] | None = None) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command or [sys.executable, "-m", "dovetail.cli", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"TERM": "xterm"},
        close_fds=True,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    try:
        yield Screen(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
