"""`dovetail install`: add a server to the configuration of a host."""

from typing import Any, Literal

import click

from dovetail.cli.install_entry import create_config_entry
from dovetail.cli.suggestions import NamedChoice
from dovetail.cli.target_argument import (
    CONFIG_OPTIONS,
    environment_options,
    read_target_options,
    target_options,
)
from dovetail.host.config.editor import EntryExists, add_entry, format_document
from dovetail.host.config.host_formats import HOST_FORMATS, get_config_path
from dovetail.terminal import output
from dovetail.wire.base import replace


@click.command("install")
@target_options(connection=CONFIG_OPTIONS, session=())
@environment_options
@click.option("--to", "host", type=NamedChoice(HOST_FORMATS), required=True, help="Host to configure.")
@click.option("--name", help="Name of the server in the configuration.")
@click.option(
    "--transport", type=click.Choice(["http", "sse"]), help="Transport. Defaults to sse for a URL that ends with /sse."
)
@click.option("--project", is_flag=True, help="Write the project configuration of the host.")
@click.option("--force", is_flag=True, help="Replace an existing entry.")
@click.option("--print", "should_print", is_flag=True, help="Print the configuration instead of writing it.")
@click.pass_context
def command(
    ctx: click.Context,
    host: str,
    name: str | None,
    transport: Literal["http", "sse"] | None,
    project: bool,
    force: bool,
    should_print: bool,
    **params: Any,
) -> int:
    """Add a server to the configuration of a host.

    Adds one entry and keeps the rest of the file unchanged. Programs are written with their full path, because a host
    may have another PATH. --env NAME without a value becomes a reference to the variable, if the host supports
    references.

    \b
    dovetail install server.py --to claude-desktop
    dovetail install https://example.com/mcp --to vscode --project --name docs
    dovetail install --to cursor -e API_KEY -- npx -y some-server
    dovetail install server.py --to mcp.json --print
    """
    only_project = HOST_FORMATS[host].user_file is None
    try:
        options = read_target_options(ctx, **params)
        environment = options.describe_environment()
        entry = create_config_entry(options, name, host, transport)
        if environment is not None:
            from dovetail.cli.script_environment import find_uv, prepare_environment

            # A host may have another PATH.
            entry = replace(entry, env={"UV": find_uv(environment), **entry.env})
            if not should_print:
                prepare_environment(environment)  # Otherwise the host would wait for the installation.
        if should_print:
            click.echo(format_document(host, entry), nl=False)
            return 0
        path = get_config_path(host, "project" if project or only_project else "user")
        try:
            add_entry(host, path, entry, replace=force)
        except ValueError as exc:
            output.print_note(f"entry to add by hand:\n{format_document(host, entry)}")
            hint = ". Pass --force to replace it, or --name NAME" if isinstance(exc, EntryExists) else ""
            raise click.UsageError(f"{path}: {exc}{hint}") from None
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    click.echo(f"added {entry.name} to {HOST_FORMATS[host].title}: {path}")
    output.print_note(f"restart {HOST_FORMATS[host].title} to use the server")
    return 0
