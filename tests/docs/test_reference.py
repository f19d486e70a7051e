"""Test that the reference lists every public name once, with explanations from docstrings and comments."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dovetail import Client, Server

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"^## (?P<name>\w+)\n(?P<text>.*?)(?=^##+ |\Z)", re.MULTILINE | re.DOTALL)
NO_PROSE = re.compile(r"^```.*?^```$|^Subclass of [^\n]*$", re.MULTILINE | re.DOTALL)
SAMPLE = '''
"""A module."""

from typing import Literal, TypedDict

Color = Literal["red", "blue"]  # of the paint
LongLiteral = Literal["a long value of this type", "another long value of this type", "the last value"]


class Options(TypedDict, total=False):
    """Options of a shop."""

    name: str  # of the shop
    # Counted from midnight.
    hours: int
    private: bool


class Shop:
    """A shop.

    Args:
        name: The name
            above the door.
        doors: The number of doors.

    Raises:
        ValueError: There is no door.
    """

    def __init__(self, name: "str", *, doors: int = 1, size: int = 4 * 1024, _secret: int = 0) -> None: ...

    async def open(self, at: float, *, lights: bool = True) -> None:
        """Open the shop.

        Args:
            lights: Whether the lights are on.
        """

    @property
    def is_open(self) -> bool:
        """Whether customers can enter."""
        return True

    def _hidden(self) -> None: ...


class Bakery(Shop):
    """A shop that sells bread."""

    def bake(self, kind: str = "rye") -> str: ...
'''


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that creates the pages, with empty caches."""
    return _load_generator(monkeypatch)


def _load_generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages_under_test", ROOT / "docs" / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sample(generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The generator for a module with the names above."""
    (tmp_path / "dovetail_sample.py").write_text(SAMPLE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(generator, "MODULES", ("dovetail_sample",))
    monkeypatch.setattr(generator, "HOMES", ("dovetail_sample",))
    module = importlib.import_module("dovetail_sample")
    monkeypatch.setattr(module, "__all__", ["Color", "LongLiteral", "Options", "Shop", "Bakery"], raising=False)
    return generator


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of the modules, by the last name of the module."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as monkeypatch:
        _load_generator(monkeypatch).write_pages(folder)
    assert (folder / "reference.md").is_file()
    return {page.stem: page.read_text(encoding="utf-8") for page in (folder / "reference").iterdir()}


def test_every_public_name_is_documented_once(generator: ModuleType, pages: dict[str, str]) -> None:
    entries = [entry for page in pages.values() for entry in ENTRY.finditer(page)]
    names = [entry["name"] for entry in entries]
    assert len(names) == len(set(names))
    public = {name for module in generator.MODULES for name in _list_public_names(module)}
    assert not public - set(names)
    assert not [entry["name"] for entry in entries if not _has_description(entry["text"])]


def _list_public_names(module: str) -> list[str]:
    loaded = importlib.import_module(module)
    classes = [name for name, value in vars(loaded).items() if getattr(value, "__module__", "") == module]
    return getattr(loaded, "__all__", [name for name in classes if not name.startswith("_")])


def _has_description(entry: str) -> bool:
    return any(line and not line.startswith("|") for line in NO_PROSE.sub("", entry).splitlines())


def test_a_name_without_a_description_is_found(sample: ModuleType, tmp_path: Path) -> None:
    text = sample.create_pages(tmp_path)[tmp_path / "reference" / "dovetail_sample.md"]
    entries = {entry["name"]: entry["text"] for entry in ENTRY.finditer(text)}
    assert [name for name, entry in entries.items() if not _has_description(entry)] == ["LongLiteral"]


@pytest.mark.parametrize("kind", [Client, Server])
def test_every_member_has_an_entry(kind: type, pages: dict[str, str]) -> None:
    text = pages["dovetail"]
    members = set(re.findall(rf"^### {kind.__name__}\.(\w+)$", text, re.MULTILINE))
    methods = {name for name in dir(kind) if not name.startswith("_")}
    assert methods <= members


def test_nothing_private_is_listed(pages: dict[str, str]) -> None:
    for text in pages.values():
        assert not re.findall(r"^##+ .*\b_\w+", text, re.MULTILINE)
        assert not re.findall(r"^    \**_\w+[:=,]", text, re.MULTILINE)


def test_explanations_come_from_docstrings_and_comments(sample: ModuleType, tmp_path: Path) -> None:
    pages = sample.create_pages(tmp_path)
    text = pages[tmp_path / "reference" / "dovetail_sample.md"]
    assert "Shop(name: str, *, doors: int = 1, size: int = 4 KiB)" in text
    assert "| `name` |  | The name above the door. |" in text
    assert "| `doors` | `1` | The number of doors. |" in text
    assert "- `ValueError`: There is no door." in text
    assert "await open(at: float, *, lights: bool = True) -> None" in text
    assert "| `lights` | `True` | Whether the lights are on. |" in text
    assert "is_open: bool" in text
    assert "| `name` | of the shop |" in text
    assert "| `hours` | Counted from midnight. |" in text
    assert 'Color = Literal["red", "blue"]' in text
    assert "of the paint" in text
    assert 'LongLiteral = Literal[\n    "a long value of this type",\n' in text
    assert "hidden" not in text


def test_inherited_members_are_listed_once(sample: ModuleType, tmp_path: Path) -> None:
    text = sample.create_pages(tmp_path)[tmp_path / "reference" / "dovetail_sample.md"]
    entry = text.partition("\n## Bakery\n")[2].partition("\n## ")[0]
    assert "Subclass of [`Shop`](dovetail_sample.md#shop)." in entry
    assert re.findall(r"^### (.+)$", entry, re.MULTILINE) == ["Bakery.bake"]


def test_every_option_is_explained(generator: ModuleType) -> None:
    assert generator.list_unexplained_options() == []


def test_options_without_an_explanation_are_found(sample: ModuleType) -> None:
    options = [option for option in sample.list_unexplained_options() if "Bakery" not in option]
    assert options == ["dovetail_sample.Options(private)", "dovetail_sample.Shop(size)"]
