"""`dovetail listen`: changes as they happen."""

import json
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import converse
from dovetail.cli.targets import asked, options
from dovetail.connect import Client


@click.command("listen")
@options
@click.option("-n", "--count", type=int, help="Stop after this many.")
@click.pass_context
def command(ctx: click.Context, count: int | None, **given: Any) -> int:
    """Show changes as they happen: TARGET [URI ...]; with --json one object per line.

    \b
    dovetail listen server.py notes://today
    """
    line = asked(ctx, **given)

    async def work(client: Client, words: list[str]) -> int:
        left = count
        async with client.listen(uris=words) as changes:
            text.note("listening; interrupt to stop")
            async for change in changes:
                said = {"kind": change.kind, "uri": change.uri, "missed": change.missed}
                click.echo(json.dumps(said) if line.json else text.line(f"{change.kind} {change.uri or ''}".rstrip()))
                left = None if left is None else left - 1
                if left == 0:
                    break
        return 0

    return converse(line, work)
