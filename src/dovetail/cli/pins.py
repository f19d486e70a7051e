"""`dovetail pins`: the definitions of tools that were agreed to, and what became of them."""

import time
from collections.abc import Callable
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.hosting import advise_start, consent, host_options, made, state_file
from dovetail.cli.keyboard import Keyboard
from dovetail.cli.speaking import finished, logged
from dovetail.host.host import Host
from dovetail.host.member import Member
from dovetail.host.pinned import Comparison, Pins
from dovetail.host.pins import describe

_NOTHING = "no server could be looked at"
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group("pins")
def command() -> None:
    """See which definitions of tools were agreed to, compare them with what servers offer now, agree to new ones.

    A host remembers the definition of every tool it used, and asks before one that has changed is used again.
    """


@command.command("list")
@_JSON
def listing(as_json: bool) -> int:
    """List the definitions that were agreed to."""
    pins = Pins(state_file("pins.json")).list()
    if as_json:
        click.echo(text.document(pins))
        return exits.OK
    rows = [
        (one.server, one.name, time.strftime("%Y-%m-%d", time.localtime(one.seen)), one.fingerprint) for one in pins
    ]
    click.echo(text.table(rows, ("server", "tool", "since", "fingerprint")) or "nothing was agreed to yet")
    return exits.OK


@command.command("check")
@host_options
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for all of them.")
@_JSON
def check(files: tuple[str, ...], policy: str | None, journal: str | None, **given: Any) -> int:
    """Compare what servers offer now with what was agreed to; exits with 6 if something changed.

    \b
    dovetail pins check mcp.json
    """

    def work(host: Host, seen: dict[str, Member], as_json: bool) -> int:
        pins = host.desk.pins
        found = {name: pins.compare(one.identity, one.known["tool"].values()) for name, one in seen.items()}
        facts = {name: _facts(one) for name, one in found.items()}
        click.echo(text.document(facts) if as_json else text.safe("\n".join(_shown(found))))
        return exits.CONTRACT if any(one.changed for one in found.values()) else exits.OK

    return _looked(files, policy, journal, work, **given)


@command.command("keep")
@host_options
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for all of them.")
@_JSON
def keep(files: tuple[str, ...], policy: str | None, journal: str | None, **given: Any) -> int:
    """Agree to the definitions as servers offer them now.

    \b
    dovetail pins keep mcp.json --server github
    """

    def work(host: Host, seen: dict[str, Member], as_json: bool) -> int:
        for name, one in seen.items():
            host.desk.pins.keep(name, one.identity, one.known["tool"].values(), time.time())
        numbers = {name: len(one.known["tool"]) for name, one in seen.items()}
        rows = [f"{name}: {number} agreed to" for name, number in numbers.items()]
        click.echo(text.document(numbers) if as_json else "\n".join(rows) or _NOTHING)
        return exits.OK

    return _looked(files, policy, journal, work, **given)


@command.command("forget")
@click.argument("server")
@click.argument("tool", required=False)
def forget(server: str, tool: str | None) -> int:
    """Forget what was agreed to, of a server or of one of its tools."""
    number = Pins(state_file("pins.json")).forget(server=server, name=tool)
    click.echo(f"{number} forgotten")
    return exits.OK if number else exits.USAGE


def _looked(
    files: tuple[str, ...],
    policy: str | None,
    journal: str | None,
    work: Callable[[Host, dict[str, Member], bool], int],
    *,
    servers: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> int:
    """Do something with the servers that say what they offer; the others are named."""
    keyboard = Keyboard()
    options: dict[str, Any] = {"consent": consent(keyboard), "patience": timeout, "start_time": timeout}
    host = made(files, policy, journal, servers, **options)

    async def run() -> int:
        with keyboard:
            async with host:
                await host.tools()
                members = [one for one in host.servers if one.state != "disabled"]
                seen = {one.name: one for one in members if "tool" in one.known}
                missing = [one for one in members if one.name not in seen]
                for one in missing:
                    text.note(f"{one.name} could not be looked at: {one.reason or one.state}")
                    advise_start(one.reason)
                return work(host, seen, as_json) or (exits.CONNECT if missing else exits.OK)

    with logged(False):
        return finished(run, as_json)


def _facts(found: Comparison) -> dict[str, Any]:
    return {
        "new": [one.name for one in found.new],
        "gone": [one.name for one in found.gone],
        "changed": {one.pin.name: one.differences for one in found.changed},
    }


def _shown(found: dict[str, Comparison]) -> list[str]:
    rows: list[str] = []
    for name, one in found.items():
        rows += [f"{name}: as agreed to"] if one.same else []
        rows += [f"{name}.{text.line(new.name)}: new, never agreed to" for new in one.new]
        rows += [f"{name}.{text.line(gone.name)}: gone" for gone in one.gone]
        for changed in one.changed:
            rows += [f"{name}.{text.line(changed.pin.name)}: changed", describe(changed.differences)]
    return rows or [_NOTHING]
