"""`dovetail complete`: suggestions for an argument."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options


@click.command("complete")
@options("PROMPT-OR-TEMPLATE", "ARGUMENT=TYPED")
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Ask for suggestions for an argument.

    \b
    dovetail complete server.py packing city=Os
    dovetail complete server.py 'city://{name}' name=Os
    """

    async def work(spoken: Spoken) -> None:
        if len(spoken.words) != 2 or "=" not in spoken.words[1]:
            raise click.UsageError("give a prompt or a template, and ARGUMENT=TYPED")
        place, (name, _, typed) = spoken.words[0], spoken.words[1].partition("=")
        which: dict[str, Any] = {"template": place} if "://" in place else {"prompt": place}
        found = await spoken.client.complete(name, typed, **which)
        spoken.print(found, lambda: "\n".join(text.line(one) for one in found.values))

    return converse(asked(ctx, **given), work)
