"""Lines: those of a function, of a terminal, and none once nobody waits for them."""

import os
import sys
import threading

import pytest

from dovetail.terminal.line_reader import BlockingLineReader


def test_the_end_of_the_input_is_an_end() -> None:
    typed = iter(["a\n", "b", ""])
    with BlockingLineReader(lambda: next(typed)) as lines:
        assert [lines.read_line(), lines.read_line()] == ["a\n", "b"]
        with pytest.raises(EOFError):
            lines.read_line()


@pytest.mark.skipif(sys.platform == "win32", reason="platform: one cannot wait for standard input there")
def test_whoever_waits_is_let_go_when_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = os.pipe()
    with os.fdopen(here) as source, os.fdopen(there, "w") as sink:
        monkeypatch.setattr(sys, "stdin", source)
        ended = threading.Event()
        lines = BlockingLineReader()

        def wait() -> None:
            with pytest.raises(EOFError):
                lines.read_line()
            ended.set()

        with lines:
            sink.write("typed\n")
            sink.flush()
            assert lines.read_line() == "typed\n"
            thread = threading.Thread(target=wait)
            thread.start()
            assert not ended.wait(0.05)
        assert ended.wait(30)
        thread.join()
