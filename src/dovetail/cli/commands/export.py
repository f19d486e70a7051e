"""`dovetail export`: a server as an entry for a host, printed."""

from typing import Any

import click

from dovetail.cli.target_argument import CONFIG_OPTIONS, create_config_entry, read_target_options, target_options
from dovetail.host.config.editor import HOST_FORMATS, format_document


@click.command("export")
@target_options(connection=CONFIG_OPTIONS, session=())
@click.option(
    "--to", "host", type=click.Choice([*HOST_FORMATS]), default="mcp.json", show_default=True, help="For whom."
)
@click.option("--name", help="What the server is called there.")
@click.pass_context
def command(ctx: click.Context, host: str, name: str | None, **params: Any) -> int:
    """Print a server as an entry of a host's configuration; nothing is written.

    \b
    dovetail export server.py
    dovetail export --to codex --name time -- uvx mcp-server-time
    """
    try:
        click.echo(format_document(host, create_config_entry(read_target_options(ctx, **params), name, host)), nl=False)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    return 0
