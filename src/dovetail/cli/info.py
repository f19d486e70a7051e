"""`dovetail info`: who a server is, what it speaks, what it can do."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import converse
from dovetail.cli.targets import asked, options
from dovetail.connect import Client
from dovetail.wire.codec import plain


@click.command("info")
@options
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Show who a server is, what it speaks and what it can do.

    \b
    dovetail info https://example.com/mcp
    """
    line = asked(ctx, **given)

    async def work(client: Client, words: list[str]) -> int:
        found = await client.discover()
        server = client.server
        said = {
            "name": server.name if server else None,
            "version": server.version if server else None,
            "revision": client.revision,
            "supported": found.supported_versions,
            "capabilities": plain(client.capabilities),
            "instructions": client.instructions,
        }
        if line.json:
            click.echo(text.document(said))
            return 0
        rows = [(name, _shown(value)) for name, value in said.items() if value not in (None, "", {})]
        click.echo("\n".join(f"{name + ':':<14} {value}" for name, value in rows))
        return 0

    return converse(line, work)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(_capability(str(name), inner) for name, inner in value.items())
    return (
        ", ".join(map(str, value)) if isinstance(value, list) else text.safe(str(value)).replace("\n", "\n" + " " * 15)
    )


def _capability(name: str, inner: Any) -> str:
    told = [text.line(str(key)) for key, on in inner.items() if on] if isinstance(inner, dict) else []
    return f"{text.line(name)} ({', '.join(told)})" if told else text.line(name)
