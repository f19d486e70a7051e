"""Run every block of the README as a reader who pastes it into a file or a shell.

Each block runs in a new folder and a new process. The folder holds only the files that earlier blocks save, marked by
"Save this as `NAME`". A `text` block is the output of the block before it. A `json` block is the configuration that the
`dovetail install` before it writes. "…" means any text in both.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.processes import run_process

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SAVE_AS = re.compile(r"[Ss]ave this as `(?P<name>[\w.]+)`")
FIRST_SCREEN_LINES = 40
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    name: str | None  # of the file to save it in
    files: dict[str, str]  # that the reader has saved before
    shown: list["Block"]  # the output and configuration blocks that follow
    runs_until_stopped: bool


def _blocks() -> list[Block]:
    blocks: list[Block] = []
    files: dict[str, str] = {}
    end = 0
    for match in FENCE.finditer(README):
        language, _, option = match["info"].strip().partition(" ")
        saved = SAVE_AS.search(README, end, match.start())
        name = saved["name"] if saved else None
        line = README.count("\n", 0, match.start("text")) + 1
        block = Block(language, match["text"], line, name, dict(files), [], option == "background")
        if language in ("text", "json"):
            blocks[-1].shown.append(block)
        else:
            blocks.append(block)
        if name is not None:
            files[name] = match["text"]
        end = match.end()
    return blocks


BLOCKS = _blocks()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """The variables of a new user for whom dovetail is installed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DOVETAIL_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return inherited | {"HOME": str(folder.parent / "home"), "COLUMNS": "100", "PATH": path}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_a_block_runs_by_itself(block: Block, folder: Path, environment: dict[str, str]) -> None:
    for name, text in block.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    if block.language == "python":
        assert block.name is not None, "the README does not say where to save this block"
        (folder / block.name).write_text(block.text, encoding="utf-8")
        output = _run([sys.executable, block.name], folder, environment)
    elif block.text == "python -m pip install .\n":
        output = _install(block.text, folder, environment)
    elif block.runs_until_stopped:
        output = _serve(block, folder, environment)
    else:
        assert block.language == "sh"
        output = _run(["sh", "-eu", "-c", block.text], folder, environment)
    for shown in block.shown:
        if shown.language == "text":
            assert _matches(shown.text, output), output
        else:
            _check_configuration(json.loads(shown.text), folder)


def test_the_blocks_are_found() -> None:
    assert [block.name for block in BLOCKS if block.language == "python"] == [
        "hello.py", "client.py", "test_hello.py", "host.py",
    ]  # fmt: skip
    assert sum(block.language == "sh" for block in BLOCKS) >= 5
    assert [shown.language for block in BLOCKS for shown in block.shown].count("json") == 1


def test_doctor_has_no_warning_about_the_first_server(folder: Path, environment: dict[str, str]) -> None:
    (folder / "hello.py").write_text(BLOCKS[0].text, encoding="utf-8")
    report = json.loads(_run(["dovetail", "doctor", "hello.py", "--json"], folder, environment))
    assert report["is_healthy"]
    assert {check["status"] for check in report["checks"]} == {"ok"}


def test_the_first_screen_names_the_two_commands() -> None:
    first_screen = "\n".join(README.splitlines()[:FIRST_SCREEN_LINES])
    assert "`make demo`" in first_screen
    assert "`make test`" in first_screen


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    run = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def _serve(block: Block, folder: Path, environment: dict[str, str]) -> str:
    """Run a server on a port that is free now, call it, and stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    assert "8000" in block.text
    (shown,) = block.shown
    with run_process(
        ["sh", "-eu", "-c", "exec " + block.text.replace("8000", port)], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in shown.text.splitlines()]
            url = f"http://127.0.0.1:{port}/mcp"
            assert _run(["dovetail", "call", url, "greet", "name=Ada"], folder, environment) == "Hello, Ada!\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
    return "".join(lines).replace(port, "8000")


def _install(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Install a copy of the checkout into a new environment that finds the dependencies in this one: no network."""
    checkout, installed = folder / "checkout", folder / "environment"
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            checkout.mkdir(exist_ok=True)
            shutil.copy(source, checkout / name)
    _run([sys.executable, "-m", "venv", str(installed)], folder, environment)
    python = installed / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(_run([str(python), "-c", where], folder, environment).strip())
    (packages / "dependencies.pth").write_text(_run([sys.executable, "-c", where], folder, environment))
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    path = os.pathsep.join([str(installed / "bin"), environment["PATH"]])
    output = _run(["sh", "-eu", "-c", command], checkout, environment | offline | {"PATH": path})
    assert (packages / "dovetail" / "__init__.py").is_file()
    assert [entry.name for entry in packages.glob("dovetail_mcp-*.dist-info")]
    assert "dovetail" in _run([str(installed / "bin" / "dovetail"), "--version"], folder, environment)
    return output


def _check_configuration(shown: dict[str, Any], folder: Path) -> None:
    """Compare the configuration in the README with the written one. Paths are other ones, but must be absolute, too."""
    (path,) = (folder.parent / "home").rglob("*.json")
    written = json.loads(path.read_text(encoding="utf-8"))
    entry = written["mcpServers"]["hello"]
    assert Path(entry["command"]).is_absolute()
    assert Path(entry["args"][-1]) == folder / "hello.py"
    entry["command"] = "/path/to/python"
    entry["args"][-1] = "/path/to/hello.py"
    assert shown == written


def _matches(shown: str, output: str) -> bool:
    pattern = "[^\n]*".join(map(re.escape, shown.strip().split("…")))
    return re.fullmatch(pattern, output.strip()) is not None
