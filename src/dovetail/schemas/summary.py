"""Describe untrusted JSON Schemas in a few words, such as "integer, 1 to 14".

These functions do not escape their results.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dovetail.schemas.reader import (
    NEVER_SCHEMA,
    Schema,
    as_object,
    get_list,
    get_mapping,
    get_required,
    get_types,
    resolve_schema,
)

_MAX_DEPTH: Final = 4
_MAX_ALTERNATIVES: Final = 8
_MAX_VALUE_CHARS: Final = 60
_MAX_FIELDS: Final = 200
_MAX_TYPES: Final = 2000


class FieldSummary(NamedTuple):
    """The description of one field of an object."""

    name: str
    depth: int  # 0 for a field of the object, 1 for a field of a nested object
    type: str
    is_required: bool
    default: str  # the default value as JSON, or an empty string
    description: str


def list_fields(schema: Any) -> list[FieldSummary]:
    """Return the fields of an object. The fields of a nested object follow the field that contains the object."""
    fields: list[FieldSummary] = []
    root = as_object(schema)
    for field in _iter_fields(schema, root, _TypeDescriber(root), 0):
        if len(fields) == _MAX_FIELDS:
            break
        fields.append(field)
    return fields


def _iter_fields(schema: Any, root: Schema, types: "_TypeDescriber", depth: int) -> Iterator[FieldSummary]:
    resolved = resolve_schema(schema, root)
    required = get_required(resolved)
    for name, field_schema in get_mapping(resolved).items():
        field = resolve_schema(field_schema, root)
        yield FieldSummary(
            str(name),
            depth,
            types.describe(field),
            name in required,
            _format_value(field["default"]) if field.get("default") is not None else "",
            " ".join(str(field.get("description") or field.get("title") or "").split()),
        )
        if depth + 1 < _MAX_DEPTH:
            yield from _iter_fields(_find_object(field, root), root, types, depth + 1)


def _find_object(schema: Schema, root: Schema) -> Any:
    """Return the object schema inside `schema`.

    It is `schema` itself, the schema of the list items, or the only alternative that is not null.
    """
    if get_mapping(schema):
        return schema
    if "items" in schema:
        return resolve_schema(schema["items"], root)
    objects = [alternative for alternative in _list_alternatives(schema, root) if get_types(alternative) != ["null"]]
    return resolve_schema(objects[0].get("items", objects[0]), root) if len(objects) == 1 else {}


def describe_type(schema: Any, root: Schema) -> str:
    """Describe the type of a schema, with its minimum and maximum, for example "integer from 1 to 40"."""
    return _TypeDescriber(root).describe(schema)


class _TypeDescriber:
    """Describes the type of a schema. It stops after a number of types, because references can multiply the types."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._remaining = _MAX_TYPES

    def describe(self, schema: Any, depth: int = 0) -> str:
        self._remaining -= 1
        if self._remaining < 0:
            return "any value"
        resolved = resolve_schema(schema, self._root)
        bounds = describe_bounds(resolved)
        name = self._name_type(resolved, depth)
        return f"{name}, {bounds}" if bounds else name

    def _name_type(self, schema: Schema, depth: int) -> str:
        if "const" in schema:
            return _format_value(schema["const"])
        if values := get_list(schema, "enum"):
            return _join([_format_value(value) for value in values], " | ")
        alternatives = _list_alternatives(schema, self._root)
        if alternatives and depth < _MAX_DEPTH:
            names = dict.fromkeys(self.describe(alternative, depth + 1) for alternative in alternatives)
            separator = " | " if all("const" in alternative for alternative in alternatives) else " or "
            return _join([*names], separator)
        names = [self._name_simple_type(type_name, schema, depth) for type_name in get_types(schema)]
        return " or ".join(names) or ("object" if get_mapping(schema) else "any value")

    def _name_simple_type(self, type_name: str, schema: Schema, depth: int) -> str:
        if type_name == "array":
            has_items = isinstance(schema.get("items"), dict) and depth < _MAX_DEPTH
            return f"list of {self.describe(schema['items'], depth + 1)}" if has_items else "list"
        if type_name == "object" and not get_mapping(schema) and depth < _MAX_DEPTH:
            values = schema.get("additionalProperties")
            return f"object of {self.describe(values, depth + 1)}" if isinstance(values, dict) and values else "object"
        return type_name


def _list_alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """Return the first alternatives of a schema. Their number is limited, because references can multiply them."""
    alternatives = [
        alternative
        for alternative in (*get_list(schema, "anyOf"), *get_list(schema, "oneOf"))
        if as_object(alternative) != NEVER_SCHEMA
    ]
    return [resolve_schema(alternative, root) for alternative in alternatives[: _MAX_ALTERNATIVES + 1]]


def describe_bounds(schema: Schema) -> str:
    """Return the limits of a value, for example "1 to 14" or "at most 20 characters", or an empty string."""
    parts = [
        _describe_range(schema, "minimum", "maximum", ""),
        _describe_exclusive(schema, "exclusiveMinimum", "more than"),
        _describe_exclusive(schema, "exclusiveMaximum", "less than"),
        _describe_range(schema, "minLength", "maxLength", " characters"),
        _describe_range(schema, "minItems", "maxItems", " items"),
        f"a multiple of {schema['multipleOf']}" if _is_number(schema.get("multipleOf")) else "",
        str(schema["format"]) if isinstance(schema.get("format"), str) else "",
        f"matching {schema['pattern']}" if isinstance(schema.get("pattern"), str) else "",
    ]
    return ", ".join(_shorten(part) for part in parts if part)


def _describe_range(schema: Schema, minimum_name: str, maximum_name: str, unit: str) -> str:
    minimum, maximum = schema.get(minimum_name), schema.get(maximum_name)
    if _is_number(minimum) and _is_number(maximum):
        return f"{minimum:g}{unit}" if minimum == maximum else f"{minimum} to {maximum}{unit}"
    if _is_number(minimum) and not (unit and minimum == 0):
        return f"at least {minimum}{unit}"
    return f"at most {maximum}{unit}" if _is_number(maximum) else ""


def _describe_exclusive(schema: Schema, name: str, words: str) -> str:
    return f"{words} {schema[name]}" if _is_number(schema.get(name)) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format_value(value: Any) -> str:
    return _shorten(json.dumps(value, ensure_ascii=False, default=str))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + "…"


def _join(names: list[str], separator: str) -> str:
    return separator.join([*names[:_MAX_ALTERNATIVES], *(["…"] if len(names) > _MAX_ALTERNATIVES else [])])
