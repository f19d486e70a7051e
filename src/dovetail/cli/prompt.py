"""`dovetail prompt`: fill in a prompt."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.arguments import read_arguments
from dovetail.cli.speaking import converse
from dovetail.cli.targets import asked, options
from dovetail.connect import Client
from dovetail.wire.content import TextContent


@click.command("prompt")
@options
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Fill in a prompt: TARGET PROMPT [NAME=VALUE ...].

    \b
    dovetail prompt server.py packing city=Oslo
    """
    line = asked(ctx, **given)

    async def work(client: Client, words: list[str]) -> int:
        if not words:
            raise click.UsageError("which prompt?")
        arguments = read_arguments(words[1:], {}, None)
        result = await client.get_prompt(words[0], arguments)
        if line.json:
            click.echo(text.document(result))
            return 0
        for message in result.messages:
            content = message.content
            said = content.text if isinstance(content, TextContent) else f"[{content.type}]"
            click.echo(f"{message.role}: {text.safe(said)}")
        return 0

    return converse(line, work)
