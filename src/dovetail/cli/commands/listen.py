"""`dovetail listen`: print change notifications as they arrive."""

from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.terminal import output


@click.command("listen")
@target_options("[URI]...")
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many notifications.")
@click.pass_context
def command(ctx: click.Context, count: int | None, **params: Any) -> int:
    """Print change notifications as they arrive.

    Reports changes of the lists, and of the resources with these URIs. With --json, prints one object per line.

    \b
    dovetail listen server.py notes://today
    """

    async def execute(command_run: CommandRun) -> None:
        remaining = count
        async with command_run.client.listen(uris=command_run.args) as changes:
            output.print_note("listening. Press Ctrl-C to stop")
            async for change in changes:
                event = {"kind": change.kind, "uri": change.uri, "maybe_missed": change.maybe_missed}
                click.echo(
                    output.format_json_line(event)
                    if command_run.json
                    else output.fit_to_stdout(output.escape_line(f"{change.kind} {change.uri or ''}".rstrip()))
                )
                remaining = None if remaining is None else remaining - 1
                if remaining == 0:
                    break

    return run_command(read_target_options(ctx, **params), execute)
