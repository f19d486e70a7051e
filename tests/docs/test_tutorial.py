"""Run every block of the tutorial as a reader who follows the pages in order.

A page runs in a new folder with the files of the pages before. A `python` block is saved under the name in "Save this
as `NAME`". A `console` block runs its commands and compares the output. "…" means any text, and alone on a line any
lines that follow. `# exits with N` after a command is its exit status. A `json` block is the configuration that the
`dovetail install` before it writes.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.processes import run_process

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial"
PAGES = [
    TUTORIAL / f"{name}.md"
    for name in ("install", "first-server", "try-it", "test-it", "use-it-in-a-host", "ask-the-user", "deploy")
]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SAVE_AS = re.compile(r"Save this as\s+`(?P<name>[\w.]+)`")
COMMAND = re.compile(r"\$ (?P<command>.*?)(?:  # exits with (?P<code>\d+))?")
INSTALL = "python -m pip install"  # the test of the README installs dovetail
PYTEST_OPTIONS = "-p no:asyncio -p no:cacheprovider"  # a reader does not have our plugins
MAX_LINES = 120
MAX_LINE_LENGTH = 130
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Block:
    info: str
    text: str
    name: str | None  # of the file to save it in


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    end = 0
    for match in FENCE.finditer(text):
        saved = SAVE_AS.search(text, end, match.start())
        yield Block(match["info"].strip(), match["text"], saved["name"] if saved else None)
        end = match.end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DOVETAIL_", "PYTEST_"))
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    pytest = {"PYTEST_ADDOPTS": PYTEST_OPTIONS, "PYTEST_DEBUG_TEMPROOT": str(folder.parent)}
    return inherited | {"HOME": str(folder.parent / "home"), "COLUMNS": "100", "PATH": path} | pytest


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_works(page: Path, folder: Path, environment: dict[str, str]) -> None:
    for earlier in PAGES[: PAGES.index(page)]:
        for block in _blocks(earlier):
            if block.name is not None:
                (folder / block.name).write_text(block.text, encoding="utf-8")
    if page.stem in ("use-it-in-a-host", "ask-the-user"):
        seed = "import notes; notes.add('milk', 'Buy milk on Monday.')"
        subprocess.run([sys.executable, "-c", seed], cwd=folder, env=environment, check=True, timeout=TIMEOUT_S)
    port = _find_free_port()
    with ExitStack() as servers:
        for block in _blocks(page):
            match block.info:
                case "python":
                    assert block.name is not None, "the page does not say where to save this block"
                    compile(block.text, block.name, "exec")
                    (folder / block.name).write_text(block.text, encoding="utf-8")
                case "console":
                    _run_transcript(block.text.replace(":8000", f":{port}"), folder, environment)
                case "console background":
                    servers.enter_context(_run_server(block.text, port, folder, environment))
                case "json":
                    _check_configuration(json.loads(block.text), folder)
                case _:
                    pytest.fail(f"no test for a block of {block.info!r}")


def test_the_pages_are_complete_and_short() -> None:
    assert {*PAGES} == {*TUTORIAL.glob("*.md")}
    for page, following in zip(PAGES, [*PAGES[1:], None], strict=True):
        lines = page.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= MAX_LINES
        assert not [line for line in lines if len(line) > MAX_LINE_LENGTH]
        assert following is None or f"({following.name})" in lines[-1]


def _run_transcript(text: str, folder: Path, environment: dict[str, str]) -> None:
    steps: list[tuple[str, int, list[str]]] = []
    for line in text.splitlines():
        if command := COMMAND.fullmatch(line):
            steps.append((command["command"], int(command["code"] or 0), []))
        else:
            steps[-1][2].append(line)
    for command, code, expected in steps:
        if command.startswith(INSTALL):
            continue
        run = subprocess.run(
            ["sh", "-eu", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert run.returncode == code, f"{command}\n{run.stdout}"
        assert _matches(expected, run.stdout.splitlines()), f"{command}\n{run.stdout}"


@contextmanager
def _run_server(text: str, port: int, folder: Path, environment: dict[str, str]) -> Generator[None]:
    command, expected = text.removeprefix("$ ").splitlines()
    program = folder / "serve.py"
    program.write_text(program.read_text(encoding="utf-8").replace("port=8000", f"port={port}"), encoding="utf-8")
    with run_process(
        ["sh", "-eu", "-c", command.replace("python", "exec python")], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == expected.replace(":8000", f":{port}")
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _check_configuration(shown: dict[str, Any], folder: Path) -> None:
    """Compare a configuration with the written one. Paths differ, but must be absolute."""
    (path,) = (folder.parent / "home").rglob("*.json")
    written = json.loads(path.read_text(encoding="utf-8"))
    entry = written["mcpServers"]["notes"]
    assert Path(entry["command"]).is_absolute()
    assert Path(entry["args"][-1]) == folder / "notes.py"
    entry["command"] = "/path/to/python"
    entry["args"][-1] = "/path/to/notes.py"
    assert shown == written


def _matches(expected: list[str], printed: list[str]) -> bool:
    for index, line in enumerate(expected):
        if line == "…":
            return True
        pattern = ".*".join(map(re.escape, line.split("…")))
        if index >= len(printed) or not re.fullmatch(pattern, printed[index]):
            return False
    return len(expected) == len(printed)
