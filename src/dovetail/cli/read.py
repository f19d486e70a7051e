"""`dovetail read`: read a resource."""

import sys
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options
from dovetail.client.values import contents_of


@click.command("read")
@options("URI")
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Read a resource. Its text and bytes go to stdout as they are when it is no terminal.

    \b
    dovetail read server.py notes://today
    """

    async def work(spoken: Spoken) -> None:
        if len(spoken.words) != 1:
            raise click.UsageError("which resource? Give its URI.")
        result = await spoken.client.read_resource(spoken.words[0])
        if spoken.json:
            click.echo(text.document(result))
            return
        found = contents_of(result)
        for part in found if isinstance(found, list) else [found]:
            _print(part)

    return converse(asked(ctx, **given), work)


def _print(part: str | bytes) -> None:
    if isinstance(part, str):
        text.pour(part)
    elif sys.stdout.isatty():
        click.echo(f"[{len(part)} bytes]")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(part)
