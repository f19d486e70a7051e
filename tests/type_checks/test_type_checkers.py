"""Test the public API of an installed wheel with mypy and basedpyright, both strict."""

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PROGRAMS = [*Path(__file__).parent.glob("*_program.py")]
MISTAKES = Path(__file__).with_name("mistakes.py")

Errors = dict[tuple[str, int], str]  # messages by file and line


@pytest.fixture(scope="module")
def errors(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Errors]:
    """The errors of each type checker. Both run at the same time."""
    folder = tmp_path_factory.mktemp("installed")
    python = install_wheel(root, folder)
    mypy, basedpyright = start_mypy(python, folder), start_basedpyright(python, folder)
    return {"mypy": read_mypy_errors(mypy), "basedpyright": read_basedpyright_errors(basedpyright)}


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_programs_of_users_are_accepted(checker: str, errors: dict[str, Errors]) -> None:
    assert PROGRAMS
    assert {place: text for place, text in errors[checker].items() if place[0] != MISTAKES.name} == {}


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_mistakes_are_reported(checker: str, errors: dict[str, Errors]) -> None:
    lines = MISTAKES.read_text("utf-8").splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert {line for file, line in errors[checker] if file == MISTAKES.name} == expected


def install_wheel(root: Path, folder: Path) -> Path:
    """Return an interpreter that has a wheel of this project, and the dependencies of this interpreter."""
    environment = folder / "environment"
    python = environment / "bin" / "python"
    for command in (
        ["hatchling", "build", "-t", "wheel", "-d", folder],
        ["uv", "venv", "--offline", "--python", sys.executable, environment],
    ):
        wait_for(start(*command, folder=root))
    (wheel,) = folder.glob("*.whl")
    wait_for(start("uv", "pip", "install", "--offline", "--no-deps", "--python", python, wheel, folder=root))
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return python


def start_mypy(python: Path, folder: Path) -> subprocess.Popen[str]:
    options = ("--strict", "--no-error-summary", "--cache-dir", folder / "mypy", "--python-executable", python)
    return start("mypy", *options, *PROGRAMS, MISTAKES, folder=folder)


def read_mypy_errors(process: subprocess.Popen[str]) -> Errors:
    output = wait_for(process, expected_status=1)
    matches = re.finditer(r"^(?P<file>.+?):(?P<line>\d+): error: (?P<message>.+)$", output, re.MULTILINE)
    return {(Path(match["file"]).name, int(match["line"])): match["message"] for match in matches}


def start_basedpyright(python: Path, folder: Path) -> subprocess.Popen[str]:
    config = folder / "pyrightconfig.json"
    settings = {"include": [*map(str, PROGRAMS), str(MISTAKES)], "typeCheckingMode": "strict"}
    config.write_text(json.dumps(settings), encoding="utf-8")
    return start("basedpyright", "--outputjson", "--pythonpath", python, "--project", config, folder=folder)


def read_basedpyright_errors(process: subprocess.Popen[str]) -> Errors:
    return {
        (Path(issue["file"]).name, issue["range"]["start"]["line"] + 1): issue["message"]
        for issue in json.loads(wait_for(process, expected_status=1))["generalDiagnostics"]
        if issue["severity"] == "error"
    }


def start(module: str, *arguments: object, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], expected_status: int = 0) -> str:
    output, error_output = process.communicate()
    assert process.returncode == expected_status, error_output
    return output
