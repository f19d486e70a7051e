"""Words that say nothing are not part of a name."""

import ast
import re
from pathlib import Path

BANNED = {
    "Manager", "Handler", "Helper", "Util", "Utils", "Base", "Mixin", "Impl", "Wrapper", "Abstract", "Data", "Info",
    "Object", "Factory",
}  # fmt: skip
BANNED_MODULES = {"shared", "common", "utils", "helpers", "base", "types", "core", "lowlevel"}
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def test_no_class_is_named_by_an_empty_word(root: Path) -> None:
    guilty = [
        f"{path.relative_to(root)}:{node.lineno}: {node.name}"
        for path in (root / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and BANNED & set(WORD.findall(node.name))
    ]
    assert not guilty


def test_no_module_is_a_drawer_for_everything(root: Path) -> None:
    package = root / "src" / "dovetail"
    modules = {path.stem: path for path in package.rglob("*") if path.suffix == ".py" or path.is_dir()}
    assert not BANNED_MODULES & modules.keys()
    hidden = [name for name in modules if name.startswith("_") and name not in {"__init__", "__main__", "__pycache__"}]
    assert not hidden
