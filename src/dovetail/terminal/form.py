"""Ask the user for the fields of a form on a terminal, and convert the input to the types in the schema.

Every line of a form starts with a bar, and text from the server is escaped. The server cannot control the terminal or
imitate a line of dovetail.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import click

from dovetail.schemas.reader import (
    NEVER_SCHEMA,
    as_object,
    get_list,
    get_mapping,
    get_required,
    get_types,
    resolve_schema,
)
from dovetail.terminal import output
from dovetail.terminal.line_reader import LineReader

T = TypeVar("T")


def parse_json(name: str, value: str) -> Any:
    try:
        return json.loads(value, parse_constant=_reject_number, parse_float=_parse_number)
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"{name}: invalid JSON: {exc}") from None


def _reject_number(literal: str) -> float:
    raise ValueError(f"invalid number {literal}")


_INTEGER_PATTERN = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _parse_integer(literal: str) -> int:
    return int(literal) if _INTEGER_PATTERN.fullmatch(literal) else int(_reject_number(literal))


def _parse_number(literal: str) -> float:
    """Parse a JSON number. `float` also accepts other strings, such as "1_000"."""
    number = float(literal) if _NUMBER_PATTERN.fullmatch(literal) else _reject_number(literal)
    return number if math.isfinite(number) else _reject_number(literal)


_TRUE_WORDS = ("true", "yes", "y", "1")
_FALSE_WORDS = ("false", "no", "n", "0")
_TYPE_DESCRIPTIONS = {"boolean": "a boolean", "integer": "an integer", "number": "a number"}


def coerce(name: str, value: str, schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """Convert `value` to a type that `schema` allows. Raise UsageError if no type fits.

    `root` is the schema that contains the definitions.
    """
    root_schema = root if root is not None else {}
    allowed_types = list_types(schema, root_schema)
    if "string" in allowed_types or not allowed_types:
        return value
    if "null" in allowed_types and value in ("", "null"):
        return None
    if "boolean" in allowed_types and value.lower() in (*_TRUE_WORDS, *_FALSE_WORDS):
        return value.lower() in _TRUE_WORDS
    for type_name, parse in (("integer", _parse_integer), ("number", _parse_number)):
        if type_name in allowed_types:
            try:
                return parse(value.strip())
            except ValueError:
                continue
    if "array" in allowed_types and not value.lstrip().startswith("["):
        item_schema = _get_item_schema(schema, root_schema)
        return [coerce(name, part.strip(), item_schema, root_schema) for part in value.split(",")] if value else []
    if allowed_types & {"array", "object"}:
        return parse_json(name, value)
    type_names = " or ".join(_TYPE_DESCRIPTIONS.get(type_name, type_name) for type_name in sorted(allowed_types))
    raise click.UsageError(f"{name} must be {type_names}, not {value!r}")


def _get_item_schema(schema: Any, root: Mapping[str, Any]) -> Any:
    resolved_schema = resolve_schema(schema, root)
    if "items" in resolved_schema:
        return resolved_schema["items"]
    alternatives = [resolve_schema(alternative, root) for alternative in _list_alternatives(resolved_schema)]
    return next((alternative["items"] for alternative in alternatives if "items" in alternative), {})


def _list_alternatives(schema: Mapping[str, Any]) -> list[Any]:
    return [
        alternative
        for alternative in (*get_list(schema, "anyOf"), *get_list(schema, "oneOf"))
        if as_object(alternative) != NEVER_SCHEMA
    ]


def list_types(schema: Any, root: Mapping[str, Any] | None = None, depth: int = 16) -> set[str]:
    """Return the types that a schema allows, or an empty set if it allows any type.

    `root` is the schema that contains the definitions.
    """
    root_schema = root if root is not None else {}
    resolved_schema = resolve_schema(schema, root_schema)
    type_names = {*get_types(resolved_schema)}
    for alternative in _list_alternatives(resolved_schema) if depth and not type_names else ():
        if not (inner_types := list_types(alternative, root_schema, depth - 1)):
            return set()
        type_names |= inner_types
    values = [*get_list(resolved_schema, "enum"), *([resolved_schema["const"]] if "const" in resolved_schema else ())]
    if not type_names and values:
        names = {str: "string", bool: "boolean", int: "integer", float: "number"}
        type_names = {names.get(type(value), "string") for value in values}
    return type_names


def choose(lines: LineReader, prompt: str, answers: Mapping[str, T], hint: str = "") -> T:
    """Ask until the user types one of the answers, in upper or lower case. Raise EOFError at the end of the input."""
    while (typed := lines.read_line(prompt).lower()) not in answers:
        lines.write(hint)
    return answers[typed]


def confirm(lines: LineReader, prompt: str, *, default: bool) -> bool:
    """Ask a yes-or-no question."""
    answers = {"": default, "y": True, "yes": True, "n": False, "no": False}
    return choose(lines, f"{prompt} [{'Y/n' if default else 'y/N'}] ", answers)


def fill_form(lines: LineReader, schema: Mapping[str, Any], answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Ask the user for all form fields that are not in `answers`, and return all values.

    Raise EOFError at the end of the input.
    """
    values, required_names = {**(answers or {})}, get_required(schema)
    for name, field_schema in get_mapping(schema).items():
        if name not in values:
            value = ask_field(lines, name, as_object(field_schema), name in required_names)
            values |= {} if value is None else {name: value}
    return values


def ask_field(lines: LineReader, name: str, schema: Mapping[str, Any], is_required: bool) -> Any:
    """Ask until the user enters a valid value. Return None if the user skips an optional field."""
    label = output.escape_line(str(schema.get("title") or name))
    if schema.get("description"):
        lines.write_quoted(output.escape_line(str(schema["description"])))
    choices = list_choices(schema)
    if choices:
        lines.write_quoted(f"one of: {', '.join(output.escape_line(choice) for choice in choices)}")
    default = schema.get("default")
    # An empty line sends the default value, so the whole value is shown.
    suffix = (
        f" [{output.escape_full_line(_format_value(default))}]"
        if default is not None
        else ""
        if is_required
        else " (optional)"
    )
    while True:
        lines.write_quoted(f"{label}{suffix}: ", end="")
        typed = lines.read_line()
        if not typed and default is not None:
            return default
        if not typed and not is_required:
            return None
        if not typed and "string" not in list_types(schema):
            lines.write_quoted("a value is required")
            continue
        try:
            return parse_answer(name, typed, schema)
        except click.UsageError as exc:
            lines.write_quoted(output.escape_full_line(exc.message))


def parse_answer(name: str, typed: str, schema: Mapping[str, Any]) -> Any:
    """Convert the typed text to the type in the schema. Raise UsageError if the result is not one of the choices."""
    value, choices = coerce(name, typed, schema), list_choices(schema)
    for item in value if isinstance(value, list) else [value]:
        if choices and _format_value(item) not in choices:
            allowed = ", ".join(output.escape_line(choice) for choice in choices)
            raise click.UsageError(f"{output.escape_line(name)} must be one of {allowed}, not {_format_value(item)!r}")
    return value


def list_choices(schema: Mapping[str, Any]) -> list[str]:
    item_schema = as_object(schema["items"]) if schema.get("items") else schema
    alternatives = [
        as_object(alternative) for alternative in (get_list(item_schema, "oneOf") or get_list(item_schema, "anyOf"))
    ]
    constants = [alternative["const"] for alternative in alternatives if "const" in alternative]
    return [_format_value(choice) for choice in (get_list(item_schema, "enum") or constants)]


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
