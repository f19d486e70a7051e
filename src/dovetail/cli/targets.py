"""What the word TARGET may be, and how a client reaches it."""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from dovetail.cli import text
from dovetail.cli.arguments import meant
from dovetail.cli.loading import names_object
from dovetail.wire.shape import Struct

F = TypeVar("F", bound=Callable[..., Any])

OURS = (sys.executable, "-m", "dovetail.cli")
_SCHEMES = ("http://", "https://", "unix:", "tcp:")
SCRIPTS = (".js", ".mjs", ".ts")


class Asked(Struct, frozen=True, kw_only=True):
    """What a command line says about the server and how to speak to it."""

    words: Sequence[str] = ()  # the arguments, the target among them
    command: Sequence[str] = ()  # what stands after --
    module: str | None = None
    json: bool = False
    revision: str | None = None
    era: str | None = None
    timeout: float | None = None
    headers: Sequence[str] = ()
    auth: str | None = None
    env: Sequence[str] = ()
    cwd: str | None = None
    answers: Sequence[str] = ()
    verbose: bool = False

    def split(self) -> tuple[Any, list[str]]:
        """The target, and the words left for the command itself."""
        if self.command:
            return list(self.command), list(self.words)
        if self.module is not None:
            return [*OURS, "run", "-m", self.module], list(self.words)
        if not self.words:
            raise click.UsageError("which server? Give a file, a URL, a name, or -- and a command.")
        return resolve(self.words[0]), list(self.words[1:])


