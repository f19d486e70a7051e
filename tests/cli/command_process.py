"""Run the command line as a process, and servers for it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.command_series import SEPARATOR
from support.processes import run_process

ROOT = Path(__file__).parents[2]
SAMPLE_SERVER = Path(__file__).with_name("sample_server.py")
TIMEOUT_S = 60.0
# Characters that must never reach a terminal unescaped.
UNSAFE_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def check_success(self) -> "CommandResult":
        assert self.code == 0, self.err
        assert not UNSAFE_CHARACTERS.search(self.out + self.err)
        return self


RunCommand = Callable[..., CommandResult]
RunSeries = Callable[..., list[CommandResult]]


def build_series(commands: Iterable[Iterable[object]]) -> list[str]:
    """Return a program that runs several commands. `split_series` splits its output."""
    program = Path(__file__).with_name("command_series.py")
    return [sys.executable, str(program), json.dumps([[*map(str, words)] for words in commands])]


def split_series(output: str) -> list[tuple[int, str]]:
    """Return the exit code and the output of each command."""
    *parts, rest = re.split(f"{SEPARATOR}(-?\\d+)\r?\n", output)
    assert not rest, output
    return [(int(code), text) for text, code in zip(parts[::2], parts[1::2], strict=True)]


class ServerProcess:
    """A server process that prints its URL to stderr."""

    def __init__(self, command: list[str], environment: dict[str, str], cwd: Path | None = None) -> None:
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=cwd)

    def __enter__(self) -> str:
        assert self._process.stderr is not None
        said = ""
        while line := self._process.stderr.readline():
            said += line
            if found := re.findall(r"http://[^\s:]+:\d+/\S+", line):
                return found[-1]
        self._process.communicate(timeout=TIMEOUT_S)  # also closes its stderr
        raise RuntimeError(f"it did not say where it is: {said}")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=TIMEOUT_S)
        finally:
            self._process.kill()


def read_first_line(command: list[str], environment: dict[str, str], cwd: Path | None = None) -> str:
    """Return the first line that a program writes to stdout, while its stdin stays open."""
    pipe = subprocess.PIPE
    with run_process(command, env=environment, stdin=pipe, stdout=pipe, text=True, cwd=cwd) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.communicate(timeout=TIMEOUT_S)
    return said
