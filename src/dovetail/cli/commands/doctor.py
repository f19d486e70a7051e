"""`dovetail doctor`: diagnose a server step by step, with a fix for each failure."""

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, create_client, list_items, run_to_exit_code
from dovetail.cli.commands.list import ITEM_KINDS
from dovetail.cli.error_report import translate_error
from dovetail.cli.item_lint import lint_tools
from dovetail.cli.target_argument import (
    TargetOptions,
    build_client_options,
    get_target_url,
    list_restricted_items,
    read_target_options,
    target_options,
)
from dovetail.client.client import Client
from dovetail.errors import MCPError
from dovetail.protocol.redaction import strip_url
from dovetail.server.items.lint import LintIssue, is_length_issue
from dovetail.terminal import output
from dovetail.wire.base import Struct
from dovetail.wire.revisions import NEWEST_REVISION
from dovetail.wire.tools import Tool

_PING_COUNT = 10
_MAX_RECOMMENDED_TOKENS = 10_000
_MAX_RECOMMENDED_START_S = 5.0


class CheckResult(Struct, frozen=True, omit_defaults=True):
    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    hint: str | None = None


@click.command("doctor")
@target_options()
@click.pass_context
def command(ctx: click.Context, **params: Any) -> int:
    """Diagnose a server step by step.

    Checks the command, its variables, the start, the protocol version, the lists, the schemas, the tokens and the
    speed.

    \b
    dovetail doctor server.py
    dovetail doctor -- uvx mcp-server-time
    """
    options = list_restricted_items(read_target_options(ctx, **params))
    results: list[CheckResult] = []

    def report(result: CheckResult) -> None:
        results.append(result)
        if not options.json:
            click.echo(_format_result(result))

    async def run() -> int:
        return await _run_checks(options, report)

    with LogPrinter(options.verbose):
        code = run_to_exit_code(run, options.json)
    if options.json:
        click.echo(output.format_json({"is_healthy": code == error_report.EXIT_OK, "checks": results}))
    return code


_STATUS_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def _format_result(result: CheckResult) -> str:
    hint = f"\n      try: {_indent(result.hint)}" if result.hint else ""
    status = f"{result.status:<4}" if sys.stdout.isatty() else result.status
    text = output.fit_to_stdout(f"{status}  {result.name}: {_indent(result.message)}{hint}")
    return output.style(result.status, fg=_STATUS_COLOURS[result.status]) + text.removeprefix(result.status)


def _indent(message: str) -> str:
    return output.escape_text(message).replace("\n", "\n      ")


async def _run_checks(options: TargetOptions, add_result: Callable[[CheckResult], None]) -> int:
    target, _ = options.split_target()
    for result in _check_target(target):
        add_result(result)
        if result.status == "fail":
            return error_report.EXIT_CONNECT
    command_client = create_client(target, build_client_options(options, target))
    client = command_client.client
    started_at = time.perf_counter()
    try:
        await command_client.connect()
    except MCPError as exc:
        add_result(_create_failure("start", exc))
        return error_report.get_exit_code(exc)
    try:
        add_result(_check_start_time(time.perf_counter() - started_at))
        for result in _check_server_info(client):
            add_result(result)
        return await _check_items(client, add_result)
    except MCPError as exc:
        add_result(_create_failure("session", exc))
        return error_report.get_exit_code(exc)
    finally:
        await client.close()


def _create_failure(name: str, exc: MCPError) -> CheckResult:
    translate_error(exc)
    # The hint is removed from the error, because it is printed on a separate line.
    hint, exc.hint = exc.hint, None
    return CheckResult(name, "fail", str(exc), hint or _HINTS.get(type(exc).__name__))


_HINTS = {
    "ProcessStartError": "run the command in a terminal. It must wait for input and print only messages on stdout",
    "ConnectError": "check that the server is running and that the port is correct",
    "Unauthorized": "run `dovetail auth login` with the same target, or pass --auth TOKEN",
    "NotMCPServer": "check the path of the URL. Most servers are at /mcp or /sse",
    "VersionNegotiationError": "update the server or dovetail",
    "RequestTimeout": "check that the server writes one message per line to stdout and flushes it, or pass --timeout",
}


def _check_target(target: Any) -> Iterator[CheckResult]:
    """Run the checks that do not start the server."""
    url = get_target_url(target)
    if url is not None:
        yield CheckResult("address", "ok", strip_url(url))
        return
    if isinstance(target, dict):
        if not target.get("command"):
            hint = "add a command, or a url that starts with http:// or https://"
            yield CheckResult("entry", "fail", "the configuration has no command and no url", hint)
            return
        argv = [str(target["command"]), *(target.get("args") or ())]
        if target.get("env"):
            yield CheckResult("variables", "ok", f"the configuration sets {', '.join(target['env'])}")
    else:
        argv = [target] if isinstance(target, str) else [*target]
    if argv[0].startswith(("unix:", "tcp:")) or (isinstance(target, str) and Path(target).suffix):
        yield CheckResult("target", "ok", argv[0])
        return
    program_path = shutil.which(argv[0])
    if program_path is None:
        yield CheckResult("command", "fail", f"{argv[0]} is not on PATH", "install it, or pass its full path")
    else:
        yield CheckResult("command", "ok", program_path)


