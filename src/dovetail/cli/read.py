"""`dovetail read`: read a resource."""

import sys
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import converse
from dovetail.cli.targets import asked, options
from dovetail.client.values import contents_of
from dovetail.connect import Client


@click.command("read")
@options
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Read a resource: TARGET URI. Bytes go to stdout as they are when it is no terminal.

    \b
    dovetail read server.py notes://today
    """
    line = asked(ctx, **given)

    async def work(client: Client, words: list[str]) -> int:
        if len(words) != 1:
            raise click.UsageError("which resource? Give its URI.")
        result = await client.read_resource(words[0])
        if line.json:
            click.echo(text.document(result))
            return 0
        found = contents_of(result)
        for part in found if isinstance(found, list) else [found]:
            _print(part)
        return 0

    return converse(line, work)


def _print(part: str | bytes) -> None:
    if isinstance(part, str):
        click.echo(text.safe(part))
    elif sys.stdout.isatty():
        click.echo(f"[{len(part)} bytes]")
    else:
        sys.stdout.buffer.write(part)
