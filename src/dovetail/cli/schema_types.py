"""Write the JSON Schemas of a server as Python types.

The schemas are untrusted. This module turns their names into identifiers, and all other text into string literals.
"""

import keyword
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from dovetail.schemas.reader import Schema, as_object, get_list, get_mapping, get_required, get_types, resolve_schema

_MAX_DEPTH: Final = 12  # Schemas below this depth become Any.
_MAX_CLASSES: Final = 500
_MAX_TYPES: Final = 20_000  # References can make a small schema very large. After this many types, types become Any.
_MAX_NAME_LENGTH: Final = 60
_SIMPLE_TYPES: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
BUILTIN_TYPES: Final = ("bool", "dict", "float", "int", "list", "str")
_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def quote(text: str) -> str:
    """Return a string literal with ASCII characters only."""
    literal = ascii(text)
    return literal if '"' in text or "'" in text else f'"{literal[1:-1]}"'


def make_identifier(text: str, default: str, used_names: Collection[str] = ()) -> str:
    """Return a valid identifier that resembles a text and is not used yet."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text)[:_MAX_NAME_LENGTH].strip("_") or default
    if name[0].isdigit():
        name = f"{default}_{name}"
    return _make_unique(name, used_names)


def make_class_name(text: str, default: str, used_names: Collection[str] = ()) -> str:
    """Return a valid class name that resembles a text and is not used yet."""
    name = "".join(word[0].upper() + word[1:] for word in _WORD.findall(text))[:_MAX_NAME_LENGTH] or default
    if name[0].isdigit():
        name = f"{default}{name}"
    return _make_unique(name, used_names)


def _make_unique(name: str, used_names: Collection[str]) -> str:
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        name = f"{name}_"
    unique_name, number = name, 2
    while unique_name in used_names:
        unique_name, number = f"{name}_{number}", number + 1
    return unique_name


class TypeWriter:
    """Writes types as code. `definitions` contains a class for each object type, in the order of first use."""

    def __init__(self, used_names: Collection[str]) -> None:
        self.definitions: list[str] = []
        self._type_count = 0
        self.typing_names: set[str] = set()  # the names that the code needs from `typing`
        self._used_names = set(used_names)
        self._class_names: dict[tuple[int, str], str] = {}  # The key is the id of a root schema and a reference.
        self._class_by_fields: dict[tuple[tuple[str, str], ...], str] = {}
        self._roots: list[Schema] = []  # Keep the schemas alive, because the keys of `_class_names` contain their ids.

    def reserve(self, name: str) -> None:
        """Reserve a name, so that it is not used for a class."""
        self._used_names.add(name)

    def use(self, name: str) -> str:
        """Import a name from `typing`, and return the name."""
        self.typing_names.add(name)
        return name

    def write_type(self, schema: Any, name: str, root: Schema | None = None, depth: int = 0) -> str:
        """Return the code of a type. An object type becomes a class whose name resembles `name`."""
        if root is None:
            root = as_object(schema)
            self._roots.append(root)
        self._type_count += 1
        if depth > _MAX_DEPTH or self._type_count > _MAX_TYPES:
            return self.use("Any")
        reference = as_object(schema).get("$ref")
        if isinstance(reference, str):
            key = (id(root), reference)
            if key in self._class_names:
                return self._class_names[key]
            name = reference.rpartition("/")[2] or name
        else:
            key = None
        resolved = resolve_schema(schema, root)
        return self._write_resolved(resolved, name, root, depth, key)

    def _write_resolved(self, schema: Schema, name: str, root: Schema, depth: int, key: tuple[int, str] | None) -> str:
        values = [schema["const"]] if "const" in schema else get_list(schema, "enum")
        if values:
            return self._write_literal(values)
        branches = get_list(schema, "anyOf") or get_list(schema, "oneOf")
        if branches:
            types = [
                self.write_type(branch, f"{name}{number}", root, depth + 1)
                for number, branch in enumerate(branches, start=1)
            ]
            return _join_types(types)
        types = get_types(schema) or (["object"] if get_mapping(schema) else [])
        return _join_types([self._write_kind(kind, schema, name, root, depth, key) for kind in types]) or self.use(
            "Any"
        )

    def _write_kind(
        self, kind: str, schema: Schema, name: str, root: Schema, depth: int, key: tuple[int, str] | None
    ) -> str:
        if kind in _SIMPLE_TYPES:
            return _SIMPLE_TYPES[kind]
        if kind == "array":
            items = schema.get("items")
            item_type = self.use("Any") if items is None else self.write_type(items, f"{name}Item", root, depth + 1)
            return f"list[{item_type}]"
        if get_mapping(schema) and len(self.definitions) < _MAX_CLASSES:
            return self._define_class(schema, name, root, depth, key)
        extra = schema.get("additionalProperties")
        is_typed = isinstance(extra, Mapping) and bool(extra)
        value_type = self.write_type(extra, f"{name}Value", root, depth + 1) if is_typed else self.use("Any")
        return f"dict[str, {value_type}]"

    def _define_class(self, schema: Schema, name: str, root: Schema, depth: int, key: tuple[int, str] | None) -> str:
        class_name = make_class_name(name, "Value", self._used_names)
        self._used_names.add(class_name)
        if key is not None:
            self._class_names[key] = class_name
        index = len(self.definitions)
        self.definitions.append("")  # Reserve the place before the classes of the fields.
        required = get_required(schema)
        fields: dict[str, str] = {}
        for field, field_schema in get_mapping(schema).items():
            field_type = self.write_type(field_schema, f"{class_name} {field}", root, depth + 1)
            fields[field] = field_type if field in required else f"{self.use('NotRequired')}[{field_type}]"
        # Several tools often use the same object type, so types with the same fields share one class.
        known_name = self._class_by_fields.setdefault((*fields.items(),), class_name)
        is_same = known_name == make_class_name(name, "Value") if key is not None else depth > 0
        if known_name != class_name and is_same:
            del self.definitions[index]
            self._used_names.remove(class_name)
            if key is not None:
                self._class_names[key] = known_name
            return known_name
        self.definitions[index] = self._write_class(class_name, fields)
        return class_name

    def _write_class(self, class_name: str, fields: Mapping[str, str]) -> str:
        self.use("TypedDict")
        if all(self._is_field_name(field) for field in fields):
            lines = [f"    {field}: {field_type}" for field, field_type in fields.items()]
            return "\n".join([f"class {class_name}(TypedDict):", *lines])
        # Write each type as a string, because its class may be defined later in the file.
        lines = [f"        {quote(field)}: {quote(field_type)}," for field, field_type in fields.items()]
        return "\n".join([f"{class_name} = TypedDict(", f'    "{class_name}",', "    {", *lines, "    },", ")"])

    def _is_field_name(self, field: str) -> bool:
        """Return whether a field can be written as `name: type`, without hiding the name of a type."""
        is_type_name = field in BUILTIN_TYPES or field in self._used_names
        return bool(_IDENTIFIER.fullmatch(field)) and not keyword.iskeyword(field) and not is_type_name

    def _write_literal(self, values: list[Any]) -> str:
        codes = [_write_literal_value(value) for value in values]
        if any(code is None for code in codes):
            return self.use("Any")
        names = dict.fromkeys(code for code in codes if code is not None)
        return "None" if [*names] == ["None"] else f"{self.use('Literal')}[{', '.join(names)}]"


def _write_literal_value(value: Any) -> str | None:
    if value is None or isinstance(value, bool | int):
        return repr(value)
    return quote(value) if isinstance(value, str) else None


def _join_types(types: list[str]) -> str:
    unique_types = [*dict.fromkeys(types)]
    return "Any" if "Any" in unique_types else " | ".join(unique_types)
