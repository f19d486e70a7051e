"""Forms for the user: a type with flat fields as a requestedSchema, and the answer as a value of that type.

Speaks the restricted schema of form mode and nothing wider; asking is done elsewhere. Invariant: a form holds only what
every client can draw, so whatever is nested is refused when the form is made.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal

from dovetail.server.schema import alternatives, default_factories, is_a, read_as, schema_of, to_json

# The keywords each type of field may have. spec: elicitation#requested-schema
_KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}
_FORMATS: Final = ("email", "uri", "date", "date-time")
_PYTHON: Final = {"string": str, "number": (int, float), "integer": (int, float), "array": list, "boolean": bool}


@dataclass(frozen=True, slots=True)
class Form:
    """`schema` goes to the client; `read` makes the value asked for of what the user entered.

    `read` raises ValueError, with a short text, when the content does not fit.
    """

    schema: dict[str, Any]
    read: Callable[[dict[str, Any] | None], Any]


def compile_form(source: Any) -> Form:
    """The form for a class with flat fields, for one primitive type, or for a schema, which is taken as it is.

    Raises:
        TypeError: a field is not flat; the text names it.
    """
    if isinstance(source, dict):
        schema = typing.cast("dict[str, Any]", source)
        return Form(schema, functools.partial(_read_plain, schema))
    return _class_form(source) if isinstance(source, type) else _value_form(source)


@functools.lru_cache(maxsize=256)
def _class_form(kind: type) -> Form:
    hints = _hints(kind)
    if not hints or issubclass(kind, Enum):
        return _value_form(kind)
    return _tuple_form(kind, hints) if issubclass(kind, tuple) else _fields_form(kind, hints)


def _value_form(annotation: Any) -> Form:
    """One primitive, as the only field of a form."""
    label = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    form = _fields_form(dataclasses.make_dataclass(label, [("value", annotation)]), {"value": annotation})
    return Form(form.schema, lambda content: form.read(content).value)


def _tuple_form(kind: Any, hints: dict[str, Any]) -> Form:
    """A named tuple is an array in JSON, but a form has names."""
    fields = [(name, hint, _tuple_default(kind, name)) for name, hint in hints.items()]
    form = _fields_form(dataclasses.make_dataclass(kind.__qualname__, fields), hints)
    return Form(form.schema, lambda content: kind(**vars(form.read(content))))


def _tuple_default(kind: Any, name: str) -> Any:
    if name not in kind._field_defaults:
        return dataclasses.field()
    default = kind._field_defaults[name]
    if isinstance(default, (list, set)):
        return dataclasses.field(default_factory=lambda: typing.cast("list[Any] | set[Any]", default))
    return dataclasses.field(default=default)


def _fields_form(kind: type, hints: dict[str, Any]) -> Form:
    try:
        full = schema_of(kind)
    except TypeError as exc:
        raise TypeError(f"{kind.__qualname__}: {exc}") from None
    spelled = getattr(kind, "__struct_encode_fields__", ())
    hints |= {name: hints[field] for name, field in zip(spelled, getattr(kind, "__struct_fields__", ()), strict=True)}
    made = default_factories(kind)
    properties: dict[str, Any] = {}
    blank: dict[str, Any] = {}
    for name, member in full.get("properties", {}).items():
        if name not in hints:
            blank[name] = member["enum"][0]  # the tag of a struct, which is no question
            continue
        schema, optional = _without_null(member)
        properties[name] = field = _field(f"{kind.__qualname__}.{name}", schema, hints[name])
        if name in made and field["type"] == "array":
            field["default"] = to_json(made[name]())[0]
        if optional and name in full.get("required", ()):
            blank[name] = None
    required = [name for name in full.get("required", ()) if name not in blank]
    schema = {"type": "object", "properties": properties, **({"required": required} if required else {})}
    return Form(schema, lambda content: read_as(kind, blank | (content or {})))


def _without_null(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A field that may be null is one that may be left out."""
    match schema:
        case {"anyOf": [member, {"type": "null"}], **rest} | {"anyOf": [{"type": "null"}, member], **rest}:
            return {**member, **rest}, True
        case {"enum": [None, *options], **rest}:
            return {**rest, "enum": options, "type": "string"}, True
        case _:
            return schema, False


