"""Find the official schemas and examples. No other module does that.

- `make setup` extracts the schemas of four revisions from the pinned conformance suite into `.spec`. They are used even
  if `MCP_SPEC_DIR` has them too, so that every clone checks against the same files.
- The suite has neither the schema of 2024-11-05 nor the official examples. They come from the folder that
  `MCP_SPEC_DIR` names.

A test declares what it needs with `needs_schema`, `each_schema` or `needs_examples`. A test whose source is missing is
not collected. The terminal summary counts these tests and gives the reason.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.extract_schemas import REVISIONS as EXTRACTED_REVISIONS

ROOT = Path(__file__).parents[2]
EXTRACTED = ROOT / ".spec"
SPEC_DIR = Path(os.path.abspath(os.environ["MCP_SPEC_DIR"])) if os.environ.get("MCP_SPEC_DIR") else None
EXAMPLES = SPEC_DIR / "2026-07-28" / "examples" if SPEC_DIR else None

needs_examples = pytest.mark.official_examples

_NOT_EXTRACTED = "an official schema in .spec, which `make setup` creates"
_NO_SPEC_DIR = "the official schema of 2024-11-05 or the official examples: MCP_SPEC_DIR is not set"


def needs_schema(*revisions: str) -> pytest.MarkDecorator:
    """Mark a test that needs the schemas of these revisions."""
    return pytest.mark.official_schema(*revisions)


def each_schema(revisions: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize a test by `revision`. Each case needs the schema of its revision."""
    cases = [pytest.param(revision, marks=needs_schema(revision)) for revision in revisions]
    return pytest.mark.parametrize("revision", cases)


def has_schema(revision: str) -> bool:
    return _reason_missing(revision) is None


def load_schema(revision: str) -> dict[str, Any]:
    path = _schema_path(revision)
    assert path is not None, f"there is no schema of {revision}: mark the test with needs_schema"
    return json.loads(path.read_bytes())


def check_spec_dir() -> None:
    """Fail if MCP_SPEC_DIR names a folder without the schema or the examples that are taken from it."""
    if SPEC_DIR is None or EXAMPLES is None:
        return
    for path in (SPEC_DIR / "2024-11-05" / "schema.json", EXAMPLES):
        if not path.exists():
            raise pytest.UsageError(f"MCP_SPEC_DIR is {SPEC_DIR}, but {path} does not exist")


def remove_uncollectable(nodes: list[pytest.Item | pytest.Collector]) -> Counter[str]:
    """Remove the tests that need something that is missing. Return how many, by reason."""
    reasons = {node: reason for node in nodes if isinstance(node, pytest.Item) and (reason := _find_reason(node))}
    nodes[:] = [node for node in nodes if node not in reasons]
    return Counter(reasons.values())


def _schema_path(revision: str) -> Path | None:
    folder = EXTRACTED if revision in EXTRACTED_REVISIONS else SPEC_DIR
    return folder / revision / "schema.json" if folder else None


def _reason_missing(revision: str) -> str | None:
    path = _schema_path(revision)
    if path is None:
        return _NO_SPEC_DIR
    return None if path.is_file() else _NOT_EXTRACTED


def _find_reason(item: pytest.Item) -> str | None:
    if EXAMPLES is None and item.get_closest_marker(needs_examples.name):
        return _NO_SPEC_DIR
    revisions = [revision for marker in item.iter_markers("official_schema") for revision in marker.args]
    return next((reason for revision in revisions if (reason := _reason_missing(revision))), None)
