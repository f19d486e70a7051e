"""`dovetail ping`: a sign of life, and how long it took."""

import time
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options


@click.command("ping")
@options()
@click.option("-n", "--count", type=int, default=3, show_default=True, help="How often.")
@click.pass_context
def command(ctx: click.Context, count: int, **given: Any) -> int:
    """Ask a server for a sign of life.

    \b
    dovetail ping server.py
    """

    async def work(spoken: Spoken) -> None:
        client = spoken.client
        times: list[float] = []
        for _ in range(count):
            begun = time.perf_counter()
            await client.ping()
            times.append((time.perf_counter() - begun) * 1000)
        told = ", ".join(f"{one:.1f} ms" for one in times)
        spoken.print(
            {"revision": client.revision, "milliseconds": times},
            lambda: f"{text.line(client.name)} is alive ({client.revision}): {told}",
        )

    return converse(asked(ctx, **given), work)