def _check_start_time(seconds: float) -> CheckResult:
    message = f"ready after {seconds * 1000:.0f} ms"
    if seconds > _MAX_RECOMMENDED_START_S:
        return CheckResult("start", "warn", message, "some hosts give up. Do less work before the server starts")
    return CheckResult("start", "ok", message)


def _check_server_info(client: Client) -> Iterator[CheckResult]:
    server = client.server_info
    if server is None:
        yield CheckResult("server", "warn", "no name and version")
    else:
        yield CheckResult("server", "ok", f"{output.escape_line(server.name)} {output.escape_line(server.version)}")
    suffix = "newest" if client.protocol_version == NEWEST_REVISION else "handshake"
    yield CheckResult("protocol", "ok", f"{client.protocol_version} ({suffix})")
    if client.instructions is None:
        message = "not set. Add `instructions=` to tell models what this server is for."
        yield CheckResult("instructions", "warn", message)


async def _check_items(client: Client, add_result: Callable[[CheckResult], None]) -> int:
    started_at = time.perf_counter()
    items_by_kind = {kind: await list_items(client, kind) for kind in (*ITEM_KINDS, "skills")}
    counts = ", ".join(_format_count(len(items), kind) for kind, items in items_by_kind.items() if items)
    duration_ms = (time.perf_counter() - started_at) * 1000
    extensions = client.server_capabilities.extensions or {}
    # Empty lists are normal for a server that only offers extensions.
    hint = None if counts or extensions else _EMPTY_HINT
    add_result(CheckResult("lists", "warn" if hint else "ok", f"{counts or 'empty'}, in {duration_ms:.0f} ms", hint))
    if extensions:
        add_result(CheckResult("extensions", "ok", ", ".join(map(output.escape_line, extensions))))
    skipped = client.skipped_items
    if skipped:
        message = f"skipped because they are malformed: {'; '.join(skipped[:5])}"
        add_result(CheckResult("items", "fail", message, _LINT_HINT))
    is_valid = _check_tools(items_by_kind["tools"], add_result) and not skipped
    latency = f"{await _measure_latency_ms(client):.1f} ms per request (median of {_PING_COUNT})"
    add_result(CheckResult("speed", "ok", latency))
    if client.invalid_message_count:
        message = f"{_format_count(client.invalid_message_count, 'invalid lines')}"
        hint = "print to stderr. Some hosts disconnect at the first such line"
        add_result(CheckResult("stdout", "fail", message, hint))
        is_valid = False
    return error_report.EXIT_OK if is_valid else error_report.EXIT_VALIDATION


def _check_tools(tools: list[Tool], add_result: Callable[[CheckResult], None]) -> bool:
    """Check the definitions of tools. Return whether all schemas are valid."""
    reports = lint_tools(tools)
    issues = [issue for report in reports for issue in report.issues if issue.rule != "description"]
    schema_issues = [issue for issue in issues if not is_length_issue(issue)]
    if reports:
        add_result(_check_schemas(schema_issues))
    long_count = sum(any(map(is_length_issue, report.issues)) for report in reports)
    if long_count:
        message = f"longer than 1,024 characters on {_format_count(long_count, 'tools')} ({_LINT_HINT})"
        add_result(CheckResult("descriptions", "warn", message))
    undescribed_count = sum(any(issue.rule == "description" for issue in report.issues) for report in reports)
    if undescribed_count:
        message = f"missing on {_format_count(undescribed_count, 'tools')} ({_LINT_HINT})"
        add_result(CheckResult("descriptions", "warn", message))
    tokens = sum(report.tokens for report in reports)
    hint = "offer fewer tools, or shorten their descriptions" if tokens > _MAX_RECOMMENDED_TOKENS else None
    add_result(CheckResult("cost", "warn" if hint else "ok", f"about {tokens} tokens per conversation", hint))
    return not schema_issues


_LINT_HINT = "run `dovetail lint` for details"
_EMPTY_HINT = "the server may hide items from callers without scopes. If it has a URL, pass --auth TOKEN"


def _check_schemas(issues: Sequence[LintIssue]) -> CheckResult:
    if not issues:
        return CheckResult("schemas", "ok", "accepted by OpenAI, Anthropic and Gemini")
    rules = ", ".join(sorted({issue.rule for issue in issues}))
    return CheckResult("schemas", "fail", f"{_format_count(len(issues), 'issues')} ({rules})", _LINT_HINT)


def _format_count(count: int, plural: str) -> str:
    return f"{count} {plural if count != 1 else plural.removesuffix('s')}"


async def _measure_latency_ms(client: Client) -> float:
    durations_ms: list[float] = []
    for _ in range(_PING_COUNT):
        started_at = time.perf_counter()
        await client.ping()
        durations_ms.append((time.perf_counter() - started_at) * 1000)
    return statistics.median(durations_ms)
