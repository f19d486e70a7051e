"""What the word TARGET may be, and the client it becomes."""

import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from dovetail.wire.shape import Struct

F = TypeVar("F", bound=Callable[..., Any])


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
    verbose: bool = False

    def split(self) -> tuple[Any, list[str]]:
        """The target, and the words left for the command itself."""
        if self.command:
            return list(self.command), list(self.words)
        if self.module is not None:
            return [sys.executable, "-m", "dovetail.cli", "run", "-m", self.module], list(self.words)
        if not self.words:
            raise click.UsageError("which server? Give a file, a URL, a name, or -- and a command.")
        return resolve(self.words[0]), list(self.words[1:])


def options(function: F) -> F:
    """The options every command that speaks to a server has."""
    for option in reversed(
        (
            click.argument("words", nargs=-1, metavar="TARGET"),
            click.option("-m", "--module", help="A module that holds the server."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
            click.option("--revision", help="Insist on a revision of the protocol."),
            click.option("--era", type=click.Choice(["stateless", "handshake"]), help="Insist on an era."),
            click.option("--timeout", type=float, help="Seconds to wait for an answer."),
            click.option("-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="An HTTP header."),
            click.option("--auth", help='"oauth", or a bearer token.'),
            click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable for the command."),
            click.option("--cwd", type=click.Path(), help="Where the command runs."),
            click.option("-v", "--verbose", is_flag=True, help="Show the server's stderr and log."),
        )
    ):
        function = option(function)
    return function


def asked(ctx: click.Context, words: Sequence[str], as_json: bool, **given: Any) -> Asked:
    """The options of a command line as one value."""
    return Asked(words=words, command=ctx.obj or (), json=as_json, **given)


def resolve(word: str) -> Any:
    """A target as the client takes it."""
    if word.startswith(("http://", "https://", "unix:", "tcp:")):
        return word
    path = Path(word.rpartition(":")[0] if _names_object(word) else word)
    if path.suffix in (".py", ".js", ".mjs", ".ts") or path.exists():
        if not path.is_file():
            raise click.UsageError(f"there is no file {str(path)!r}")
        if path.suffix != ".py":
            return str(path)
        return [sys.executable, "-m", "dovetail.cli", "run", word]
    return _configured(word)


def _names_object(word: str) -> bool:
    head, colon, tail = word.rpartition(":")
    return bool(colon) and head.endswith(".py") and tail.isidentifier()


def _configured(word: str) -> Any:
    from dovetail.host.config import read_known

    entries, _ = read_known()
    source, _, name = word.rpartition(":")
    found = [one for one in entries if one.name == name and source in ("", one.source)]
    if not found:
        near = difflib.get_close_matches(name, [one.name for one in entries], n=3)
        hint = f" Did you mean {', '.join(repr(one) for one in near)}?" if near else ""
        raise click.UsageError(f"{word!r} is no file, no URL and no server of a known configuration.{hint}")
    if len({(one.source, str(one.path)) for one in found}) > 1 and not source:
        names = ", ".join(sorted({f"{one.source}:{one.name}" for one in found}))
        raise click.UsageError(f"{word!r} stands in several configurations; name one: {names}")
    try:
        return found[0].target()
    except KeyError as exc:
        raise click.UsageError(f"{word}: the variable {exc.args[0]} is not set here") from None


def client_options(given: Asked) -> dict[str, Any]:
    """The options of the client that a command line asks for."""
    from dovetail.auth.settings import Bearer
    from dovetail.protocol.limits import Timeouts

    made: dict[str, Any] = {"revision": given.revision, "era": given.era}
    if given.timeout is not None:
        made["timeouts"] = Timeouts(call=given.timeout, read=given.timeout)
    if given.headers:
        made["headers"] = dict(_pair(one, ":", "-H") for one in given.headers)
    if given.auth is not None:
        made["auth"] = given.auth if given.auth == "oauth" else Bearer(given.auth)
    if given.env:
        made["env"] = dict(_pair(one, "=", "--env") for one in given.env)
    if given.cwd is not None:
        made["cwd"] = given.cwd
    if given.verbose:
        made["stderr"] = sys.stderr
    return made


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name:
        raise click.UsageError(f"{option} takes NAME{mark}VALUE, not {text!r}")
    return name.strip(), value.strip()


def load_server(word: str | None, module: str | None) -> Any:
    """The Server object a file or a module holds."""
    from dovetail.serve import Server

    where, name = _load(word, module)
    if name is not None:
        if not isinstance(found := where.get(name), Server):
            raise click.UsageError(f"{word!r} holds no Server called {name!r}")
        return found
    servers = {key: value for key, value in where.items() if isinstance(value, Server)}
    for preferred in ("app", "server", "mcp"):
        if preferred in servers:
            return servers[preferred]
    if len(set(map(id, servers.values()))) == 1:
        return next(iter(servers.values()))
    if not servers:
        raise click.UsageError(f"{word or module!r} holds no dovetail Server")
    raise click.UsageError(f"{word or module!r} holds several servers; name one: {', '.join(sorted(servers))}")


def _load(word: str | None, module: str | None) -> tuple[Mapping[str, Any], str | None]:
    import importlib
    import runpy

    if module is not None:
        sys.path.insert(0, os.getcwd())
        base, _, name = module.partition(":")
        return vars(importlib.import_module(base)), name or None
    assert word is not None
    head, _, tail = word.rpartition(":") if _names_object(word) else (word, "", "")
    path = Path(head)
    if not path.is_file():
        raise click.UsageError(f"there is no file {str(path)!r}")
    sys.path.insert(0, str(path.resolve().parent))
    return runpy.run_path(str(path), run_name=path.stem), tail or None
