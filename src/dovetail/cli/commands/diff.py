"""`dovetail diff`: compare two servers or recordings."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, create_client, list_items, run_to_exit_code
from dovetail.cli.commands.list import ITEM_KINDS
from dovetail.cli.target_argument import (
    TargetOptions,
    build_client_options,
    read_recording,
    read_target_options,
    target_options,
)
from dovetail.error_context import clip
from dovetail.recording.playback import find_revision, read_exchanges
from dovetail.schemas.definition_diff import (
    NAMED_SCHEMAS,
    SCHEMA_LISTS,
    Difference,
    Path,
    find_differences,
    is_breaking,
    is_property,
)
from dovetail.terminal import output
from dovetail.wire.base import Struct, replace
from dovetail.wire.codec import encode, to_plain

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
        entries = [
            entry
            for kind in ITEM_KINDS
            for entry in compare_items(kind.removesuffix("s"), old_items[kind], new_items[kind])
        ]
        lines = "\n".join(map(_format_entry, entries)) or "no differences"
        click.echo(output.format_json(entries) if options.json else lines)
        fails = any(strict or entry.is_breaking for entry in entries)
        return error_report.EXIT_VALIDATION if fails else error_report.EXIT_OK

    with LogPrinter(options.verbose):
        return run_to_exit_code(run, options.json)


def _split_targets(options: TargetOptions) -> tuple[TargetOptions, TargetOptions]:
    """Return the options for each of the two targets of a diff.

    If one target is a recording, both targets use the protocol version of the recording.
    """
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


class DiffEntry(Struct, frozen=True):
    """A line in the report of `dovetail diff`, which describes one difference."""

    kind: Literal["removed", "added", "changed", "description"]
    item: str  # The kind and the name of the item, such as "tool forecast".
    message: str
    is_breaking: bool = False


_KIND_STYLES = {
    "removed": ("-", "red"),
    "added": ("+", "green"),
    "changed": ("~", "yellow"),
    "description": ("~", None),
}
_DESCRIPTIVE_FIELDS = ("title", "description", "icons", "_meta")


def _format_entry(entry: DiffEntry) -> str:
    mark, colour = _KIND_STYLES[entry.kind]
    item, message = output.escape_line(entry.item), output.escape_line(entry.message)
    line = f"{mark} {item}: {message}{' (breaking)' if entry.is_breaking else ''}"
    return output.style(output.fit_to_stdout(line), fg=colour)


def compare_items(
    kind: str, old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> Iterator[DiffEntry]:
    """Yield the differences between two lists of items of one kind."""
    yield from (DiffEntry("removed", f"{kind} {name}", "removed", True) for name in old if name not in new)
    yield from (DiffEntry("added", f"{kind} {name}", "added") for name in new if name not in old)
    for name in old:
        if name in new:
            differences = find_differences(old[name], new[name])
            yield from (_describe(f"{kind} {name}", difference) for difference in differences)


def _describe(item: str, difference: Difference) -> DiffEntry:
    field = difference.path[0]
    is_schema = field in ("inputSchema", "outputSchema", "arguments")
    is_description = difference.effect == "text" if is_schema else field in _DESCRIPTIVE_FIELDS
    kind = _find_kind(difference)
    message = (
        _describe_schema_change(difference, kind) if is_schema else f"{'.'.join(difference.path).strip('_')} changed"
    )
    return DiffEntry("description" if is_description else kind, item, message, is_breaking(difference))


def _find_kind(difference: Difference) -> Literal["removed", "added", "changed"]:
    if difference.path == ("outputSchema",):
        return "added" if difference.old is None else "removed" if difference.new is None else "changed"
    return difference.kind if is_property(difference) else "changed"


def _describe_schema_change(difference: Difference, kind: str) -> str:
    is_output = difference.path[0] == "outputSchema"
    side = "result field" if is_output else "argument"
    label, keyword = _split_path(difference.path, is_entry=difference.kind != "changed")
    # If both values are dicts, the whole schema was replaced, not only one keyword.
    if isinstance(difference.old, dict) and isinstance(difference.new, dict):
        keyword = ""
    if is_property(difference):
        is_required = not is_output and difference.kind == "added" and difference.effect == "narrower"
        return f"{'required ' if is_required else ''}{side} `{label}` {kind}"
    name = difference.new if difference.old is None else difference.old
    if keyword == "required" and isinstance(name, str):
        path = f"{label}.{name}" if label else name
        return f"{side} `{path}` is {'now' if difference.old is None else 'no longer'} required"
    schema_name = f"`{label}`" if label else "output schema" if is_output else "input schema"
    if not keyword and None in (difference.old, difference.new):
        return f"{schema_name} {kind if label == '' else difference.kind}"
    subject = f"{keyword} of {schema_name}" if keyword else schema_name
    return f"{subject} changed{_describe_values(keyword, difference)}"


def _split_path(path: Path, *, is_entry: bool) -> tuple[str, str]:
    """Split the path of a difference into a dotted field name and a schema keyword. The keyword can be empty."""
    names: list[str] = []
    segments = [*path] if path[0] == "arguments" else [*path[1:]]
    while segments:
        keyword = segments.pop(0)
        if not segments or (path == ("arguments", "required") and not is_entry):
            return ".".join(names), segments[0] if segments else keyword
        names += [] if keyword in ("properties", "arguments") else [keyword]
        names += [segments.pop(0)] if keyword in NAMED_SCHEMAS or keyword in SCHEMA_LISTS else []
    return ".".join(names), ""


def _describe_values(keyword: str, difference: Difference) -> str:
    if difference.effect in ("text", "same"):
        return ""
    if keyword == "enum" and isinstance(difference.old, list) and isinstance(difference.new, list):
        removed = [f"{choice!r} removed" for choice in difference.old if choice not in difference.new]
        added = [f"{choice!r} added" for choice in difference.new if choice not in difference.old]
        return f": {clip(', '.join(removed + added), 200)}"
    return f" from {_format_value(difference.old)} to {_format_value(difference.new)}"


def _format_value(value: Any) -> str:
    return "none" if value is None else clip(value if isinstance(value, str) else encode(value).decode(), 80)
