"""`dovetail read`: read a resource."""

from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.client.result_values import extract_contents
from dovetail.terminal import output


@click.command("read")
@target_options("URI")
@click.pass_context
def command(ctx: click.Context, **params: Any) -> int:
    """Read a resource.

    Writes text and bytes to stdout unchanged, unless stdout is a terminal.

    \b
    dovetail read server.py notes://today
    """

    async def execute(command_run: CommandRun) -> None:
        if len(command_run.args) != 1:
            raise click.UsageError("missing argument: URI")
        result = await command_run.client.read_resource(command_run.args[0])
        if command_run.json:
            click.echo(output.format_json(result))
            return
        contents = extract_contents(result)
        for part in contents if isinstance(contents, list) else [contents]:
            output.write_content(part)

    return run_command(read_target_options(ctx, **params), execute)
