"""Test that every requirement of the manifest has a test, and that every behaviour test names a requirement."""

import ast
import re
from pathlib import Path

from behaviour.manifest import requirements
from support.driver import REVISIONS, TRANSPORTS

HERE = Path(__file__).parent
ANCHORS = HERE.parent / "architecture" / "anchors.txt"


def test_every_requirement_has_a_test() -> None:
    named = {id for ids in _tests().values() for id in ids}
    assert sorted(requirements().keys() - named) == []


def test_every_behaviour_test_names_a_requirement() -> None:
    assert sorted(test for test, ids in _tests().items() if not ids) == []


def test_every_requirement_named_exists() -> None:
    unknown = [f"{test}: {id}" for test, ids in _tests().items() for id in ids if id not in requirements()]
    assert unknown == []


def test_rows_are_well_formed() -> None:
    anchors = {line for line in ANCHORS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")}
    for row in requirements().values():
        assert re.fullmatch(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", row.id), row.id
        assert row.source == "house" or row.source in anchors, f"{row.id}: no passage {row.source}"
        assert row.text.endswith("."), f"{row.id}: not a sentence"
        assert row.revisions, f"{row.id}: for no revision"
        assert row.transports, f"{row.id}: for no transport"
        assert set(row.revisions) <= set(REVISIONS), row.id
        assert set(row.transports) <= set(TRANSPORTS), row.id


def _tests() -> dict[str, list[str]]:
    """The requirements each behaviour test names, read from the source so that a selection of tests changes nothing."""
    found: dict[str, list[str]] = {}
    for file in sorted(HERE.glob("test_*.py")):
        if file == Path(__file__):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[f"{file.name}::{node.name}"] = _named(node)
    return found


def _named(test: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [
        argument.value
        for call in test.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "requirement"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
