"""A host for a command: whose files it reads, what it may do, and where it keeps what the user agreed to."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from dovetail.cli import text
from dovetail.cli.arguments import meant
from dovetail.cli.keyboard import Keyboard
from dovetail.host.consent import Broker, DenyAll, TerminalConsent
from dovetail.host.entries import Entry
from dovetail.host.host import Host

F = TypeVar("F", bound=Callable[..., Any])

# Each option every command that has a host has.
_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option(
        "--policy",
        envvar="DOVETAIL_POLICY",
        type=click.Path(exists=True, dir_okay=False),
        help="Rules, as TOML; or set DOVETAIL_POLICY. Without any, everything is asked about.",
    ),
    click.option("--journal", type=click.Path(dir_okay=False), help="Write down what is done, and why."),
)


def host_options(function: F) -> F:
    """The files of a host, and its options."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return click.argument("files", nargs=-1, metavar="[FILE]...")(function)


def state_file(name: str) -> Path:
    """Where something of the user's is kept for all hosts of the command line."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "dovetail" / name
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "dovetail" / name


def made(files: Sequence[str], policy: str | None, journal: str | None, **options: Any) -> Host:
    """The host of some files, or of all configurations that are found; what is wrong in them is told."""
    for file in files:
        if not Path(file).is_file():
            raise click.UsageError(f"there is no file {file!r}")
    try:
        host = Host.from_config(
            *files,
            policy=policy,
            journal=journal,
            grants=state_file("grants.json"),
            pins=state_file("pins.json"),
            project=str(Path.cwd()),
            **options,
        )
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    for problem in host.problems:
        text.note(f"{problem.path}: {problem.text}")
    return host


def somebody() -> bool:
    """Whether a person is there to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def consent(keyboard: Keyboard) -> Broker:
    """Who is asked: the person at the terminal, or nobody."""
    return TerminalConsent(read=keyboard.read) if somebody() else DenyAll()


def picked(host: Host, names: Sequence[str]) -> None:
    """Leave out all servers but some; UsageError if one is not there."""
    known = {member.name for member in host.servers}
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no server {name!r}.{meant(name, known)}")
    for member in host.servers:
        if names and member.name not in names:
            member.state = "disabled"


def is_gateway(entry: Entry) -> bool:
    """Whether an entry is one of these gateways, which would start itself without end."""
    words = [entry.command or "", *entry.args]
    ours = any(Path(word).name.split(".")[0] == "dovetail" for word in words)
    return ours and "gateway" in words
