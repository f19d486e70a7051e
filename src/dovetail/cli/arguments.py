"""Arguments of a tool from words of a command line: `name=value` by the schema, `name:=json`, `name=@file`."""

import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click


def read_arguments(words: Sequence[str], schema: dict[str, Any], document: str | None) -> dict[str, Any]:
    """The arguments; UsageError says which word is wrong."""
    arguments = _document(document)
    properties: dict[str, Any] = schema.get("properties") or {}
    for word in words:
        name, value, raw = _split(word)
        if name not in properties and properties and schema.get("additionalProperties") is not True:
            near = difflib.get_close_matches(name, properties, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" It takes {', '.join(properties)}."
            raise click.UsageError(f"the tool has no argument {name!r}.{hint}")
        arguments[name] = _json(name, value) if raw else _coerced(name, value, properties.get(name) or {})
    return arguments


def _split(word: str) -> tuple[str, str, bool]:
    name, mark, value = word.partition("=")
    if not mark or not name:
        raise click.UsageError(f"an argument is name=value or name:=json, not {word!r}")
    raw = name.endswith(":")
    if value.startswith("@"):
        value = _file(value[1:])
    return name.removesuffix(":"), value, raw


def _file(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"{path}: {exc}") from None


def _document(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    found = _json("--input", _file(text[1:]) if text.startswith("@") else sys.stdin.read() if text == "-" else text)
    if not isinstance(found, dict):
        raise click.UsageError("--input must be a JSON object")
    return found


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise click.UsageError(f"{name}: not JSON: {exc}") from None


def _coerced(name: str, text: str, rule: dict[str, Any]) -> Any:
    kinds = _kinds(rule)
    if "string" in kinds or not kinds:
        return text
    if "null" in kinds and text in ("", "null"):
        return None
    if "boolean" in kinds and text.lower() in ("true", "yes", "1", "false", "no", "0"):
        return text.lower() in ("true", "yes", "1")
    for kind, read in (("integer", int), ("number", float)):
        if kind in kinds:
            try:
                return read(text)
            except ValueError:
                continue
    if kinds & {"array", "object"}:
        if "array" in kinds and not text.lstrip().startswith("["):
            inner: dict[str, Any] = rule.get("items") or {}
            return [_coerced(name, part, inner) for part in text.split(",")]
        return _json(name, text)
    raise click.UsageError(f"{name} must be {' or '.join(sorted(kinds))}, not {text!r}")


def _kinds(rule: dict[str, Any]) -> set[str]:
    kind = rule.get("type")
    found: set[str] = {kind} if isinstance(kind, str) else set(kind or ())
    for part in (*(rule.get("anyOf") or ()), *(rule.get("oneOf") or ())):
        found |= _kinds(part)
    if not found and rule.get("enum"):
        names = {str: "string", bool: "boolean", int: "integer", float: "number"}
        found = {names.get(type(one), "string") for one in rule["enum"]}
    return found
