"""Test that no document is longer than its limit, and that all documents together are short.

The limits are in `tests/architecture/budgets.toml`. Every Markdown file in git counts, except those that are generated
and the skills of the examples.
"""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from support.build_distributions import list_tracked_files

ROOT = Path(__file__).parents[2]
BUDGETS = ROOT / "tests" / "architecture" / "budgets.toml"
MAX_WORDS: dict[str, int] = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))["words"]
MAX_WORDS_OF_ALL_DOCUMENTS = MAX_WORDS.pop("all")
UNCOUNTED = ("bench/results/*", "examples/skills/*")


def _list_documents() -> list[str]:
    documents = [name for name in list_tracked_files() or [] if name.endswith(".md")]
    return [name for name in documents if not any(fnmatchcase(name, pattern) for pattern in UNCOUNTED)]


DOCUMENTS = _list_documents()


def _count_words(name: str) -> int:
    return len((ROOT / name).read_text(encoding="utf-8").split())


def _get_limit(name: str) -> int:
    return next(limit for pattern, limit in MAX_WORDS.items() if fnmatchcase(name, pattern))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_not_longer_than_its_limit(name: str) -> None:
    assert _count_words(name) <= _get_limit(name)


def test_all_documents_together_are_not_longer_than_their_limit() -> None:
    assert sum(map(_count_words, DOCUMENTS)) <= MAX_WORDS_OF_ALL_DOCUMENTS


def test_each_kind_of_document_has_its_limit() -> None:
    assert _get_limit("docs/guide/tools.md") == 1_800
    assert _get_limit("docs/decisions/shared-state.md") == 1_500
    assert _get_limit("docs/decisions/msgspec.md") == 600
    assert _get_limit("docs/security/servers.md") == 1_000
