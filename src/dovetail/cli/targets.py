"""What the word TARGET may be, and how a client reaches it."""

import math
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
_RUNNERS = {".js": ("node",), ".mjs": ("node",), ".ts": ("npx", "tsx")}


class Seconds(click.FloatRange):
    """Some time, or a rate: more than nothing, and an end to it."""

    name = "float range"

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a usage error if it is none."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not in the range x>0.", param, ctx)
        return found


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
        for word in self.words[0 if self.command or self.module is not None else 1 :]:
            if any("\ud800" <= one <= "\udfff" for one in word):
                raise click.UsageError(f"{word!r} is not UTF-8")
        if self.command:
            return list(self.command), list(self.words)
        if self.module is not None:
            return [*OURS, "run", "-m", self.module], list(self.words)
        if not self.words:
            raise click.UsageError("which server? Give a file, a URL, a name, or -- and a command.")
        return resolve(self.words[0], elsewhere=self.cwd is not None), list(self.words[1:])


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
    "timeout": click.option("--timeout", type=Seconds(), help="Seconds to wait, for the start and for an answer."),
    "answers": click.option(
        "-a", "--answer", "answers", multiple=True, metavar="NAME=VALUE", help="An answer, should it ask."
    ),
    "verbose": click.option("-v", "--verbose", is_flag=True, help="Show the server's stderr and log."),
}


_ALONE = "[TARGET]"
LOCAL = ("module", "env", "cwd")  # what is said of a server that is started,
WRITTEN = ("module", "headers", "env", "cwd")  # and of one that is written down: a login is nobody's to write


def options(*words: str, reach: Collection[str] | None = None, talk: Collection[str] | None = None) -> Callable[[F], F]:
    """The arguments of a command, and its options about the server.

    `reach` names those about how it is reached, `talk` those about how it is spoken to; without them, all.
    """
    offered = ((_REACH, reach), (_TALK, talk))
    chosen = [one for table, wanted in offered for name, one in table.items() if wanted is None or name in wanted]

    def decorate(function: F) -> F:
        for option in reversed(chosen):
            function = option(function)
        return click.argument("words", nargs=-1, metavar=" ".join((_ALONE, *words)))(function)

    return decorate


def asked(ctx: click.Context, **given: Any) -> Asked:
    """The options of a command line as one value."""
    line = Asked(command=ctx.obj or (), **given)
    alone = any(one.metavar == _ALONE for one in ctx.command.params if isinstance(one, click.Argument))
    surplus = line.words[0 if line.command or line.module is not None else 1 :]
    if alone and surplus:
        raise click.UsageError(f"{surplus[0]!r} is too much")
    return line


def resolve(word: str, *, elsewhere: bool = False) -> Any:
    """A target as the client takes it. `elsewhere`: it is started in another folder than this one."""
    if word.startswith(_SCHEMES):
        return word
    head, _, name = word.rpartition(":")
    path = Path(head if names_object(word) else word)
    if path.suffix == ".py":
        return [*OURS, "run", whole(word) if elsewhere else _there(path) and word]
    if path.suffix == ".jsonl":
        return [*OURS, "mock", str(_there(path).resolve() if elsewhere else _there(path))]
    if path.suffix in SCRIPTS:
        return str(_there(path).resolve() if elsewhere else _there(path))
    if path.suffix == ".json" or head.endswith(".json"):
        return _in_file(path if path.suffix == ".json" else Path(head), name if head.endswith(".json") else None)
    if path.is_file() and (os.sep in word or "/" in word):
        return [str(path.resolve())]
    return _target(configured(word))


def whole(word: str) -> str:
    """A file, or an object in one, wherever it is looked at from; UsageError if there is no such file."""
    head, _, name = word.rpartition(":") if names_object(word) else (word, "", "")
    return f"{_there(Path(head)).resolve()}{f':{name}' if name else ''}"


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


def configured(word: str) -> Any:
    """The entry of a known configuration that goes by this name; UsageError if there is none, or several."""
    from dovetail.host.config import read_known

    entries, problems = read_known()
    source, _, name = word.rpartition(":")
    found = [one for one in entries if name in (one.name, one.written) and source in ("", one.source)]
    if not found:
        for problem in problems:
            text.note(f"{problem.path}: {problem.text}")
        hint = meant(name, [one.name for one in entries])
        raise click.UsageError(f"{word!r} is no file, no URL and no server of a known configuration.{hint}")
    if len({one.source for one in found}) > 1:
        names = ", ".join(sorted({f"{one.source}:{one.name}" for one in found}))
        raise click.UsageError(f"{word!r} stands in several configurations; name one: {names}")
    return found[0]


def _target(entry: Any) -> Any:
    try:
        return entry.target()
    except KeyError as exc:
        raise click.UsageError(f"{entry.name}: {exc}") from None


class Program(Struct, frozen=True, kw_only=True):
    """A target that is started: what, and with what."""

    command: list[str]
    env: dict[str, str]
    cwd: str | None = None


class Address(Struct, frozen=True, kw_only=True):
    """A target that is somewhere on the web, and what is said to it besides."""

    url: str
    headers: dict[str, str]


def reached(line: Asked, target: Any) -> Program | Address:
    """How a target is reached by who is no client; UsageError if it, or an option, is nothing for them."""
    entry: Mapping[str, Any] = target if isinstance(target, Mapping) else {}
    if (url := url_of(target)) is not None:
        if line.env or line.cwd is not None:
            raise click.UsageError("--env and --cwd are for a command, not for a URL")
        return Address(url=url, headers={**(entry.get("headers") or {}), **_said_headers(line)})
    if line.headers or line.auth is not None:
        raise click.UsageError("--header and --auth are for a URL, not for a command")
    if isinstance(target, str) and (runner := _RUNNERS.get(Path(target).suffix)):
        command = [*runner, str(Path(target).resolve())]
    elif isinstance(target, str) or (entry and "command" not in entry):
        raise click.UsageError(f"{target if isinstance(target, str) else 'this entry'!r} is no command and no http URL")
    else:
        command = [str(entry["command"]), *(entry.get("args") or ())] if entry else [*target]
    env = {**(entry.get("env") or {}), **variables(line.env)}
    return Program(command=command, env=env, cwd=line.cwd if line.cwd is not None else entry.get("cwd"))


def _said_headers(line: Asked) -> dict[str, str]:
    found = pairs(line.headers, ":", "--header")
    if line.auth is None:
        return found
    if line.auth == "oauth":
        raise click.UsageError("here --auth is a token: who stands between two others does not log in")
    from dovetail.cli.logins import setting

    return found | {"Authorization": f"Bearer {setting(line.auth, '').token}"}


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
