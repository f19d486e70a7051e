"""`dovetail record`: record a session with a server."""

import shlex
from collections.abc import Awaitable, Callable
from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, list_items, run_command
from dovetail.cli.commands.list import ITEM_KINDS
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.cli.tool_arguments import read_arguments
from dovetail.cli.tool_lookup import get_tool
from dovetail.terminal import output as text
from dovetail.testing.traffic import Traffic, get_recorder


@click.command("record")
@target_options()
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="Recording file.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option(
    "-s",
    "--step",
    "steps",
    multiple=True,
    metavar="STEP",
    help='Request to record: "call TOOL a=1", "read URI".',
)
@click.option(
    "--steps-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="File with one request per line. - for stdin.",
)
@click.pass_context
def command(
    ctx: click.Context, output: str, force: bool, steps: tuple[str, ...], steps_file: str | None, **params: Any
) -> int:
    """Record a session with a server.

    Records the lists and the steps you pass, with secrets masked. A step is "call TOOL a=1", "read URI" or "prompt NAME
    a=1". If a step fails, the file contains all messages before the failure.

    \b
    dovetail record server.py -o server.jsonl
    dovetail record server.py -o server.jsonl --step "call forecast city=Oslo" --step "read city://oslo"
    """
    text.refuse_overwriting(output, force)
    traffic = Traffic(ctx.params["args"][0] if ctx.params["args"] else "")
    step_texts = [*steps]
    if steps_file is not None:
        with click.open_file(steps_file, encoding="utf-8") as file:
            step_texts += [line for line in file if line.strip() and not line.startswith("#")]
    parsed_steps = [_parse_step(step) for step in step_texts]

    async def execute(command_run: CommandRun) -> None:
        progress_bar = command_run.progress_bar
        progress_bar.start("recording")
        try:
            for kind in (*ITEM_KINDS, "skills"):
                await list_items(command_run.client, kind)
            for number, (verb, args) in enumerate(parsed_steps):
                progress_bar.set_progress(number, len(parsed_steps), detail=text.escape_line(" ".join((verb, *args))))
                await _STEP_FUNCTIONS[verb](command_run, *args)
        finally:
            # The recording is saved even if a request failed.
            traffic.save(output)
        command_run.print_result(
            {"path": output, "frames": len(traffic.frames)}, lambda: f"{len(traffic.frames)} messages in {output}"
        )

    return run_command(read_target_options(ctx, **params), execute, recorders=[get_recorder(traffic)], cache=False)


async def _call_tool(command_run: CommandRun, name: str, *args: str) -> None:
    tool = await get_tool(command_run.client, name)
    await command_run.client.call_tool(name, read_arguments(args, tool.input_schema))


async def _read_resource(command_run: CommandRun, uri: str) -> None:
    await command_run.client.read_resource(uri)


async def _get_prompt(command_run: CommandRun, name: str, *args: str) -> None:
    await command_run.client.get_prompt(name, read_arguments(args, {}))


_STEP_FUNCTIONS: dict[str, Callable[..., Awaitable[None]]] = {
    "call": _call_tool,
    "read": _read_resource,
    "prompt": _get_prompt,
}


def _parse_step(step_text: str) -> tuple[str, list[str]]:
    try:
        parts = shlex.split(step_text)
    except ValueError as exc:
        raise click.UsageError(f"invalid step {step_text.strip()!r}: {exc}") from None
    verb, args = "".join(parts[:1]), parts[1:]
    if verb not in _STEP_FUNCTIONS or not args:
        raise click.UsageError(
            f"invalid request {step_text.strip()!r}: a request must be 'call TOOL', 'read URI' or 'prompt NAME'"
        )
    if verb == "read" and len(args) > 1:
        raise click.UsageError(f"invalid request {step_text.strip()!r}: 'read' takes exactly one URI")
    return verb, args
