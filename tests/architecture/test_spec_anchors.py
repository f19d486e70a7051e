"""Test that every section of the specification that a comment cites exists in the checked-in list of anchors."""

import re
from pathlib import Path

CITATION = re.compile(r"\bspec: (?P<anchors>[^\s,]+#[^\s,]+(?:, [^\s,]+#[^\s,]+)*)")


def test_cited_anchors_exist(root: Path) -> None:
    known = _anchors(root)
    unknown = [
        f"{path.relative_to(root)}:{number}: {anchor}"
        for folder in ("src", "tests", "examples")
        for path in (root / folder).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for anchor in cited(line)
        if anchor not in known
    ]
    assert not unknown


def test_citations_are_recognised() -> None:
    assert cited("# why. spec: basic#requests, tools#calling-tools") == ["basic#requests", "tools#calling-tools"]
    assert cited("x = 1  # spec: streamable-http#value-encoding.") == ["streamable-http#value-encoding"]
    assert cited("no citation: basic#requests") == []


def cited(line: str) -> list[str]:
    found = CITATION.search(line)
    return [anchor.rstrip('.;)"') for anchor in found["anchors"].split(", ")] if found else []


def _anchors(root: Path) -> set[str]:
    lines = (root / "tests" / "architecture" / "anchors.txt").read_text(encoding="utf-8").splitlines()
    return {line for line in lines if not line.startswith("#")}
