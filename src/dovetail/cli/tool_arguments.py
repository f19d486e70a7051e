"""Parse tool arguments of the form `name=value`, `name:=json` and `name=@file`. The schema determines the types."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dovetail.error_context import suggest_match
from dovetail.schemas.reader import get_mapping, resolve_schema
from dovetail.terminal import output
from dovetail.terminal.form import coerce, parse_json
from dovetail.wire.codec import encode


def read_arguments(args: Sequence[str], schema: Mapping[str, Any], input_json: str | None = None) -> dict[str, Any]:
    """Return the arguments for a tool call. Raise UsageError if an argument is invalid."""
    arguments = _read_input_object(input_json)
    root, schema = schema, resolve_schema(schema, schema)
    properties = get_mapping(schema)
    seen_names: set[str] = set()
    for arg in args:
        name, value, is_json = _split_argument(arg)
        if name in seen_names:
            raise click.UsageError(
                f"the argument {name!r} is passed twice. For a list, write {name}=a,b or {name}:='[…]'"
            )
        seen_names.add(name)
        if name not in properties and properties and schema.get("additionalProperties") is not True:
            raise click.UsageError(f"unknown argument {name!r}{suggest_names(name, properties)}")
        arguments[name] = parse_json(name, value) if is_json else coerce(name, value, properties.get(name, {}), root)
    try:
        encode(arguments)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise click.UsageError(f"cannot encode the arguments as JSON: {exc}") from None
    return arguments


def suggest_names(name: str, candidates: Iterable[str]) -> str:
    """Return a hint with the most similar name, or with all available names if none is similar."""
    names = [*candidates]
    available = ", ".join(output.escape_line(candidate) for candidate in names[:20])
    return suggest_match(name, names) or (f". Available: {available}" if names else "")


def _split_argument(arg: str) -> tuple[str, str, bool]:
    name, separator, value = arg.partition("=")
    if not separator or not name:
        raise click.UsageError(f"invalid argument {arg!r}: an argument must be NAME=VALUE or NAME:=JSON")
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
    value = parse_json(
        "--arguments",
        _read_text(option[1:]) if option.startswith("@") else _read_text(option) if option == "-" else option,
    )
    if not isinstance(value, dict):
        raise click.UsageError("--arguments must be a JSON object")
    return value
