"""A host for a command: whose files it reads, what it may do, and where it keeps what the user agreed to."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from dovetail.cli import text
from dovetail.cli.arguments import meant
from dovetail.cli.inputs import asked
from dovetail.cli.keyboard import Keyboard
from dovetail.errors import PolicyError
from dovetail.host.config import read_file, read_known
from dovetail.host.consent import Broker, DenyAll, TerminalConsent
from dovetail.host.entries import Entry
from dovetail.host.events import Event
from dovetail.host.host import Host
from dovetail.host.secrets import Secrets

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
    click.option(
        "--server", "servers", multiple=True, metavar="NAME", help="Only this one; may be given several times."
    ),
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


def made(
    files: Sequence[str],
    policy: str | None,
    journal: str | None,
    servers: Sequence[str] = (),
    *,
    asks: bool = True,
    **options: Any,
) -> Host:
    """The host of some files, or of all configurations that are found; what is wrong in them is told.

    servers: the only ones of them that are used. asks: whether the user is asked for what they need.
    """
    _check(files)
    entries = configured(files)
    used = [one for one in entries if one.enabled and (not servers or one.name in servers)]
    inputs = asked(used) if asks and text.somebody() else {}
    try:
        host = Host.from_config(
            *files,
            policy=policy,
            journal=journal,
            grants=state_file("grants.json"),
            pins=state_file("pins.json"),
            project=str(Path.cwd()),
            secrets=Secrets(inputs=inputs),
            **options,
        )
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    for problem in host.problems:
        text.note(f"{problem.path}: {problem.text}")
    _pick(host, servers)
    return host


def configured(files: Sequence[str]) -> list[Entry]:
    """The servers of some files, or of all that are found."""
    return [one for file in files for one in read_file(Path(file), level="user")[0]] if files else read_known()[0]


def _check(files: Sequence[str]) -> None:
    """UsageError if a file that is named is of no use."""
    for file in files:
        if not Path(file).is_file():
            raise click.UsageError(f"there is no file {file!r}")
        entries, problems = read_file(Path(file), level="user")
        wrong = [one.text for one in problems if one.severe]
        if wrong and not entries:
            raise click.UsageError(f"{file}: {'; '.join(wrong)}")


def consent(keyboard: Keyboard) -> Broker:
    """Who is asked: the person at the terminal, or nobody."""
    return TerminalConsent(read=keyboard.read) if text.somebody() else DenyAll()


def _pick(host: Host, names: Sequence[str]) -> None:
    """Leave out all servers but some; UsageError if one is not there. What comes later is left out, too."""
    known = {member.name for member in host.servers}
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no server {name!r}.{meant(name, known)}")
    if names:
        leave_out(host, lambda known: known - {*names})


def leave_out(host: Host, unwanted: Callable[[set[str]], set[str]]) -> None:
    """Never start those of some names that are not wanted, neither what is there nor what comes later."""

    def look(_: Event | None = None) -> None:
        idle = {member.name: member for member in host.servers if member.state == "idle"}
        for name in unwanted({*idle}):
            idle[name].state = "disabled"

    look()
    host.on("server.added", look)


def telling(host: Host) -> None:
    """Tell of servers that cannot be used, as it comes to pass, and of each reason once."""
    told: set[tuple[str, str | None]] = set()

    def tell(event: Event) -> None:
        if event.new in ("failed", "needs_login") and (event.server, event.reason) not in told:
            told.add((event.server, event.reason))
            text.note(f"{event.server} cannot be used: {event.reason or event.new}")
            advise_start(event.details)

    host.on("server.state", tell)


def advise_start(reason: object) -> None:
    """What to do where a server was not started because nobody was there to be asked."""
    if isinstance(reason, PolicyError) and not text.somebody():
        text.note("try: name the file, since one you name is yours; or allow server.start in a --policy")


def is_gateway(entry: Entry) -> bool:
    """Whether an entry is one of these gateways, which would start itself without end."""
    words = [entry.command or "", *entry.args]
    ours = any(Path(word).name.split(".")[0] == "dovetail" for word in words)
    return ours and "gateway" in words
