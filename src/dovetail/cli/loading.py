"""The Server object in a file or a module of the user's."""

import ast
import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from dovetail.cli import exits

_USUAL = ("app", "server", "mcp")


def names_object(word: str) -> bool:
    """Whether a word is `file.py:object`."""
    head, colon, tail = word.rpartition(":")
    return bool(colon) and head.endswith(".py") and tail.isidentifier()


def is_program(word: str) -> bool:
    """Whether a file may begin to speak as soon as it is read.

    It neither says what to do only when it is run, nor names dovetail, whose servers mind who reads them.
    """
    try:
        tree = ast.parse(Path(word).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        imported += [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if any(one.partition(".")[0] == "dovetail" for one in imported):
            return False
        if isinstance(node, ast.Name) and node.id == "__name__":
            return False
    return True


def load_server(word: str | None, module: str | None) -> Any:
    """The server a file or a module holds, by its name or the only one there is; None if there is none."""
    names, wanted = _load(word, module)
    return found_in(names, wanted, word or module)


def found_in(names: Mapping[str, Any], wanted: str | None, shown: str | None) -> Any:
    """The server among the names of a module."""
    from dovetail.serve import Server

    servers = {name: value for name, value in names.items() if isinstance(value, Server)}
    if wanted is not None:
        found = names.get(wanted)
        if callable(found) and not isinstance(found, Server):
            with users_code():
                found = found()
        if not isinstance(found, Server):
            there = ", ".join(sorted(servers))
            raise click.UsageError(
                f"{shown!r} holds no Server called {wanted!r}{f'; there are: {there}' if there else ''}"
            )
        return found
    for name in _USUAL:
        if name in servers:
            return servers[name]
    if len({id(one) for one in servers.values()}) > 1:
        choice = ", ".join(f"{shown}:{name}" for name in sorted(servers))
        raise click.UsageError(f"{shown!r} holds several servers; name one: {choice}")
    return next(iter(servers.values()), None)


def _load(word: str | None, module: str | None) -> tuple[Mapping[str, Any], str | None]:
    if module is not None:
        sys.path.insert(0, os.getcwd())
        place, _, name = module.partition(":")
        with users_code(place):
            return vars(importlib.import_module(place)), name or None
    assert word is not None
    file, _, name = word.rpartition(":") if names_object(word) else (word, "", "")
    path = Path(file).resolve()
    if not path.is_file():
        raise click.UsageError(f"there is no file {file!r}")
    sys.path.insert(0, str(path.parent))
    stem = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "served"
    spec = importlib.util.spec_from_file_location(stem, path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{file!r} is no Python file")
    made = importlib.util.module_from_spec(spec)
    sys.modules[stem] = made  # annotations written as text are looked up there
    with users_code():
        spec.loader.exec_module(made)
    return vars(made), name or None


@contextlib.contextmanager
def users_code(module: str | None = None) -> Generator[None]:
    """While it lasts, code of the user's is read: what it raises is shown as Python would, without our part in it."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as exc:
        if module is not None and isinstance(exc, ModuleNotFoundError) and _leads_to(exc.name, module):
            raise click.UsageError(f"there is no module {module!r}") from None
        traceback.print_exception(exc.with_traceback(_theirs(exc.__traceback__)))
        raise click.exceptions.Exit(exits.CONNECT) from None


def _leads_to(name: str | None, module: str) -> bool:
    return name is not None and f"{module}.".startswith(f"{name}.")


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from where our part of it ends, and that of the machinery of imports."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (file.startswith("<frozen ") or file == __file__ or file.endswith(os.path.join("cli", "run.py"))):
            break
        trace = trace.tb_next
    return trace
