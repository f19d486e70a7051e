"""`dovetail complete`: suggestions for an argument."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import converse
from dovetail.cli.targets import asked, options
from dovetail.connect import Client


@click.command("complete")
@options
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Ask for suggestions: TARGET PROMPT-OR-TEMPLATE ARGUMENT=TYPED.

    \b
    dovetail complete server.py packing city=Os
    dovetail complete server.py 'city://{name}' name=Os
    """
    line = asked(ctx, **given)

    async def work(client: Client, words: list[str]) -> int:
        if len(words) != 2 or "=" not in words[1]:
            raise click.UsageError("give a prompt or a template, and ARGUMENT=TYPED")
        name, _, typed = words[1].partition("=")
        which: dict[str, Any] = {"template": words[0]} if "://" in words[0] else {"prompt": words[0]}
        found = await client.complete(name, typed, **which)
        click.echo(text.document(found) if line.json else "\n".join(text.line(one) for one in found.values))
        return 0

    return converse(line, work)
