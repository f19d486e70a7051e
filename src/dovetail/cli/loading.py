"""The Server object in a file or a module of the user's."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

_USUAL = ("app", "server", "mcp")


def names_object(word: str) -> bool:
    """Whether a word is `file.py:object`."""
    head, colon, tail = word.rpartition(":")
    return bool(colon) and head.endswith(".py") and tail.isidentifier()


def load_server(word: str | None, module: str | None) -> Any:
    """The server a file or a module holds, by its name or the only one there is; None if there is none."""
    from dovetail.serve import Server

    names, wanted = _load(word, module)
    shown = word or module
    if wanted is not None:
        found = names.get(wanted)
        if callable(found) and not isinstance(found, Server):
            found = found()
        if not isinstance(found, Server):
            raise click.UsageError(f"{shown!r} holds no Server called {wanted!r}")
        return found
    servers = {name: value for name, value in names.items() if isinstance(value, Server)}
    for name in _USUAL:
        if name in servers:
            return servers[name]
    if len({id(one) for one in servers.values()}) > 1:
        raise click.UsageError(f"{shown!r} holds several servers; name one: {', '.join(sorted(servers))}")
    return next(iter(servers.values()), None)


def _load(word: str | None, module: str | None) -> tuple[Mapping[str, Any], str | None]:
    if module is not None:
        sys.path.insert(0, os.getcwd())
        place, _, name = module.partition(":")
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
    spec.loader.exec_module(made)
    return vars(made), name or None
