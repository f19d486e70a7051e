"""Test that the longest test files start first, and that `--quick` leaves them out."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import durations
from support.durations import ROOT, Durations, DurationWriter, read_durations

RunPytest = Callable[..., subprocess.CompletedProcess[str]]


def test_only_existing_files_have_durations() -> None:
    assert [name for name in read_durations() if not (ROOT / name).is_file()] == []


def test_the_longest_file_comes_first_and_tests_of_a_file_keep_their_order() -> None:
    items = [SimpleNamespace(path=ROOT / path, name=name) for path, name in [("a.py", 1), ("b.py", 2), ("b.py", 3)]]
    Durations({"b.py": 9, "a.py": 2}, is_quick=False).pytest_collection_modifyitems(items)  # type: ignore[arg-type]
    assert [item.name for item in items] == [2, 3, 1]


def test_a_worker_of_make_test_starts_with_the_longest_file(root: Path, project: Path, run_pytest: RunPytest) -> None:
    for name, count in (("many", 3), ("long", 1)):
        tests = "".join(f"def test_{number}():\n    pass\n" for number in range(count))
        (project / "tests" / f"test_{name}.py").write_text(tests, encoding="utf-8")
    (project / "tests" / "support" / "durations.json").write_text('{"tests/test_long.py": 9}', encoding="utf-8")
    (project / "pytest.ini").write_text("[pytest]\npythonpath = tests\n", encoding="utf-8")
    options = re.search(r"^WORKERS := (.*)$", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert options is not None
    run = run_pytest("-vv", "-n", "1", *options[1].split(), env={})
    assert re.findall(r"PASSED tests/test_(\w+)", run.stdout) == ["long", "many", "many", "many"]


def test_a_quick_run_leaves_out_long_files() -> None:
    durations = Durations({"long.py": 60, "short.py": 1}, is_quick=True)
    assert durations.pytest_ignore_collect(ROOT / "long.py") is True
    for path in (ROOT / "short.py", ROOT / "new.py", Path("/elsewhere/long.py")):
        assert durations.pytest_ignore_collect(path) is None
    assert Durations({"long.py": 60}, is_quick=False).pytest_ignore_collect(ROOT / "long.py") is None


def test_durations_of_files_that_did_not_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("other.py", "faster.py", "slower.py"):
        (tmp_path / name).touch()
    file = tmp_path / "durations.json"
    file.write_text('{"other.py": 4, "faster.py": 3, "removed.py": 3}', encoding="utf-8")
    monkeypatch.setattr(durations, "ROOT", tmp_path)
    monkeypatch.setattr(durations, "FILE", file)
    writer = DurationWriter()
    for nodeid, seconds in [("faster.py::test", 0.2), ("slower.py::test[a::b]", 3.2), ("slower.py::C::test", 1.9)]:
        writer.pytest_runtest_logreport(SimpleNamespace(nodeid=nodeid, duration=seconds))  # type: ignore[arg-type]
    writer.pytest_sessionfinish()
    assert [*json.loads(file.read_text(encoding="utf-8")).items()] == [("slower.py", 5), ("other.py", 4)]
