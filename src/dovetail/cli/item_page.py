"""The page that `dovetail info TARGET NAME` prints about one tool, prompt, resource or resource template.

The page ends with an example command that the user can copy. The command contains names and values of an untrusted
server. This module quotes them for the shell, and no value makes the command read a file.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from dovetail.cli.command_runner import CommandRun, list_items, run_command
from dovetail.cli.completion_candidates import remember_items
from dovetail.cli.target_argument import TargetOptions
from dovetail.cli.tool_lookup import build_unknown_error, find_tool
from dovetail.schemas.reader import Schema, as_object, get_list, get_mapping, get_required, get_types, resolve_schema
from dovetail.schemas.summary import FieldSummary, describe_type, list_fields
from dovetail.terminal import output
from dovetail.terminal.form import FORMAT_EXAMPLES
from dovetail.wire.base import UNSET
from dovetail.wire.prompts import Prompt
from dovetail.wire.resources import Resource, ResourceTemplate
from dovetail.wire.tools import Tool

_ITEM_KINDS: Final = ("tools", "prompts", "resources", "templates")
_PLAIN_NAME_PATTERN: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_MAX_EXAMPLE_DEPTH: Final = 6
_MAX_EXAMPLE_VALUES: Final = 500  # References can make a small schema very large.


def print_item(options: TargetOptions, kinds: Sequence[str] = _ITEM_KINDS) -> int:
    """Print the page of an item, and return the exit code. The second value in `options.args` is the item's name."""

    async def execute(command_run: CommandRun) -> None:
        name, *rest = command_run.args
        if rest:
            raise click.UsageError(f"unexpected argument: {rest[0]}")
        items = {kind: await list_items(command_run.client, kind) for kind in kinds}
        remember_items(options, items)
        item = _find_item(name, items) or await _get_unlisted_tool(command_run, name, items)
        command_run.print_result(item, lambda: format_item(item, options))

    return run_command(options, execute)


def _find_item(name: str, items_by_kind: Mapping[str, list[Any]]) -> Any:
    items = [item for kind_items in items_by_kind.values() for item in kind_items]
    # Search the URIs first, because a URI is unique. A tool and a resource may have the same name.
    for keys in ([_get_key(item) for item in items], [str(item.name) for item in items]):
        if name in keys:
            return items[keys.index(name)]
    return None


async def _get_unlisted_tool(command_run: CommandRun, name: str, items_by_kind: Mapping[str, list[Any]]) -> Tool:
    tools = {tool.name: tool for tool in items_by_kind["tools"]}
    tool = await find_tool(command_run.client, name, tools)
    if tool is not None:
        return tool
    other_kinds = [items for kind, items in items_by_kind.items() if kind != "tools"]
    other_keys = [_get_key(item) for items in other_kinds for item in items] if other_kinds else None
    raise build_unknown_error(name, tools, other_keys)


def _get_key(item: Any) -> str:
    """Return the name, URI or URI template that identifies the item in a request."""
    return item.uri if isinstance(item, Resource) else getattr(item, "uri_template", item.name)


def format_item(item: Any, options: TargetOptions) -> str:
    """Return the page of an item."""
    sections = [(heading, content) for heading, content in _list_sections(item, options) if content]
    title = item.title if item.title not in (None, item.name) else ""
    subtitle = title or (item.name if isinstance(item, Resource | ResourceTemplate) else "")
    return output.format_page(_get_key(item), subtitle or "", (item.description or "").strip(), sections)


def _list_sections(item: Any, options: TargetOptions) -> list[tuple[str, str | output.Rows]]:
    match item:
        case Tool():
            return [
                ("Arguments", _format_fields(item.input_schema, has_notes=True) or "none"),
                ("Result", _format_result(item)),
                ("Annotations", _format_annotations(item)),
                ("Example", _format_command(options, "call", item.name, _find_examples(item.input_schema))),
            ]
        case Prompt():
            rows = [
                (argument.name, "required" if argument.required else "", argument.description or "")
                for argument in item.arguments or ()
            ]
            examples = {argument.name: "text" for argument in item.arguments or () if argument.required}
            return [("Arguments", rows), ("Example", _format_command(options, "prompt", item.name, examples))]
        case Resource():
            facts = [("type", item.mime_type or ""), ("size", f"{item.size} bytes" if item.size is not None else "")]
            return [
                ("Content", [fact for fact in facts if fact[1]]),
                ("Example", _format_command(options, "read", item.uri, {})),
            ]
        case _:
            return [
                ("Content", [("type", item.mime_type)] if item.mime_type else []),
                ("Example", _format_command(options, "read", item.uri_template, {})),
            ]


