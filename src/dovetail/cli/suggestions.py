"""Suggestions for unknown commands, files and targets."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

import click

from dovetail.error_context import clip, find_similar, suggest_match

# Command names from other tools, and the dovetail command for each name.
_SYNONYMS: Final = {
    "add": "install",
    "benchmark": "bench",
    "capture": "record",
    "check": "run --check",
    "completion": "shell-completion",
    "convert": "migrate",
    "create": "new",
    "delete": "uninstall",
    "exec": "call",
    "generate": "stubs",
    "generate-cli": "stubs",
    "get": "read",
    "health": "ping",
    "hosts": "servers",
    "init": "new",
    "inspect": "info",
    "inspector": "info",
    "invoke": "call",
    "login": "auth login",
    "logout": "auth logout",
    "ls": "list",
    "play": "replay",
    "prompts": "list",
    "proxy": "run",
    "remove": "uninstall",
    "resources": "list",
    "rm": "uninstall",
    "serve": "run",
    "server": "run",
    "show": "info",
    "start": "run",
    "status": "servers",
    "subscribe": "listen",
    "test": "doctor",
    "tool": "call",
    "tools": "list",
    "trace": "record",
    "up": "run",
    "validate": "run --check",
    "version": "--version",
    "watch": "dev",
}


def suggest_command(name: str, commands: Collection[str]) -> str:
    """Return a hint with the command that the user probably means, and a list of all commands."""
    synonym = _SYNONYMS.get(name.lower(), "")
    if synonym.startswith("-") or synonym.partition(" ")[0] in commands:
        hint = f". Did you mean `dovetail {synonym}`?"
    else:
        hint = suggest_match(name, commands)
    return f"{hint}\ncommands: {', '.join(commands)}"


def suggest_option(exc: click.NoSuchOption) -> str:
    """Return a hint with the option that the user probably means, or an empty string."""
    params = [] if exc.ctx is None else exc.ctx.command.params
    if exc.option_name == "--transport" and any("--http" in param.opts for param in params):
        return ". Pass --http to serve over HTTP. The default is stdio"
    # click also suggests options that are hardly similar.
    return suggest_match(exc.option_name, exc.possibilities or ())


class NamedChoice(click.Choice[str]):
    """A click choice whose error for an unknown name suggests a similar name."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__([*names])

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return all names on one line."""
        return f"Choose from {', '.join(self.choices)}."

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return an error that suggests a similar name. Without a similar name, list all names."""
        hint = suggest_match(str(value), self.choices) or f". Choose from {', '.join(self.choices)}."
        return f"unknown name {clip(str(value))!r}{hint}"


def suggest_file(path: Path) -> str:
    """Return a hint with the name of a similar file in the same folder, or an empty string."""
    try:
        siblings = [entry.name for entry in path.parent.iterdir() if entry.suffix == path.suffix and entry.is_file()]
    except OSError:
        return ""
    matches = find_similar(path.name, siblings)
    return f". Did you mean {clip(str(path.with_name(matches[0])))!r}?" if matches else ""


def suggest_target(target_arg: str, server_names: Iterable[str], suffixes: Collection[str]) -> str:
    """Return a "Did you mean" hint for an unknown target, or an empty string."""
    from dovetail.client.targets import guess_url

    if (url := guess_url(target_arg)) is not None:
        return f". Did you mean {clip(url)!r}?"
    for suffix in suffixes:
        if (file := Path(target_arg + suffix)).is_file():
            return f". Did you mean {clip(str(file))!r}?"
    try:
        files = [entry.name for entry in Path().iterdir() if entry.suffix in suffixes]
    except OSError:
        files = []
    return suggest_match(target_arg, [*server_names, *files])
