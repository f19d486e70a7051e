"""Arguments of a tool from words of a command line: `name=value` by the schema, `name:=json`, `name=@file`."""

import difflib
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dovetail.cli import text
from dovetail.protocol.resolving import NEVER_SCHEMA, as_object, get_list, get_mapping, get_types, resolve_schema
from dovetail.wire.codec import encode


def read_arguments(args: Sequence[str], schema: Mapping[str, Any], input_json: str | None = None) -> dict[str, Any]:
    """The arguments; UsageError says which word is wrong."""
    arguments = _read_input_object(input_json)
    root, schema = schema, resolve_schema(schema, schema)
    properties = get_mapping(schema)
    seen_names: set[str] = set()
    for arg in args:
        name, value, is_json = _split_argument(arg)
        if name in seen_names:
            raise click.UsageError(f"{name} is given twice; several values are one list: {name}=a,b or {name}:='[…]'")
        seen_names.add(name)
        if name not in properties and properties and schema.get("additionalProperties") is not True:
            raise click.UsageError(f"there is no argument {name!r}.{suggest_names(name, properties)}")
        arguments[name] = _parse_json(name, value) if is_json else coerce(name, value, properties.get(name, {}), root)
    try:
        encode(arguments)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise click.UsageError(f"the arguments cannot be sent as JSON: {exc}") from None
    return arguments


def suggest_names(name: str, candidates: Iterable[str]) -> str:
    """What a misspelled name may have been meant to be."""
    names = [*candidates]
    matches = difflib.get_close_matches(name, names, n=1)
    if matches:
        return f" Did you mean {text.escape_line(matches[0])!r}?"
    return f" There are: {', '.join(text.escape_line(candidate) for candidate in names[:20])}." if names else ""


def _split_argument(arg: str) -> tuple[str, str, bool]:
    name, separator, value = arg.partition("=")
    if not separator or not name:
        raise click.UsageError(f"an argument is name=value or name:=json, not {arg!r}")
    if value.startswith("@"):
        value = _read_text(value[1:])
    return name.removesuffix(":"), value, name.endswith(":")


def _read_text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"{path}: {exc}") from None


def _read_input_object(option: str | None) -> dict[str, Any]:
    if option is None:
        return {}
    value = _parse_json(
        "--input", _read_text(option[1:]) if option.startswith("@") else _read_text(option) if option == "-" else option
    )
    if not isinstance(value, dict):
        raise click.UsageError("--input must be a JSON object")
    return value


def _parse_json(name: str, value: str) -> Any:
    try:
        return json.loads(value, parse_constant=_reject_number, parse_float=_parse_number)
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"{name}: not JSON: {exc}") from None


def _reject_number(literal: str) -> float:
    raise ValueError(f"there is no number {literal}")


_INTEGER_PATTERN = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _parse_integer(literal: str) -> int:
    return int(literal) if _INTEGER_PATTERN.fullmatch(literal) else int(_reject_number(literal))


def _parse_number(literal: str) -> float:
    """A number as JSON has them; Python knows more."""
    number = float(literal) if _NUMBER_PATTERN.fullmatch(literal) else _reject_number(literal)
    return number if math.isfinite(number) else _reject_number(literal)


_TRUE_WORDS = ("true", "yes", "y", "1")
_FALSE_WORDS = ("false", "no", "n", "0")


def coerce(name: str, value: str, schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """A word as the value its schema, a part of `root`, asks for; UsageError if it is none."""
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
        return _parse_json(name, value)
    raise click.UsageError(f"{name} must be {' or '.join(sorted(allowed_types))}, not {value!r}")


def _get_item_schema(schema: Any, root: Mapping[str, Any]) -> Any:
    """The schema of what a list holds, also where a list is only one of several things."""
    resolved_schema = resolve_schema(schema, root)
    if "items" in resolved_schema:
        return resolved_schema["items"]
    alternatives = [resolve_schema(alternative, root) for alternative in _list_alternatives(resolved_schema)]
    return next((alternative["items"] for alternative in alternatives if "items" in alternative), {})


def _list_alternatives(schema: Mapping[str, Any]) -> list[Any]:
    """What a schema lets one choose from, but for what nothing fits."""
    return [
        alternative
        for alternative in (*get_list(schema, "anyOf"), *get_list(schema, "oneOf"))
        if as_object(alternative) != NEVER_SCHEMA
    ]


def list_types(schema: Any, root: Mapping[str, Any] | None = None, depth: int = 16) -> set[str]:
    """The types a schema, a part of `root`, takes; none if it takes any."""
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