def _field(name: str, schema: dict[str, Any], annotation: Any) -> dict[str, Any]:
    kind: str = schema.get("type", "")
    if kind not in _KEYWORDS or "contentEncoding" in schema:
        raise _not_flat(name)
    field = {key: schema[key] for key in ("type", "title", "description", *_KEYWORDS[kind]) if key in schema}
    if kind == "integer":
        field |= _closed_bounds(schema)
    form = "date-time" if datetime in alternatives(annotation) else schema.get("format")
    if form in _FORMATS:
        field["format"] = form
    if kind == "array":
        field["items"] = _choice(name, schema.get("items"), annotation, "anyOf")
    elif "enum" in schema:
        field |= _choice(name, schema, annotation, "oneOf")
    if schema.get("default") is not None:
        field["default"] = schema["default"]
    return field


def _closed_bounds(schema: dict[str, Any]) -> dict[str, int]:
    """Forms know only bounds that are themselves allowed, which integers can always have."""
    bounds = {"minimum": ("exclusiveMinimum", 1), "maximum": ("exclusiveMaximum", -1)}
    return {key: schema[open_key] + step for key, (open_key, step) in bounds.items() if open_key in schema}


def _choice(name: str, schema: Any, annotation: Any, titled: str) -> dict[str, Any]:
    options = list(_options(annotation))
    if not options or not isinstance(schema, dict) or not all(isinstance(value, str) for value, _ in options):
        raise _not_flat(name)
    if all(value == label for value, label in options):
        return {"type": "string", "enum": [value for value, _ in options]}
    choices = {titled: [{"const": value, "title": _title(label)} for value, label in options]}
    return choices if titled == "anyOf" else {"type": "string", **choices}


def _options(annotation: Any) -> Iterator[tuple[Any, str]]:
    """Values and labels in the author's order, which a JSON Schema of an enumeration does not keep."""
    for kind in alternatives(annotation):
        if typing.get_origin(kind) is Literal:
            yield from ((value, str(value)) for value in typing.get_args(kind) if value is not None)
        elif is_a(kind, Enum):
            yield from ((member.value, member.name) for member in kind)
        else:
            for inner in typing.get_args(kind):
                yield from _options(inner)


def _title(label: str) -> str:
    words = label.replace("_", " ").strip()
    return words.capitalize() if words.isupper() or words.islower() else words


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError as exc:
        raise TypeError(
            f"{kind.__qualname__}: the name `{exc.name}` in its annotations is not defined in its module"
        ) from None


def _not_flat(name: str) -> TypeError:
    return TypeError(f"{name}: forms hold only flat fields: text, numbers, booleans, dates, and choices among texts")


def _read_plain(schema: dict[str, Any], content: dict[str, Any] | None) -> dict[str, Any]:
    """The content itself, held against a schema no type stands behind."""
    entered = content or {}
    for name in schema.get("required", ()):
        if name not in entered:
            raise ValueError(f"missing `{name}`")
    for name, member in schema.get("properties", {}).items():
        if name in entered and (why := _misfit(entered[name], member)):
            raise ValueError(f"`{name}`: {why}")
    return entered


def _misfit(value: Any, schema: dict[str, Any]) -> str:
    kind: str = schema.get("type", "")
    if kind in _PYTHON and not _is_of(kind, value):
        return f"expected {kind}"
    named = (option.get("const") for key in ("oneOf", "anyOf") for option in schema.get(key, ()))
    if (allowed := schema.get("enum") or [*named]) and value not in allowed:
        return "not one of the choices"
    size = len(value) if kind in ("string", "array") else value
    for key in _KEYWORDS.get(kind, ()):
        if key in schema and (size < schema[key] if key.startswith("min") else size > schema[key]):
            return f"{key} is {schema[key]}"
    items = value if kind == "array" else ()
    return next((why for item in items if (why := _misfit(item, schema.get("items", {})))), "")


def _is_of(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON[kind])
