"""Ask the user for the fields of a form on a terminal, and convert the input to the types in the schema.

Every line of a form starts with a bar, and text from the server is escaped. The server cannot control the terminal or
imitate a line of dovetail.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

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
from dovetail.schemas.summary import describe_bounds
from dovetail.schemas.validator import UnusableSchema, compile_schema
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


_MAX_ALTERNATIVES: Final = 300  # If a schema has more alternatives than this, any type is allowed.
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


def list_types(schema: Any, root: Mapping[str, Any] | None = None) -> set[str]:
    """Return the types that a schema allows, or an empty set if it allows any type.

    `root` is the schema that contains the definitions.
    """
    return _collect_types(schema, root if root is not None else {}, set()) or set()


def _collect_types(schema: Any, root: Mapping[str, Any], visited: set[int]) -> set[str] | None:
    """Return the types that a schema allows, or None if it allows any type.

    Each alternative is visited once, because references can repeat alternatives and form circles.
    """
    resolved_schema = resolve_schema(schema, root)
    type_names = {*get_types(resolved_schema)}
    alternatives = _list_alternatives(resolved_schema) if not type_names else []
    for alternative in alternatives:
        if id(alternative) in visited:
            continue
        visited.add(id(alternative))
        inner_types = _collect_types(alternative, root, visited) if len(visited) <= _MAX_ALTERNATIVES else None
        if inner_types is None:
            return None
        type_names |= inner_types
    values = [*get_list(resolved_schema, "enum"), *([resolved_schema["const"]] if "const" in resolved_schema else ())]
    if not type_names and values:
        names = {str: "string", bool: "boolean", int: "integer", float: "number"}
        return {names.get(type(value), "string") for value in values}
    return type_names if type_names or alternatives else None


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

    Ask again if the values do not match the schema together. Raise EOFError at the end of the input.
    """
    given, required_names = {**(answers or {})}, get_required(schema)
    asked = {name: as_object(field) for name, field in get_mapping(schema).items() if name not in given}
    while True:
        values = dict(given)
        for name, field_schema in asked.items():
            value = ask_field(lines, name, field_schema, name in required_names)
            values |= {} if value is None else {name: value}
        problem = _find_problem(schema, values) if asked else None
        if problem is None:
            return values
        lines.write_quoted(output.escape_full_line(problem))


def ask_field(lines: LineReader, name: str, schema: Mapping[str, Any], is_required: bool) -> Any:
    """Ask until the user enters a valid value. Return None if the user skips an optional field."""
    choices = _read_choices(schema)
    if schema.get("description"):
        lines.write_quoted(output.escape_line(str(schema["description"])))
    for number, choice in enumerate(choices, 1):
        # If the values are numbers, a menu with numbers would be confusing.
        mark = "-" if _has_numbers(choices) else f"{number:>2}"
        title = f"  {output.escape_line(choice.title)}" if choice.title else ""
        lines.write_quoted(f"{mark} {output.escape_line(choice.text)}{title}")
    prompt = f"{_format_label(name, schema)}{_format_suffix(schema, choices, is_required)}: "
    default = schema.get("default")
    while True:
        lines.write_quoted(prompt, end="")
        typed = lines.read_line()
        if not typed and default is None and not is_required:
            return None
        if not typed and default is None and not _is_boolean(schema) and (choices or not _allows_text(schema)):
            lines.write_quoted("a value is required")
            continue
        try:
            value = parse_answer(name, typed, schema) if typed else _get_empty_value(schema)
        except click.UsageError as exc:
            lines.write_quoted("answer y or n" if _is_boolean(schema) else output.escape_full_line(exc.message))
            continue
        if (problem := _find_problem(schema, value)) is None:
            return value
        lines.write_quoted(f"{output.escape_line(name)}: {output.escape_full_line(problem)}")


def is_yes_no_form(schema: Mapping[str, Any]) -> bool:
    """Return whether a form has one field, which is a yes-or-no question."""
    fields = [*get_mapping(schema).values()]
    return len(fields) == 1 and _is_boolean(as_object(fields[0]))


def _get_empty_value(schema: Mapping[str, Any]) -> Any:
    """Return the value of a field that the user leaves empty."""
    default = schema.get("default")
    return default if default is not None else False if _is_boolean(schema) else ""


def _allows_text(schema: Mapping[str, Any]) -> bool:
    return "string" in list_types(schema)


