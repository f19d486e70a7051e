"""A target as an entry of a configuration: what a host has to start, wherever the host itself is started."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from dovetail.cli.loading import names_object
from dovetail.cli.targets import Asked, configured, pairs, whole
from dovetail.host.config import Entry
from dovetail.host.writing import HOSTS
from dovetail.wire.shape import replace

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def described(line: Asked, name: str | None, host: str) -> Entry:
    """The entry, as this host can use it."""
    if line.command:
        found = _entry(name or _stem(line.command), line, command=_program(line.command[0]), args=[*line.command[1:]])
    elif line.module is not None:
        words = ["-m", "dovetail.cli", "run", "-m", line.module]
        where = line.cwd or os.getcwd()
        found = _entry(name or line.module, line, command=sys.executable, args=words, cwd=where)
    elif not line.words:
        raise click.UsageError("which server? Give a file, a URL, a name, or -- and a command.")
    else:
        found = _of_word(line.words[0], name, line)
    if line.headers and found.url is None:
        raise click.UsageError("--header is for a URL, not for a command")
    if (line.env or line.cwd is not None) and found.url is not None:
        raise click.UsageError("--env and --cwd are for a command, not for a URL")
    if not _NAME.fullmatch(found.name):
        raise click.UsageError(f"{found.name!r} is no name a host would take; give another with --name")
    return _bridged(found, host)


def _of_word(word: str, name: str | None, line: Asked) -> Entry:
    if word.startswith(("http://", "https://")):
        from urllib.parse import urlsplit

        return _entry(name or (urlsplit(word).hostname or "").partition(".")[0], line, url=word)
    path = Path(word.rpartition(":")[0] if names_object(word) else word)
    if path.suffix in (".js", ".mjs"):
        return _entry(name or path.stem, line, command=_program("node"), args=[whole(word)])
    if path.suffix == ".py":
        return _entry(name or path.stem, line, command=sys.executable, args=["-m", "dovetail.cli", "run", whole(word)])
    found = configured(word)
    return replace(found, name=name or found.name, **_more(line, found))


def _more(line: Asked, entry: Entry) -> dict[str, Any]:
    """What the command line says besides."""
    more: dict[str, Any] = {
        "env": entry.env | dict(_variable(one) for one in line.env),
        "headers": entry.headers | pairs(line.headers, ":", "--header"),
    }
    return more | ({"cwd": str(Path(line.cwd).resolve())} if line.cwd is not None else {})


def _entry(name: str, line: Asked, **facts: Any) -> Entry:
    entry = Entry(name=name, source="", path=Path(), **facts)
    return replace(entry, **_more(line, entry))


def _variable(given: str) -> tuple[str, str]:
    name, mark, value = given.partition("=")
    return name, value if mark else f"${{{name}}}"


def _bridged(entry: Entry, host: str) -> Entry:
    """The entry, with what this host does not know told in another way."""
    dialect = HOSTS[host]
    changed: dict[str, Any] = {}
    if entry.url is not None and dialect.url is None:
        if entry.headers:
            raise click.UsageError(f"{dialect.title} starts commands only, and a header does not belong into one")
        changed = {"url": None, "command": sys.executable, "args": ["-m", "dovetail.cli", "run", entry.url]}
    env = {name: _referred(value, dialect.reference, dialect.title) for name, value in entry.env.items()}
    return replace(entry, env=env, **changed)


def _referred(value: str, reference: str | None, title: str) -> str:
    found = re.fullmatch(r"\$\{(?:env:)?(\w+)\}", value)
    if found is None:
        return value
    if reference is None:
        raise click.UsageError(f"{title} takes no variables of its user's: give --env {found[1]}=VALUE")
    return reference % found[1]


def _program(program: str) -> str:
    """Where a program is, since a host may look elsewhere; as it is if it is not here."""
    return shutil.which(program) or program


def _stem(command: Any) -> str:
    """What a command is called: the package that a runner is given, else the program."""
    program = Path(command[0]).stem
    if program in ("uvx", "npx", "bunx", "pipx", "node", "python", "python3", "docker"):
        named = [word for word in command[1:] if not word.startswith("-") and word != "run"]
        program = named[0] if named else program
    return Path(program.rpartition("@")[0] or program).stem
