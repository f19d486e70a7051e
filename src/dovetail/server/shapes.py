"""Shapes: the JSON Schema of a type, written from what msgspec knows about it.

Flat: no class names as titles, everything written out where it is used, and a reference only where a type contains
itself, so that every reader of schemas can follow. Choices keep the order in which their author wrote them.
"""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec.inspect as seen
from msgspec import NODEFAULT, to_builtins

from dovetail.server import docstrings

REF: Final = "#/$defs/"

_BOUNDS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LENGTHS: Final = {"str": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
_TEXTS: Final[dict[type, str]] = {
    seen.DateType: "date",
    seen.TimeDeltaType: "duration",
    seen.UUIDType: "uuid",
    seen.DecimalType: "decimal",
}
_CLASSES: Final = (seen.StructType, seen.DataclassType, seen.TypedDictType, seen.NamedTupleType)
_MEMBERS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties", "$defs")
_SINGLE: Final = ("items", "additionalProperties", "propertyNames")

Schema = dict[str, Any]
Hook = Callable[[type], Schema]


class Shapes:
    """Writes the schemas of several types that share their definitions."""

    def __init__(self, hook: Hook, orders: Sequence[Sequence[Any]], *, output: bool = False) -> None:
        self.shared: dict[str, Schema] = {}
        self._hook = hook
        self._orders = orders
        self._output = output
        self._names: dict[Any, str] = {}  # of the types being written, and of those that contain themselves
        self._loops: set[Any] = set()

    def write(self, node: seen.Type) -> Schema:
        """The schema of one type."""
        said: Schema = {}
        while isinstance(node, seen.Metadata):
            said = (node.extra_json_schema or {}) | said
            node = node.type
        return self._plain(node) | said

    def _plain(self, node: Any) -> Schema:
        match node:
            case seen.AnyType() | seen.RawType():
                return {}
            case seen.NoneType():
                return {"type": "null"}
            case seen.BoolType():
                return {"type": "boolean"}
            case seen.IntType() | seen.FloatType():
                kind = "integer" if isinstance(node, seen.IntType) else "number"
                return {"type": kind} | _present({_BOUNDS[name]: getattr(node, name) for name in _BOUNDS})
            case seen.LiteralType():
                return self._choices(node.values)
            case seen.EnumType():
                return self._choices([member.value for member in node.cls]) | _described(node.cls)
            case seen.UnionType():
                return {"anyOf": [self.write(one) for one in _none_last(node.types)]}
            case seen.StructType() | seen.DataclassType() | seen.TypedDictType() | seen.NamedTupleType():
                return self._class(node)
            case seen.CustomType():
                return self._foreign(node.cls)
            case seen.TupleType() | seen.CollectionType():
                return self._array(node)
            case seen.DictType() | seen.FrozenDictType():
                return self._mapping(node)
            case _:
                return self._text(node)

    def _text(self, node: Any) -> Schema:
        # A model has to be told what a moment looks like; as a result it may lack the zone that the format demands.
        form = _TEXTS.get(type(node))
        if isinstance(node, (seen.DateTimeType, seen.TimeType)) and (node.tz is True or not self._output):
            form = "date-time" if isinstance(node, seen.DateTimeType) else "time"
        schema: Schema = {"type": "string"} | _present({"format": form, "pattern": getattr(node, "pattern", None)})
        least, most = getattr(node, "min_length", None), getattr(node, "max_length", None)
        if isinstance(node, (seen.BytesType, seen.ByteArrayType, seen.MemoryViewType)):
            schema["contentEncoding"] = "base64"
            least, most = (None if size is None else 4 * ((size + 2) // 3) for size in (least, most))
        return schema | _present({"minLength": least, "maxLength": most})

    def _array(self, node: Any) -> Schema:
        if isinstance(node, seen.TupleType):
            return _row([self.write(one) for one in node.item_types])
        items = self.write(node.item_type)
        unique = isinstance(node, (seen.SetType, seen.FrozenSetType)) or None
        limits = {"minItems": node.min_length, "maxItems": node.max_length, "uniqueItems": unique}
        return {"type": "array", "items": items} | _present(limits)  # OpenAI refuses an array without items

    def _mapping(self, node: Any) -> Schema:
        keys, values = self.write(node.key_type), self.write(node.value_type)
        schema: Schema = {"type": "object"}
        if keys.pop("type", None) == "string" and keys:
            schema["propertyNames"] = keys
        if values:
            schema["additionalProperties"] = values
        return schema | _present({"minProperties": node.min_length, "maxProperties": node.max_length})

    def _choices(self, values: Iterable[Any]) -> Schema:
        options = [value for value in values if value is not None]
        empty = len(options) != len(tuple(values))
        for order in self._orders:
            if set(options) <= set(order):
                options.sort(key=list(order).index)
                break
        kinds = {type(value) for value in options}
        # Some model providers refuse an enumeration without a type, and null in one.
        schema: Schema = {"enum": options}
        if kinds in ({str}, {int}):
            schema = {"type": "string" if kinds == {str} else "integer", **schema}
        return {"anyOf": [schema, {"type": "null"}]} if empty else schema

    def _class(self, node: Any) -> Schema:
        """Written out; a type met again while it is being written contains itself and gets a name."""
        if node.cls in self._names:
            self._loops.add(node.cls)
            return {"$ref": REF + self._names[node.cls]}
        name = self._names[node.cls] = self._free(node.cls)
        schema = self._fields(node)
        if node.cls in self._loops:
            self.shared[name] = schema
            return {"$ref": REF + name}
        del self._names[node.cls]
        return schema

    def _free(self, kind: Any) -> str:
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", getattr(kind, "__name__", str(kind))).strip("_")
        taken = {*self._names.values(), *self.shared}
        return next(name for name in (plain, *(f"{plain}{n}" for n in range(2, 1000))) if name not in taken)

    def _fields(self, node: Any) -> Schema:
        doc = docstrings.read(_own_doc(node.cls))
        properties: dict[str, Schema] = {}
        required: list[str] = []
        if getattr(node, "tag_field", None) is not None:
            properties[node.tag_field] = self._choices([node.tag])
            required.append(node.tag_field)
        for field in node.fields:
            properties[field.encode_name] = schema = self.write(field.type)
            if text := doc.parameters.get(field.name):
                schema.setdefault("description", text)
            if field.required:
                required.append(field.encode_name)
            elif field.default is not NODEFAULT:
                _show_default(schema, field.default)
            elif field.default_factory in (list, dict, set) and isinstance(node, seen.StructType):
                schema["default"] = [] if field.default_factory is set else field.default_factory()
        said = {"description": doc.text} if doc.text else {}
        if isinstance(node, seen.NamedTupleType) or getattr(node, "array_like", False):
            return said | _row(list(properties.values()), least=len(required))
        written: Schema = said | {"type": "object", "properties": properties}
        if required:
            written["required"] = required
        # As an argument, a member that no field has is a mistake of the caller's; a result may have more some day.
        closed = not self._output or getattr(node, "forbid_unknown_fields", False)
        return written | ({"additionalProperties": False} if closed else {})

    def _foreign(self, kind: type) -> Schema:
        schema, loops = flat(self._hook(kind))
        names = {name: self._free(type(name, (), {})) for name in loops}
        self.shared |= {names[name]: _renamed(part, names) for name, part in loops.items()}
        return _renamed(schema, names)


def flat(schema: Schema) -> tuple[Schema, dict[str, Schema]]:
    """A schema made elsewhere, without titles, its definitions written out; and those that contain themselves."""
    parts: dict[str, Schema] = schema.get("$defs", {})
    loops = {name for name in parts if name in _reached(parts[name], parts)}
    written = {name: part for name, part in parts.items() if name not in loops}
    root = {key: value for key, value in schema.items() if key != "$defs"}
    return _write_out(root, written), {name: _write_out(parts[name], written) for name in loops}


def target(schema: Mapping[str, Any]) -> str:
    """The name a schema refers to, if it does."""
    reference = schema.get("$ref", "")
    return reference.removeprefix(REF) if reference.startswith(REF) else ""


def _present(keywords: Mapping[str, Any]) -> Schema:
    return {key: value for key, value in keywords.items() if value is not None}


def _row(items: list[Schema], least: int | None = None) -> Schema:
    size = {"minItems": len(items) if least is None else least, "maxItems": len(items)}
    unique = [one for at, one in enumerate(items) if one not in items[:at]]
    rest = unique[0] if len(unique) == 1 else {"anyOf": unique} if unique else {}
    # Nothing comes after the prefix, but OpenAI refuses an array without items.
    return {"type": "array"} | ({"prefixItems": items} if items else {}) | {"items": rest} | size


def _none_last(nodes: Iterable[Any]) -> list[Any]:
    return sorted(nodes, key=lambda node: isinstance(node, seen.NoneType))


def _own_doc(kind: Any) -> str:
    """What a class says of itself; not what Python wrote for it, nor what it inherits."""
    kind = getattr(kind, "__origin__", kind)
    doc = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    made = doc.startswith(f"{kind.__name__}(") and doc.endswith(")")
    return "" if made or doc == "An enumeration." else doc


def _described(kind: Any) -> Schema:
    doc = _own_doc(kind)
    return {"description": doc} if doc else {}


def _show_default(schema: Schema, value: Any) -> None:
    with contextlib.suppress(TypeError, ValueError):  # without a JSON form, only the class knows it
        schema["default"] = to_builtins(value, str_keys=True)


def _write_out(schema: Schema, parts: Mapping[str, Schema]) -> Schema:
    if (name := target(schema)) in parts:
        schema = parts[name] | {key: value for key, value in schema.items() if key != "$ref"}
    if "const" in schema and isinstance(schema["const"], (str, int)):
        schema = {key: value for key, value in schema.items() if key != "const"} | {"enum": [schema["const"]]}
    result = {
        key: _each(key, value, lambda one: _write_out(one, parts))
        for key, value in schema.items()
        if key not in ("discriminator", "title") and not (key == "additionalProperties" and value is True)
    }
    if not result.get("required", True):
        del result["required"]
    return result


def _each(key: str, value: Any, change: Callable[[Schema], Schema]) -> Any:
    """A keyword's value with the schemas in it changed."""
    if key in _NAMED and isinstance(value, dict):
        return {name: change(one) for name, one in cast("dict[str, Schema]", value).items()}
    if key in _MEMBERS and isinstance(value, list):
        return [change(one) for one in cast("list[Schema]", value)]
    return change(cast("Schema", value)) if key in _SINGLE and isinstance(value, dict) else value


def _renamed(schema: Schema, names: Mapping[str, str]) -> Schema:
    changed = {key: _each(key, value, lambda one: _renamed(one, names)) for key, value in schema.items()}
    return changed | {"$ref": REF + names[name]} if (name := target(schema)) in names else changed


def _reached(schema: Schema, parts: Mapping[str, Schema]) -> set[str]:
    found: set[str] = set()
    todo: list[Any] = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            name = target(cast("Schema", node))
            if name in parts and name not in found:
                found.add(name)
                todo.append(parts[name])
            todo += cast("Schema", node).values()
        elif isinstance(node, list):
            todo += cast("list[Any]", node)
    return found
