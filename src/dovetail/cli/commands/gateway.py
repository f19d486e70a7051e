"""`dovetail gateway`: serve all configured servers as one."""

from typing import Any

import click

from dovetail.cli.error_report import describe_listen_error
from dovetail.cli.host_setup import (
    HostOptions,
    create_host,
    disable_servers,
    host_options,
    is_gateway,
    read_config_entries,
    report_failures,
)
from dovetail.cli.listener_options import (
    cluster_option,
    keep_alive_option,
    listener_options,
    log_level_option,
    read_listener_options,
    reject_without_http,
    report_cluster_errors,
)
from dovetail.cli.target_argument import PositiveNumber
from dovetail.host.gateway.gateway import GatewayMode
from dovetail.host.host import Host
from dovetail.host.server_settings import ServerSettings
from dovetail.protocol.limits import ServerLimits
from dovetail.terminal import output


@click.command("gateway")
@host_options
@click.option("--watch", is_flag=True, help="Reload when a configuration file changes.")
@click.option("--eager", is_flag=True, help="Start all servers at once, before the first request.")
@click.option(
    "--ready-timeout",
    type=PositiveNumber(),
    default=5.0,
    show_default=True,
    help="Seconds that a list waits for starting servers.",
)
@click.option("--search", is_flag=True, help="Offer search tools instead of all tools.")
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8484, show_default=True, help="Port to listen on. 0 picks a free port.")
@click.option("--path", default="/mcp", show_default=True, help="URL path of the endpoint.")
@cluster_option
@listener_options
@keep_alive_option
@click.option("--allow-anonymous", is_flag=True, help="Accept clients without authentication.")
@log_level_option
@click.pass_context
def command(
    ctx: click.Context,
    watch: bool,
    eager: bool,
    ready_timeout: float,
    search: bool,
    http: bool,
    address: str,
    port: int,
    path: str,
    allowed_hosts: tuple[str, ...],
    ssl_certfile: str | None,
    ssl_keyfile: str | None,
    keep_alive: float | None,
    allow_anonymous: bool,
    **params: Any,
) -> int:
    """Serve all configured servers as one.

    Serves the servers of these configuration files, or of all files found, over stdio or HTTP. If the policy says
    "ask", the client's user is asked by elicitation. A client that does not support elicitation is denied. Over HTTP,
    all servers are at /mcp, the search tools at /search/mcp, and a single server at /servers/NAME/mcp.

    \b
    dovetail gateway mcp.json
    dovetail gateway mcp.json --http --port 8484 --policy policy.toml
    """
    if not http:
        reject_without_http(ctx, _HTTP_OPTIONS)
    http_options = read_listener_options(allowed_hosts, ssl_certfile, ssl_keyfile)
    http_options |= {"host": address, "port": port, "path": path, "allow_anonymous": allow_anonymous}
    defaults: dict[str, Any] = {"defaults": ServerSettings(start="eager")} if eager else {}
    options = HostOptions(**params)
    host = create_host(options, watch=watch, ready_timeout=ready_timeout, **defaults)
    _disable_gateways(host, options)
    report_failures(host)
    mode: GatewayMode = "search" if search else "merged"
    try:
        if http:
            limits = None if keep_alive is None else ServerLimits(idle_timeout=keep_alive)
            with report_cluster_errors():
                host.as_server(mode, limits=limits).run("http", **http_options)
        else:
            host.run("stdio", mode)
    except (ValueError, OSError) as exc:
        from dovetail.server.runners import ExposedAddress

        if isinstance(exc, ExposedAddress):
            raise click.UsageError(
                f"other machines can connect to {address} without authentication. Pass --allow-anonymous to allow this"
            ) from None
        raise click.UsageError(describe_listen_error(exc)) from None
    return 0


_HTTP_OPTIONS = (
    "address",
    "port",
    "path",
    "allow_anonymous",
    "allowed_hosts",
    "ssl_certfile",
    "ssl_keyfile",
    "keep_alive",
)


def _disable_gateways(host: Host, options: HostOptions) -> None:
    def find_gateways(names: set[str]) -> set[str]:
        gateway_names = {
            entry.name for entry in read_config_entries(options.files) if is_gateway(entry) and entry.name in names
        }
        for name in sorted(gateway_names):
            output.print_note(f"skipped {name}: it is a gateway")
        return gateway_names

    disable_servers(host, find_gateways)
