"""JSON Schemas of annotations, and conversion between JSON and Python values, both with msgspec.

Signatures, results and forms use this module unless `library_choice` selects pydantic. `convert_value`
accepts all values that `build_schemas` describes. It also accepts unknown fields, which `unknown_fields` checks.
"""

import math
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from dovetail.error_context import clip
from dovetail.server.parameters.argument_messages import ArgumentMessage
from dovetail.server.parameters.type_hints import is_path_type, is_pydantic_type, iter_reachable_types
from dovetail.server.require_await import AWAIT_HINT
from dovetail.wire.codec import encode

MAX_REASON_CHARS: Final = 200

# These patterns are compiled only when an argument is invalid.
_LOCATION_PATTERN: Final = r" - at (`key` in )?`\$([^`]*)`$"
_ECHO_PATTERN: Final = r"Invalid (?:enum )?value (?=['\"\d-])"
_TABLE_LIBRARIES: Final = frozenset(("pandas", "polars", "numpy"))
_FLOAT_CONTAINER_TYPES: Final = frozenset((float, dict, list, tuple))


def build_schemas(annotations: Sequence[Any], *, output: bool = False) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the JSON Schemas of annotations. Also return the definitions of recursive types.

    Raises:
        TypeError: an annotation cannot be represented in JSON. The message gives the reason in one line.
    """
    # This import is here because not every server builds a schema.
    from dovetail.server.parameters.json_schema import SchemaWriter

    try:
        nodes = msgspec.inspect.multi_type_info(annotations)
        writer = SchemaWriter(_build_custom_schema, [*_find_literal_values(annotations)], output=output)
        return [writer.write(node) for node in nodes], writer.definitions
    except NameError as exc:
        raise TypeError(f"the name `{exc.name}` in an annotation is not defined in the module") from None
    except TypeError as exc:
        raise TypeError(format_type_error(exc)) from None


def build_schema(annotation: Any, *, output: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of an annotation. The root of the schema is never a reference.

    Raises:
        TypeError: the annotation cannot be represented in JSON.
    """
    (schema,), definitions = build_schemas([annotation], output=output)
    if "$ref" in schema:
        name: str = schema["$ref"].rpartition("/")[2]
        schema = definitions[name] | {key: value for key, value in schema.items() if key != "$ref"}
    return {**schema, "$defs": definitions} if definitions else schema


