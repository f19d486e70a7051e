"""Test that the page on desktop hosts shows the files that `dovetail install` writes."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "desktop-hosts.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(match["info"], match["text"]) for match in FENCE.finditer(PAGE)]
SERVER = next(text for info, text in BLOCKS if info == "python")
COMMANDS = [text.splitlines()[0].removeprefix("$ ") for info, text in BLOCKS if info == "console"]
INSTALLS = [command for command in COMMANDS if command.startswith("dovetail install")]
FILES = [json.loads(text) for info, text in BLOCKS if info == "json"]
TIMEOUT_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.py").write_text(SERVER, encoding="utf-8")
    return folder


def _run(command: str, folder: Path) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DOVETAIL_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run = subprocess.run(
        shlex.split(command), cwd=folder, env=inherited | {"HOME": str(folder.parent / "home"), "PATH": path},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_every_install_command_has_a_file() -> None:
    assert len(INSTALLS) == len(FILES) == 5


@pytest.mark.parametrize(("command", "shown"), [*zip(INSTALLS, FILES, strict=True)], ids=INSTALLS)
def test_install_writes_the_file_of_the_page(command: str, shown: dict[str, Any], folder: Path) -> None:
    printed = _run(command, folder)
    path = Path(printed.splitlines()[0].partition(": ")[2])
    written = json.loads(path.read_text(encoding="utf-8"))
    (entry,) = next(iter(written.values())).values()
    if "command" in entry:
        assert entry["command"] == sys.executable
        entry["command"] = "/path/to/python"
        assert Path(entry["args"][-1]) == folder / "notes.py"
        entry["args"][-1] = "/path/to/notes.py"
    assert written == shown
    assert path.name in PAGE


def test_the_other_commands_work(folder: Path) -> None:
    _run(next(command for command in INSTALLS if "--to cursor" in command), folder)
    for command in COMMANDS:
        if command not in INSTALLS:
            assert _run(command, folder)
