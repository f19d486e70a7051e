"""`dovetail servers`: show the state of all configured servers, with the number of tools and tokens."""

import asyncio
from collections import Counter
from typing import Any

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, run_to_exit_code
from dovetail.cli.host_setup import HostOptions, create_consent, create_host, host_options, print_start_hint
from dovetail.cli.target_argument import PositiveNumber
from dovetail.errors import PolicyError
from dovetail.host.host import Host, get_parts
from dovetail.host.server_settings import ServerSettings
from dovetail.terminal import output

_TIMEOUT_REASON = "not ready in time"


@click.command("servers")
@host_options
@click.option(
    "--timeout", type=PositiveNumber(), default=30.0, show_default=True, help="Seconds to wait for all servers."
)
@click.option("--no-start", is_flag=True, help="Show the configuration without starting servers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show log messages.")
def command(timeout: float, no_start: bool, as_json: bool, verbose: bool, **params: Any) -> int:
    """Show the status of all configured servers.

    Starts the servers of these configuration files, or of all files found, and stops them again. Exits with 3 if a
    server is not ready, with 4 if a server needs a login, and with 6 if a file has errors.

    \b
    dovetail servers
    dovetail servers mcp.json --policy policy.toml
    """
    options = HostOptions(**params)
    host = create_host(
        options,
        should_prompt=not no_start,
        consent=create_consent(),
        ready_timeout=timeout,
        defaults=ServerSettings(start_timeout=timeout),
    )

    async def run() -> int:
        async with host:
            if not no_start:
                await host.catalog()
                # A failed server updates its state only in the next iteration of the event loop.
                await asyncio.sleep(0)
            rows = [row for row in _build_rows(host) if not options.servers or row["name"] in options.servers]
            policy_error = next(
                (
                    managed_server.last_error
                    for managed_server in host.servers
                    if isinstance(managed_server.last_error, PolicyError)
                ),
                None,
            )
        click.echo(output.format_json(rows) if as_json else _format_rows(rows))
        print_start_hint(policy_error)
        has_errors = any(problem.is_error for problem in host.config_problems)
        return (error_report.EXIT_OK if no_start else _get_exit_code(rows)) or (
            error_report.EXIT_VALIDATION if has_errors else error_report.EXIT_OK
        )

    with LogPrinter(verbose):
        return run_to_exit_code(run, as_json)


def _build_rows(host: Host) -> list[dict[str, Any]]:
    catalog = get_parts(host).catalog.get_cached()
    tools = Counter(entry.server for entry in catalog.tools)
    tokens: Counter[str] = Counter()
    for entry in catalog.tools:
        tokens[entry.server] += entry.tokens
    return [
        {
            "name": managed_server.name,
            "state": managed_server.state,
            "tools": tools[managed_server.name],
            "tokens": tokens[managed_server.name],
            "resources": sum(
                item.server == managed_server.name for item in (*catalog.resources, *catalog.resource_templates)
            ),
            "prompts": sum(item.server == managed_server.name for item in catalog.prompts),
            "source": managed_server.source,
            "last_error": _get_reason(managed_server),
        }
        for managed_server in host.servers
    ]


def _get_reason(managed_server: Any) -> str | None:
    if managed_server.last_error is not None:
        return (
            str(managed_server.last_error.args[0])
            if managed_server.last_error.args
            else type(managed_server.last_error).__name__
        )
    return _TIMEOUT_REASON if managed_server.state == "starting" else None


def _format_rows(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no servers are configured"
    cells = [
        (
            row["name"],
            row["state"],
            *(str(row[column] or "") for column in ("tools", "tokens", "resources", "prompts")),
            row["last_error"] or row["source"],
        )
        for row in rows
    ]
    headers = ("server", "state", "tools", "tokens", "resources", "prompts", "source or error")
    return output.format_table(cells, headers, is_last_cut=False)


def _get_exit_code(rows: list[dict[str, Any]]) -> int:
    states = {row["state"] for row in rows}
    if "unauthorized" in states:
        return error_report.EXIT_AUTH
    return error_report.EXIT_OK if states <= {"ready", "idle", "disabled"} else error_report.EXIT_CONNECT
