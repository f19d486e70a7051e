"""Test what happens to tests without their outside programs: in a small project, and in this one."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from support import outside_programs
from support.outside_programs import HIDDEN_VARIABLE, MARK, PACKAGES

RunPytest = Callable[..., subprocess.CompletedProcess[str]]

TESTS = """
import pytest
from support.outside_programs import get_program, needs

@pytest.fixture(params=[pytest.param("git", marks=needs("git"))])
def program(request):
    return get_program(request.param)

@needs("git", "ip")
def test_two_programs():
    raise AssertionError

def test_a_fixture_with_a_program(program):
    raise AssertionError

@pytest.mark.parametrize("name", ["plain", pytest.param("git", marks=needs("git"))])
def test_parameters(name):
    assert name == "plain"
"""


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "workers"])
def test_the_last_lines_name_the_missing_programs(
    project: Path, run_pytest: RunPytest, options: tuple[str, ...]
) -> None:
    (project / "tests" / "test_it.py").write_text(TESTS, encoding="utf-8")
    (project / "pytest.ini").write_text("[pytest]\npythonpath = tests\n", encoding="utf-8")
    run = run_pytest(*options, env={"CI": "", HIDDEN_VARIABLE: "git,ip"})
    summary, counts, command = run.stdout.splitlines()[-3:]
    assert "1 passed, 3 skipped" in summary
    assert "git (3 tests), ip (1 test)" in counts
    assert command.endswith("apt-get install git iproute2")
    assert run.returncode == 0


def test_nothing_is_said_without_a_missing_program(project: Path, run_pytest: RunPytest) -> None:
    (project / "tests" / "test_it.py").write_text("def test_it():\n    pass\n", encoding="utf-8")
    assert "1 passed" in run_pytest(env={}).stdout.splitlines()[-1]


def test_a_test_declares_the_programs_that_it_gets(project: Path, run_pytest: RunPytest) -> None:
    program = "from support.outside_programs import get_program\n\ndef test_it():\n    get_program('git')\n"
    (project / "tests" / "test_it.py").write_text(program, encoding="utf-8")
    (project / "pytest.ini").write_text("[pytest]\npythonpath = tests\n", encoding="utf-8")
    run = run_pytest(env={})
    assert "1 failed" in run.stdout
    assert "needs('git')" in run.stdout


def test_only_one_module_searches_for_programs(root: Path) -> None:
    # Interpreters and git are not outside programs of a test there.
    allowed = {"outside_programs.py", "matrix.py", "clean_run.py"}
    searching = [
        path.relative_to(root)
        for path in (root / "tests").rglob("*.py")
        if path.name not in allowed and re.search(r"\bshutil\.which\(", path.read_text(encoding="utf-8"))
    ]
    assert searching == []


def test_ci_installs_every_program_that_is_missing() -> None:
    environment = os.environ | {HIDDEN_VARIABLE: ",".join(PACKAGES)}
    command = [sys.executable, "-I", "-S", str(outside_programs.__file__)]  # without pytest
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert set(printed.split()) == set(PACKAGES.values())


@pytest.mark.interop
@pytest.mark.timeout(300)
def test_without_programs_every_test_that_needs_one_is_skipped(
    root: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    paths = _find_test_files(root / "tests")
    marked = {item.path for item in request.session.items if item.get_closest_marker(MARK)}
    assert marked <= set(paths)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", MARK, f"--junit-xml={report}"]
    environment = os.environ | {"CI": "", HIDDEN_VARIABLE: ",".join(PACKAGES)}
    run = subprocess.run([*command, *paths], cwd=root, env=environment, capture_output=True, text=True, check=False)
    suite = ElementTree.parse(report).getroot()[0]
    assert run.returncode == 0, run.stdout
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert int(suite.attrib["tests"]) == int(suite.attrib["skipped"]) > len(PACKAGES)
    last_lines = "\n".join(run.stdout.splitlines()[-2:])
    assert [name for name in PACKAGES if f"{name} (" not in last_lines] == []


def _find_test_files(folder: Path) -> list[Path]:
    """Return the test files that import the helper, or a module that imports it, or use fixtures of such a module."""
    texts = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    users = {path for path, text in texts.items() if "outside_programs import" in text}
    helpers = {path for path in users if not path.name.startswith("test_")}
    modules = [".".join(path.relative_to(folder).with_suffix("").parts) for path in helpers]
    users |= {path for path, text in texts.items() if any(f"from {module} import" in text for module in modules)}
    folders = {path.parent for path in users if path.name == "conftest.py"}
    users |= {path for path in texts if folders & set(path.parents)}
    return sorted(path for path in users if path.name.startswith("test_") and path != Path(__file__))
