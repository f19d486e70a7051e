"""`dovetail dev`: serve a server while it is being written."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.loading import names_object
from dovetail.cli.speaking import finished
from dovetail.cli.targets import LOCAL, OURS, Asked, Program, asked, options, reached, url_of


@click.command("dev")
@options(reach=LOCAL, talk=())
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--port", type=int, default=8000, show_default=True, help="0 takes a free one.")
@click.option(
    "--watch", "places", multiple=True, type=click.Path(exists=True), help="What to look at; else its folder."
)
@click.option("-q", "--quiet", is_flag=True, help="Do not show what travels over stdio.")
@click.pass_context
def command(ctx: click.Context, http: bool, port: int, places: tuple[str, ...], quiet: bool, **given: Any) -> int:
    """Serve a server while you write it: it starts anew when a file changes, and its client stays connected.

    Over stdio the client is told that the lists have changed, what it listened to it still hears, and every message is
    shown on stderr. Let a host start this in place of the server, or speak to it yourself.

    \b
    dovetail dev server.py
    dovetail dev server.py --http --port 8000
    dovetail dev --watch src -- node server.js
    """
    from dovetail.transports.reloading import Files, relay, supervise
    from dovetail.transports.stdio import private_streams

    line = asked(ctx, **given)
    program, beside = _program(line)
    words, where = program.command, {"env": program.env, "cwd": program.cwd}
    files = Files([Path(place) for place in places] or [beside])
    text.note(f"watching {len(files)} files")
    if http:
        from dovetail.transports.web import bound_socket

        if words[: len(OURS)] != [*OURS]:
            raise click.UsageError("over HTTP only a file or a module can be served like that")
        try:
            listener = bound_socket("127.0.0.1", port)
        except OSError as exc:
            raise click.UsageError(str(exc)) from None
        supervise(listener, [*words, "--http", "--port", str(listener.getsockname()[1])], files, **where)
        return 0
    shown = None if quiet else Shown().tap
    with private_streams() as (source, sink), contextlib.suppress(KeyboardInterrupt):
        return finished(
            lambda: relay(os.dup(source), sink, words, files, shown, stderr=text.overheard(), **where), False
        )
    return 0


def _program(line: Asked) -> tuple[Program, Path]:
    """What is started as the server, and the folder it is in."""
    target, words = line.split()
    if words:
        raise click.UsageError(f"{words[0]!r} is too much")
    if isinstance(target, dict) or url_of(target) is not None:
        raise click.UsageError("a server is developed from a file, a module or a command")
    found = reached(line, target)
    assert isinstance(found, Program)
    if line.command or line.module:
        return found, Path(line.cwd or Path.cwd())
    file = line.words[0].rpartition(":")[0] if names_object(line.words[0]) else line.words[0]
    return found, Path(file).resolve().parent


class Shown:
    """What travels, one line a message."""

    def __init__(self) -> None:
        self._asked: dict[Any, tuple[str, float]] = {}

    def tap(self, to: str, data: bytes, _: Any = ()) -> None:
        """Show one message."""
        message = _read(data)
        if message is None:
            text.note(f"? {data.decode('utf-8', 'replace')}")
            return
        mark = "→" if to == "server" else "←"
        method, id = message.get("method"), json.dumps(message.get("id"))
        if method is not None:
            self._asked[to, id] = (method, time.perf_counter())
            params = message.get("params")
            if isinstance(params, dict):
                params = {name: value for name, value in params.items() if name != "_meta"}
            text.note(text.line(f"{mark} {method} {json.dumps(params, ensure_ascii=False) if params else ''}".rstrip()))
            return
        asked, begun = self._asked.pop(("client" if to == "server" else "server", id), ("", 0.0))
        took = (time.perf_counter() - begun) * 1000
        said = message.get("error") or message.get("result")
        wrong = "error" in message or (isinstance(said, dict) and said.get("isError"))
        told = text.line(f"{mark} {asked} {took:.1f} ms {json.dumps(said, ensure_ascii=False)}")
        click.echo(text.style(told, err=True, fg="red" if wrong else None, dim=not wrong), err=True)


def _read(data: bytes) -> dict[str, Any] | None:
    """A message; None if it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
