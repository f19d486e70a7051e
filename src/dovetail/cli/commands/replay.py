"""`dovetail replay`: replay a recording and compare the responses."""

import difflib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.target_argument import read_recording, read_target_options, target_options
from dovetail.errors import ElicitationDeclined, RemoteError
from dovetail.protocol.redaction import mask_secrets
from dovetail.recording.playback import (
    IGNORED_METHODS,
    OPENING_METHODS,
    RecordedExchange,
    find_revision,
    has_mask,
    matches_recording,
    read_client_results,
    read_exchanges,
)
from dovetail.terminal import output
from dovetail.wire.base import replace
from dovetail.wire.elicitation import ElicitRequestParams

# These fields are not compared, because they differ between runs or protocol versions.
_VOLATILE_MEMBERS = frozenset({"_meta", "resultType", "ttlMs", "cacheScope", "requestState", "nextCursor"})


@click.command("replay")
@target_options("RECORDING")
@click.option("--ignore", multiple=True, metavar="FIELD", help="Field to ignore when comparing. Repeatable.")
@click.pass_context
def command(ctx: click.Context, ignore: tuple[str, ...], **params: Any) -> int:
    """Replay a recording and compare the responses.

    Exits with 6 if a response differs. Uses the protocol version of the recording, unless you pass --protocol-version.

    \b
    dovetail replay server.py server.jsonl
    dovetail replay https://example.com/mcp server.jsonl --ignore time
    """
    options = read_target_options(ctx, **params)
    if len(options.args) != (1 if options.command or options.module else 2):
        raise click.UsageError("`dovetail replay` requires two arguments: TARGET and RECORDING")
    if len(options.args) == 2 and options.args[0].endswith(".jsonl") and not options.args[1].endswith(".jsonl"):
        raise click.UsageError("pass the server first, and then the recording: `dovetail replay TARGET RECORDING`")
    frames = read_recording(options.args[-1])
    exchanges = [
        exchange
        for exchange in read_exchanges(frames)
        if exchange.response is not None and exchange.method not in (*OPENING_METHODS, *IGNORED_METHODS)
    ]
    if not exchanges:
        raise click.UsageError(f"the recording {options.args[-1]} contains no requests")
    recorded_answers = iter(read_client_results(frames, "elicitation/create"))

    def answer(_: ElicitRequestParams) -> Any:
        recorded_answer: dict[str, Any] = next(recorded_answers, None) or {}
        if recorded_answer.get("action") != "accept":
            raise ElicitationDeclined
        return recorded_answer.get("content") or {}

    async def execute(command_run: CommandRun) -> int:
        differences = [
            difference
            async for difference in _iter_differences(command_run, exchanges, frozenset(ignore) | _VOLATILE_MEMBERS)
        ]
        masked_requests = [_format_request(exchange) for exchange in exchanges if has_mask(exchange.params)]
        summary = {"requests": len(exchanges), "differences": differences, "masked_requests": masked_requests}
        command_run.print_result(summary, lambda: _format_differences(len(exchanges), differences))
        for masked_request in () if command_run.json else masked_requests:
            output.print_note(f"the recording contains a masked secret, so the response may differ: {masked_request}")
        return error_report.EXIT_VALIDATION if differences else error_report.EXIT_OK

    protocol_version = options.protocol_version or find_revision(read_exchanges(frames))
    options = replace(options, args=options.args[:-1], protocol_version=protocol_version)
    return run_command(options, execute, elicitation_handler=answer)


async def _iter_differences(
    command_run: CommandRun, exchanges: list[RecordedExchange], ignored: frozenset[str]
) -> AsyncIterator[Any]:
    request_state: Any = None
    for exchange in exchanges:
        params = exchange.params | ({"requestState": request_state} if "requestState" in exchange.params else {})
        try:
            result = await command_run.client.request(exchange.method, params)
            request_state = result.get("requestState") if isinstance(result, dict) else None
            current: Any = {"result": _drop_ignored(result, ignored)}
        except RemoteError as exc:
            current = {"error": {"code": exc.code, "message": exc.message}}
        recorded, current = _get_recorded_outcome(exchange, ignored), mask_secrets(current)
        if not matches_recording(recorded, current):
            yield {"method": exchange.method, "params": exchange.params, "recorded": recorded, "actual": current}


def _get_recorded_outcome(exchange: RecordedExchange, ignored: frozenset[str]) -> Any:
    answer = exchange.response or {}
    if "error" in answer:
        return {"error": {name: answer["error"].get(name) for name in ("code", "message")}}
    return {"result": _drop_ignored(answer.get("result"), ignored)}


def _drop_ignored(value: Any, ignored: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: _drop_ignored(member, ignored) for name, member in value.items() if name not in ignored}
    return [_drop_ignored(item, ignored) for item in value] if isinstance(value, list) else value


def _format_differences(request_count: int, differences: list[dict[str, Any]]) -> str:
    if not differences:
        return f"all {request_count} responses match the recording"
    parts = [f"{len(differences)} of {request_count} responses differ"]
    for difference in differences:
        parts.append(
            output.style(output.escape_line(f"{difference['method']} {_dump_json(difference['params'])}"), bold=True)
        )
        parts += _diff_lines(difference["recorded"], difference["actual"])
    return "\n".join(parts)


def _format_request(exchange: RecordedExchange) -> str:
    return output.escape_line(f"{exchange.method} {_dump_json(exchange.params)}")


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _diff_lines(recorded: Any, current: Any) -> Iterator[str]:
    recorded_lines, current_lines = (
        json.dumps(outcome, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
        for outcome in (recorded, current)
    )
    colours = {"-": "red", "+": "green"}
    for line in difflib.unified_diff(recorded_lines, current_lines, "recorded", "actual", lineterm="", n=2):
        yield output.style(output.fit_to_stdout(output.escape_line(line)), fg=colours.get(line[0]))
