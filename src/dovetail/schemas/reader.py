"""Functions that read untrusted JSON Schemas. Boolean schemas become objects, and local references are followed.

Members with an invalid type are ignored.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

Schema: TypeAlias = Mapping[str, Any]

ANY_SCHEMA: Final[Schema] = {}
NEVER_SCHEMA: Final[Schema] = {"not": {}}
_JSON_TYPES: Final = ("string", "integer", "number", "boolean", "array", "object", "null")
_MAX_REFERENCE_STEPS: Final = 32  # At most this many references are followed in a row.


def as_object(schema: Any) -> Schema:
    """Return a schema as an object. The schema `false` accepts nothing. `true` and invalid schemas accept
    everything.
    """
    if isinstance(schema, Mapping):
        return cast("Schema", schema)
    return NEVER_SCHEMA if schema is False else ANY_SCHEMA


def get_mapping(schema: Schema, member: str = "properties") -> Mapping[str, Any]:
    """Return the value of a keyword that maps names to schemas."""
    value = schema.get(member)
    return cast("Schema", value) if isinstance(value, Mapping) else ANY_SCHEMA


def get_list(schema: Schema, member: str) -> list[Any]:
    """Return the value of a keyword if it is a list. Otherwise return an empty list."""
    value = schema.get(member)
    return cast("list[Any]", value) if isinstance(value, list) else []


def get_required(schema: Schema) -> list[str]:
    """Return the names of the required properties."""
    return [name for name in get_list(schema, "required") if isinstance(name, str)]


def get_types(schema: Schema) -> list[str]:
    """Return the types in the `type` keyword."""
    type_value = schema.get("type")
    return [
        type_name
        for type_name in ([type_value] if isinstance(type_value, str) else get_list(schema, "type"))
        if type_name in _JSON_TYPES
    ]


def get_number(schema: Schema, member: str, default: int = 0) -> float:
    """Return the value of a keyword if it is a number. Otherwise return `default`."""
    value = schema.get(member)
    return value if isinstance(value, int | float) else default


def resolve_schema(schema: Any, root: Schema) -> Schema:
    """Replace a reference with the schema that it points to, and merge the schemas in `allOf`."""
    return _resolve(as_object(schema), root, _MAX_REFERENCE_STEPS)


def _resolve(schema: Schema, root: Schema, steps: int) -> Schema:
    parts: list[Schema] = []
    branches = get_list(schema, "allOf")
    if steps > 0:
        if isinstance(reference := schema.get("$ref"), str):
            parts.append(_resolve(_look_up_reference(reference, root), root, steps - 1))
        # All branches share the steps, so that nested references cannot multiply the work.
        parts += [_resolve(as_object(branch), root, steps // max(2, len(branches))) for branch in branches]
    is_resolved = bool(parts) or steps <= 0
    merged = {name: value for name, value in schema.items() if not is_resolved or name not in ("$ref", "allOf")}
    for part in parts:
        merged = _merge(part, merged)
    return merged


def _look_up_reference(reference: str, root: Schema) -> Schema:
    """Return the schema that a local reference points to.

    If this schema does not exist, return a schema that accepts everything.
    """
    prefix, *segments = reference.split("/")
    if prefix != "#":
        return ANY_SCHEMA
    node: Any = root
    for segment in segments:
        if not isinstance(node, Mapping):
            return ANY_SCHEMA
        node = cast("Schema", node).get(segment.replace("~1", "/").replace("~0", "~"))
    return as_object(node)


def _merge(first: Schema, second: Schema) -> dict[str, Any]:
    merged: dict[str, Any] = {**first, **second}
    for name in ("properties", "$defs"):
        if inner := {**get_mapping(first, name), **get_mapping(second, name)}:
            merged[name] = inner
    if names := list(dict.fromkeys([*get_required(first), *get_required(second)])):
        merged["required"] = names
    return merged
