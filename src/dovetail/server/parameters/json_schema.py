"""JSON Schemas of types, built from the type information of msgspec.

Schemas have no titles, and references only for recursive types, so that every client can read them.
Enum values keep the order in which they are written.
"""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec.inspect as seen
from msgspec import NODEFAULT, to_builtins

from dovetail.server.parameters import docstrings

REF_PREFIX: Final = "#/$defs/"

_BOUND_KEYWORDS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LENGTH_KEYWORDS: Final = {"str": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
_STRING_FORMATS: Final[dict[type, str]] = {
    seen.DateType: "date",
    seen.TimeDeltaType: "duration",
    seen.UUIDType: "uuid",
    seen.DecimalType: "decimal",
}

Schema = dict[str, Any]
SchemaHook = Callable[[type], Schema]


class SchemaWriter:
    """Builds JSON Schemas for several types, with shared definitions."""

    def __init__(self, hook: SchemaHook, literal_orders: Sequence[Sequence[Any]], *, output: bool = False) -> None:
        self.definitions: dict[str, Schema] = {}
        self._hook = hook
        self._literal_orders = literal_orders
        self._output = output
        # The names of recursive types, and of types whose schemas are not complete yet.
        self._names: dict[Any, str] = {}
        self._recursive_types: set[Any] = set()

    def write(self, node: seen.Type) -> Schema:
        extra_keywords: Schema = {}
        while isinstance(node, seen.Metadata):
            extra_keywords = (node.extra_json_schema or {}) | extra_keywords
            node = node.type
        return self._write_node(node) | extra_keywords

    def _write_node(self, node: Any) -> Schema:
        match node:
            case seen.AnyType() | seen.RawType():
                return {}
            case seen.NoneType():
                return {"type": "null"}
            case seen.BoolType():
                return {"type": "boolean"}
            case seen.IntType() | seen.FloatType():
                type_name = "integer" if isinstance(node, seen.IntType) else "number"
                return {"type": type_name} | _drop_none(
                    {_BOUND_KEYWORDS[name]: getattr(node, name) for name in _BOUND_KEYWORDS}
                )
            case seen.LiteralType():
                return self._write_enum(node.values)
            case seen.EnumType():
                return self._write_enum([member.value for member in node.cls]) | _build_description(node.cls)
            case seen.UnionType():
                return {"anyOf": [self.write(member) for member in _sort_none_last(node.types)]}
            case seen.StructType() | seen.DataclassType() | seen.TypedDictType() | seen.NamedTupleType():
                return self._write_class(node)
            case seen.CustomType():
                return self._hook(node.cls)
            case seen.TupleType() | seen.CollectionType():
                return self._write_array(node)
            case seen.DictType() | seen.FrozenDictType():
                return self._write_mapping(node)
            case _:
                return self._write_string(node)

    def _write_string(self, node: Any) -> Schema:
        # The schemas of arguments include the format of every time, because models need it.
        # In result schemas, a time that may lack a time zone has no format.
        format_name = _STRING_FORMATS.get(type(node))
        if isinstance(node, (seen.DateTimeType, seen.TimeType)) and (node.tz is True or not self._output):
            format_name = "date-time" if isinstance(node, seen.DateTimeType) else "time"
        schema: Schema = {"type": "string"} | _drop_none(
            {"format": format_name, "pattern": getattr(node, "pattern", None)}
        )
        min_length, max_length = getattr(node, "min_length", None), getattr(node, "max_length", None)
        if isinstance(node, (seen.BytesType, seen.ByteArrayType, seen.MemoryViewType)):
            schema["contentEncoding"] = "base64"
            min_length, max_length = (
                None if size is None else 4 * ((size + 2) // 3) for size in (min_length, max_length)
            )
        return schema | _drop_none({"minLength": min_length, "maxLength": max_length})

    def _write_array(self, node: Any) -> Schema:
        if isinstance(node, seen.TupleType):
            return _build_tuple_schema([self.write(item_type) for item_type in node.item_types])
        items = self.write(node.item_type)
        is_unique = isinstance(node, (seen.SetType, seen.FrozenSetType)) or None
        limits = {"minItems": node.min_length, "maxItems": node.max_length, "uniqueItems": is_unique}
        # OpenAI rejects an array without `items`.
        return {"type": "array", "items": items} | _drop_none(limits)

    def _write_mapping(self, node: Any) -> Schema:
        keys, values = self.write(node.key_type), self.write(node.value_type)
        schema: Schema = {"type": "object"}
        if keys.pop("type", None) == "string" and keys:
            schema["propertyNames"] = keys
        if values:
            schema["additionalProperties"] = values
        return schema | _drop_none({"minProperties": node.min_length, "maxProperties": node.max_length})

    def _write_enum(self, values: Iterable[Any]) -> Schema:
        options = [value for value in values if value is not None]
        has_null = len(options) != len(tuple(values))
        for order in self._literal_orders:
            if set(options) <= set(order):
                options.sort(key=list(order).index)
                break
        types = {type(value) for value in options}
        # Some model providers reject an enum without a type, or with null.
        schema: Schema = {"enum": options}
        if types in ({str}, {int}):
            schema = {"type": "string" if types == {str} else "integer", **schema}
        return {"anyOf": [schema, {"type": "null"}]} if has_null else schema

    def _write_class(self, node: Any) -> Schema:
        if node.cls in self._names:
            self._recursive_types.add(node.cls)
            return {"$ref": REF_PREFIX + self._names[node.cls]}
        name = self._names[node.cls] = self._choose_name(node.cls)
        schema = self._write_fields(node)
        if node.cls in self._recursive_types:
            self.definitions[name] = schema
            return {"$ref": REF_PREFIX + name}
        del self._names[node.cls]
        return schema

    def _choose_name(self, class_type: Any) -> str:
        base_name = re.sub(r"[^A-Za-z0-9_]+", "_", getattr(class_type, "__name__", str(class_type))).strip("_")
        used_names = {*self._names.values(), *self.definitions}
        return next(
            name for name in (base_name, *(f"{base_name}{n}" for n in range(2, 1000))) if name not in used_names
        )

    def _write_fields(self, node: Any) -> Schema:
        doc = docstrings.parse(get_own_docstring(node.cls))
        properties: dict[str, Schema] = {}
        required: list[str] = []
        if getattr(node, "tag_field", None) is not None:
            properties[node.tag_field] = self._write_enum([node.tag])
            required.append(node.tag_field)
        for field in node.fields:
            properties[field.encode_name] = schema = self.write(field.type)
            if text := doc.parameters.get(field.name):
                schema.setdefault("description", text)
            if field.required:
                required.append(field.encode_name)
            elif field.default is not NODEFAULT:
                _add_default(schema, field.default)
            elif field.default_factory in (list, dict, set) and isinstance(node, seen.StructType):
                schema["default"] = [] if field.default_factory is set else field.default_factory()
        description = {"description": doc.text} if doc.text else {}
        if isinstance(node, seen.NamedTupleType) or getattr(node, "array_like", False):
            return description | _build_tuple_schema(list(properties.values()), min_items=len(required))
        object_schema: Schema = description | {"type": "object", "properties": properties}
        if required:
            object_schema["required"] = required
        # Arguments must not have unknown fields. Results may have them, because a new version of a tool may add fields.
        is_closed = not self._output or getattr(node, "forbid_unknown_fields", False)
        return object_schema | ({"additionalProperties": False} if is_closed else {})


def _drop_none(keywords: Mapping[str, Any]) -> Schema:
    return {key: value for key, value in keywords.items() if value is not None}


def _build_tuple_schema(items: list[Schema], min_items: int | None = None) -> Schema:
    size = {"minItems": len(items) if min_items is None else min_items, "maxItems": len(items)}
    return {"type": "array"} | ({"prefixItems": items} if items else {}) | {"items": build_items_schema(items)} | size


def build_items_schema(prefix_items: list[Schema]) -> Schema:
    """Return a schema for all items of a tuple. OpenAI rejects an array without `items`."""
    unique = [item for index, item in enumerate(prefix_items) if item not in prefix_items[:index]]
    return unique[0] if len(unique) == 1 else {"anyOf": unique} if unique else {}


def _sort_none_last(nodes: Iterable[Any]) -> list[Any]:
    return sorted(nodes, key=lambda node: isinstance(node, seen.NoneType))


def get_own_docstring(class_type: Any) -> str:
    """Return the docstring of a class. If the docstring is generated or inherited, return an empty string."""
    class_type = getattr(class_type, "__origin__", class_type)
    # A class does not inherit `__doc__`. Since Python 3.15, the generated docstring of a dataclass is a descriptor.
    doc = inspect.cleandoc(class_type.__doc__ or "")
    is_generated = doc.startswith(f"{class_type.__name__}(") and doc.endswith(")")
    return "" if is_generated or doc == "An enumeration." else doc


def _build_description(class_type: Any) -> Schema:
    doc = get_own_docstring(class_type)
    return {"description": doc} if doc else {}


def _add_default(schema: Schema, value: Any) -> None:
    # A default that cannot be represented in JSON is left out of the schema.
    with contextlib.suppress(TypeError, ValueError):
        schema["default"] = to_builtins(value, str_keys=True)
