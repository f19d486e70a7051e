"""`dovetail call`: call a tool."""

import base64
import contextlib
import sys
from pathlib import Path
from typing import Any, Final

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.completion_candidates import remember_items
from dovetail.cli.error_report import BRIDGE_HINT, translate_options
from dovetail.cli.item_page import print_item
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.cli.tool_arguments import read_arguments
from dovetail.cli.tool_lookup import FIND_HINT, build_unknown_error, find_tool, has_tool_search
from dovetail.client.result_values import extract_value
from dovetail.errors import InvalidResult, NotSupported, RemoteError, ToolError
from dovetail.protocol.client_messages import find_elicitation_obstacle
from dovetail.tasks.task_messages import TASKS_EXTENSION
from dovetail.terminal import output as text
from dovetail.wire.base import UNSET, replace
from dovetail.wire.content import EmbeddedResource, ResourceLink, TextContent
from dovetail.wire.revisions import STATELESS_REVISIONS
from dovetail.wire.tools import CallToolResult

_SHOWS_TOOL: Final = "dovetail.shows_tool"
_UNKNOWN_TOOL_CODES: Final = (-32601, -32602, -32003)  # Servers send one of these codes for an unknown tool.
_MASKED_ERROR_TEXT: Final = " has the details under "
_ELICITATION_ERROR_TEXT: Final = "did not declare a required capability: elicitation"


class _CallCommand(click.Command):
    """A command that shows a tool if --help follows the name of the tool."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and remember whether to show the tool."""
        other_args = [arg for arg in args if arg not in ("-h", "--help")]
        if len(other_args) < len(args):
            with contextlib.suppress(click.UsageError):
                rest = super().parse_args(ctx, [*other_args])
                has_target = ctx.obj or ctx.params["module"] is not None
                if len(ctx.params["args"]) > (0 if has_target else 1):
                    ctx.meta[_SHOWS_TOOL] = True
                    return rest
        return super().parse_args(ctx, args)


@click.command("call", cls=_CallCommand)
@target_options("TOOL", "[NAME=VALUE]...")
@click.option("--arguments", "arguments_json", metavar="JSON", help="Arguments as JSON, @FILE, or - for stdin.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the result to a file.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--detach", is_flag=True, help="Start a task, and print its reference.")
@click.option("--attach", "reference", metavar="REFERENCE", help="Wait for a task of --detach. - reads stdin.")
@click.pass_context
def command(
    ctx: click.Context,
    arguments_json: str | None,
    output: str | None,
    force: bool,
    detach: bool,
    reference: str | None,
    **params: Any,
) -> int:
    """Call a tool.

    Values are converted as the schema of the tool requires. NAME:=JSON passes a value as JSON, NAME=@FILE the text of a
    file. If the server asks a question, answer it at the terminal or with --answer. --help after the name of a tool
    shows its arguments.

    With --detach, the tool continues as a task on the server. --attach waits for the result, also in another process.

    \b
    dovetail call server.py forecast city=Oslo days=3
    dovetail call server.py forecast --help
    dovetail call https://example.com/mcp search query=@question.txt limit:=5
    dovetail call plot.py chart kind=bar -o chart.png
    dovetail call convert_time time=12:00 -- uvx mcp-server-time
    dovetail call https://example.com/mcp report month=11 --detach
    dovetail call https://example.com/mcp --attach REFERENCE
    """
    if _SHOWS_TOOL in ctx.meta:
        options = read_target_options(ctx, **params)
        name_index = 0 if options.command or options.module is not None else 1
        return print_item(replace(options, args=options.args[: name_index + 1]), ["tools"])
    if reference is not None and (detach or arguments_json is not None):
        raise click.UsageError(f"--attach cannot be used with {'--detach' if detach else '--arguments'}")
    if output is not None:
        text.refuse_overwriting(output, force)

    async def execute(command_run: CommandRun) -> int:
        if reference is not None:
            if command_run.args:
                raise click.UsageError(f"unexpected argument with --attach: {command_run.args[0]}")
            return _finish(command_run, await _attach(command_run, reference), output, force)
        if not command_run.args:
            raise click.UsageError("missing argument: TOOL")
        name, *args = command_run.args
        tools = {tool.name: tool for tool in await command_run.client.list_tools()}
        remember_items(command_run.options, {"tools": [*tools.values()]})
        tool = await find_tool(command_run.client, name, tools)
        arguments = read_arguments(args, {} if tool is None else tool.input_schema, arguments_json)
        try:
            result = await (_start if detach else _call)(command_run, name, arguments)
        except RemoteError as exc:
            # An unlisted tool may exist, because some servers do not list tools that need more scopes.
            if tool is not None or exc.code not in _UNKNOWN_TOOL_CODES:
                raise
            if has_tool_search(tools):
                # The server has a search tool, which finds similar names.
                exc.hint = FIND_HINT
                raise
            raise build_unknown_error(name, tools) from None
        if result is None:
            return error_report.EXIT_OK
        # Some servers report an unknown tool as a tool error.
        unknown_name = build_unknown_error(name, tools).message if tool is None else None
        return _finish(command_run, result, output, force, unknown_name)

    return run_command(read_target_options(ctx, **params), execute)


