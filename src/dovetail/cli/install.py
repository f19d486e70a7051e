"""`dovetail install`: a server written into the configuration of a host."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.describing import described
from dovetail.cli.targets import WRITTEN, asked, options
from dovetail.host.writing import HOSTS, add, document, file_of


@click.command("install")
@options(reach=WRITTEN, talk=())
@click.option("--to", "host", type=click.Choice([*HOSTS]), required=True, help="For whom.")
@click.option("--name", help="What the server is called there.")
@click.option("--project", is_flag=True, help="For this folder only, where the host has such a file.")
@click.option("--force", is_flag=True, help="Take the place of another server of this name.")
@click.pass_context
def command(ctx: click.Context, host: str, name: str | None, project: bool, force: bool, **given: Any) -> int:
    """Write a server into the configuration of a host.

    One entry is added, everything else in the file stays as it is. Programs are named by where they are, since hosts
    look elsewhere; --env NAME alone is written as a reference to the variable where the host knows such.

    \b
    dovetail install server.py --to claude-desktop
    dovetail install https://example.com/mcp --to vscode --project --name docs
    dovetail install --to cursor -e API_KEY -- npx -y some-server
    """
    only_project = HOSTS[host].user is None
    try:
        entry = described(asked(ctx, **given), name, host)
        path = file_of(host, "project" if project or only_project else "user")
        try:
            add(host, path, entry, replace=force)
        except ValueError as exc:
            text.note(f"what it would have been:\n{document(host, entry)}")
            raise click.UsageError(f"{path}: {exc}") from None
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    click.echo(f"{HOSTS[host].title} now has the server {entry.name}, in {path}")
    text.note("restart it, or let it look again, to see the server")
    return 0
