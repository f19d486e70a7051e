"""`dovetail export`: a server as an entry for a host, printed."""

from typing import Any

import click

from dovetail.cli.describing import described
from dovetail.cli.targets import WRITTEN, asked, options
from dovetail.host.writing import HOSTS, document


@click.command("export")
@options(reach=WRITTEN, talk=())
@click.option("--to", "host", type=click.Choice([*HOSTS]), default="mcp.json", show_default=True, help="For whom.")
@click.option("--name", help="What the server is called there.")
@click.pass_context
def command(ctx: click.Context, host: str, name: str | None, **given: Any) -> int:
    """Print a server as an entry of a host's configuration; nothing is written.

    \b
    dovetail export server.py
    dovetail export --to codex --name time -- uvx mcp-server-time
    """
    try:
        click.echo(document(host, described(asked(ctx, **given), name, host)), nl=False)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    return 0
