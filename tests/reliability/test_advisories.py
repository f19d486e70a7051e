"""Test that every listed advisory names existing tests."""

import ast
from functools import cache
from pathlib import Path

import pytest

from reliability.advisories import ADVISORIES, Advisory

TESTS = Path(__file__).parents[1]


@cache
def functions(path: str) -> frozenset[str]:
    """The tests of a file; none that is switched off."""
    found = ast.parse((TESTS / path).read_text(encoding="utf-8")).body
    return frozenset(
        one.name
        for one in found
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("skip(" in ast.unparse(mark) or "xfail" in ast.unparse(mark) for mark in one.decorator_list)
    )


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda one: one.names.partition(",")[0])
def test_each_has_a_test_that_exists(advisory: Advisory) -> None:
    assert advisory.tests
    for test in advisory.tests:
        path, _, name = test.partition("::")
        assert name in functions(path), test


def test_none_is_listed_twice() -> None:
    names = [name for one in ADVISORIES for name in one.names.split(", ")]
    assert len(names) == len(set(names))
