"""`dovetail stubs`: write a typed client for a server."""

from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, list_items, run_command
from dovetail.cli.target_argument import read_target_options, target_options


@click.command("stubs")
@target_options()
@click.pass_context
def command(ctx: click.Context, **params: Any) -> int:
    """Write a typed client for a server.

    Prints a Python file with a class. Each tool and prompt of the server is a method with typed arguments and a typed
    result.

    \b
    dovetail stubs server.py > client.py
    """
    options = read_target_options(ctx, **params)

    async def execute(command_run: CommandRun) -> None:
        from dovetail.cli.client_stubs import write_client

        client = command_run.client
        server = client.server_info
        code = write_client(
            server.name if server else client.name,
            await list_items(client, "tools"),
            await list_items(client, "prompts"),
            await list_items(client, "templates"),
        )
        command_run.print_result({"code": code}, code.rstrip)

    return run_command(options, execute)
