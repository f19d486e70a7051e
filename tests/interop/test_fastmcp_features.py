"""Test that fastmcp_features.csv and the files `test_fastmcp_features_*.py` name the same tests.

The table has the headings of the documentation of fastmcp 4.1.2 whose features the tests compare with dovetail.
"""

import ast
import csv
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE / "fastmcp_features.csv"


def list_tests(paths: Iterable[Path]) -> list[str]:
    """Return the names of the tests in some files, without importing the files."""
    statements = [statement for path in paths for statement in ast.parse(path.read_text(encoding="utf-8")).body]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [item.name for item in statements if isinstance(item, functions) and item.name.startswith("test_")]


def list_feature_tests() -> list[str]:
    return list_tests(sorted(HERE.glob("test_fastmcp_features_*.py")))


def test_table_names_every_test() -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert {row["dovetail"] for row in rows} == {"same", "better", "different", "no"}
    assert all(row["tests"] for row in rows)
    named = {name for row in rows for name in row["tests"].split()}
    tests = list_feature_tests()
    assert len(tests) == len(set(tests))
    assert set(tests) <= named
    assert named - set(tests) <= set(list_tests([HERE / "test_comparison.py"]))
