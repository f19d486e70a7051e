"""`dovetail install`: a server written into the configuration of a host."""

from typing import Any

import click

from dovetail.cli.target_argument import CONFIG_OPTIONS, create_config_entry, read_target_options, target_options
from dovetail.host.config.editor import HOST_FORMATS, add_entry, format_document, get_config_path
from dovetail.terminal import output


@click.command("install")
@target_options(connection=CONFIG_OPTIONS, session=())
@click.option("--to", "host", type=click.Choice([*HOST_FORMATS]), required=True, help="For whom.")
@click.option("--name", help="What the server is called there.")
@click.option("--project", is_flag=True, help="For this folder only, where the host has such a file.")
@click.option("--force", is_flag=True, help="Take the place of another server of this name.")
@click.pass_context
def command(ctx: click.Context, host: str, name: str | None, project: bool, force: bool, **params: Any) -> int:
    """Write a server into the configuration of a host.

    One entry is added, everything else in the file stays as it is. Programs are named by where they are, since hosts
    look elsewhere; --env NAME alone is written as a reference to the variable where the host knows such.

    \b
    dovetail install server.py --to claude-desktop
    dovetail install https://example.com/mcp --to vscode --project --name docs
    dovetail install --to cursor -e API_KEY -- npx -y some-server
    """
    only_project = HOST_FORMATS[host].user_file is None
    try:
        entry = create_config_entry(read_target_options(ctx, **params), name, host)
        path = get_config_path(host, "project" if project or only_project else "user")
        try:
            add_entry(host, path, entry, replace=force)
        except ValueError as exc:
            output.print_note(f"what it would have been:\n{format_document(host, entry)}")
            raise click.UsageError(f"{path}: {exc}") from None
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    click.echo(f"{HOST_FORMATS[host].title} now has the server {entry.name}, in {path}")
    output.print_note("restart it, or let it look again, to see the server")
    return 0