def _is_boolean(schema: Mapping[str, Any]) -> bool:
    return list_types(schema) == {"boolean"}


def _format_label(name: str, schema: Mapping[str, Any]) -> str:
    # The name "value" tells a user nothing, so replace it with "answer".
    return output.escape_line(str(schema.get("title") or ("answer" if name == "value" else name)))


def _format_suffix(schema: Mapping[str, Any], choices: Sequence["Choice"], is_required: bool) -> str:
    default = schema.get("default")
    note = "" if is_required or default is not None else " (optional)"
    if _is_boolean(schema):
        letters = "Y/n" if default is True else "y/N" if default is False or is_required else "y/n"
        return f"{note} [{letters}]"
    bounds = describe_bounds(schema)
    hint = f" ({output.escape_line(bounds)})" if bounds and not choices else ""
    # An empty line sends the default value, so do not shorten the value.
    return f"{hint}{note}" + (f" [{output.escape_full_line(_format_value(default))}]" if default is not None else "")


def parse_answer(name: str, typed: str, schema: Mapping[str, Any]) -> Any:
    """Convert the typed text to the type in the schema. Raise UsageError if the result is not one of the choices.

    A choice can be typed as its value, its title or its number in the menu.
    """
    choices = _read_choices(schema)
    if not choices:
        return coerce(name, typed, schema)
    if "array" in list_types(schema):
        return [_find_choice(name, part.strip(), choices) for part in typed.split(",")] if typed else []
    return _find_choice(name, typed, choices)


class Choice(NamedTuple):
    """A value that a field allows."""

    value: Any
    text: str
    title: str = ""


def _find_choice(name: str, typed: str, choices: Sequence["Choice"]) -> Any:
    for choice in choices:
        if typed == choice.text:
            return choice.value
    for choice in choices:
        if typed.lower() in (choice.text.lower(), choice.title.lower()):
            return choice.value
    if typed.isdecimal() and 1 <= int(typed) <= len(choices) and not _has_numbers(choices):
        return choices[int(typed) - 1].value
    allowed = ", ".join(output.escape_line(choice.text) for choice in choices)
    raise click.UsageError(f"{output.escape_line(name)} must be one of {allowed}, not {typed!r}")


def _has_numbers(choices: Sequence["Choice"]) -> bool:
    return any(text.isdecimal() for choice in choices for text in (choice.text, choice.title))


def _read_choices(schema: Mapping[str, Any]) -> list[Choice]:
    item_schema = as_object(schema["items"]) if schema.get("items") else schema
    values, titles = get_list(item_schema, "enum"), get_list(item_schema, "enumNames")
    if values:
        titles = titles if len(titles) == len(values) else [""] * len(values)
        return [Choice(value, _format_value(value), str(title)) for value, title in zip(values, titles, strict=True)]
    alternatives = map(as_object, get_list(item_schema, "oneOf") or get_list(item_schema, "anyOf"))
    return [
        Choice(alternative["const"], _format_value(alternative["const"]), str(alternative.get("title") or ""))
        for alternative in alternatives
        if "const" in alternative
    ]


def list_choices(schema: Mapping[str, Any]) -> list[str]:
    """Return the values that a field allows, as text. If it allows any value of a type, return an empty list."""
    return [choice.text for choice in _read_choices(schema)]


def _find_problem(schema: Mapping[str, Any], value: Any) -> str | None:
    """Return the reason why a value does not match the schema of its field, or None if it matches."""
    try:
        return compile_schema({**schema}).find_error(value) or _find_format_problem(schema, value)
    except UnusableSchema:
        return None  # The value cannot be checked here, so the server must check it.


def _find_format_problem(schema: Mapping[str, Any], value: Any) -> str | None:
    pattern = _FORMAT_PATTERNS.get(str(schema.get("format")))
    if pattern is None or not isinstance(value, str) or pattern.fullmatch(value):
        return None
    return f"invalid {schema['format']}, for example {FORMAT_EXAMPLES[str(schema['format'])]}"


FORMAT_EXAMPLES: Final = {
    "date": "1815-12-10",
    "date-time": "1815-12-10T09:30:00Z",
    "time": "09:30:00",
    "email": "ada@example.com",
    "uri": "https://example.com",
}
_FORMAT_PATTERNS: Final = {
    "date": re.compile(r"\d{4}-\d\d-\d\d", re.ASCII),
    "date-time": re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII),
    "email": re.compile(r"[^@\s]+@[^@\s]+"),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
}


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
