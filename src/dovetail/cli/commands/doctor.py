"""`dovetail doctor`: diagnose a server step by step, with a fix for each failure."""

import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, create_client, run_to_exit_code
from dovetail.cli.commands.lint import lint_tools
from dovetail.cli.commands.list import ITEM_KINDS, list_items
from dovetail.cli.error_report import translate_error
from dovetail.cli.target_argument import (
    TargetOptions,
    build_client_options,
    get_target_url,
    read_target_options,
    target_options,
)
from dovetail.client.targets import Client
from dovetail.errors import MCPError
from dovetail.terminal import output
from dovetail.wire.base import Struct
from dovetail.wire.revisions import NEWEST_REVISION

_PING_COUNT = 10
_MAX_RECOMMENDED_TOKENS = 10_000
_MAX_RECOMMENDED_START_S = 5.0


class CheckResult(Struct, frozen=True, omit_defaults=True):
    """One thing that was looked at."""

    name: str
    verdict: str  # "good", "doubtful" or "bad"
    said: str
    fix: str | None = None


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
    options = read_target_options(ctx, **params)
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
        click.echo(output.format_json({"healthy": code == error_report.EXIT_OK, "steps": results}))
    return code


def _format_result(result: CheckResult) -> str:
    mark, colour = {"good": ("ok", "green"), "doubtful": ("??", "yellow"), "bad": ("XX", "red")}[result.verdict]
    summary = f"{output.style(mark, fg=colour)} {result.name}: {_indent(result.said)}"
    return summary + (f"\n   try: {_indent(result.fix)}" if result.fix else "")


def _indent(message: str) -> str:
    """Several lines so that none of them looks like a step."""
    return output.escape_text(message).replace("\n", "\n      ")


async def _run_checks(options: TargetOptions, add_result: Any) -> int:
    target, _ = options.split_target()
    for result in _check_target(target):
        add_result(result)
        if result.verdict == "bad":
            return error_report.EXIT_CONNECT
    client = create_client(target, build_client_options(options, target))
    started_at = time.perf_counter()
    try:
        await client.connect()
    except MCPError as exc:
        add_result(_create_failure("start", exc))
        return error_report.get_exit_code(exc)
    try:
        add_result(_check_start_time(time.perf_counter() - started_at))
        for result in _check_server_info(client):
            add_result(result)
        return await _check_items(client, add_result)
    except MCPError as exc:
        add_result(_create_failure("talk", exc))
        return error_report.get_exit_code(exc)
    finally:
        await client.close()


def _create_failure(name: str, exc: MCPError) -> CheckResult:
    translate_error(exc)
    suggestion, exc.hint = exc.hint, None  # told once, in its own line
    return CheckResult(name, "bad", str(exc), suggestion or _SUGGESTIONS.get(type(exc).__name__))


_SUGGESTIONS = {
    "ProcessStartError": "run the command by hand: it must wait for input and print nothing of its own on stdout",
    "ConnectError": "is it running, and is the port right? `dovetail run` serves a file over HTTP",
    "Unauthorized": "dovetail auth login, with the same target; or --auth TOKEN",
    "NotMCPServer": "most servers are at /mcp or /sse; is the path right?",
    "VersionNegotiationError": "a newer version of the server, or of dovetail",
    "RequestTimeout": "does it write its answers to stdout, one a line, and flush them? --timeout waits longer",
}


def _check_target(target: Any) -> Iterator[CheckResult]:
    """What can be seen without the server."""
    url = get_target_url(target)
    if url is not None:
        yield CheckResult("address", "good", url)
        return
    if isinstance(target, dict):
        if not target.get("command"):
            suggestion = "give it a command, or a url that begins with http:// or https://"
            yield CheckResult("entry", "bad", "the configuration names no command and no address", suggestion)
            return
        argv = [str(target["command"]), *(target.get("args") or ())]
        if target.get("env"):
            yield CheckResult("variables", "good", f"{', '.join(target['env'])} set by the configuration")
    else:
        argv = [target] if isinstance(target, str) else [*target]
    if argv[0].startswith(("unix:", "tcp:")) or (isinstance(target, str) and Path(target).suffix):
        yield CheckResult("target", "good", argv[0])
        return
    program_path = shutil.which(argv[0])
    if program_path is None:
        yield CheckResult("command", "bad", f"{argv[0]} is not on PATH", "install it, or give its whole path")
    else:
        yield CheckResult("command", "good", program_path)


