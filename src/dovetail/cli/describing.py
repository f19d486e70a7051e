"""A target as an entry of a configuration: what a host has to start, wherever the host itself is started."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from dovetail.cli.loading import has_object_name
from dovetail.cli.targets import TargetOptions, find_config_entry, make_absolute, parse_pairs
from dovetail.host.config import Entry
from dovetail.host.writing import HOST_FORMATS
from dovetail.wire.shape import replace

_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def create_config_entry(options: TargetOptions, name: str | None, host: str) -> Entry:
    """The entry, as this host can use it."""
    if options.command:
        entry = _create_entry(
            name or _suggest_name(options.command),
            options,
            command=_find_program(options.command[0]),
            args=[*options.command[1:]],
        )
    elif options.module is not None:
        args = ["-m", "dovetail.cli", "run", "-m", options.module]
        folder = options.cwd or os.getcwd()
        entry = _create_entry(name or options.module, options, command=sys.executable, args=args, cwd=folder)
    elif not options.args:
        raise click.UsageError("which server? Give a file, a URL, a name, or -- and a command.")
    else:
        entry = _create_entry_for_target(options.args[0], name, options)
    if options.headers and entry.url is None:
        raise click.UsageError("--header is for a URL, not for a command")
    if (options.env or options.cwd is not None) and entry.url is not None:
        raise click.UsageError("--env and --cwd are for a command, not for a URL")
    if not _NAME_PATTERN.fullmatch(entry.name):
        raise click.UsageError(f"{entry.name!r} is no name a host would take; give another with --name")
    return _adapt_to_host(entry, host)


def _create_entry_for_target(target_arg: str, name: str | None, options: TargetOptions) -> Entry:
    if target_arg.startswith(("http://", "https://")):
        from urllib.parse import urlsplit

        return _create_entry(name or (urlsplit(target_arg).hostname or "").partition(".")[0], options, url=target_arg)
    path = Path(target_arg.rpartition(":")[0] if has_object_name(target_arg) else target_arg)
    if path.suffix in (".js", ".mjs"):
        return _create_entry(
            name or path.stem, options, command=_find_program("node"), args=[make_absolute(target_arg)]
        )
    if path.suffix == ".py":
        return _create_entry(
            name or path.stem,
            options,
            command=sys.executable,
            args=["-m", "dovetail.cli", "run", make_absolute(target_arg)],
        )
    entry = find_config_entry(target_arg)
    return replace(entry, name=name or entry.name, **_get_overrides(options, entry))


def _get_overrides(options: TargetOptions, entry: Entry) -> dict[str, Any]:
    """What the command line says besides."""
    overrides: dict[str, Any] = {
        "env": entry.env | dict(_parse_variable(variable) for variable in options.env),
        "headers": entry.headers | parse_pairs(options.headers, ":", "--header"),
    }
    return overrides | ({"cwd": str(Path(options.cwd).resolve())} if options.cwd is not None else {})


def _create_entry(name: str, options: TargetOptions, **fields: Any) -> Entry:
    entry = Entry(name=name, source="", path=Path(), **fields)
    return replace(entry, **_get_overrides(options, entry))


def _parse_variable(option: str) -> tuple[str, str]:
    name, separator, value = option.partition("=")
    return name, value if separator else f"${{{name}}}"


def _adapt_to_host(entry: Entry, host: str) -> Entry:
    """The entry, with what this host does not know told in another way."""
    host_format = HOST_FORMATS[host]
    changes: dict[str, Any] = {}
    if entry.url is not None and host_format.url_key is None:
        if entry.headers:
            raise click.UsageError(f"{host_format.title} starts commands only, and a header does not belong into one")
        changes = {"url": None, "command": sys.executable, "args": ["-m", "dovetail.cli", "run", entry.url]}
    env = {
        name: _convert_reference(value, host_format.reference_format, host_format.title)
        for name, value in entry.env.items()
    }
    return replace(entry, env=env, **changes)


def _convert_reference(value: str, reference: str | None, title: str) -> str:
    match = re.fullmatch(r"\$\{(?:env:)?(\w+)\}", value)
    if match is None:
        return value
    if reference is None:
        raise click.UsageError(f"{title} takes no variables of its user's: give --env {match[1]}=VALUE")
    return reference % match[1]


def _find_program(program: str) -> str:
    """Where a program is, since a host may look elsewhere; as it is if it is not here."""
    return shutil.which(program) or program


def _suggest_name(command: Any) -> str:
    """What a command is called: the package that a runner is given, else the program."""
    program = Path(command[0]).stem
    if program in ("uvx", "npx", "bunx", "pipx", "node", "python", "python3", "docker"):
        candidates = [arg for arg in command[1:] if not arg.startswith("-") and arg != "run"]
        program = candidates[0] if candidates else program
    return Path(program.rpartition("@")[0] or program).stem
