"""`dovetail info`: who a server is, what it speaks, what it can do."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options
from dovetail.wire.codec import plain


@click.command("info")
@options()
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Show who a server is, what it speaks and what it can do.

    \b
    dovetail info https://example.com/mcp
    """

    async def work(spoken: Spoken) -> None:
        client = spoken.client
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
        spoken.print(said, lambda: _rows(said))

    return converse(asked(ctx, **given), work)


def _rows(said: dict[str, Any]) -> str:
    rows = [(name, _shown(name, value)) for name, value in said.items() if value not in (None, "", {})]
    return "\n".join(f"{name + ':':<14} {value}" for name, value in rows)


def _shown(name: str, value: Any) -> str:
    if name == "instructions":
        return text.safe(str(value)).replace("\n", "\n" + " " * 15)
    if isinstance(value, dict):
        return ", ".join(_capability(str(name), inner) for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(text.line(str(one)) for one in value)
    return text.line(str(value))


def _capability(name: str, inner: Any) -> str:
    told = [text.line(str(key)) for key, on in inner.items() if on] if isinstance(inner, dict) else []
    return f"{text.line(name)} ({', '.join(told)})" if told else text.line(name)
