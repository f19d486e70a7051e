"""`dovetail read`: read a resource."""

from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.client.result_values import decode_contents
from dovetail.terminal import output


@click.command("read")
@target_options("URI")
@click.pass_context
def command(ctx: click.Context, **params: Any) -> int:
    """Read a resource.

    Writes text and bytes to stdout unchanged, unless stdout is a terminal. At a terminal, formats JSON and Markdown,
    and shows the size of bytes.

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
        for contents in result.contents:
            output.write_content(decode_contents(contents), contents.mime_type)

    return run_command(read_target_options(ctx, **params), execute)
