"""Compare the names in `__all__` of the public modules with `public_names.txt`.

After an intended change, write the list and review its diff: `python tests/architecture/test_public_surface.py --write`
"""

import ast
import difflib
import functools
import importlib
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

PUBLIC_MODULES = (
    "dovetail",
    "dovetail.agent",
    "dovetail.auth",
    "dovetail.cluster",
    "dovetail.errors",
    "dovetail.extensions",
    "dovetail.host",
    "dovetail.middleware",
    "dovetail.testing",
    "dovetail.types",
)
LIST = Path(__file__).with_name("public_names.txt")
HOW_TO_UPDATE = "If that is meant, run: python tests/architecture/test_public_surface.py --write"
HEADER = """\
# The public names of dovetail, one a line. `Name(option=)` is a parameter of the constructor, `=` marks a default,
# `Name < Base` a base class, `a -> b` a name that another public module defines. Fields of option classes are listed as
# parameters only, members of a public base class only there.
# Written by `python tests/architecture/test_public_surface.py --write`.
"""
PYTHON_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_list_is_current() -> None:
    expected, actual = LIST.read_text(encoding="utf-8").splitlines(), build_list().splitlines()
    diff = [line for line in difflib.unified_diff(expected, actual, lineterm="", n=0) if not line.startswith("@@")]
    assert not diff, "\n".join(["the public surface has changed.", *diff[2:], HOW_TO_UPDATE])


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_every_public_name_resolves(name: str) -> None:
    module = importlib.import_module(name)
    names = list_names(module)
    assert len(set(names)) == len(names)
    assert not [public_name for public_name in names if not hasattr(module, public_name)]
    assert set(dir(module)) >= set(names)


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_the_type_checker_sees_the_same_names(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    imported = {
        alias.asname or alias.name
        for block in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8")))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module != "typing"
        for alias in statement.names
    }
    assert not imported or imported == {public_name for public_name in list_names(module) if public_name[:2] != "__"}


def test_every_public_name_is_documented(root: Path) -> None:
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    words = set(re.findall(r"\w+", " ".join(page.read_text(encoding="utf-8") for page in pages)))
    assert not [name for name in list_names(importlib.import_module("dovetail")) if name not in words]


def test_documents_and_examples_import_public_names_only(root: Path) -> None:
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    sources = {
        f"{page.relative_to(root)}:{number}": textwrap.dedent(block)
        for page in pages
        for number, block in enumerate(PYTHON_BLOCK.findall(page.read_text("utf-8")))
    }
    sources |= {str(file.relative_to(root)): file.read_text("utf-8") for file in (root / "examples").rglob("*.py")}
    assert find_internal_imports(sources) == []


def test_generated_projects_import_public_names_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.cli.commands.new import command

    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(command, ["weather"], standalone_mode=False).exception is None
    sources = {file.name: file.read_text("utf-8") for file in tmp_path.rglob("*.py")}
    assert sources
    assert find_internal_imports(sources) == []


def test_an_internal_import_is_found() -> None:
    sources = {
        "a.py": "from dovetail import Server\nfrom dovetail.auth import Guard\nimport dovetail.testing",
        "b.py": "from dovetail.wire.codec import encode",
        "c.py": "import dovetail.server.server",
        "d.py": "from dovetail import NoSuchName",
    }
    assert find_internal_imports(sources) == [
        "b.py: dovetail.wire.codec.encode",
        "c.py: dovetail.server.server",
        "d.py: dovetail.NoSuchName",
    ]


def find_internal_imports(sources: dict[str, str]) -> list[str]:
    """Return each import from dovetail that is not of a public name, as `file: name`."""
    public = {f"{name}.{public_name}" for name in PUBLIC_MODULES for public_name in list_names(_load(name))}
    public |= set(PUBLIC_MODULES)
    return [
        f"{file}: {name}"
        for file, source in sources.items()
        for node in ast.walk(ast.parse(source))
        for name in _imported_names(node)
        if name.split(".")[0] == "dovetail" and name not in public
    ]


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


# The list


def build_list() -> str:
    """Return the text of the list."""
    homes = {
        id(value): f"{module_name}.{name}"
        for module_name in PUBLIC_MODULES
        for name, value in _public_values(module_name)
        if isinstance(value, type) or inspect.isfunction(value)
    }  # the last module that has a class is its home, `dovetail` only where no other has it
    lines: list[str] = []
    for module_name in PUBLIC_MODULES:
        for name, value in sorted(_public_values(module_name)):
            public_name = f"{module_name}.{name}"
            home = homes.get(id(value), public_name)
            lines += [f"{public_name} -> {home}"] if home != public_name else _describe(public_name, value, homes)
    return HEADER + "\n".join(lines) + "\n"


def list_names(module: ModuleType) -> list[str]:
    """Return the public names of a module: `__all__`, or what is defined there."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", None) == module.__name__
    ]


def _load(name: str) -> ModuleType:
    return importlib.import_module(name)


def _public_values(module_name: str) -> Iterator[tuple[str, Any]]:
    module = _load(module_name)
    return ((name, getattr(module, name)) for name in list_names(module))


def _describe(public_name: str, value: Any, homes: dict[int, str]) -> Iterator[str]:
    if inspect.isfunction(value):
        yield public_name + _format_signature(value)
        return
    if not isinstance(value, type):
        yield public_name
        return
    bases = [homes.get(id(base), base.__name__) for base in value.__mro__[1:] if _is_visible_base(base, homes)]
    yield public_name + (f" < {bases[0]}" if bases else "")
    if typing.is_typeddict(value):
        yield from (f"{public_name}.{key}" for key in sorted(value.__required_keys__ | value.__optional_keys__))
        return
    inherited = {
        member for base in value.__mro__[1:] if id(base) in homes for member in (*_list_members(base), "__init__")
    }
    if not getattr(value, "_is_protocol", False) and ("__init__" not in inherited or _has_own_constructor(value)):
        yield from (f"{public_name}({parameter})" for parameter in _list_parameters(value))
    fields = {*getattr(value, "__struct_fields__", ()), *getattr(value, "__dataclass_fields__", ())}
    for member, descriptor in sorted(_list_members(value).items()):
        if member not in inherited | fields:
            yield f"{public_name}.{member}" + (_format_signature(descriptor) if callable(descriptor) else "")


def _is_visible_base(base: type, homes: dict[int, str]) -> bool:
    return id(base) in homes or (base.__module__ == "builtins" and base is not object)


def _has_own_constructor(kind: type) -> bool:
    return any(name in vars(kind) for name in ("__init__", "__new__", "__struct_fields__"))


def _list_parameters(kind: type) -> list[str]:
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (ValueError, TypeError):
        return []
    return [_format_parameter(parameter) for parameter in parameters if parameter.name[0] != "_"]


def _list_members(kind: type) -> dict[str, Any]:
    """Return the public members of a class: methods with their functions, attributes with None."""
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("dovetail"):
            continue
        members |= dict.fromkeys(_list_attributes(base))
        for name, value in vars(base).items():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            members[name] = function if inspect.isfunction(function) else None
    return {name: value for name, value in members.items() if name[0] != "_"}


@functools.cache
def _parse_classes(module_name: str) -> dict[str, ast.ClassDef]:
    body = ast.parse(inspect.getsource(_load(module_name))).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


@functools.cache
def _list_attributes(kind: type) -> frozenset[str]:
    """Return the attributes that a class declares, or assigns to `self` in a method."""
    tree = _parse_classes(kind.__module__).get(kind.__name__)
    if tree is None:
        return frozenset()
    declared = {
        node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assigned = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return frozenset(declared | assigned)


def _format_signature(function: Any) -> str:
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    words: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL or (
            parameter.kind is parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in words)
        ):
            words += ["*"] if parameter.kind is parameter.KEYWORD_ONLY else []
        words.append(_format_parameter(parameter))
    return f"({', '.join(words)})"


def _format_parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    return stars + parameter.name + ("=" if parameter.default is not parameter.empty else "")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    LIST.write_text(build_list(), encoding="utf-8")
