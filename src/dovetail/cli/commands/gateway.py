"""`dovetail gateway`: all servers of a configuration as one, over stdio or HTTP."""

import click

from dovetail.cli.host_setup import (
    create_host,
    disable_servers,
    host_options,
    is_gateway,
    read_config_entries,
    report_failures,
)
from dovetail.host.gateway.gateway import GatewayMode
from dovetail.host.host import Host
from dovetail.terminal import output


@click.command("gateway")
@host_options
@click.option(
    "--watch", is_flag=True, help="Follow the files: start what is written into them, stop what is taken out."
)
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
    watch: bool,
    search: bool,
    http: bool,
    address: str,
    port: int,
    path: str,
    anonymous: bool,
) -> int:
    """Serve all servers of some configuration files, or of all that are found, as one: over stdio, or with --http.

    Where the policy asks, the user of whoever calls is asked, by elicitation; who cannot be asked is refused. Over
    HTTP, /mcp has all servers, /search/mcp the tools that search, /servers/NAME/mcp one server.

    \b
    dovetail gateway mcp.json
    dovetail gateway mcp.json --http --port 8484 --policy policy.toml
    """
    host = create_host(files, policy, journal, servers, watch=watch)
    _disable_gateways(host, files)
    report_failures(host)
    mode: GatewayMode = "search" if search else "merged"
    try:
        if http:
            host.serve("http", mode, host=address, port=port, path=path, allow_anonymous=anonymous)
        else:
            host.run("stdio", mode)
    except (ValueError, OSError) as exc:
        raise click.UsageError(str(exc).replace("give it auth=, or pass anonymous=True", "pass --anonymous")) from None
    return 0


def _disable_gateways(host: Host, files: tuple[str, ...]) -> None:
    def find_gateways(names: set[str]) -> set[str]:
        gateway_names = {
            entry.name for entry in read_config_entries(files) if is_gateway(entry) and entry.name in names
        }
        for name in sorted(gateway_names):
            output.print_note(f"{name} is left out: it is a gateway itself")
        return gateway_names

    disable_servers(host, find_gateways)
