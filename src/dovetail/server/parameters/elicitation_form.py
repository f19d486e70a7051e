"""Elicitation forms: they convert a class to a requestedSchema, and the user's answer to an object of that class.

A form uses only the restricted schemas that every client can display. Nested fields raise TypeError
when the form is compiled. This module does not send the request.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal

from dovetail.server.parameters.annotations import build_schema, convert_value, get_default_factories, to_json
from dovetail.server.parameters.library_choice import resolve_types
from dovetail.server.parameters.type_hints import is_subclass_of, list_alternatives

# These keywords are allowed for each type of field. spec: elicitation#requested-schema
_KEYWORDS_BY_TYPE: Final[dict[str, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}
_NESTING_KEYWORDS: Final = frozenset({"properties", "$ref", "allOf", "anyOf", "not", "prefixItems"})
_FORMATS: Final = ("email", "uri", "date", "date-time")
_PYTHON_TYPES: Final = {"string": str, "number": (int, float), "integer": (int, float), "array": list, "boolean": bool}


@dataclass(frozen=True, slots=True)
class Form:
    """An elicitation form. The client gets `schema`, and `read` converts the user's answer.

    `read` raises ValueError with a short message if the input does not match the form.
    """

    schema: dict[str, Any]
    read: Callable[[dict[str, Any] | None], Any]


def compile_form(source: Any) -> Form:
    """Create a form from a class with simple fields, a primitive type, or a JSON Schema.

    Raises:
        TypeError: a field of the class is nested. The message contains the name of the field.
        ValueError: a field of the JSON Schema is nested. The message contains the name of the field.
    """
    if isinstance(source, dict):
        schema = typing.cast("dict[str, Any]", source)
        _check_flat_schema(schema)
        return Form(schema, functools.partial(_check_content, schema))
    return _compile_class_form(source) if isinstance(source, type) else _compile_value_form(source)


def _check_flat_schema(schema: dict[str, Any]) -> None:
    """Raise ValueError if a field is not a primitive type or a choice. spec: elicitation#requested-schema"""
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict):
        raise ValueError('the schema of a form must have "type": "object" and "properties"')
    for name, field in typing.cast("dict[str, Any]", properties).items():
        if not isinstance(field, dict) or not _is_flat_field(typing.cast("dict[str, Any]", field)):
            raise ValueError(
                f"field `{name}` of a form must be a string, number, integer, boolean, or a choice of strings. "
                "A form cannot contain objects or lists of other values"
            )


def _is_flat_field(field: dict[str, Any]) -> bool:
    if field.get("type") not in _KEYWORDS_BY_TYPE or not _NESTING_KEYWORDS.isdisjoint(field):
        return False
    if field["type"] != "array":
        return "items" not in field and ("oneOf" not in field or _are_titled_choices(field["oneOf"]))
    items = field.get("items")
    if not isinstance(items, dict) or "oneOf" in field:
        return False
    return isinstance(items.get("enum"), list) or _are_titled_choices(items.get("anyOf"))


def _are_titled_choices(choices: Any) -> bool:
    return isinstance(choices, list) and all(
        isinstance(choice, dict) and "const" in choice for choice in typing.cast("list[Any]", choices)
    )


@functools.lru_cache(maxsize=256)
def _compile_class_form(class_type: type) -> Form:
    hints = _resolve_hints(class_type)
    if not hints or issubclass(class_type, Enum):
        return _compile_value_form(class_type)
    return (
        _compile_tuple_form(class_type, hints)
        if issubclass(class_type, tuple)
        else _compile_fields_form(class_type, hints)
    )


def _compile_value_form(annotation: Any) -> Form:
    label = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    form = _compile_fields_form(dataclasses.make_dataclass(label, [("value", annotation)]), {"value": annotation})
    return Form(form.schema, lambda content: form.read(content).value)


def _compile_tuple_form(class_type: Any, hints: dict[str, Any]) -> Form:
    """Create a form from a named tuple. A dataclass is used, because a tuple has no field names in JSON."""
    fields = [(name, hint, _make_tuple_field(class_type, name)) for name, hint in hints.items()]
    form = _compile_fields_form(dataclasses.make_dataclass(class_type.__qualname__, fields), hints)
    return Form(form.schema, lambda content: class_type(**vars(form.read(content))))


def _make_tuple_field(class_type: Any, name: str) -> Any:
    if name not in class_type._field_defaults:
        return dataclasses.field()
    default = class_type._field_defaults[name]
    if isinstance(default, (list, set)):
        return dataclasses.field(default_factory=lambda: typing.cast("list[Any] | set[Any]", default))
    return dataclasses.field(default=default)


def _compile_fields_form(class_type: type, hints: dict[str, Any]) -> Form:
    try:
        full_schema, read = _compile_class(class_type)
    except TypeError as exc:
        raise TypeError(f"{class_type.__qualname__}: {exc}") from None
    encoded_names = getattr(class_type, "__struct_encode_fields__", ())
    hints |= {
        name: hints[field]
        for name, field in zip(encoded_names, getattr(class_type, "__struct_fields__", ()), strict=True)
    }
    factories = get_default_factories(class_type)
    properties: dict[str, Any] = {}
    preset_values: dict[str, Any] = {}
    for name, member in full_schema.get("properties", {}).items():
        if name not in hints:
            # A form does not ask for the tag of a struct, because the tag has only one possible value.
            preset_values[name] = member["enum"][0]
            continue
        schema, is_optional = _strip_null(member)
        properties[name] = field = _compile_field(f"{class_type.__qualname__}.{name}", schema, hints[name])
        if name in factories and field["type"] == "array":
            field["default"] = to_json(factories[name]())[0]
        if is_optional and name in full_schema.get("required", ()):
            preset_values[name] = None
    required = [name for name in full_schema.get("required", ()) if name not in preset_values]
    schema = {"type": "object", "properties": properties, **({"required": required} if required else {})}
    return Form(schema, lambda content: read(preset_values | (content or {})))


