"""`dovetail gateway`: all servers of a configuration as one, over stdio or HTTP."""

from pathlib import Path
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.hosting import host_options, is_gateway, made, picked
from dovetail.host.config import read_file, read_known
from dovetail.host.gateway import Mode


@click.command("gateway")
@host_options
@click.option("--server", "servers", multiple=True, metavar="NAME", help="Only this one; may be given several times.")
@click.option("--search", is_flag=True, help="Offer three tools that find, describe and call all others.")
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--host", "address", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=8484, show_default=True, help="0 takes a free one.")
@click.option("--path", default="/mcp", show_default=True, help="Where on the host.")
@click.option("--anonymous", is_flag=True, help="Serve everyone who reaches the host.")
def command(
    files: tuple[str, ...],
    policy: str | None,
    journal: str | None,
    servers: tuple[str, ...],
    search: bool,
    http: bool,
    address: str,
    port: int,
    path: str,
    anonymous: bool,
) -> int:
    """Serve all servers of some configuration files, or of all that are found, as one: over stdio, or with --http.

    Where the policy asks, the user of whoever calls is asked, by elicitation; who cannot be asked is refused. Over
    HTTP, /mcp has all servers, /search/mcp the tools that search, /s/NAME/mcp one server.

    \b
    dovetail gateway mcp.json
    dovetail gateway mcp.json --http --port 8484 --policy policy.toml
    """
    host = made(files, policy, journal)
    picked(host, servers)
    _leave_out_gateways(host, files)
    mode: Mode = "search" if search else "merged"
    try:
        if http:
            host.serve("http", mode, host=address, port=port, path=path, anonymous=anonymous)
        else:
            host.serve("stdio", mode)
    except (ValueError, OSError) as exc:
        raise click.UsageError(str(exc).replace("give it auth=, or pass anonymous=True", "pass --anonymous")) from None
    return 0


def _leave_out_gateways(host: Any, files: tuple[str, ...]) -> None:
    entries = [one for file in files for one in read_file(Path(file))[0]] if files else read_known()[0]
    gateways = {one.name for one in entries if is_gateway(one)}
    for member in host.servers:
        if member.name in gateways:
            member.state = "disabled"
            text.note(f"{member.name} is left out: it is a gateway itself")
