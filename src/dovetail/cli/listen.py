"""`dovetail listen`: changes as they happen."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options


@click.command("listen")
@options("[URI]...")
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many.")
@click.pass_context
def command(ctx: click.Context, count: int | None, **given: Any) -> int:
    """Show changes as they happen: of the lists, and of the resources named; with --json one object a line.

    \b
    dovetail listen server.py notes://today
    """

    async def work(spoken: Spoken) -> None:
        left = count
        async with spoken.client.listen(uris=spoken.words) as changes:
            text.note("listening; interrupt to stop")
            async for change in changes:
                said = {"kind": change.kind, "uri": change.uri, "missed": change.missed}
                click.echo(
                    text.record(said) if spoken.json else text.line(f"{change.kind} {change.uri or ''}".rstrip())
                )
                left = None if left is None else left - 1
                if left == 0:
                    break

    return converse(asked(ctx, **given), work)
