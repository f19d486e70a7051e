"""Running a command against a server: one loop, one client, errors as an exit status and a few words."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.advice import translate_error, translate_options
from dovetail.cli.asking import AnswerProvider
from dovetail.cli.bar import ProgressBar
from dovetail.cli.opening import CommandClient
from dovetail.cli.targets import TargetOptions, build_client_options, parse_pairs
from dovetail.errors import AnswerError, MCPError
from dovetail.protocol.recording import Recorder
from dovetail.wire.logs import LoggingMessageParams

CommandAction = Callable[["CommandRun"], Awaitable[int | None]]


class CommandRun:
    """An open client, the words left for the command, and what the user sees meanwhile."""

    def __init__(
        self, client: CommandClient, args: list[str], options: TargetOptions, progress_bar: ProgressBar
    ) -> None:
        self.client = client
        self.args = args
        self.json = options.json
        self.is_stderr_hidden = not options.verbose and client.is_program  # whether its stderr is kept back
        self.progress_bar = progress_bar

    def print_result(self, value: Any, format_value: Callable[[], str]) -> None:
        """One JSON document, or what people are shown."""
        self.progress_bar.clear()
        click.echo(text.format_json(value) if self.json else format_value())


def run_command(
    target_options: TargetOptions, action: CommandAction, recorders: Sequence[Recorder] = (), **extra_options: Any
) -> int:
    """Open a client to the target, do the work, and say how it ended; `taps` are told of every message."""
    target, args = target_options.split_target()
    progress_bar = ProgressBar()
    answers = AnswerProvider(parse_pairs(target_options.answers, "=", "--answer"), progress_bar.clear)
    options = build_client_options(target_options, target) | extra_options
    if target_options.verbose:
        options.setdefault("on_log", print_log_message)

    async def run() -> int | None:
        unopened_client = create_client(target, options, answers)
        unopened_client.taps += recorders
        async with unopened_client as client:
            return await action(CommandRun(client, args, target_options, progress_bar))

    with LogPrinter(target_options.verbose):
        code = run_to_exit_code(run, target_options.json, progress_bar)
    if answers.usage_error is not None and code != exits.EXIT_OK:
        return exits.EXIT_USAGE
    if answers.has_declined and code == exits.EXIT_TOOL_ERROR:
        return exits.EXIT_DENIED
    if answers.unanswered and code == exits.EXIT_TOOL_ERROR:
        report_error(
            AnswerError(f"it wanted an answer: {answers.unanswered[0]}").at(hint="--answer NAME=VALUE"),
            target_options.json,
        )
        return exits.EXIT_INPUT_NEEDED
    return code


def run_to_exit_code(
    run: Callable[[], Awaitable[int | None]], as_json: bool, progress_bar: ProgressBar | None = None
) -> int:
    """The exit status of some work; what it raises is told."""

    async def main() -> int | None:
        return await run()

    try:
        return asyncio.run(main()) or exits.EXIT_OK
    except MCPError as exc:
        if progress_bar is not None:
            progress_bar.clear()
        report_error(exc, as_json)
        return exits.get_exit_code(exc)


def create_client(target: Any, options: dict[str, Any], answers: AnswerProvider | None = None) -> CommandClient:
    """A client that is not open yet; UsageError if the options do not go with the target.

    It can always be asked, since servers offer other things to clients that cannot.
    """
    answer_provider = answers or AnswerProvider({}, lambda: None)
    handlers: dict[str, Any] = {"elicit": answer_provider.fill_form, "elicit_url": answer_provider.confirm_url}
    try:
        return CommandClient(target, **handlers | options)
    except (FileNotFoundError, TypeError, ValueError) as exc:
        raise click.UsageError(_translate_option(str(exc))) from None


def _translate_option(message: str) -> str:
    """An option of the client that is named first, as the one of the command line that sets it."""
    name, separator, rest = message.partition("= ")
    option_names = {"headers": "--header", "era": "--era", "revision": "--revision", "auth": "--auth", "cwd": "--cwd"}
    return f"{option_names[name]} {rest}" if separator and name in option_names else translate_options(message)


def report_error(exc: MCPError, as_json: bool) -> None:
    """An error, on stderr: for people, or as one JSON document."""
    translate_error(exc)
    if not as_json:
        text.print_error(str(exc))
        return
    fields = {name: getattr(exc, name, None) for name in (*_ERROR_FIELDS, "code")}
    document = {"error": type(exc).__name__, "message": str(exc.args[0]) if exc.args else ""}
    click.echo(
        text.format_json(document | {name: value for name, value in fields.items() if value is not None}), err=True
    )


_ERROR_FIELDS = ("server", "step", "revision", "status", "exit_code", "stderr", "hint")


def print_log_message(params: LoggingMessageParams) -> None:
    """A log message of the server."""
    text.print_note(f"[{params.level}] {params.data}")


class LogPrinter(logging.Handler):
    """While it lasts, what dovetail logs is shown escaped, instead of as the logging module would."""

    def __init__(self, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.CRITICAL)
        self._logger = logging.getLogger("dovetail")

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        text.print_note(record.getMessage())

    def __enter__(self) -> None:
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
