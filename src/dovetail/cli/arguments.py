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
from dovetail.protocol.resolving import NOTHING, as_object, listed, named, resolved, types
from dovetail.wire.codec import encode


def read_arguments(words: Sequence[str], schema: Mapping[str, Any], document: str | None = None) -> dict[str, Any]:
    """The arguments; UsageError says which word is wrong."""
    arguments = _document(document)
    root, schema = schema, resolved(schema, schema)
    properties = named(schema)
    seen: set[str] = set()
    for word in words:
        name, value, raw = _split(word)
        if name in seen:
            raise click.UsageError(f"{name} is given twice; several values are one list: {name}=a,b or {name}:='[…]'")
        seen.add(name)
        if name not in properties and properties and schema.get("additionalProperties") is not True:
            raise click.UsageError(f"there is no argument {name!r}.{meant(name, properties)}")
        arguments[name] = _json(name, value) if raw else coerce(name, value, properties.get(name, {}), root)
    try:
        encode(arguments)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise click.UsageError(f"the arguments cannot be sent as JSON: {exc}") from None
    return arguments


def meant(name: str, known: Iterable[str]) -> str:
    """What a misspelled name may have been meant to be."""
    names = [*known]
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f" Did you mean {text.line(near[0])!r}?"
    return f" There are: {', '.join(text.line(one) for one in names[:20])}." if names else ""


def _split(word: str) -> tuple[str, str, bool]:
    name, mark, value = word.partition("=")
    if not mark or not name:
        raise click.UsageError(f"an argument is name=value or name:=json, not {word!r}")
    if value.startswith("@"):
        value = _file(value[1:])
    return name.removesuffix(":"), value, name.endswith(":")


def _file(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"{path}: {exc}") from None


def _document(given: str | None) -> dict[str, Any]:
    if given is None:
        return {}
    found = _json("--input", _file(given[1:]) if given.startswith("@") else _file(given) if given == "-" else given)
    if not isinstance(found, dict):
        raise click.UsageError("--input must be a JSON object")
    return found


def _json(name: str, given: str) -> Any:
    try:
        return json.loads(given, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"{name}: not JSON: {exc}") from None


def _refused(word: str) -> float:
    raise ValueError(f"there is no number {word}")


_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _whole(word: str) -> int:
    return int(word) if _INTEGER.fullmatch(word) else int(_refused(word))


def _finite(word: str) -> float:
    """A number as JSON has them; Python knows more."""
    found = float(word) if _NUMBER.fullmatch(word) else _refused(word)
    return found if math.isfinite(found) else _refused(word)


_TRUE = ("true", "yes", "y", "1")
_FALSE = ("false", "no", "n", "0")


def coerce(name: str, given: str, rule: Any, root: Mapping[str, Any] | None = None) -> Any:
    """A word as the value its schema, a part of `root`, asks for; UsageError if it is none."""
    whole = root if root is not None else {}
    wanted = kinds(rule, whole)
    if "string" in wanted or not wanted:
        return given
    if "null" in wanted and given in ("", "null"):
        return None
    if "boolean" in wanted and given.lower() in (*_TRUE, *_FALSE):
        return given.lower() in _TRUE
    for kind, read in (("integer", _whole), ("number", _finite)):
        if kind in wanted:
            try:
                return read(given.strip())
            except ValueError:
                continue
    if "array" in wanted and not given.lstrip().startswith("["):
        inner = _items(rule, whole)
        return [coerce(name, part.strip(), inner, whole) for part in given.split(",")] if given else []
    if wanted & {"array", "object"}:
        return _json(name, given)
    raise click.UsageError(f"{name} must be {' or '.join(sorted(wanted))}, not {given!r}")


def _items(rule: Any, root: Mapping[str, Any]) -> Any:
    """The schema of what a list holds, also where a list is only one of several things."""
    one = resolved(rule, root)
    if "items" in one:
        return one["items"]
    parts = [resolved(part, root) for part in _either(one)]
    return next((part["items"] for part in parts if "items" in part), {})


def _either(rule: Mapping[str, Any]) -> list[Any]:
    """What a schema lets one choose from, but for what nothing fits."""
    return [part for part in (*listed(rule, "anyOf"), *listed(rule, "oneOf")) if as_object(part) != NOTHING]


def kinds(rule: Any, root: Mapping[str, Any] | None = None, depth: int = 16) -> set[str]:
    """The types a schema, a part of `root`, takes; none if it takes any."""
    whole = root if root is not None else {}
    one = resolved(rule, whole)
    found = {*types(one)}
    for part in _either(one) if depth and not found else ():
        if not (inner := kinds(part, whole, depth - 1)):
            return set()
        found |= inner
    values = [*listed(one, "enum"), *([one["const"]] if "const" in one else ())]
    if not found and values:
        names = {str: "string", bool: "boolean", int: "integer", float: "number"}
        found = {names.get(type(value), "string") for value in values}
    return found