def _compile_class(class_type: type) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
    """Return the schema of a class. Also return a function that converts an answer to an object of the class."""
    library, _ = resolve_types({"": class_type})
    if library == "msgspec":
        return build_schema(class_type), functools.partial(convert_value, class_type)
    from dovetail.server.parameters.pydantic_types import PydanticType

    pydantic_type = PydanticType(class_type)
    return pydantic_type.schema, pydantic_type.read


def _strip_null(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Remove null from the schema of a field. Return the schema, and whether null was allowed."""
    match schema:
        case {"anyOf": [member, {"type": "null"}], **rest} | {"anyOf": [{"type": "null"}, member], **rest}:
            return {**member, **rest}, True
        case {"enum": [None, *options], **rest}:
            return {**rest, "enum": options, "type": "string"}, True
        case _:
            return schema, False


def _compile_field(name: str, schema: dict[str, Any], annotation: Any) -> dict[str, Any]:
    type_name: str = schema.get("type", "")
    if type_name not in _KEYWORDS_BY_TYPE or "contentEncoding" in schema:
        raise _make_not_flat_error(name)
    field = {
        key: schema[key] for key in ("type", "title", "description", *_KEYWORDS_BY_TYPE[type_name]) if key in schema
    }
    if type_name == "integer":
        field |= _to_inclusive_bounds(schema)
    format_name = "date-time" if datetime in list_alternatives(annotation) else schema.get("format")
    if format_name in _FORMATS:
        field["format"] = format_name
    if type_name == "array":
        field["items"] = _compile_choice(name, schema.get("items"), annotation, "anyOf")
    elif "enum" in schema:
        field |= _compile_choice(name, schema, annotation, "oneOf")
    if schema.get("default") is not None:
        field["default"] = schema["default"]
    return field


def _to_inclusive_bounds(schema: dict[str, Any]) -> dict[str, int]:
    """Convert exclusive bounds of an integer to inclusive bounds. Forms support only inclusive bounds."""
    bounds = {"minimum": ("exclusiveMinimum", 1), "maximum": ("exclusiveMaximum", -1)}
    return {
        key: schema[exclusive_key] + step for key, (exclusive_key, step) in bounds.items() if exclusive_key in schema
    }


def _compile_choice(name: str, schema: Any, annotation: Any, titled_keyword: str) -> dict[str, Any]:
    options = list(_list_options(annotation))
    if not options or not isinstance(schema, dict) or not all(isinstance(value, str) for value, _ in options):
        raise _make_not_flat_error(name)
    if all(value == label for value, label in options):
        return {"type": "string", "enum": [value for value, _ in options]}
    choices = {titled_keyword: [{"const": value, "title": _format_title(label)} for value, label in options]}
    return choices if titled_keyword == "anyOf" else {"type": "string", **choices}


def _list_options(annotation: Any) -> Iterator[tuple[Any, str]]:
    for alternative in list_alternatives(annotation):
        if typing.get_origin(alternative) is Literal:
            yield from ((value, str(value)) for value in typing.get_args(alternative) if value is not None)
        elif is_subclass_of(alternative, Enum):
            yield from ((member.value, member.name) for member in alternative)
        else:
            for inner in typing.get_args(alternative):
                yield from _list_options(inner)


def _format_title(label: str) -> str:
    text = label.replace("_", " ").strip()
    return text.capitalize() if text.isupper() or text.islower() else text


def _resolve_hints(class_type: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(class_type, include_extras=True)
    except NameError as exc:
        raise TypeError(
            f"{class_type.__qualname__}: the name `{exc.name}` in an annotation is not defined in the module"
        ) from None


def _make_not_flat_error(name: str) -> TypeError:
    return TypeError(f"{name}: a form can contain only strings, numbers, booleans, dates, and choices between strings")


def _check_content(schema: dict[str, Any], content: dict[str, Any] | None) -> dict[str, Any]:
    answers = content or {}
    for name in schema.get("required", ()):
        if name not in answers:
            raise ValueError(f"missing `{name}`")
    for name, member in schema.get("properties", {}).items():
        if name in answers and (mismatch := _find_mismatch(answers[name], member)):
            raise ValueError(f"`{name}`: {mismatch}")
    return answers


def _find_mismatch(value: Any, schema: dict[str, Any]) -> str:
    type_name: str = schema.get("type", "")
    if type_name in _PYTHON_TYPES and not _is_of_type(type_name, value):
        return f"expected {type_name}"
    constants = (option.get("const") for key in ("oneOf", "anyOf") for option in schema.get(key, ()))
    if (allowed := schema.get("enum") or [*constants]) and value not in allowed:
        return "not one of the allowed choices"
    size = len(value) if type_name in ("string", "array") else value
    for key in _KEYWORDS_BY_TYPE.get(type_name, ()):
        if key in schema and (size < schema[key] if key.startswith("min") else size > schema[key]):
            return f"{key} is {schema[key]}"
    items = value if type_name == "array" else ()
    return next((mismatch for item in items if (mismatch := _find_mismatch(item, schema.get("items", {})))), "")


def _is_of_type(type_name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return type_name == "boolean"
    if type_name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES[type_name])
