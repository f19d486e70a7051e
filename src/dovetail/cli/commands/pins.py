"""`dovetail pins`: list, check, accept and remove pinned tool definitions."""

import time
from collections.abc import Callable
from typing import Any

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, run_to_exit_code
from dovetail.cli.host_setup import HostOptions, create_consent, create_host, host_options, print_start_hint
from dovetail.cli.target_argument import PositiveNumber
from dovetail.host.consent.definition_changes import format_changes
from dovetail.host.consent.pins import PinComparison, PinStore
from dovetail.host.host import Host, get_parts
from dovetail.host.server_settings import ServerSettings
from dovetail.host.supervisor import ServerSupervisor
from dovetail.storage import get_data_dir
from dovetail.terminal import output

_NO_SERVER_MESSAGE = "no server could be checked"
_JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("pins")
def command() -> None:
    """Manage pinned tool definitions.

    A host pins the definition of every tool it uses, and asks before it uses a tool whose definition has changed.
    """


@command.command("list")
@_JSON_OPTION
def list_pins(as_json: bool) -> int:
    """List pinned definitions."""
    pins = PinStore(get_data_dir() / "pins.json").list()
    if as_json:
        click.echo(output.format_json(pins))
        return error_report.EXIT_OK
    rows = [
        (pin.server, pin.name, time.strftime("%Y-%m-%d", time.localtime(pin.pinned_at)), pin.fingerprint)
        for pin in pins
    ]
    click.echo(output.format_table(rows, ("server", "tool", "pinned", "fingerprint")) or "no pins")
    return error_report.EXIT_OK


@command.command("check")
@host_options
@click.option(
    "--timeout", type=PositiveNumber(), default=30.0, show_default=True, help="Seconds to wait for all servers."
)
@_JSON_OPTION
def check_pins(timeout: float, as_json: bool, **params: Any) -> int:
    """Compare current definitions with the pins.

    Exits with 6 if a definition has changed.

    \b
    dovetail pins check mcp.json
    """

    def report_changes(host: Host, checked_servers: dict[str, ServerSupervisor]) -> int:
        pins = get_parts(host).authorizer.pins
        comparisons = {
            name: pins.compare(supervisor.identity, supervisor.known["tool"].values())
            for name, supervisor in checked_servers.items()
        }
        summaries = {name: _summarize_comparison(comparison) for name, comparison in comparisons.items()}
        click.echo(
            output.format_json(summaries)
            if as_json
            else output.fit_to_stdout(output.escape_text("\n".join(_format_comparisons(comparisons))))
        )
        return (
            error_report.EXIT_VALIDATION
            if any(comparison.changed for comparison in comparisons.values())
            else error_report.EXIT_OK
        )

    return _run_with_servers(HostOptions(**params), report_changes, timeout, as_json)


@command.command("accept")
@host_options
@click.option(
    "--timeout", type=PositiveNumber(), default=30.0, show_default=True, help="Seconds to wait for all servers."
)
@_JSON_OPTION
def accept_definitions(timeout: float, as_json: bool, **params: Any) -> int:
    """Pin the current definitions.

    \b
    dovetail pins accept mcp.json --server github
    """

    def accept(host: Host, checked_servers: dict[str, ServerSupervisor]) -> int:
        for name, supervisor in checked_servers.items():
            get_parts(host).authorizer.pins.accept(name, supervisor.identity, supervisor.known["tool"].values())
        counts = {name: len(supervisor.known["tool"]) for name, supervisor in checked_servers.items()}
        rows = [f"{name}: {_format_count(count)} pinned" for name, count in counts.items()]
        click.echo(output.format_json(counts) if as_json else "\n".join(rows) or _NO_SERVER_MESSAGE)
        return error_report.EXIT_OK

    return _run_with_servers(HostOptions(**params), accept, timeout, as_json)


@command.command("remove")
@click.argument("server")
@click.argument("tool", required=False)
def remove_pins(server: str, tool: str | None) -> int:
    """Remove pins of a server or a tool."""
    count = PinStore(get_data_dir() / "pins.json").remove(server=server, name=tool)
    click.echo(f"{_format_count(count)} removed")
    return error_report.EXIT_OK if count else error_report.EXIT_USAGE


def _run_with_servers(
    options: HostOptions, action: Callable[[Host, dict[str, ServerSupervisor]], int], timeout: float, as_json: bool
) -> int:
    host = create_host(
        options,
        consent=create_consent(),
        ready_timeout=timeout,
        defaults=ServerSettings(start_timeout=timeout),
    )

    async def run() -> int:
        async with host:
            await host.list_tools()
            supervisors = [
                supervisor for supervisor in get_parts(host).servers.list() if supervisor.state != "disabled"
            ]
            checked_servers = {supervisor.name: supervisor for supervisor in supervisors if "tool" in supervisor.known}
            unavailable = [supervisor for supervisor in supervisors if supervisor.name not in checked_servers]
            for supervisor in unavailable:
                reason = supervisor.last_error or supervisor.state
                output.print_note(output.escape_full_line(f"{supervisor.name} could not be checked: {reason}"))
                print_start_hint(supervisor.last_error)
            return action(host, checked_servers) or (error_report.EXIT_CONNECT if unavailable else error_report.EXIT_OK)

    with LogPrinter(False):
        return run_to_exit_code(run, as_json)


def _format_count(count: int) -> str:
    return f"{count} {'definition' if count == 1 else 'definitions'}"


def _summarize_comparison(comparison: PinComparison) -> dict[str, Any]:
    return {
        "new": [definition.name for definition in comparison.new],
        "gone": [pin.name for pin in comparison.gone],
        "changed": {change.pin.name: change.differences for change in comparison.changed},
    }


def _format_comparisons(comparisons: dict[str, PinComparison]) -> list[str]:
    rows: list[str] = []
    for name, comparison in comparisons.items():
        rows += [f"{name}: unchanged"] if comparison.same else []
        rows += [f"{name}.{output.escape_line(definition.name)}: new, not pinned" for definition in comparison.new]
        rows += [f"{name}.{output.escape_line(pin.name)}: removed" for pin in comparison.gone]
        for change in comparison.changed:
            rows += [f"{name}.{output.escape_line(change.pin.name)}: changed", format_changes(change.differences)]
    return rows or [_NO_SERVER_MESSAGE]