def _format_fields(schema: Any, *, has_notes: bool) -> output.Rows:
    """Return a row for each field, with its name, its type, whether it is required, and its description."""
    return [
        (
            f"{'  ' * field.depth}{output.escape_line(field.name)}",
            field.type,
            *((_format_note(field),) if has_notes else ()),
            field.description,
        )
        for field in list_fields(schema)
    ]


def _format_note(field: FieldSummary) -> str:
    return "required" if field.is_required else f"default {field.default}" if field.default else "optional"


def _format_result(tool: Tool) -> str | output.Rows:
    if tool.output_schema is None or tool.output_schema is UNSET:
        return ""
    schema = as_object(tool.output_schema)
    return _format_fields(schema, has_notes=False) or describe_type(schema, schema)


_ANNOTATION_TEXTS: Final = (
    ("read_only_hint", "reads only", "changes something"),
    ("destructive_hint", "can delete or overwrite", "only adds"),
    ("idempotent_hint", "can be repeated without another effect", "each call has another effect"),
    ("open_world_hint", "reaches other systems", "stays within the server"),
)


def _format_annotations(tool: Tool) -> str:
    """Return the annotations of the tool. Clients must not trust annotations."""
    annotations = tool.annotations
    values = [(getattr(annotations, name, None), texts) for name, *texts in _ANNOTATION_TEXTS]
    return "\n".join(texts[0] if value else texts[1] for value, texts in values if isinstance(value, bool))


# Example commands


def _format_command(options: TargetOptions, verb: str, name: str, arguments: Mapping[str, Any]) -> str:
    """Return an example command. Return an empty string if a name is not safe to copy."""
    if name.startswith("-") or not all(output.escape_full_line(text) == text for text in (name, *arguments)):
        return ""
    target = [] if options.command else ["-m", options.module] if options.module is not None else options.args[:1]
    words = ["dovetail", verb, *target, name, *_format_arguments(arguments)]
    words += ["--", *options.command] if options.command else []
    return output.wrap_command([shlex.quote(word) for word in words])


def _format_arguments(arguments: Mapping[str, Any]) -> list[str]:
    if not all(map(_PLAIN_NAME_PATTERN.fullmatch, arguments)):
        # The command line could read an argument name with other characters as an option.
        return [f"--arguments={_dump(arguments)}"]
    return [_format_argument(name, value) for name, value in arguments.items()]


def _format_argument(name: str, value: Any) -> str:
    # `dovetail call` replaces a value that starts with @ by the content of a file.
    if isinstance(value, str) and not value.startswith("@") and output.escape_full_line(value) == value:
        return f"{name}={value}"
    return f"{name}={_dump(value)}" if isinstance(value, bool | int | float) else f"{name}:={_dump(value)}"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, default=str)


def _find_examples(schema: Any) -> dict[str, Any]:
    """Return an example for each required argument. If no argument is required, return one for the first argument."""
    root = as_object(schema)
    resolved = resolve_schema(schema, root)
    properties = get_mapping(resolved)
    names = [name for name in get_required(resolved) if name in properties] or [*properties][:1]
    finder = _ExampleFinder(root)
    return {name: finder.find(properties[name]) for name in names}


class _ExampleFinder:
    """Finds an example value for a schema. It stops after a number of subschemas, because the schema is untrusted."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._remaining = _MAX_EXAMPLE_VALUES

    def find(self, schema: Any, depth: int = 0) -> Any:
        """Return a value that the schema probably allows."""
        self._remaining -= 1
        if self._remaining < 0:
            return None
        resolved = resolve_schema(schema, self._root)
        candidates = [
            *get_list(resolved, "examples"),
            *(resolved[name] for name in ("default", "const") if resolved.get(name) is not None),
            *get_list(resolved, "enum"),
        ]
        if candidates:
            return candidates[0]
        return self._create(resolved, depth + 1) if depth < _MAX_EXAMPLE_DEPTH else None

    def _create(self, schema: Schema, depth: int) -> Any:
        alternatives = [*get_list(schema, "anyOf"), *get_list(schema, "oneOf")]
        if alternatives and not get_types(schema):
            return self.find(alternatives[0], depth)
        match (get_types(schema) or ["string"])[0]:
            case "integer" | "number":
                return _find_number(schema)
            case "boolean":
                return True
            case "array":
                return [self.find(schema.get("items", {}), depth)]
            case "object":
                properties = get_mapping(schema)
                names = [name for name in get_required(schema) if name in properties]
                return {name: self.find(properties[name], depth) for name in names}
            case "null":
                return None
            case _:
                return FORMAT_EXAMPLES.get(str(schema.get("format")), "text")


def _find_number(schema: Mapping[str, Any]) -> float:
    for name, step in (("minimum", 0), ("exclusiveMinimum", 1), ("maximum", 0), ("exclusiveMaximum", -1)):
        bound = schema.get(name)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            return bound + step
    return 1
