"""`dovetail diff`: compare two servers or recordings."""

from typing import Any

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, create_client, run_to_exit_code
from dovetail.cli.commands.list import ITEM_KINDS, list_items
from dovetail.cli.target_argument import (
    TargetOptions,
    build_client_options,
    read_recording,
    read_target_options,
    target_options,
)
from dovetail.recording.playback import find_revision, read_exchanges
from dovetail.schemas.definition_diff import Difference, diff_definitions
from dovetail.terminal import output
from dovetail.wire.base import replace
from dovetail.wire.codec import to_plain

_KEY_FIELDS = {"tools": "name", "resources": "uri", "templates": "uriTemplate", "prompts": "name"}


@click.command("diff")
@target_options("[TARGET]")
@click.option("--strict", is_flag=True, help="Fail on any difference.")
@click.pass_context
def command(ctx: click.Context, strict: bool, **params: Any) -> int:
    """Compare two servers or recordings.

    Exits with 6 if a change from the first to the second breaks clients.

    \b
    dovetail diff server.jsonl server.py
    dovetail diff https://example.com/mcp https://staging.example.com/mcp
    dovetail diff time.jsonl -- uvx mcp-server-time
    """
    options = read_target_options(ctx, **params)
    old, new = _split_targets(options)

    async def run() -> int:
        old_items, new_items = await _fetch_items(old), await _fetch_items(new)
        differences_found = [
            difference
            for kind in ITEM_KINDS
            for difference in diff_definitions(kind.removesuffix("s"), old_items[kind], new_items[kind])
        ]
        click.echo(output.format_json(differences_found) if options.json else _format_differences(differences_found))
        return (
            error_report.EXIT_VALIDATION
            if any(strict or difference.is_breaking for difference in differences_found)
            else error_report.EXIT_OK
        )

    with LogPrinter(options.verbose):
        return run_to_exit_code(run, options.json)


def _split_targets(options: TargetOptions) -> tuple[TargetOptions, TargetOptions]:
    """Return the options of both targets, with the protocol version of the recording if there is one."""
    args = options.args
    recording = next((arg for arg in args if arg.endswith(".jsonl")), None)
    if recording is not None and options.protocol_version is None:
        options = replace(options, protocol_version=find_revision(read_exchanges(read_recording(recording))))
    if (options.command or options.module) and len(args) == 1:
        return replace(options, args=args, command=(), module=None), replace(options, args=())
    if len(args) == 2 and not (options.command or options.module):
        return replace(options, args=args[:1]), replace(options, args=args[1:])
    raise click.UsageError("diff requires two targets")


async def _fetch_items(options: TargetOptions) -> dict[str, dict[str, Any]]:
    target, _ = options.split_target()
    async with create_client(target, build_client_options(options, target)) as client:
        items_by_kind: dict[str, dict[str, Any]] = {}
        for kind in ITEM_KINDS:
            items: list[dict[str, Any]] = [to_plain(definition) for definition in await list_items(client, kind)]
            items_by_kind[kind] = {str(definition[_KEY_FIELDS[kind]]): definition for definition in items}
        return items_by_kind


_KIND_STYLES = {
    "removed": ("-", "red"),
    "added": ("+", "green"),
    "changed": ("~", "yellow"),
    "description": ("~", None),
}


def _format_differences(differences_found: list[Difference]) -> str:
    if not differences_found:
        return "no differences"
    return "\n".join(map(_format_difference, differences_found))


def _format_difference(difference: Difference) -> str:
    mark, colour = _KIND_STYLES[difference.kind]
    item, change = output.escape_line(difference.item), output.escape_line(difference.message)
    description = f"{mark} {item}: {change}{' (breaking)' if difference.is_breaking else ''}"
    return output.style(description, fg=colour)
