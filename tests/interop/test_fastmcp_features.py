"""Test the form of docs/fastmcp-features.md. Its rows name the tests in the files `test_fastmcp_features_*.py`."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "fastmcp-features.md"
ROW = re.compile(r"^\| .+ \| .+ \| (same|better|different|no) \| .+ \|(?: (.+))? \|$", re.MULTILINE)


def _list_tests(paths: Iterable[Path]) -> list[str]:
    """Return the names of the tests in some files, without importing the files."""
    statements = [statement for path in paths for statement in ast.parse(path.read_text(encoding="utf-8")).body]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [item.name for item in statements if isinstance(item, functions) and item.name.startswith("test_")]


def test_page_counts_its_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = ROW.findall(text)
    assert len(rows) > 600
    for word in ("same", "better", "different", "no"):
        tests = [tests for found, tests in rows if found == word]
        checked_count = len([names for names in tests if names])
        assert re.search(rf"^\| {word} \| .+ \| {len(tests)} \| {checked_count} \|$", text, re.MULTILINE)


def test_page_names_every_test() -> None:
    cells = [tests for _, tests in ROW.findall(PAGE.read_text(encoding="utf-8")) if tests]
    for cell in cells:
        assert re.fullmatch(r"`test_\w+`(, `test_\w+`)*", cell), cell
    named = set(re.findall(r"test_\w+", " ".join(cells)))
    tests = _list_tests(sorted(HERE.glob("test_fastmcp_features_*.py")))
    assert len(tests) == len(set(tests))
    assert set(tests) <= named
    assert named - set(tests) <= set(_list_tests([HERE / "test_comparison.py"]))
