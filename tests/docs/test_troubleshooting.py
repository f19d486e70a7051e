"""Test that the commands on the troubleshooting page fail with the exit status that the page shows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (?P<command>dovetail .*?)(?:  # exits with (?P<code>\d+))?$", PAGE, re.MULTILINE)
TIMEOUT_S = 60.0
SERVERS = {
    "notes": "",
    "exits": "import os\nos.environ['API_KEY']\n",
    "broken": "import no_such_module\n",
    "prints": "print('hello')\nraise SystemExit\n",
    "fails": "@app.tool\ndef divide() -> float:\n    '''Divide.'''\n    return 1 / 0\n",
    "slow": "import asyncio\n@app.tool\nasync def wait() -> None:\n    '''Wait.'''\n    await asyncio.sleep(60)\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SERVERS.items():
        start = f"from dovetail import Server\napp = Server({name!r}, instructions='An example.')\n"
        (tmp_path / f"{name}.py").write_text(start + text, encoding="utf-8")
    (tmp_path / "prints.py").write_text(SERVERS["prints"], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("command", "code"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_command_exits_as_shown(command: str, code: str, folder: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DOVETAIL_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = inherited | {"HOME": str(folder / "home"), "PATH": path}
    run = subprocess.run(
        shlex.split(command), cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert run.returncode == int(code or 0), run.stdout + run.stderr
    # A command that fails says what to do next.
    assert not code or run.stdout + run.stderr
