"""`dovetail doctor`: a server looked at step by step, each failure with what to do about it."""

import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.advice import advise
from dovetail.cli.lint import examined
from dovetail.cli.list import KINDS, listed
from dovetail.cli.speaking import client_for, finished, logged
from dovetail.cli.targets import Asked, asked, client_options, options, url_of
from dovetail.connect import Client
from dovetail.errors import MCPError
from dovetail.wire.revisions import NEWEST
from dovetail.wire.shape import Struct

_PINGS = 10
_MANY_TOKENS = 10_000
_SLOW_START = 5.0


class Step(Struct, frozen=True, omit_defaults=True):
    """One thing that was looked at."""

    name: str
    verdict: str  # "good", "doubtful" or "bad"
    said: str
    fix: str | None = None


@click.command("doctor")
@options()
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Look at a server step by step: command, variables, start, handshake, lists, schemas, cost, speed.

    \b
    dovetail doctor server.py
    dovetail doctor -- uvx mcp-server-time
    """
    line = asked(ctx, **given)
    steps: list[Step] = []

    def told(step: Step) -> None:
        steps.append(step)
        if not line.json:
            click.echo(_shown(step))

    async def run() -> int:
        return await _examine(line, told)

    with logged(line.verbose):
        code = finished(run, line.json)
    if line.json:
        click.echo(text.document({"healthy": code == exits.OK, "steps": steps}))
    return code


def _shown(step: Step) -> str:
    mark, colour = {"good": ("ok", "green"), "doubtful": ("??", "yellow"), "bad": ("XX", "red")}[step.verdict]
    told = f"{text.style(mark, fg=colour)} {step.name}: {_inset(step.said)}"
    return told + (f"\n   try: {_inset(step.fix)}" if step.fix else "")


def _inset(said: str) -> str:
    """Several lines so that none of them looks like a step."""
    return text.safe(said).replace("\n", "\n      ")


async def _examine(line: Asked, told: Any) -> int:
    target, _ = line.split()
    for step in _before(target):
        told(step)
        if step.verdict == "bad":
            return exits.CONNECT
    client = client_for(target, client_options(line, target))
    begun = time.perf_counter()
    try:
        await client.connect()
    except MCPError as exc:
        told(_failed("start", exc))
        return exits.code_of(exc)
    try:
        told(_started(time.perf_counter() - begun))
        for step in _greeted(client):
            told(step)
        return await _within(client, told)
    except MCPError as exc:
        told(_failed("talk", exc))
        return exits.code_of(exc)
    finally:
        await client.close()


def _failed(name: str, exc: MCPError) -> Step:
    advise(exc)
    fix, exc.hint = exc.hint, None  # told once, in its own line
    return Step(name, "bad", str(exc), fix or _FIXES.get(type(exc).__name__))


_FIXES = {
    "CannotStart": "run the command by hand: it must wait for input and print nothing of its own on stdout",
    "CannotConnect": "is it running, and is the port right? `dovetail run` serves a file over HTTP",
    "NeedsLogin": "dovetail auth login, with the same target; or --auth TOKEN",
    "NotMCP": "most servers are at /mcp or /sse; is the path right?",
    "NoCommonRevision": "a newer version of the server, or of dovetail",
    "RequestTimeout": "does it write its answers to stdout, one a line, and flush them? --timeout waits longer",
}


def _before(target: Any) -> Iterator[Step]:
    """What can be seen without the server."""
    url = url_of(target)
    if url is not None:
        yield Step("address", "good", url)
        return
    if isinstance(target, dict):
        if not target.get("command"):
            fix = "give it a command, or a url that begins with http:// or https://"
            yield Step("entry", "bad", "the configuration names no command and no address", fix)
            return
        words = [str(target["command"]), *(target.get("args") or ())]
        if target.get("env"):
            yield Step("variables", "good", f"{', '.join(target['env'])} set by the configuration")
    else:
        words = [target] if isinstance(target, str) else [*target]
    if words[0].startswith(("unix:", "tcp:")) or (isinstance(target, str) and Path(target).suffix):
        yield Step("target", "good", words[0])
        return
    found = shutil.which(words[0])
    if found is None:
        yield Step("command", "bad", f"{words[0]} is not on PATH", "install it, or give its whole path")
    else:
        yield Step("command", "good", found)


def _started(seconds: float) -> Step:
    said = f"answered after {seconds * 1000:.0f} ms"
    if seconds > _SLOW_START:
        return Step("start", "doubtful", said, "hosts give up after a while: do less before serving")
    return Step("start", "good", said)


def _greeted(client: Client) -> Iterator[Step]:
    server = client.server
    named = f"{text.line(server.name)} {text.line(server.version)}" if server else "no name given"
    yield Step("server", "good" if server else "doubtful", named)
    if client.revision == NEWEST:
        yield Step("revision", "good", f"{client.revision}, the newest")
    else:
        yield Step("revision", "good", f"{client.revision}, by a handshake")
    if client.instructions is None:
        yield Step("instructions", "doubtful", "none", "say in a sentence what the server is for; models read it")


async def _within(client: Client, told: Any) -> int:
    begun = time.perf_counter()
    found = {kind: await listed(client, kind) for kind in KINDS}
    counts = ", ".join(_many(len(items), kind) for kind, items in found.items() if items) or "nothing"
    took = (time.perf_counter() - begun) * 1000
    told(Step("lists", "good" if any(found.values()) else "doubtful", f"{counts}, in {took:.0f} ms"))
    missing = client.left_out
    if missing:
        told(Step("items", "bad", "left out, since malformed: " + "; ".join(missing[:5]), "dovetail lint names all"))
    reports = examined(found["tools"])
    refused = [one for report in reports for one in report.findings if one.about != "words"]
    silent = sum(any(one.about == "words" for one in report.findings) for report in reports)
    if refused:
        makers = ", ".join(sorted({one.about for one in refused}))
        told(Step("schemas", "bad", f"findings about {makers}: {len(refused)}", "dovetail lint names them"))
    else:
        said = "taken by every maker of models that is known here" if reports else "there are none"
        told(Step("schemas", "good", said))
    if silent:
        said, name = ("says too little of itself", "it") if silent == 1 else ("say too little of themselves", "them")
        told(Step("words", "doubtful", f"{_many(silent, 'tools')} {said}", f"dovetail lint names {name}"))
    tokens = sum(report.tokens for report in reports)
    fix = "fewer tools, or shorter descriptions" if tokens > _MANY_TOKENS else None
    told(Step("cost", "doubtful" if fix else "good", f"about {tokens} tokens of every conversation", fix))
    told(Step("speed", "good", f"a request takes {await _latency(client):.1f} ms, in the median of {_PINGS}"))
    if client.noise:
        said = f"written to stdout, and no message: {_many(client.noise, 'lines')}"
        told(Step("noise", "bad", said, "print to stderr: on stdout some hosts give up at the first such line"))
        return exits.CONTRACT
    return exits.CONTRACT if refused or missing else exits.OK


def _many(count: int, things: str) -> str:
    return f"{count} {things if count != 1 else things.removesuffix('s')}"


async def _latency(client: Client) -> float:
    times: list[float] = []
    for _ in range(_PINGS):
        begun = time.perf_counter()
        await client.ping()
        times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)