def convert_value(annotation: Any, value: Any, *, lax: bool = False) -> Any:
    """Convert JSON data to the annotated type. Instances of the type are returned unchanged.

    Raises:
        ValueError: the data does not match the type. The message gives the location and the reason, but no values.
    """
    try:
        return msgspec.convert(value, annotation, strict=not lax, dec_hook=decode_hook)
    except (msgspec.ValidationError, RecursionError):
        pass
    try:
        return convert_leniently(annotation, value, strict=not lax)
    except msgspec.ValidationError as exc:
        raise ValueError(format_reason(exc)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def convert_with_hook(annotation: Any, value: Any, *, strict: bool) -> Any:
    """Convert JSON data to a type. `decode_hook` converts the types that msgspec does not support."""
    return msgspec.convert(value, annotation, strict=strict, dec_hook=decode_hook)


def convert_leniently(annotation: Any, value: Any, *, strict: bool) -> Any:
    """Convert JSON data that `convert_with_hook` has rejected. This function is slower, but accepts more values.

    Raise the errors of msgspec.
    """
    # The keys of a JSON object are strings, and an integer may be written as 3.0.
    return msgspec.convert(_normalize_integers(value), annotation, strict=strict, str_keys=True, dec_hook=decode_hook)


def to_json(value: Any) -> tuple[Any, bytes]:
    """Encode a value as JSON. Return the JSON data and the JSON text.

    Raises:
        TypeError: a type in the value cannot be represented in JSON.
        ValueError: the value contains NaN, itself, half of a surrogate pair, or keys that are not strings.
    """
    try:
        data = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_hook)
        text = encode(data)
        # msgspec writes NaN and infinity as null, so JSON without null needs no check.
        if b"null" in text and type(data) in _FLOAT_CONTAINER_TYPES and (problem := _find_non_finite(data)):
            raise ValueError(f"not JSON: {problem}")
    except RecursionError:
        raise ValueError("the value cannot be encoded as JSON: it contains itself or is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("the value cannot be encoded as JSON: a string contains half a surrogate pair") from None
    except TypeError as exc:
        if str(exc).startswith("Only dicts with"):
            raise ValueError(
                "the value cannot be encoded as JSON: a dict has keys that are neither strings nor numbers"
            ) from None
        raise
    return data, text


def get_default_factories(class_type: type) -> dict[str, Callable[[], Any]]:
    """Return the default factories of a class. The keys are the field names in JSON."""
    fields: Sequence[msgspec.inspect.Field] = getattr(msgspec.inspect.type_info(class_type), "fields", ())
    return {field.encode_name: field.default_factory for field in fields if callable(field.default_factory)}


def format_reason(exc: msgspec.ValidationError, root: str = "", options: Collection[str] = ()) -> ArgumentMessage:
    """Format an error in one line with its location. The value is left out, because it may be long or secret."""
    text = str(exc)
    location = re.search(_LOCATION_PATTERN, text)
    text_without_path = text[: location.start()] if location else text
    path = location[2] if location else ""
    if re.match(_ECHO_PATTERN, text_without_path):
        option_list = ", ".join(f"`{option}`" for option in options)
        text_without_path = (
            f"expected one of {option_list}" if option_list and not path else "not one of the allowed values"
        )
    text_without_path = clip(text_without_path[:1].lower() + text_without_path[1:], MAX_REASON_CHARS)
    path = f"{root}{path}".removeprefix(".")
    if path and location and location[1]:
        return ArgumentMessage(f"a key of `{path}`: {text_without_path}", path)
    return ArgumentMessage.about(path, text_without_path)


def _build_custom_schema(type_: type) -> dict[str, Any]:
    if is_path_type(type_):
        return {"type": "string"}
    hint = ". For any JSON value, use `Any`" if type_ is object else ""
    raise TypeError(f"the type `{type_.__qualname__}` cannot be represented in JSON{hint}")


def decode_hook(type_: type, value: Any) -> Any:
    if isinstance(value, type_):
        return value
    if is_path_type(type_) and isinstance(value, str):
        return type_(value)
    raise ValueError(f"Expected `{type_.__name__}`, got `{type(value).__name__}`")


def _encode_hook(value: Any) -> Any:
    match value:
        case _ if is_path_type(type(value)):
            return str(value)
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case _ if is_table_type(type(value)):
            return _table_to_json(value)
        case _ if is_pydantic_type(type(value)) or type(value).__module__.startswith("pydantic."):
            # The user's code has already imported pydantic, so this import takes no time.
            from dovetail.server.parameters import pydantic_types

            return pydantic_types.dump(value)
        case _ if hasattr(value, "__await__"):
            raise TypeError(_format_not_awaited(value))
        case _:
            raise TypeError(f"a value of type `{type(value).__qualname__}` cannot be represented in JSON")


def _format_not_awaited(value: Any) -> str:
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if hasattr(value, "close"):
        # A closed coroutine does not cause a warning from Python.
        value.close()
    return f"the coroutine `{name}` was not awaited. {AWAIT_HINT}"


def is_table_type(type_: Any) -> bool:
    """Return whether a class is a data frame, series or array of pandas, polars or numpy.

    This function does not import these libraries.
    """
    return isinstance(type_, type) and type_.__module__.partition(".")[0] in _TABLE_LIBRARIES


def _table_to_json(value: Any) -> Any:
    # Data frames are converted through JSON, because missing values then become null.
    if hasattr(value, "iloc"):
        return msgspec.json.decode(value.to_json(orient="records", date_format="iso"))
    if hasattr(value, "write_json"):
        return msgspec.json.decode(value.write_json())
    for name in ("tolist", "to_list", "isoformat"):  # Timestamps have an `isoformat` method.
        if hasattr(value, name):
            return getattr(value, name)()
    return str(value)


def _normalize_integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_normalize_integers(item) for item in typing.cast("list[Any]", value)]
        case dict():
            return {key: _normalize_integers(item) for key, item in typing.cast("dict[Any, Any]", value).items()}
        case _:
            return value


def _find_non_finite(data: Any, /) -> str:
    """Return the location of the first NaN or infinity, such as "NaN at $.path". Return "" if there is none."""
    if isinstance(data, float):
        return "" if math.isfinite(data) else f"{'NaN' if math.isnan(data) else 'Infinity'} at $"
    pairs: Iterable[tuple[Any, Any]] = data.items() if isinstance(data, dict) else enumerate(data)
    for key, item in pairs:
        if type(item) in _FLOAT_CONTAINER_TYPES and (location := _find_non_finite(item)):
            step = f".{key}" if isinstance(data, dict) else f"[{key}]"
            return location.replace("$", f"${step}", 1)
    return ""


def _find_literal_values(annotations: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each Literal in their written order. msgspec does not keep this order."""
    for annotation in iter_reachable_types(annotations):
        if typing.get_origin(annotation) is typing.Literal:
            yield typing.get_args(annotation)


def format_type_error(exc: TypeError) -> str:
    """Explain in one line why an annotation cannot be represented in JSON."""
    text = str(exc).splitlines()[-1]
    if text.startswith("unhashable"):
        return "its annotation cannot be represented in JSON"
    if "Struct types" in text or "dict-like" in text:
        text += ". JSON cannot distinguish these types. Use one type, or msgspec Structs with a `tag`"
    return text
