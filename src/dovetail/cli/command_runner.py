"""Run a command with a connected client, and convert errors to messages and exit codes."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
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
from dovetail.client.client import Client, get_session
from dovetail.client.item_lists import list_by_kind
from dovetail.client.targets import set_stderr_handler
from dovetail.error_context import add_context
from dovetail.errors import InputRequestError, MCPError, ProcessStartError
from dovetail.protocol.interfaces.message_tap import Recorder
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.safe_text import QUOTE_PREFIX
from dovetail.terminal import output
from dovetail.terminal.live import ProgressBar
from dovetail.wire.logs import LoggingMessageNotificationParams

# A program can print a remote URL although it does not serve HTTP, so only URLs on this machine match.
_LOCAL_URL_REGEX: Final = r"https?://(?:127\.|localhost\b|0\.0\.0\.0\b|\[::)[^\s'\"]*"
_URL_ANNOUNCEMENT_PATTERN: Final = re.compile(
    rf"(?:running on|listening on|listening at|is at)\W+({_LOCAL_URL_REGEX})", re.IGNORECASE
)
_ERROR_LINE_PATTERN: Final = re.compile(r"^error: (.+)", re.MULTILINE)
_MAX_KEPT_LINES: Final = 5  # the maximum number of stderr lines in an error message
# After a program prints a URL, it has this many seconds to respond on stdio. Then the command fails.
_HTTP_ONLY_TIMEOUT_S: Final = 3.0


class CommandClient:
    """The client that a command uses. It reads the stderr of the server while the server starts.

    `async with` connects and returns the client.
    """

    def __init__(self, target: Any, **options: Any) -> None:
        self.is_program = _is_program(target)
        self._runs_dovetail = isinstance(target, list) and tuple(target[: len(DOVETAIL_COMMAND)]) == DOVETAIL_COMMAND
        self._has_user_timeout = "timeout" in options
        self._stderr_monitor = _StderrMonitor(options.pop("stderr", None))
        if self.is_program:
            target = set_stderr_handler(target, self._stderr_monitor)
        self.client = Client(target, **options)

    async def __aenter__(self) -> Client:
        await self.connect()
        return self.client

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def connect(self) -> None:
        """Connect to the server. Raise UsageError if the target is invalid."""
        is_monitored = self.is_program and not self._has_user_timeout
        try:
            await (self._connect_monitored() if is_monitored else self.client.connect())
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
        """The last lines that the program wrote to stderr."""
        return [*self._stderr_monitor.last_lines]

    async def _connect_monitored(self) -> None:
        loop = asyncio.get_running_loop()
        # The timeout starts when the program prints a URL.
        deadline = asyncio.timeout(None)
        self._stderr_monitor.on_url = lambda: deadline.reschedule(loop.time() + _HTTP_ONLY_TIMEOUT_S)
        try:
            async with deadline:
                return await self.client.connect()
        except TimeoutError:
            if not deadline.expired():
                raise
        finally:
            self._stderr_monitor.on_url = _do_nothing
        await self.client.close()
        raise add_context(
            ProcessStartError("the program serves HTTP and writes nothing to stdout"),
            server=self.client.name,
            hint=f"start the program yourself, and pass its URL {self._stderr_monitor.url} as the target. If this URL "
            "does not work, add /mcp to it or remove /mcp. If the program also serves stdio, "
            "pass --timeout SECONDS to wait longer",
        )


class _StderrMonitor:
    def __init__(self, sink: Callable[[str], object] | None) -> None:
        self.on_url: Callable[[], None] = _do_nothing
        self.url = ""
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
    """Do nothing."""


def _is_program(target: Any) -> bool:
    if isinstance(target, dict):
        return "command" in target
    return isinstance(target, list) or (isinstance(target, str) and Path(target).suffix in SCRIPT_SUFFIXES)


CommandAction = Callable[["CommandRun"], Awaitable[int | None]]


class CommandRun:
    """The client, the remaining arguments and the output options of a command."""

    def __init__(
        self, command_client: CommandClient, args: list[str], options: TargetOptions, progress_bar: ProgressBar
    ) -> None:
        self.client = command_client.client
        self.args = args
        self.options = options
        self.json = options.json
        self.is_program = command_client.is_program
        self.is_stderr_hidden = not options.verbose and command_client.is_program
        self.progress_bar = progress_bar
        self._command_client = command_client

    @property
    def last_stderr_lines(self) -> list[str]:
        """The last lines that the server wrote to stderr."""
        return self._command_client.last_stderr_lines

    def print_result(self, value: Any, format_value: Callable[[], str]) -> None:
        self.progress_bar.clear()
        click.echo(output.format_json(value) if self.json else format_value())


def run_command(
    target_options: TargetOptions, action: CommandAction, recorders: Sequence[Recorder] = (), **extra_options: Any
) -> int:
    """Connect to the target, run the action and return the exit code. The recorders receive all messages."""
    target, args = target_options.split_target()
    progress_bar = ProgressBar()
    answers = AnswerProvider(parse_pairs(target_options.answers, "=", "--answer"), progress_bar.hidden)
    options = build_client_options(target_options, target) | extra_options
    if target_options.verbose:
        options.setdefault("log_handler", print_log_message)

    async def run() -> int | None:
        command_client = create_client(target, options, answers)
        get_session(command_client.client).recorders += recorders
        async with command_client:
            return await action(CommandRun(command_client, args, target_options, progress_bar))

    with LogPrinter(target_options.verbose):
        code = run_to_exit_code(run, target_options.json, progress_bar)
    if (message := answers.describe_unused()) is not None:
        output.print_note(message)
    if answers.usage_error is not None and code != error_report.EXIT_OK:
        return error_report.EXIT_USAGE
    if answers.has_declined and code == error_report.EXIT_TOOL_ERROR:
        return error_report.EXIT_DENIED
    if answers.unanswered and code == error_report.EXIT_TOOL_ERROR:
        error = InputRequestError(f"the server asks:\n{answers.unanswered[0]}")
        report_error(add_context(error, hint="pass --answer NAME=VALUE"), target_options.json)
        return error_report.EXIT_INPUT_NEEDED
    return code


def run_to_exit_code(
    run: Callable[[], Awaitable[int | None]], as_json: bool, progress_bar: ProgressBar | None = None
) -> int:
    """Run a coroutine and return the exit code. Print errors of the coroutine."""

    async def main() -> int | None:
        try:
            return await run()
        finally:
            if progress_bar is not None:
                progress_bar.clear()

    try:
        return asyncio.run(main()) or error_report.EXIT_OK
    except MCPError as exc:
        report_error(exc, as_json)
        return error_report.get_exit_code(exc)


def create_client(target: Any, options: dict[str, Any], answers: AnswerProvider | None = None) -> CommandClient:
    """Create a client. Raise UsageError if an option does not work with the target.

    The client always has elicitation handlers, because some servers offer fewer tools to clients without them.
    """
    answer_provider = answers or AnswerProvider({}, nullcontext)
    handlers: dict[str, Any] = {
        "elicitation_handler": answer_provider.fill_form,
        "url_elicitation_handler": answer_provider.confirm_url,
    }
    try:
        return CommandClient(target, **handlers | options)
    except (FileNotFoundError, TypeError, ValueError) as exc:
        raise click.UsageError(_translate_option(str(exc))) from None


def _translate_option(message: str) -> str:
    name, separator, rest = message.partition("= ")
    option_names = {
        "headers": "--header",
        "protocol_version": "--protocol-version",
        "auth": "--auth",
        "cwd": "--cwd",
    }
    return f"{option_names[name]} {rest}" if separator and name in option_names else translate_options(message)


def report_error(exc: MCPError, as_json: bool) -> None:
    """Print an error on stderr, as text or as JSON."""
    translate_error(exc)
    if not as_json:
        output.print_error(format_error(exc))
        return
    fields = {name: getattr(exc, name, None) for name in (*_ERROR_FIELDS, "code")}
    document = {"error": type(exc).__name__, "message": str(exc.args[0]) if exc.args else ""}
    click.echo(
        output.format_json(document | {name: value for name, value in fields.items() if value is not None}), err=True
    )


def format_error(exc: MCPError) -> str:
    """Return the text of an error. All lines after the first get a bar, because they may come from a server."""
    message = str(exc.args[0]) if exc.args else ""
    first_line, *lines = message.split("\n")
    quoted_lines = [line if line.startswith(QUOTE_PREFIX) else f"{QUOTE_PREFIX}{line}" for line in lines]
    return str(exc).replace(message, "\n".join([first_line, *quoted_lines]), 1) if lines else str(exc)


_ERROR_FIELDS = ("server", "step", "protocol_version", "status_code", "exit_code", "stderr", "hint")


def print_log_message(params: LoggingMessageNotificationParams) -> None:
    output.print_quoted(f"[{params.level}] {params.data}")


_ITEM_KINDS: Final[Mapping[str, ItemKind]] = {
    "tools": "tool",
    "resources": "resource",
    "templates": "resource template",
    "prompts": "prompt",
}


async def list_items(client: Client, kind: str) -> list[Any]:
    """Return all items of one kind. If the server does not support this kind, return an empty list."""
    if kind == "skills":
        return [*await client.list_skills()]
    return await list_by_kind(client, _ITEM_KINDS[kind], client.server_capabilities)


class LogPrinter(logging.Handler):
    """Prints dovetail's log messages while the context is open. Control characters are escaped."""

    def __init__(self, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.CRITICAL)
        self._logger = logging.getLogger("dovetail")

    def emit(self, record: logging.LogRecord) -> None:
        output.print_note("\n".join(filter(None, (record.getMessage(), record.exc_text))))

    def __enter__(self) -> None:
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
