"""Create the host of a command from configuration files and options."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from dovetail.cli.config_inputs import collect_inputs
from dovetail.cli.target_argument import INPUT_OPTION, parse_pairs, print_problems
from dovetail.cli.tool_arguments import suggest_names
from dovetail.errors import PolicyError
from dovetail.host.config.config_files import discover_configs, load_config
from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.config.server_entry import ServerConfig
from dovetail.host.consent.consent import ConsentHandler, DenyAllConsent
from dovetail.host.consent.terminal_consent import TerminalConsent
from dovetail.host.events import HostEvent
from dovetail.host.host import Host, get_parts
from dovetail.storage import get_data_dir
from dovetail.terminal import output
from dovetail.wire.base import Struct

F = TypeVar("F", bound=Callable[..., Any])

# All commands that create a host have these options.
_HOST_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option(
        "--policy",
        envvar="DOVETAIL_POLICY",
        type=click.Path(exists=True, dir_okay=False),
        help="Policy file (TOML). Defaults to DOVETAIL_POLICY.",
    ),
    click.option("--audit-log", type=click.Path(dir_okay=False), help="Write an audit log to this file."),
    click.option("--server", "servers", multiple=True, metavar="NAME", help="Use only this server. Repeatable."),
    INPUT_OPTION,
)


def host_options(function: F) -> F:
    """Add the FILE arguments and the host options to a command."""
    for option in reversed(_HOST_OPTIONS):
        function = option(function)
    return click.argument("files", nargs=-1, metavar="[FILE]...")(function)


class HostOptions(Struct, frozen=True, kw_only=True):
    """The arguments and options of a command that creates a host."""

    files: Sequence[str] = ()  # The configuration files. If empty, dovetail searches for configuration files.
    policy: str | None = None
    audit_log: str | None = None
    servers: Sequence[str] = ()  # The names of the servers to use. If empty, all servers are used.
    inputs: Sequence[str] = ()  # Values of ${input:ID} references.


def create_host(options: HostOptions, *, should_prompt: bool = True, **host_arguments: Any) -> Host:
    """Create a host from configuration files. Print problems in the files.

    If `should_prompt` is True, the user is asked for missing inputs.
    """
    files, servers = options.files, options.servers
    _check_files(files)
    entries = read_config_entries(files)
    used_entries = [entry for entry in entries if entry.enabled and (not servers or entry.name in servers)]
    given_inputs = parse_pairs(options.inputs, "=", "--input")
    input_values = collect_inputs(used_entries, given_inputs, should_prompt=should_prompt)
    try:
        host = Host.from_config(
            *files,
            policy=options.policy,
            audit_log=options.audit_log,
            grants=get_data_dir() / "grants.json",
            pins=get_data_dir() / "pins.json",
            project=Path.cwd(),
            secrets=SecretResolver(inputs=input_values),
            **host_arguments,
        )
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    print_problems(host.config_problems)
    _select_servers(host, servers)
    return host


def read_config_entries(files: Sequence[str]) -> list[ServerConfig]:
    """Return the servers in these configuration files. If `files` is empty, use the files that dovetail finds."""
    return (
        [entry for file in files for entry in load_config(Path(file), level="user")[0]]
        if files
        else discover_configs()[0]
    )


def _check_files(files: Sequence[str]) -> None:
    for file in files:
        if not Path(file).is_file():
            raise click.UsageError(f"file not found: {file!r}")
        entries, problems = load_config(Path(file), level="user")
        errors = [problem.message for problem in problems if problem.is_error]
        if errors and not entries:
            raise click.UsageError(output.escape_full_line(f"{file}: {'; '.join(errors)}"))


def create_consent() -> ConsentHandler:
    """Return a handler that asks for consent at the terminal. Without a terminal, the handler denies every request."""
    return TerminalConsent() if output.is_interactive() else DenyAllConsent()


def _select_servers(host: Host, names: Sequence[str]) -> None:
    """Disable all servers that are not in `names`, including servers that are added later.

    Raise UsageError if a name is unknown.
    """
    server_names = {managed_server.name for managed_server in host.servers}
    for name in names:
        if name not in server_names:
            raise click.UsageError(f"unknown server {name!r}{suggest_names(name, server_names)}")
    if names:
        disable_servers(host, lambda known: known - {*names})


def disable_servers(host: Host, select_names: Callable[[set[str]], set[str]]) -> None:
    """Disable the servers that `select_names` returns, including servers that are added later."""

    def disable_idle(_: HostEvent | None = None) -> None:
        supervisors = get_parts(host).servers.list()
        idle_servers = {supervisor.name: supervisor for supervisor in supervisors if supervisor.state == "idle"}
        for name in select_names({*idle_servers}):
            idle_servers[name].state = "disabled"

    disable_idle()
    host.on("server.added", disable_idle)


def report_failures(host: Host) -> None:
    """Print why servers cannot be used. Print each reason only once."""
    reported: set[tuple[str, str | None]] = set()

    def report(event: HostEvent) -> None:
        if event.state in ("failed", "unauthorized") and (event.server, event.reason) not in reported:
            reported.add((event.server, event.reason))
            output.print_note(output.escape_full_line(f"{event.server} cannot be used: {event.reason or event.state}"))
            print_start_hint(event.details)

    host.on("server.state", report)


def print_start_hint(reason: object) -> None:
    """If a server needs consent and there is no terminal, print how to start the server."""
    if isinstance(reason, PolicyError) and not output.is_interactive():
        output.print_note("try: pass the file as an argument, or allow server.start in a --policy")


def is_gateway(entry: ServerConfig) -> bool:
    """Return whether a configured server is a dovetail gateway. A gateway must not start itself."""
    argv = [entry.command or "", *entry.args]
    is_dovetail = any(Path(arg).name.split(".")[0] == "dovetail" for arg in argv)
    return is_dovetail and "gateway" in argv