def _check_start_time(seconds: float) -> CheckResult:
    message = f"answered after {seconds * 1000:.0f} ms"
    if seconds > _MAX_RECOMMENDED_START_S:
        return CheckResult("start", "doubtful", message, "hosts give up after a while: do less before serving")
    return CheckResult("start", "good", message)


def _check_server_info(client: Client) -> Iterator[CheckResult]:
    server = client.server_info
    display_name = (
        f"{output.escape_line(server.name)} {output.escape_line(server.version)}" if server else "no name given"
    )
    yield CheckResult("server", "good" if server else "doubtful", display_name)
    if client.protocol_version == NEWEST_REVISION:
        yield CheckResult("revision", "good", f"{client.protocol_version}, the newest")
    else:
        yield CheckResult("revision", "good", f"{client.protocol_version}, by a handshake")
    if client.instructions is None:
        yield CheckResult(
            "instructions", "doubtful", "none", "say in a sentence what the server is for; models read it"
        )


async def _check_items(client: Client, add_result: Any) -> int:
    started_at = time.perf_counter()
    items_by_kind = {kind: await list_items(client, kind) for kind in ITEM_KINDS}
    counts = ", ".join(_format_count(len(items), kind) for kind, items in items_by_kind.items() if items) or "nothing"
    duration_ms = (time.perf_counter() - started_at) * 1000
    add_result(
        CheckResult(
            "lists", "good" if any(items_by_kind.values()) else "doubtful", f"{counts}, in {duration_ms:.0f} ms"
        )
    )
    skipped = client.skipped_items
    if skipped:
        add_result(
            CheckResult(
                "items", "bad", "left out, since malformed: " + "; ".join(skipped[:5]), "dovetail lint names all"
            )
        )
    reports = lint_tools(items_by_kind["tools"])
    schema_issues = [issue for report in reports for issue in report.issues if issue.rule != "description"]
    undescribed_count = sum(any(issue.rule == "description" for issue in report.issues) for report in reports)
    if schema_issues:
        providers = ", ".join(sorted({issue.rule for issue in schema_issues}))
        add_result(
            CheckResult(
                "schemas", "bad", f"findings about {providers}: {len(schema_issues)}", "dovetail lint names them"
            )
        )
    else:
        message = "taken by every maker of models that is known here" if reports else "there are none"
        add_result(CheckResult("schemas", "good", message))
    if undescribed_count:
        message, pronoun = (
            ("says too little of itself", "it") if undescribed_count == 1 else ("say too little of themselves", "them")
        )
        add_result(
            CheckResult(
                "words",
                "doubtful",
                f"{_format_count(undescribed_count, 'tools')} {message}",
                f"dovetail lint names {pronoun}",
            )
        )
    tokens = sum(report.tokens for report in reports)
    suggestion = "fewer tools, or shorter descriptions" if tokens > _MAX_RECOMMENDED_TOKENS else None
    add_result(
        CheckResult(
            "cost", "doubtful" if suggestion else "good", f"about {tokens} tokens of every conversation", suggestion
        )
    )
    add_result(
        CheckResult(
            "speed",
            "good",
            f"a request takes {await _measure_latency_ms(client):.1f} ms, in the median of {_PING_COUNT}",
        )
    )
    if client.invalid_message_count:
        message = f"written to stdout, and no message: {_format_count(client.invalid_message_count, 'lines')}"
        add_result(
            CheckResult("noise", "bad", message, "print to stderr: on stdout some hosts give up at the first such line")
        )
        return error_report.EXIT_VALIDATION
    return error_report.EXIT_VALIDATION if schema_issues or skipped else error_report.EXIT_OK


def _format_count(count: int, plural: str) -> str:
    return f"{count} {plural if count != 1 else plural.removesuffix('s')}"


async def _measure_latency_ms(client: Client) -> float:
    durations_ms: list[float] = []
    for _ in range(_PING_COUNT):
        started_at = time.perf_counter()
        await client.ping()
        durations_ms.append((time.perf_counter() - started_at) * 1000)
    return statistics.median(durations_ms)
