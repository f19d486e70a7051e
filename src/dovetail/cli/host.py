"""`dovetail host`: all servers of a configuration at a glance: what state they are in, what they offer and cost."""

import asyncio
from collections import Counter
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.hosting import advise_start, consent, host_options, made
from dovetail.cli.keyboard import Keyboard
from dovetail.cli.speaking import finished, logged
from dovetail.errors import PolicyError
from dovetail.host.host import Host

_TOO_LATE = "not ready in time"


@click.command("host")
@host_options
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for all of them.")
@click.option("--no-start", is_flag=True, help="Start nothing, show what is configured.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-v", "--verbose", is_flag=True, help="Show what is logged.")
def command(
    files: tuple[str, ...],
    policy: str | None,
    journal: str | None,
    servers: tuple[str, ...],
    timeout: float,
    no_start: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Show all servers of some configuration files, or of all that are found: their state, and what they offer.

    They are started, all at once, and stopped again. Exits with 3 if one is not ready, with 4 if one wants a login,
    with 6 if something in the files cannot be read.

    \b
    dovetail host
    dovetail host mcp.json --policy policy.toml
    """
    keyboard = Keyboard()
    options: dict[str, Any] = {"consent": consent(keyboard), "patience": timeout, "start_time": timeout}
    host = made(files, policy, journal, servers, asks=not no_start, **options)

    async def run() -> int:
        with keyboard:
            async with host:
                if not no_start:
                    await host.catalog()
                    await asyncio.sleep(0)  # whoever failed last has its state by now
                rows = [row for row in _rows(host) if not servers or row["name"] in servers]
                refused = next((one.reason for one in host.servers if isinstance(one.reason, PolicyError)), None)
        click.echo(text.document(rows) if as_json else _shown(rows))
        advise_start(refused)
        wrong = any(one.severe for one in host.problems)
        return (exits.OK if no_start else _status(rows)) or (exits.CONTRACT if wrong else exits.OK)

    with logged(verbose):
        return finished(run, as_json)


def _rows(host: Host) -> list[dict[str, Any]]:
    catalog = host.known()
    tools = Counter(one.server for one in catalog.tools)
    tokens: Counter[str] = Counter()
    for one in catalog.tools:
        tokens[one.server] += one.tokens
    return [
        {
            "name": one.name,
            "state": one.state,
            "tools": tools[one.name],
            "tokens": tokens[one.name],
            "resources": sum(other.server == one.name for other in (*catalog.resources, *catalog.templates)),
            "prompts": sum(other.server == one.name for other in catalog.prompts),
            "source": one.source,
            "reason": _reason(one),
        }
        for one in host.servers
    ]


def _reason(member: Any) -> str | None:
    if member.reason is not None:
        return str(member.reason.args[0]) if member.reason.args else type(member.reason).__name__
    return _TOO_LATE if member.state == "starting" else None


def _shown(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no server is configured"
    cells = [
        (
            one["name"],
            one["state"],
            *(str(one[kind] or "") for kind in ("tools", "tokens", "resources", "prompts")),
            one["reason"] or one["source"],
        )
        for one in rows
    ]
    return text.table(cells, ("server", "state", "tools", "tokens", "resources", "prompts", "from, or what is wrong"))


def _status(rows: list[dict[str, Any]]) -> int:
    states = {one["state"] for one in rows}
    if "needs_login" in states:
        return exits.AUTH
    return exits.OK if states <= {"ready", "idle", "disabled"} else exits.CONNECT
