"""The commands at a real terminal: questions asked and answered, progress drawn and wiped, colours, nothing raw."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cli.program import PATIENCE

OWN = re.compile(r"\x1b\[(?:\d*(?:;\d+)*m|K)|\r")  # what the command line itself writes


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


@contextmanager
def screen(environment: dict[str, str], *words: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dovetail.cli", *words]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment | {"TERM": "xterm"}, close_fds=True
    )
    os.close(theirs)
    try:
        yield Screen(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_question_is_asked_until_the_answer_fits(url: str, environment: dict[str, str]) -> None:
    with screen(environment, "call", url, "book", "flight=X") as at:
        at.until("Which row\\x1b[2J?")
        at.until(": ")
        at.type("window\n")
        at.until("must be integer")
        at.type("7\n")
        at.until("Send this? [Y/n]")
        at.type("\n")
        assert "X in row 7" in at.rest()
        assert at.process.wait(PATIENCE) == 0
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", OWN.sub("", at.seen))


def test_a_question_may_be_declined(url: str, environment: dict[str, str]) -> None:
    with screen(environment, "call", url, "book", "flight=X", "--era", "handshake") as at:
        at.until(": ")
        at.type("7\n")
        at.until("Send this? [Y/n]")
        at.type("n\n")
        assert "in row" not in at.rest()
        assert at.process.wait(PATIENCE) == 5


def test_an_interrupt_while_asking_ends_it(url: str, environment: dict[str, str]) -> None:
    with screen(environment, "call", url, "book", "flight=X") as at:
        at.until(": ")
        at.process.send_signal(2)
        at.rest()
        assert at.process.wait(PATIENCE) == 130


def test_progress_is_drawn_and_wiped(url: str, environment: dict[str, str]) -> None:
    with screen(environment, "call", url, "count", "to=3") as at:
        seen = at.rest()
        assert at.process.wait(PATIENCE) == 0
    assert "[########................] 1 of 3 at 1\\x1b[2J" in seen
    assert seen.rstrip().endswith("\r\x1b[Kcounted to 3")


def test_a_table_fits_the_terminal_and_has_a_heading_in_bold(url: str, environment: dict[str, str]) -> None:
    with screen(environment | {"COLUMNS": "60"}, "list", url, "tools") as at:
        rows = at.rest().splitlines()
    assert rows[0].startswith("\x1b[1mtool")
    assert any(row.endswith("…") for row in rows)
    with screen(environment | {"NO_COLOR": "1"}, "list", url, "tools") as at:
        assert "\x1b" not in at.rest()
