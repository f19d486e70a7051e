"""Test that the longest test files start first, and that `--quick` leaves them out."""

from pathlib import Path
from types import SimpleNamespace

from support.durations import ROOT, Durations, read_durations


def test_only_existing_files_have_durations() -> None:
    assert [name for name in read_durations() if not (ROOT / name).is_file()] == []


def test_the_longest_file_comes_first_and_tests_of_a_file_keep_their_order() -> None:
    items = [SimpleNamespace(path=ROOT / path, name=name) for path, name in [("a.py", 1), ("b.py", 2), ("b.py", 3)]]
    Durations({"b.py": 9, "a.py": 2}, is_quick=False).pytest_collection_modifyitems(items)  # type: ignore[arg-type]
    assert [item.name for item in items] == [2, 3, 1]


def test_a_quick_run_leaves_out_long_files() -> None:
    durations = Durations({"long.py": 60, "short.py": 1}, is_quick=True)
    assert durations.pytest_ignore_collect(ROOT / "long.py") is True
    for path in (ROOT / "short.py", ROOT / "new.py", Path("/elsewhere/long.py")):
        assert durations.pytest_ignore_collect(path) is None
    assert Durations({"long.py": 60}, is_quick=False).pytest_ignore_collect(ROOT / "long.py") is None
