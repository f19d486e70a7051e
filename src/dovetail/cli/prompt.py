"""`dovetail prompt`: fill in a prompt."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.arguments import meant, read_arguments
from dovetail.cli.call import block_shown
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options


@click.command("prompt")
@options("PROMPT", "[NAME=VALUE]...")
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Fill in a prompt.

    \b
    dovetail prompt server.py packing city=Oslo
    """

    async def work(spoken: Spoken) -> None:
        if not spoken.words:
            raise click.UsageError("which prompt?")
        name, *words = spoken.words
        known = {prompt.name: prompt for prompt in await spoken.client.list_prompts()}
        if name not in known:
            raise click.UsageError(f"the server has no prompt {name!r}.{meant(name, known)}")
        taken = {one.name: {} for one in known[name].arguments or ()}
        result = await spoken.client.get_prompt(name, read_arguments(words, {"properties": taken}))
        spoken.print(
            result,
            lambda: "\n".join(f"{one.role}: {text.safe(block_shown(one.content))}" for one in result.messages),
        )

    return converse(asked(ctx, **given), work)
