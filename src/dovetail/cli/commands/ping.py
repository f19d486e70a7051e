"""`dovetail ping`: measure the response time of a server."""

import time
from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.terminal import output


@click.command("ping")
@target_options()
@click.option("-n", "--count", type=int, default=3, show_default=True, help="Number of pings.")
@click.pass_context
def command(ctx: click.Context, count: int, **params: Any) -> int:
    """Measure the response time of a server.

    \b
    dovetail ping server.py
    """

    async def execute(command_run: CommandRun) -> None:
        client = command_run.client
        durations_ms: list[float] = []
        for _ in range(count):
            started_at = time.perf_counter()
            await client.ping()
            durations_ms.append((time.perf_counter() - started_at) * 1000)
        summary = ", ".join(f"{duration_ms:.1f} ms" for duration_ms in durations_ms)
        command_run.print_result(
            {"protocol_version": client.protocol_version, "milliseconds": durations_ms},
            lambda: f"{output.escape_line(client.name)} ({client.protocol_version}): {summary}",
        )

    return run_command(read_target_options(ctx, **params), execute)
