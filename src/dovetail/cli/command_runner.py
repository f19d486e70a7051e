"""Running a command against a server: one loop, one client, errors as an exit status and a few words."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from dovetail.cli import error_report
from dovetail.cli.answers import AnswerProvider
from dovetail.cli.error_report import translate_error, translate_options
from dovetail.cli.target_argument import (
    DOVETAIL_COMMAND,
    SCRIPT_SUFFIXES,
    TargetOptions,
    build_client_options,
    parse_pairs,
)
from dovetail.client.targets import Client, as_command_target
from dovetail.error_context import add_context
from dovetail.errors import InputRequestError, MCPError, ProcessStartError
from dovetail.protocol.recording_format import Recorder
from dovetail.terminal import output
from dovetail.terminal.output import ProgressBar
from dovetail.wire.logs import LoggingMessageNotificationParams

_LOCAL_URL_REGEX: Final = (
    r"https?://(?:127\.|localhost\b|0\.0\.0\.0\b|\[::)[^\s'\"]*"  # a page elsewhere is only mentioned
)
_URL_ANNOUNCEMENT_PATTERN: Final = re.compile(
    rf"(?:running on|listening on|listening at|is at)\W+({_LOCAL_URL_REGEX})", re.IGNORECASE
)
_ERROR_LINE_PATTERN: Final = re.compile(r"^error: (.+)", re.MULTILINE)
_MAX_KEPT_LINES: Final = 5  # lines
_HTTP_ONLY_TIMEOUT_S: Final = 3.0  # for a program that serves HTTP, and stdin and stdout besides


class CommandClient(Client):
    """A client that listens to what a program says while it starts."""

    def __init__(self, target: Any, **options: Any) -> None:
        self.is_program = _is_program(target)
        self._runs_dovetail = isinstance(target, list) and tuple(target[: len(DOVETAIL_COMMAND)]) == DOVETAIL_COMMAND
        self._has_user_timeout = "timeout" in options  # the user says how long to wait
        self._stderr_monitor = _StderrMonitor(options.pop("stderr", None))
        if self.is_program:
            target = as_command_target(target, stderr=self._stderr_monitor)
        super().__init__(target, **options)

    async def connect(self) -> None:
        """Open the conversation; UsageError if it is the target that is wrong."""
        try:
            await (self._connect_monitored() if self.is_program and not self._has_user_timeout else super().connect())
        except ProcessStartError as exc:
            error_line = (
                _ERROR_LINE_PATTERN.search(exc.stderr or "")
                if self._runs_dovetail and exc.exit_code == error_report.EXIT_USAGE
                else None
            )
            if error_line is None:
                raise
            raise click.UsageError(error_line[1]) from None

    @property
    def last_stderr_lines(self) -> list[str]:
        """What it said last on stderr."""
        return [*self._stderr_monitor.last_lines]

    async def _connect_monitored(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = asyncio.timeout(None)  # until it says that it is on the web
        self._stderr_monitor.on_url = lambda: deadline.reschedule(loop.time() + _HTTP_ONLY_TIMEOUT_S)
        try:
            async with deadline:
                return await super().connect()
        except TimeoutError:
            if not deadline.expired():
                raise
        finally:
            self._stderr_monitor.on_url = _do_nothing
        await self.close()
        raise add_context(
            ProcessStartError("the program serves HTTP, and says nothing on stdout"),
            server=self.name,
            hint=f"let it run, and use its URL as the target: {self._stderr_monitor.url}, often with /mcp; "
            "if it speaks on "
            "stdout too, --timeout SECONDS waits for it",
        )


class _StderrMonitor:
    """What a program says on stderr, passed on to who wants it."""

    def __init__(self, sink: Callable[[str], object] | None) -> None:
        self.on_url: Callable[[], None] = _do_nothing  # called when it says where it is on the web,
        self.url = ""  # namely here
        self.last_lines: deque[str] = deque(maxlen=_MAX_KEPT_LINES)
        self._sink = sink

    def __call__(self, line: str) -> None:
        if not self.url and (match := _URL_ANNOUNCEMENT_PATTERN.search(line)):
            self.url = match[1]
            self.on_url()
        self.last_lines.append(line)
        if self._sink is not None:
            self._sink(line)


def _do_nothing() -> None:
    """Nobody waits."""


def _is_program(target: Any) -> bool:
    if isinstance(target, dict):
        return "command" in target
    return isinstance(target, list) or (isinstance(target, str) and Path(target).suffix in SCRIPT_SUFFIXES)


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
        click.echo(output.format_json(value) if self.json else format_value())


def run_command(
    target_options: TargetOptions, action: CommandAction, recorders: Sequence[Recorder] = (), **extra_options: Any
) -> int:
    """Open a client to the target, do the work, and say how it ended; `taps` are told of every message."""
    target, args = target_options.split_target()
    progress_bar = ProgressBar()
    answers = AnswerProvider(parse_pairs(target_options.answers, "=", "--answer"), progress_bar.clear)
    options = build_client_options(target_options, target) | extra_options
    if target_options.verbose:
        options.setdefault("log_handler", print_log_message)

    async def run() -> int | None:
        unopened_client = create_client(target, options, answers)
        unopened_client.taps += recorders
        async with unopened_client as client:
            return await action(CommandRun(client, args, target_options, progress_bar))

    with LogPrinter(target_options.verbose):
        code = run_to_exit_code(run, target_options.json, progress_bar)
    if answers.usage_error is not None and code != error_report.EXIT_OK:
        return error_report.EXIT_USAGE
    if answers.has_declined and code == error_report.EXIT_TOOL_ERROR:
        return error_report.EXIT_DENIED
    if answers.unanswered and code == error_report.EXIT_TOOL_ERROR:
        report_error(
            add_context(InputRequestError(f"it wanted an answer: {answers.unanswered[0]}"), hint="--answer NAME=VALUE"),
            target_options.json,
        )
        return error_report.EXIT_INPUT_NEEDED
    return code


def run_to_exit_code(
    run: Callable[[], Awaitable[int | None]], as_json: bool, progress_bar: ProgressBar | None = None
) -> int:
    """The exit status of some work; what it raises is told."""

    async def main() -> int | None:
        return await run()

    try:
        return asyncio.run(main()) or error_report.EXIT_OK
    except MCPError as exc:
        if progress_bar is not None:
            progress_bar.clear()
        report_error(exc, as_json)
        return error_report.get_exit_code(exc)


def create_client(target: Any, options: dict[str, Any], answers: AnswerProvider | None = None) -> CommandClient:
    """A client that is not open yet; UsageError if the options do not go with the target.

    It can always be asked, since servers offer other things to clients that cannot.
    """
    answer_provider = answers or AnswerProvider({}, lambda: None)
    handlers: dict[str, Any] = {
        "elicitation_handler": answer_provider.fill_form,
        "url_elicitation_handler": answer_provider.confirm_url,
    }
    try:
        return CommandClient(target, **handlers | options)
    except (FileNotFoundError, TypeError, ValueError) as exc:
        raise click.UsageError(_translate_option(str(exc))) from None


def _translate_option(message: str) -> str:
    """An option of the client that is named first, as the one of the command line that sets it."""
    name, separator, rest = message.partition("= ")
    option_names = {
        "headers": "--header",
        "protocol_version": "--protocol-version",
        "auth": "--auth",
        "cwd": "--cwd",
    }
    return f"{option_names[name]} {rest}" if separator and name in option_names else translate_options(message)


def report_error(exc: MCPError, as_json: bool) -> None:
    """An error, on stderr: for people, or as one JSON document."""
    translate_error(exc)
    if not as_json:
        output.print_error(str(exc))
        return
    fields = {name: getattr(exc, name, None) for name in (*_ERROR_FIELDS, "code")}
    document = {"error": type(exc).__name__, "message": str(exc.args[0]) if exc.args else ""}
    click.echo(
        output.format_json(document | {name: value for name, value in fields.items() if value is not None}), err=True
    )


_ERROR_FIELDS = ("server", "step", "protocol_version", "status_code", "exit_code", "stderr", "hint")


def print_log_message(params: LoggingMessageNotificationParams) -> None:
    """A log message of the server."""
    output.print_note(f"[{params.level}] {params.data}")


class LogPrinter(logging.Handler):
    """While it lasts, what dovetail logs is shown escaped, instead of as the logging module would."""

    def __init__(self, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.CRITICAL)
        self._logger = logging.getLogger("dovetail")

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        output.print_note(record.getMessage())

    def __enter__(self) -> None:
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
