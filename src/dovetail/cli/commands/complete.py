"""`dovetail complete`: complete an argument of a prompt or template."""

from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.terminal import output


@click.command("complete")
@target_options("REF", "NAME=PREFIX")
@click.pass_context
def command(ctx: click.Context, **params: Any) -> int:
    """Complete an argument of a prompt or template.

    REF is the name of a prompt, or a URI template.

    \b
    dovetail complete server.py packing city=Os
    dovetail complete server.py 'city://{name}' name=Os
    """

    async def execute(command_run: CommandRun) -> None:
        if len(command_run.args) != 2 or "=" not in command_run.args[1]:
            raise click.UsageError("`dovetail complete` requires two arguments: a prompt or template, and NAME=PREFIX")
        reference, (name, _, prefix) = command_run.args[0], command_run.args[1].partition("=")
        reference_options: dict[str, Any] = {"template": reference} if "://" in reference else {"prompt": reference}
        completion = await command_run.client.complete(name, prefix, **reference_options)
        command_run.print_result(
            completion, lambda: "\n".join(output.escape_line(value) for value in completion.values)
        )

    return run_command(read_target_options(ctx, **params), execute)