async def _call(command_run: CommandRun, name: str, arguments: dict[str, Any]) -> CallToolResult:
    command_run.progress_bar.start(f"calling {name}")
    return await command_run.client.call_tool(name, arguments, progress_handler=command_run.progress_bar.draw)


async def _start(command_run: CommandRun, name: str, arguments: dict[str, Any]) -> CallToolResult | None:
    """Start a task and print its reference. If the server sends a result instead of a task, return the result."""
    client = command_run.client
    if command_run.is_program:
        raise click.UsageError(
            "--detach requires the URL or socket of a running server. A server that this command "
            "starts would stop before the task ends"
        )
    if client.protocol_version not in STATELESS_REVISIONS:
        raise click.UsageError(f"--detach does not work with protocol version {client.protocol_version}")
    if TASKS_EXTENSION not in (client.server_capabilities.extensions or {}):
        raise click.UsageError("--detach requires a server that supports tasks. Call the tool without --detach")
    handle = await client.start_task(name, arguments)
    try:
        reference = handle.reference
    except NotSupported:
        text.print_note("the server has answered without a task")
        return await handle
    if command_run.json:
        click.echo(text.format_json({"reference": reference, "status": handle.status}))
    else:
        click.echo(reference)
        text.print_note("to get the result, run `dovetail call` with the same target and --attach REFERENCE")
    return None


async def _attach(command_run: CommandRun, reference: str) -> CallToolResult:
    if reference == "-":
        reference = sys.stdin.readline()
    try:
        handle = await command_run.client.get_task(reference)
    except ValueError as exc:
        raise click.UsageError(f"--attach: {translate_options(str(exc))}") from None
    command_run.progress_bar.start("waiting for the task")
    async for update in handle:
        command_run.progress_bar.draw_message(update.message or update.status)
    return await handle


def _finish(
    command_run: CommandRun, result: CallToolResult, output: str | None, force: bool, unknown_name: str | None = None
) -> int:
    """Print the result of a call, and return the exit code."""
    command_run.progress_bar.clear()
    if command_run.json:
        click.echo(text.format_json(result))
    elif result.is_error:
        _print_failure(format_result(result))
    elif output is None or _decode_blocks(result):  # The file gets the text only if there is no binary block.
        _print_result(format_result(result))
    if not result.is_error:
        if output is not None:
            _write_output(result, output, force)
        return error_report.EXIT_OK
    if unknown_name is not None:
        click.echo(unknown_name, err=True)
    if command_run.is_stderr_hidden and _MASKED_ERROR_TEXT in format_result(result):
        text.print_note("run with -v to see the log of the server")
    if _ELICITATION_ERROR_TEXT in format_result(result):
        obstacle = find_elicitation_obstacle(command_run.client.protocol_version)
        text.print_note(f"try: {obstacle or BRIDGE_HINT}")
    return error_report.EXIT_TOOL_ERROR


def _print_result(content: str) -> None:
    text.write_content(content if content.endswith("\n") or sys.stdout.isatty() else content + "\n")


def _print_failure(content: str) -> None:
    """Print the text of a failed tool. On a terminal, a bar before each line marks it as text from the tool."""
    if sys.stderr.isatty():
        text.print_quoted(content)
    else:
        click.echo(text.escape_text(content), err=True)


def _write_output(result: CallToolResult, output: str, force: bool) -> None:
    """Write each binary block of a result to a numbered file. If there is no binary block, write the text."""
    pieces = _decode_blocks(result)
    path = Path(output)
    for number, piece in enumerate(pieces or [format_result(result).encode()], 1):
        piece_path = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        text.refuse_overwriting(str(piece_path), force)
        piece_path.write_bytes(piece)
        text.print_note(f"wrote {len(piece)} bytes to {piece_path}")


def _decode_blocks(result: CallToolResult) -> list[bytes]:
    """Return the bytes of the binary blocks of a result."""
    return [piece for block in result.content if (piece := _decode_block(block)) is not None]


def _decode_block(block: Any) -> bytes | None:
    data = block.resource.blob if isinstance(block, EmbeddedResource) else getattr(block, "data", None)
    try:
        return base64.b64decode(data, validate=True) if data is not None else None
    except ValueError:
        raise InvalidResult("the result contains invalid base64") from None


def format_result(result: CallToolResult) -> str:
    """Return a tool result as text. Each image becomes one line. If there is no text, format the structured content."""
    parts = [format_block(block) for block in result.content]
    if any(parts):
        return "\n".join(parts)
    if result.structured_content is UNSET:
        return ""
    try:
        return text.dump_json(extract_value(result, is_wrapped=None))
    except ToolError as exc:
        return str(exc)


def format_block(block: Any) -> str:
    match block:
        case TextContent():
            return block.text
        case ResourceLink():
            return f"[link to {block.uri}]"
        case EmbeddedResource():
            contents = block.resource
            return (
                contents.text or "" if contents.blob is None else f"[{contents.mime_type or 'bytes'} at {contents.uri}]"
            )
        case _:
            return f"[{block.type}, {block.mime_type}, {len(block.data.rstrip('=')) * 3 // 4} bytes]"
