"""Running a command against a server: one loop, one client, errors as an exit status and a few words."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.advice import advise, spelled
from dovetail.cli.asking import Questions
from dovetail.cli.bar import Bar
from dovetail.cli.opening import Opening
from dovetail.cli.targets import Asked, client_options, pairs
from dovetail.errors import AnswerError, MCPError
from dovetail.protocol.recording import Tap
from dovetail.wire.logs import LoggingMessageParams

Work = Callable[["Spoken"], Awaitable[int | None]]


class Spoken:
    """An open client, the words left for the command, and what the user sees meanwhile."""

    def __init__(self, client: Opening, words: list[str], asked: Asked, bar: Bar) -> None:
        self.client = client
        self.words = words
        self.json = asked.json
        self.muted = not asked.verbose and client.is_program  # whether its stderr is kept back
        self.bar = bar

    def print(self, value: Any, shown: Callable[[], str]) -> None:
        """One JSON document, or what people are shown."""
        self.bar.clear()
        click.echo(text.document(value) if self.json else shown())


def converse(asked: Asked, work: Work, taps: Sequence[Tap] = (), **more: Any) -> int:
    """Open a client to the target, do the work, and say how it ended; `taps` are told of every message."""
    target, words = asked.split()
    bar = Bar()
    questions = Questions(pairs(asked.answers, "=", "--answer"), bar.clear)
    options = client_options(asked, target) | more
    if asked.verbose:
        options.setdefault("on_log", show_log)

    async def run() -> int | None:
        made = client_for(target, options, questions)
        made.taps += taps
        async with made as client:
            return await work(Spoken(client, words, asked, bar))

    with logged(asked.verbose):
        code = finished(run, asked.json, bar)
    if questions.wrong is not None and code != exits.OK:
        return exits.USAGE
    if questions.refused and code == exits.TOOL:
        return exits.DENIED
    if questions.open and code == exits.TOOL:
        report(AnswerError(f"it wanted an answer: {questions.open[0]}").at(hint="--answer NAME=VALUE"), asked.json)
        return exits.INPUT
    return code


def finished(run: Callable[[], Awaitable[int | None]], as_json: bool, bar: Bar | None = None) -> int:
    """The exit status of some work; what it raises is told."""

    async def main() -> int | None:
        return await run()

    try:
        return asyncio.run(main()) or exits.OK
    except MCPError as exc:
        if bar is not None:
            bar.clear()
        report(exc, as_json)
        return exits.code_of(exc)


def client_for(target: Any, options: dict[str, Any], questions: Questions | None = None) -> Opening:
    """A client that is not open yet; UsageError if the options do not go with the target.

    It can always be asked, since servers offer other things to clients that cannot.
    """
    asked = questions or Questions({}, lambda: None)
    able: dict[str, Any] = {"elicit": asked.form, "elicit_url": asked.visit}
    try:
        return Opening(target, **able | options)
    except (FileNotFoundError, TypeError, ValueError) as exc:
        raise click.UsageError(_as_option(str(exc))) from None


def _as_option(words: str) -> str:
    """An option of the client that is named first, as the one of the command line that sets it."""
    name, mark, rest = words.partition("= ")
    known = {"headers": "--header", "era": "--era", "revision": "--revision", "auth": "--auth", "cwd": "--cwd"}
    return f"{known[name]} {rest}" if mark and name in known else spelled(words)


def report(exc: MCPError, as_json: bool) -> None:
    """An error, on stderr: for people, or as one JSON document."""
    advise(exc)
    if not as_json:
        text.fail(str(exc))
        return
    facts = {name: getattr(exc, name, None) for name in (*_FACTS, "code")}
    said = {"error": type(exc).__name__, "message": str(exc.args[0]) if exc.args else ""}
    click.echo(text.document(said | {name: fact for name, fact in facts.items() if fact is not None}), err=True)


_FACTS = ("server", "step", "revision", "status", "exit_code", "stderr", "hint")


def show_log(entry: LoggingMessageParams) -> None:
    """A log message of the server."""
    text.note(f"[{entry.level}] {entry.data}")


class logged(logging.Handler):  # noqa: N801 - used as a context
    """While it lasts, what dovetail logs is shown escaped, instead of as the logging module would."""

    def __init__(self, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.CRITICAL)
        self._logger = logging.getLogger("dovetail")

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        text.note(record.getMessage())

    def __enter__(self) -> None:
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
