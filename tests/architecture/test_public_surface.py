"""The public names are what dovetail/__init__.py lists: each one resolves, and each one is documented."""

import ast
import re
from pathlib import Path

import dovetail


def test_every_public_name_resolves() -> None:
    missing = [name for name in dovetail.__all__ if not hasattr(dovetail, name)]
    assert not missing


def test_public_names_are_listed_once_and_nothing_else_is_public() -> None:
    assert len(set(dovetail.__all__)) == len(dovetail.__all__)
    assert set(dir(dovetail)) >= set(dovetail.__all__)
    exposed = {name for name, value in vars(dovetail).items() if not name.startswith("_") and _defined_here(value)}
    assert exposed <= set(dovetail.__all__)


def test_the_type_checker_sees_the_same_names(root: Path) -> None:
    tree = ast.parse((root / "src" / "dovetail" / "__init__.py").read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module != "typing"
        for alias in statement.names
    }
    assert not imported or imported == {name for name in dovetail.__all__ if not name.startswith("__")}


def test_every_public_name_is_documented(root: Path) -> None:
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    words = set(re.findall(r"\w+", " ".join(page.read_text(encoding="utf-8") for page in pages)))
    undocumented = [name for name in dovetail.__all__ if name not in words]
    assert not undocumented


def _defined_here(value: object) -> bool:
    return getattr(value, "__module__", "").startswith("dovetail")
