"""Compare the size and the complexity of the sources with the limits in `budgets.toml`, as `make check` does.

`--list` prints the counts of each package.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
BUDGETS = Path(__file__).with_name("budgets.toml")
FOOTER = (
    "Make the code smaller, or raise the limit in tests/architecture/budgets.toml and give the reason in the commit."
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, *_FUNCTIONS)


class Size(NamedTuple):
    code_lines: int  # lines that are not blank, a comment or part of a docstring
    nodes: int  # nodes of the syntax tree
    files: int


class Module(NamedTuple):
    path: Path
    size: Size
    functions: dict[tuple[str, int], int]  # the complexity of each function, by its qualified name and its line
    classes: dict[str, int]  # the lines of each class


def _count_cases(node: ast.Match) -> int:
    last = node.cases[-1].pattern
    return len(node.cases) - (isinstance(last, ast.MatchAs) and last.pattern is None)


# The branches that each kind of node adds to the complexity of its function. These are the rules of radon.
_BRANCHES: dict[type[ast.AST], Callable[[Any], int]] = {
    ast.If: lambda node: 1,
    ast.IfExp: lambda node: 1,
    ast.Assert: lambda node: 1,
    ast.BoolOp: lambda node: len(node.values) - 1,
    ast.For: lambda node: 1 + bool(node.orelse),
    ast.AsyncFor: lambda node: 1 + bool(node.orelse),
    ast.While: lambda node: 1 + bool(node.orelse),
    ast.Try: lambda node: len(node.handlers) + bool(node.orelse),
    ast.TryStar: lambda node: len(node.handlers) + bool(node.orelse),
    ast.comprehension: lambda node: 1 + len(node.ifs),
    ast.Match: _count_cases,
}


def read_module(path: Path, source: str) -> Module:
    """Count everything in one walk over the syntax tree."""
    nodes, docstring_lines = 0, set[int]()
    functions, classes = dict[tuple[str, int], int](), dict[str, int]()
    pending: list[tuple[ast.AST, str, tuple[str, int]]] = [(ast.parse(source), "", ("", 0))]
    while pending:
        node, scope, function = pending.pop()
        nodes += 1
        if isinstance(node, _WITH_DOCSTRING):
            if ast.get_docstring(node, clean=False) is not None:
                docstring_lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            if not isinstance(node, ast.Module):
                scope = f"{scope}.{node.name}".removeprefix(".")
            if isinstance(node, ast.ClassDef):
                classes[scope] = (node.end_lineno or 0) - node.lineno + 1
            elif isinstance(node, _FUNCTIONS):
                function = (scope, node.lineno)
                functions[function] = 1
        elif function in functions and (count := _BRANCHES.get(type(node))):
            functions[function] += count(node)
        pending += [(child, scope, function) for child in ast.iter_child_nodes(node)]
    lines = [line.strip() for line in source.splitlines()]
    is_code = [bool(line) and not line.startswith("#") for line in lines]
    code_lines = sum(is_code[number - 1] for number in range(1, len(lines) + 1) if number not in docstring_lines)
    return Module(path, Size(code_lines, nodes, 1), functions, classes)


def read_modules(source: Path) -> list[Module]:
    paths = sorted(source.rglob("*.py"))
    return [read_module(path.relative_to(source), path.read_text(encoding="utf-8")) for path in paths]


def count_packages(modules: list[Module]) -> dict[str, Size]:
    """Return the size of each package, and of all sources as "all". Files outside a package are "root"."""
    sizes: dict[str, Size] = {}
    for module in modules:
        package = module.path.parts[0] if len(module.path.parts) > 1 else "root"
        for name in ("all", package):
            previous = sizes.get(name, Size(0, 0, 0))
            sizes[name] = Size(*map(sum, zip(previous, module.size, strict=True)))
    return dict(sorted(sizes.items()))


def list_counts(modules: list[Module], budgets: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield everything that has a limit: its description, its count and its limit."""
    for package, size in count_packages(modules).items():
        limits = budgets["packages"].get(package, [0, 0, 0])
        for unit, count, limit in zip(("code lines", "syntax nodes", "files"), size, limits, strict=True):
            yield f"{unit} of {package}", count, limit
    limits = budgets["modules_of_a_folder"]
    for folder, count in Counter(module.path.parent.as_posix() for module in modules).items():
        yield f"modules of {folder}", count, limits.get(folder, limits["any"])
    for module in modules:
        limits = budgets["lines_of_a_class"]
        for name, count in module.classes.items():
            yield f"lines of {module.path} {name}", count, limits.get(name, limits["any"])
        limits = budgets["complexity_of_a_function"]
        for (name, line), count in module.functions.items():
            yield f"complexity of {module.path}:{line} {name}", count, limits.get(name, limits["any"])


def find_excesses(modules: list[Module], budgets: dict[str, Any]) -> list[str]:
    """Return a sentence for each limit that the sources exceed."""
    return [
        f"{subject}: {count:,} is {count - limit:,} more than the limit {limit:,}"
        for subject, count, limit in list_counts(modules, budgets)
        if count > limit
    ]


def main() -> int:
    modules = read_modules(ROOT / "src" / "dovetail")
    if "--list" in sys.argv:
        for package, size in count_packages(modules).items():
            sys.stdout.write(f"{package} = {[*size]}\n")
        return 0
    excesses = find_excesses(modules, tomllib.loads(BUDGETS.read_text(encoding="utf-8")))
    if excesses:
        sys.stderr.write("\n".join([*excesses, FOOTER, ""]))
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main())
