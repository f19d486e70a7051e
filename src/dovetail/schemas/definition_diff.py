"""Differences between two versions of what a server offers, and which of them break clients.

A change breaks callers if a call that was valid is no longer valid: a tool or an argument was removed, an argument
became required, or a value is no longer accepted. A change breaks readers if a result lacks a field. A changed
description breaks no client, but a user who agreed to a tool may want to read it again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from dovetail.schemas.reader import NEVER_SCHEMA, as_object, get_list, get_mapping, get_required, get_types
from dovetail.wire.base import Struct

Kind = Literal["removed", "added", "changed", "description"]
Definitions = Mapping[str, Mapping[str, Any]]  # by name or URI, as it is published


class Difference(Struct, frozen=True):
    """A difference between two definitions."""

    kind: Kind
    item: str  # "tool forecast"
    message: str
    is_breaking: bool = False


def diff_definitions(kind: str, old: Definitions, new: Definitions) -> Iterator[Difference]:
    """Return the differences between two lists of items of one kind."""
    for name in old:
        if name not in new:
            yield Difference("removed", f"{kind} {name}", "removed", True)
    for name in new:
        if name not in old:
            yield Difference("added", f"{kind} {name}", "added")
    for name, definition in old.items():
        if name in new and new[name] != definition:
            yield from _diff_definition(f"{kind} {name}", definition, new[name])


def _diff_definition(label: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for member in dict.fromkeys([*old, *new]):
        before, after = old.get(member), new.get(member)
        if before == after:
            continue
        match member:
            case "inputSchema":
                yield from _diff_schema(label, as_object(before), as_object(after), "", is_input=True)
            case "outputSchema":
                yield from _diff_output_schema(label, before, after)
            case "arguments":
                yield from _diff_arguments(label, before or [], after or [])
            case "description" | "title" | "icons" | "_meta":
                yield Difference("description", label, f"{member.strip('_')} changed")
            case _:
                yield Difference("changed", label, f"{member} changed", member == "mimeType")


def _diff_arguments(label: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Difference]:
    """Of a prompt."""

    def as_schema(arguments: Sequence[Any]) -> Mapping[str, Any]:
        return {
            "properties": {argument["name"]: {"description": argument.get("description")} for argument in arguments},
            "required": [argument["name"] for argument in arguments if argument.get("required")],
        }

    yield from _diff_schema(label, as_schema(old), as_schema(new), "", is_input=True)


def _diff_output_schema(label: str, old: Any, new: Any) -> Iterator[Difference]:
    if old is None:
        yield Difference("added", label, "output schema added")
    elif new is None:
        yield Difference("removed", label, "output schema removed", True)
    else:
        yield from _diff_schema(label, as_object(old), as_object(new), "", is_input=False)


def _diff_schema(
    label: str, old: Mapping[str, Any], new: Mapping[str, Any], path_prefix: str, *, is_input: bool
) -> Iterator[Difference]:
    """`is_input`: whether the schema describes arguments instead of a result."""
    before, after = get_mapping(old), get_mapping(new)
    side = "argument" if is_input else "result field"
    for name in sorted(before.keys() - after.keys()):
        yield Difference("removed", label, f"{side} `{path_prefix}{name}` removed", True)
    needed_before, needed_after = set(get_required(old)), set(get_required(new))
    for name in after:
        path = f"{path_prefix}{name}"
        if name not in before:
            is_required = is_input and name in needed_after
            yield Difference("added", label, f"{'required ' if is_required else ''}{side} `{path}` added", is_required)
            continue
        if is_input and name in needed_after - needed_before:
            yield Difference("changed", label, f"{side} `{path}` is now required", True)
        if not is_input and name in needed_before - needed_after:
            yield Difference("changed", label, f"{side} `{path}` is now optional", True)
        yield from _diff_property(label, as_object(before[name]), as_object(after[name]), path, is_input=is_input)
    handled_keywords = ("properties", "required", "description", "title")
    if _drop_keywords(old, handled_keywords) != _drop_keywords(new, handled_keywords):
        yield Difference("changed", label, f"schema{f' of `{path_prefix[:-1]}`' if path_prefix else ''} changed", True)


def _diff_property(
    label: str, old: Mapping[str, Any], new: Mapping[str, Any], path: str, *, is_input: bool
) -> Iterator[Difference]:
    if old == new:
        return
    if get_mapping(old) or get_mapping(new):
        yield from _diff_schema(label, old, new, f"{path}.", is_input=is_input)
        return
    before, after = _accepted_types(old), _accepted_types(new)
    if before != after:
        is_breaking = not _includes(after, before) if is_input else not _includes(before, after)
        yield Difference(
            "changed",
            label,
            f"type of `{path}` changed from {_format_types(before)} to {_format_types(after)}",
            is_breaking,
        )
    if old.get("enum") != new.get("enum"):
        yield from _diff_choices(label, old.get("enum"), new.get("enum"), path, is_input=is_input)
    ignored_keywords = (
        ("type", "enum", "anyOf", "oneOf", *_ANNOTATION_KEYWORDS)
        if before != after
        else ("enum", *_ANNOTATION_KEYWORDS)
    )
    old_rules, new_rules = (
        _drop_keywords(schema, ignored_keywords) if schema != NEVER_SCHEMA else {} for schema in (old, new)
    )
    if old_rules != new_rules:
        breaks = _is_narrower(old_rules, new_rules) if is_input else _is_narrower(new_rules, old_rules)
        yield Difference("changed", label, f"constraints of `{path}` changed", breaks or before == after)
    elif before == after and old.get("enum") == new.get("enum"):
        yield Difference("description", label, f"description of `{path}` changed")


_ANNOTATION_KEYWORDS = ("description", "title", "examples", "default")


def _is_narrower(old_rules: Mapping[str, Any], new_rules: Mapping[str, Any]) -> bool:
    """Whether some rule is there now that was not, or is another."""
    return any(name not in old_rules or old_rules[name] != rule for name, rule in new_rules.items())


def _diff_choices(label: str, old: Any, new: Any, path: str, *, is_input: bool) -> Iterator[Difference]:
    before, after = get_list({"enum": old}, "enum"), get_list({"enum": new}, "enum")
    removed = [choice for choice in before if new is not None and choice not in after]
    added = [choice for choice in after if old is not None and choice not in before]
    is_narrower = bool(removed) or old is None
    changes = [*(f"{choice!r} removed" for choice in removed), *(f"{choice!r} added" for choice in added)]
    details = f": {', '.join(changes)}" if changes else ""
    is_breaking = is_narrower if is_input else bool(added) or new is None
    yield Difference("changed", label, f"choices of `{path}` changed{details}", is_breaking)


_ALL_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


def _accepted_types(schema: Any) -> frozenset[str]:
    """The types it takes: all of them if it names none."""
    schema_object = as_object(schema)
    if schema_object == NEVER_SCHEMA:
        return frozenset()
    if type_names := get_types(schema_object):
        return frozenset(type_names)
    parts = [*get_list(schema_object, "anyOf"), *get_list(schema_object, "oneOf")]
    return frozenset().union(*map(_accepted_types, parts)) if parts else _ALL_TYPES


def _includes(accepted: frozenset[str], candidates: frozenset[str]) -> bool:
    """Whether all of the others are among them; a number may be an integer."""
    return candidates <= accepted | ({"integer"} if "number" in accepted else frozenset[str]())


def _format_types(accepted: frozenset[str]) -> str:
    return "anything" if accepted == _ALL_TYPES else " or ".join(sorted(accepted)) or "nothing"


def _drop_keywords(schema: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in names}