# How a server is reached, and how it is spoken to.
_REACH: Mapping[str, Callable[[Any], Any]] = {
    "module": click.option("-m", "--module", help="A module that holds the server."),
    "headers": click.option("-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="An HTTP header."),
    "auth": click.option("--auth", help='"oauth", or a bearer token; else a login that is kept is used.'),
    "env": click.option(
        "-e", "--env", multiple=True, metavar="NAME[=VALUE]", help="A variable for the command; alone, its value here."
    ),
    "cwd": click.option("--cwd", type=click.Path(), help="Where the command runs."),
}
_TALK: Mapping[str, Callable[[Any], Any]] = {
    "json": click.option("--json", is_flag=True, help="Print one JSON document."),
    "revision": click.option("--revision", help="Insist on a revision of the protocol."),
    "era": click.option("--era", type=click.Choice(["stateless", "handshake"]), help="Insist on an era."),
    "timeout": click.option(
        "--timeout", type=click.FloatRange(0, min_open=True), help="Seconds to wait, for the start and for an answer."
    ),
    "answers": click.option(
        "-a", "--answer", "answers", multiple=True, metavar="NAME=VALUE", help="An answer, should it ask."
    ),
    "verbose": click.option("-v", "--verbose", is_flag=True, help="Show the server's stderr and log."),
}


def options(*words: str, talk: Collection[str] | None = None) -> Callable[[F], F]:
    """The arguments of a command, and its options about the server; `talk` names how it is spoken to, if not all."""
    chosen = [*_REACH.values(), *(one for name, one in _TALK.items() if talk is None or name in talk)]

    def decorate(function: F) -> F:
        for option in reversed(chosen):
            function = option(function)
        return click.argument("words", nargs=-1, metavar=" ".join(("[TARGET]", *words)))(function)

    return decorate


def asked(ctx: click.Context, **given: Any) -> Asked:
    """The options of a command line as one value."""
    return Asked(command=ctx.obj or (), **given)


def resolve(word: str) -> Any:
    """A target as the client takes it."""
    if word.startswith(_SCHEMES):
        return word
    head, _, name = word.rpartition(":")
    path = Path(head if names_object(word) else word)
    if path.suffix == ".py":
        return [*OURS, "run", _there(path) and word]
    if path.suffix == ".jsonl":
        return [*OURS, "mock", str(_there(path))]
    if path.suffix in SCRIPTS:
        return str(_there(path))
    if path.suffix == ".json" or head.endswith(".json"):
        return _in_file(path if path.suffix == ".json" else Path(head), name if head.endswith(".json") else None)
    if path.is_file() and (os.sep in word or "/" in word):
        return [str(path.resolve())]
    return _configured(word)


def _there(path: Path) -> Path:
    if not path.is_file():
        raise click.UsageError(f"there is no file {str(path)!r}")
    return path


def _in_file(path: Path, name: str | None) -> Any:
    from dovetail.host.config import read_file

    entries, problems = read_file(_there(path), path.name)
    found = [one for one in entries if name in (None, one.name, one.written)]
    if len(found) == 1:
        return _target(found[0])
    for problem in problems:
        text.note(f"{problem.path}: {problem.text}")
    names = ", ".join(one.name for one in entries)
    raise click.UsageError(
        f"{path} holds {'no such server' if name else 'several servers'}; name one as FILE:NAME: {names}"
    )


def _configured(word: str) -> Any:
    from dovetail.host.config import read_known

    entries, _ = read_known()
    source, _, name = word.rpartition(":")
    found = [one for one in entries if name in (one.name, one.written) and source in ("", one.source)]
    if not found:
        hint = meant(name, [one.name for one in entries])
        raise click.UsageError(f"{word!r} is no file, no URL and no server of a known configuration.{hint}")
    if len({one.source for one in found}) > 1:
        names = ", ".join(sorted({f"{one.source}:{one.name}" for one in found}))
        raise click.UsageError(f"{word!r} stands in several configurations; name one: {names}")
    return _target(found[0])


def _target(entry: Any) -> Any:
    try:
        return entry.target()
    except KeyError as exc:
        raise click.UsageError(f"{entry.name}: {exc}") from None


def url_of(target: Any) -> str | None:
    """Where a target is on the web, if it is there."""
    found = target.get("url") if isinstance(target, Mapping) else target
    return found if isinstance(found, str) and found.startswith(("http://", "https://")) else None


def client_options(given: Asked, target: Any) -> dict[str, Any]:
    """The options of the client that a command line asks for."""
    from dovetail.protocol.limits import Timeouts

    made: dict[str, Any] = {"revision": given.revision, "era": given.era}
    if not given.command:
        made["name"] = given.module or given.words[0]
    if given.timeout is not None:
        seconds = given.timeout
        made["timeouts"] = Timeouts(
            initialize=seconds, call=seconds, read=seconds, total=max(seconds, Timeouts().total)
        )
    if given.headers:
        made["headers"] = pairs(given.headers, ":", "--header")
    if (auth := _auth(given, target)) is not None:
        made["auth"] = auth
    if given.env:
        made["env"] = variables(given.env)
    if given.cwd is not None:
        made["cwd"] = given.cwd
    if given.verbose and url_of(target) is None:
        made["stderr"] = text.note
    return made


def _auth(given: Asked, target: Any) -> Any:
    url = url_of(target)
    said = any(one.lower().startswith("authorization:") for one in given.headers)
    if given.auth is None and (url is None or said):  # who says who they are is not logged in as another
        return None
    from dovetail.cli.logins import setting

    return setting(given.auth, url or "")


def variables(given: Iterable[str]) -> dict[str, str]:
    """The variables of `--env`, each with a value."""
    found: dict[str, str] = {}
    for word in given:
        name, mark, value = word.partition("=")
        if not mark and name not in os.environ:
            raise click.UsageError(f"--env {name}: the variable is not set here; give it as {name}=VALUE")
        found[name] = value if mark else os.environ[name]
    return found


def pairs(given: Iterable[str], mark: str, option: str) -> dict[str, str]:
    """Names and values, as options give them."""
    found: dict[str, str] = {}
    for word in given:
        name, there, value = word.partition(mark)
        if not there or not name:
            raise click.UsageError(f"{option} takes NAME{mark}VALUE, not {word!r}")
        found[name.strip()] = value.strip() if mark == ":" else value
    return found
