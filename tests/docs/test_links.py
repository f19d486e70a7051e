"""Test links between pages down to the heading, the commands on the pages, and that generated parts are current.

Only the site has the reference. Links to it are checked against pages that this test generates.
"""

import difflib
import functools
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dovetail
from dovetail import ClientLimits, Timeouts

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GUIDE = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
TUTORIAL = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)
SOURCE = re.compile(r"`(?:\.venv/bin/python )?(?P<path>[\w/]+\.py)[` ]")
TOPS = ("src", "tests", "docs", "examples", "bench")
SAVED = re.compile(r"[Ss]ave this as\s+`(?P<name>[\w.]+)`")  # files that the reader writes
COMMAND = re.compile(r"`make (?P<target>[a-z]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_resolve(page: Path) -> None:
    dead = [target for target in _links(page) if not _resolves(page, target)]
    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(COMMAND.findall(page.read_text(encoding="utf-8"))) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(SOURCE.findall(FENCED.sub("", page.read_text(encoding="utf-8"))))
    known = [path.relative_to(ROOT).as_posix() for top in TOPS for path in (ROOT / top).rglob("*.py")]
    known += [
        name for text in [ROOT / "README.md", *TUTORIAL] for name in SAVED.findall(text.read_text(encoding="utf-8"))
    ]
    named = {name for name in named if not name.startswith("/path/to/")}
    assert not [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, pending = set[Path](), [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page in reached or not page.exists():
            continue
        reached.add(page)
        targets = ((page.parent / target.partition("#")[0]).resolve() for target in _links(page) if ":" not in target)
        for target in targets:
            pending += target.glob("*.md") if target.is_dir() else [target] if target.suffix == ".md" else []
    assert not set(PAGES) - reached


def test_every_public_name_is_shown_in_the_guide() -> None:
    words = set(re.findall(r"\w+", " ".join(page.read_text(encoding="utf-8") for page in GUIDE)))
    assert not set(dovetail.__all__) - words


def test_generated_pages_are_current() -> None:
    for page, text in _load_generator("generate").create_pages().items():
        changes = difflib.unified_diff(
            page.read_text(encoding="utf-8").splitlines(), text.splitlines(), page.name, lineterm=""
        )
        assert not [*changes], "run docs/generate.py"


def test_the_matrix_has_a_row_for_every_method_and_a_column_for_every_revision() -> None:
    from dovetail.wire.methods import METHODS
    from dovetail.wire.revisions import REVISIONS

    head, _, *rows = _load_generator("generate").create_methods_table().splitlines()
    assert all(f" {revision} " in head for revision in REVISIONS)
    assert {row.split("`")[1] for row in rows if "`" in row.split("|")[1]} == set(METHODS)


def test_every_limit_of_a_client_is_explained() -> None:
    text = (ROOT / "docs" / "guide" / "client.md").read_text(encoding="utf-8")
    for name, kind in (("timeouts", Timeouts), ("limits", ClientLimits)):
        table = text.partition(f"<!-- generated: {name} -->")[2].partition("<!-- end: ")[0]
        rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.strip().splitlines()[2:]]
        assert [row[0] for row in rows] == [f"`{field}`" for field in kind.__struct_fields__]
        assert [_number(row[1]) for row in rows] == [getattr(kind(), field) for field in kind.__struct_fields__]
        assert all(row[2] for row in rows)


def _number(text: str) -> float:
    number, _, unit = text.replace(",", "").partition(" ")
    return float(number) * {"": 1, "MiB": 2**20}[unit]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))], ids=lambda page: page.stem
)
def test_pages_keep_the_house_rules(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "simply" not in FENCED.sub("", text).lower()
    lines = [line for line in text.splitlines() if len(line) > 130 and not line.startswith("|")]
    assert not lines
    # A page of the guide begins with code, after the title and one paragraph.
    before = text.partition("```")[0].strip().split("\n\n")
    assert page.name == "README.md" or len(before) <= 2


def _links(page: Path) -> list[str]:
    return LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8")))


def _resolves(page: Path, target: str) -> bool:
    if target.startswith(("http://", "https://")):
        return True  # nobody here may look
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    if (text := _create_reference().get(found)) is None:
        if not anchor or not found.exists():
            return found.exists()
        text = found.read_text(encoding="utf-8")
    return not anchor or anchor in _anchors(text)


def _anchors(text: str) -> set[str]:
    headings = HEADING.findall(FENCED.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@functools.cache
def _create_reference() -> dict[Path, str]:
    return _load_generator("reference_pages").create_pages(ROOT / "docs")


def _load_generator(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "docs"))
