"""`dovetail prompt`: get a prompt."""

from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.commands.call import format_block
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.cli.tool_arguments import read_arguments, suggest_names
from dovetail.terminal import output


@click.command("prompt")
@target_options("PROMPT", "[NAME=VALUE]...")
@click.pass_context
def command(ctx: click.Context, **params: Any) -> int:
    """Get a prompt.

    \b
    dovetail prompt server.py packing city=Oslo
    """

    async def execute(command_run: CommandRun) -> None:
        if not command_run.args:
            raise click.UsageError("missing argument: PROMPT")
        name, *args = command_run.args
        prompts = {prompt.name: prompt for prompt in await command_run.client.list_prompts()}
        if name not in prompts:
            raise click.UsageError(f"unknown prompt {name!r}{suggest_names(name, prompts)}")
        properties = {argument.name: {} for argument in prompts[name].arguments or ()}
        result = await command_run.client.get_prompt(name, read_arguments(args, {"properties": properties}))
        command_run.print_result(
            result,
            lambda: "\n".join(
                f"{message.role}: {output.escape_text(format_block(message.content))}" for message in result.messages
            ),
        )

    return run_command(read_target_options(ctx, **params), execute)
