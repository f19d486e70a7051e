"""JSON Schemas of others, read without surprises: booleans as the objects they stand for, local references followed.

A member that is not what JSON Schema has there says nothing.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

Schema: TypeAlias = Mapping[str, Any]

EVERYTHING: Final[Schema] = {}
NOTHING: Final[Schema] = {"not": {}}
_TYPES: Final = ("string", "integer", "number", "boolean", "array", "object", "null")
_STEPS: Final = 32  # of references that lead to one another


def as_object(schema: Any) -> Schema:
    """A schema as an object: `true` takes everything, `false` nothing; what is no schema at all says nothing."""
    if isinstance(schema, Mapping):
        return cast("Schema", schema)
    return NOTHING if schema is False else EVERYTHING


def named(schema: Schema, member: str = "properties") -> Mapping[str, Any]:
    """A member that holds schemas by name."""
    found = schema.get(member)
    return cast("Schema", found) if isinstance(found, Mapping) else EVERYTHING


def listed(schema: Schema, member: str) -> list[Any]:
    """A member that is a list: of schemas, or of values."""
    found = schema.get(member)
    return cast("list[Any]", found) if isinstance(found, list) else []


def required(schema: Schema) -> list[str]:
    """The names of what must be there."""
    return [one for one in listed(schema, "required") if isinstance(one, str)]


def types(schema: Schema) -> list[str]:
    """The types it names, one or several."""
    kind = schema.get("type")
    return [one for one in ([kind] if isinstance(kind, str) else listed(schema, "type")) if one in _TYPES]


def number(schema: Schema, member: str, otherwise: int = 0) -> float:
    """A member that is a number."""
    found = schema.get(member)
    return found if isinstance(found, int | float) else otherwise


def resolved(schema: Any, root: Schema) -> Schema:
    """A schema with its own reference followed within the document, and the parts of its `allOf` taken together."""
    return _resolved(as_object(schema), root, _STEPS)


def _resolved(schema: Schema, root: Schema, steps: int) -> Schema:
    if steps <= 0:
        return EVERYTHING
    parts: list[Schema] = []
    if isinstance(reference := schema.get("$ref"), str):
        parts.append(_resolved(_at(reference, root), root, steps - 1))
    parts += [_resolved(as_object(one), root, steps // 2) for one in listed(schema, "allOf")]
    made = {name: value for name, value in schema.items() if not parts or name not in ("$ref", "allOf")}
    for part in parts:
        made = _merged(part, made)
    return made


def _at(reference: str, root: Schema) -> Schema:
    """What a reference within the document leads to; everything if it leads nowhere, or elsewhere."""
    mark, *words = reference.split("/")
    if mark != "#":
        return EVERYTHING
    found: Any = root
    for word in words:
        if not isinstance(found, Mapping):
            return EVERYTHING
        found = cast("Schema", found).get(word.replace("~1", "/").replace("~0", "~"))
    return as_object(found)


def _merged(one: Schema, other: Schema) -> dict[str, Any]:
    """Both at once: properties of both, required by either; what only one can say is said by the second."""
    made: dict[str, Any] = {**one, **other}
    for name in ("properties", "$defs"):
        if inner := {**named(one, name), **named(other, name)}:
            made[name] = inner
    if names := list(dict.fromkeys([*required(one), *required(other)])):
        made["required"] = names
    return made
