"""Test which interpreters `make matrix` uses, and how it counts results."""

import sys
from pathlib import Path

import pytest

from support import matrix


def create_interpreter(folder: Path, name: str, output: str) -> Path:
    """Create a program that prints what an interpreter prints about itself."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{output}'\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def test_each_python_from_the_oldest_supported_one_is_used_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, pyenv = tmp_path / "first", tmp_path / "second", tmp_path / "pyenv"
    create_interpreter(first, "python3.99", "3 99 /first/python3.99")
    create_interpreter(first, "python3.10", "3 10 /first/python3.10")
    create_interpreter(first, "python3.98", "")  # such as a free-threaded build
    create_interpreter(first, "python3.99-config", "3 97 /first/python3.99-config")
    create_interpreter(second, "python3.99", "3 99 /second/python3.99")
    create_interpreter(pyenv / "versions" / "3.100.1" / "bin", "python", "3 100 /pyenv/python")
    monkeypatch.setenv("PATH", f"{first}:{second}")
    monkeypatch.setenv("PYENV_ROOT", str(pyenv))
    pythons = matrix.find_pythons()
    assert list(pythons)[-2:] == ["3.99", "3.100"]
    assert pythons["3.99"] == Path("/first/python3.99")
    assert f"3.{sys.version_info.minor}" in pythons
    assert not {"3.10", "3.97", "3.98"} & set(pythons)


def test_errors_count_as_failures(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    suite = '<testsuite name="pytest" tests="10" failures="2" errors="1" skipped="3"/>'
    report.write_text(f"<testsuites>{suite}</testsuites>", encoding="utf-8")
    counts = matrix.read_counts(report)
    assert counts == matrix.Counts(passed=4, failed=3, skipped=3)
    table = matrix.format_table({"3.99": counts, "3.100": None})
    assert [line.split()[:2] for line in table.splitlines()] == [["Python", "passed"], ["3.99", "4"], ["3.100", "no"]]
