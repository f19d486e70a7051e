"""`dovetail ping`: a sign of life, and how long it took."""

import time
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import converse
from dovetail.cli.targets import asked, options
from dovetail.connect import Client


@click.command("ping")
@options
@click.option("-n", "--count", type=int, default=3, show_default=True, help="How often.")
@click.pass_context
def command(ctx: click.Context, count: int, **given: Any) -> int:
    """Ask a server for a sign of life.

    \b
    dovetail ping server.py
    """
    line = asked(ctx, **given)

    async def work(client: Client, words: list[str]) -> int:
        times: list[float] = []
        for _ in range(count):
            begun = time.perf_counter()
            await client.ping()
            times.append((time.perf_counter() - begun) * 1000)
        if line.json:
            click.echo(text.document({"revision": client.revision, "milliseconds": times}))
        else:
            told = ", ".join(f"{one:.1f} ms" for one in times)
            click.echo(f"{text.line(client.name)} is alive ({client.revision}): {told}")
        return 0

    return converse(line, work)
