"""What an annotation means in JSON: its schema, how JSON becomes its value, how a value becomes JSON.

The one place that decides how a type is bound; signatures, results and forms only ask. Refuses to know who asks.
Invariant: what `read_as` accepts is what `schemas_of` describes, but for members no field has: `closing` sees those.
"""

import contextlib
import functools
import math
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from dovetail.error_context import clip
from dovetail.server.parameters.foreign_types import (
    ForeignType,
    MismatchError,
    format_path,
    is_foreign_type,
    is_pydantic_type,
)
from dovetail.wire.codec import encode

MAX_REASON_CHARS: Final = 200

# Compiled by the first argument that does not fit.
_LOCATION_PATTERN: Final = r" - at (`key` in )?`\$([^`]*)`$"
_ECHO_PATTERN: Final = r"Invalid (?:enum )?value (?=['\"\d-])"
_TABLE_LIBRARIES: Final = frozenset(("pandas", "polars", "numpy"))
_FLOAT_CONTAINER_TYPES: Final = frozenset((float, dict, list, tuple))
UNION_ORIGINS: Final = (types.UnionType, vars(typing)["Union"])  # `|` makes either, by its operands


def build_schemas(annotations: Sequence[Any], *, output: bool = False) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The JSON Schemas of some annotations, written out in full, and the recursive types they refer to.

    Raises:
        TypeError: one of them has no JSON form; the text says why in one line.
    """
    from dovetail.server.parameters.json_schema import (
        SchemaWriter,  # what it takes to look at types is loaded by the first who do
    )

    try:
        nodes = msgspec.inspect.multi_type_info(annotations)
        writer = SchemaWriter(
            functools.partial(_build_custom_schema, output=output), [*_find_literal_values(annotations)], output=output
        )
        return [writer.write(node) for node in nodes], writer.definitions
    except NameError as exc:
        raise TypeError(f"the name `{exc.name}` in its annotations is not defined in its module") from None
    except TypeError as exc:
        raise TypeError(format_type_error(exc)) from None


def build_schema(annotation: Any, *, output: bool = False) -> dict[str, Any]:
    """The JSON Schema of one annotation, as an argument or as a result; its root is never a bare reference.

    Raises:
        TypeError: it has no JSON form.
    """
    (schema,), definitions = build_schemas([annotation], output=output)
    if "$ref" in schema:
        name: str = schema["$ref"].rpartition("/")[2]
        schema = definitions[name] | {key: value for key, value in schema.items() if key != "$ref"}
    return {**schema, "$defs": definitions} if definitions else schema


def convert_value(annotation: Any, value: Any, *, lax: bool = False) -> Any:
    """JSON as a value of the annotated type; instances of it are trusted.

    Raises:
        ValueError: it does not fit; the text says where and why, without quoting values.
    """
    try:
        return msgspec.convert(value, annotation, strict=not lax, dec_hook=_decode_hook)
    except (msgspec.ValidationError, RecursionError):
        pass
    try:
        return convert_leniently(annotation, value, strict=not lax)
    except msgspec.ValidationError as exc:
        raise ValueError(format_reason(exc)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def convert_with_hook(annotation: Any, value: Any, *, strict: bool) -> Any:
    """The way to read types msgspec does not know by itself: raises what msgspec raises."""
    return msgspec.convert(value, annotation, strict=strict, dec_hook=_decode_hook)


def convert_leniently(annotation: Any, value: Any, *, strict: bool) -> Any:
    """The dear way to read, for what the cheap way refused: raises what msgspec raises."""
    # JSON spells every key as text and may spell an integer as 3.0.
    return msgspec.convert(_normalize_integers(value), annotation, strict=strict, str_keys=True, dec_hook=_decode_hook)


def to_json(value: Any) -> tuple[Any, bytes]:
    """A value as dicts, lists, strings and numbers, and as JSON text.

    Raises:
        TypeError: a type in it has no JSON form.
        ValueError: the value has none: NaN, a cycle, half a surrogate pair, keys that are not text.
    """
    try:
        data = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_hook)
        text = encode(data)
        # msgspec writes null for what is not a number, so without a null there is nothing to look for.
        if b"null" in text and type(data) in _FLOAT_CONTAINER_TYPES and (problem := _find_non_finite(data)):
            raise ValueError(f"not JSON: {problem}")
    except RecursionError:
        raise ValueError("not JSON: the value contains itself, or is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("not JSON: a text in it contains half a surrogate pair") from None
    except TypeError as exc:
        if str(exc).startswith("Only dicts with"):
            raise ValueError("not JSON: a dict has keys that are neither text nor numbers") from None
        raise
    return data, text


def get_default_factories(class_type: type) -> dict[str, Callable[[], Any]]:
    """The fields of a class whose default is made anew each time, by their name on the wire; no schema shows them."""
    fields: Sequence[msgspec.inspect.Field] = getattr(msgspec.inspect.type_info(class_type), "fields", ())
    return {field.encode_name: field.default_factory for field in fields if callable(field.default_factory)}


def unwrap_annotation(annotation: Any) -> Any:
    """The annotation without what is said about it: no Annotated, Required, NewType or alias around it."""
    while True:
        if typing.get_origin(annotation) is Annotated:
            annotation = annotation.__origin__
        elif typing.get_origin(annotation) in (typing.Required, typing.NotRequired):
            (annotation,) = typing.get_args(annotation)
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return types.NoneType if annotation is None else annotation


def list_alternatives(annotation: Any) -> list[Any]:
    """The members of a union, peeled; the peeled annotation itself if it is none."""
    unwrapped = unwrap_annotation(annotation)
    if typing.get_origin(unwrapped) not in UNION_ORIGINS:
        return [unwrapped]
    return [alternative for member in typing.get_args(unwrapped) for alternative in list_alternatives(member)]


def normalize_annotation(annotation: Any) -> Any:
    """An argument's annotation in words msgspec has: an Iterable is a list, an alias what it stands for."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Iterable or origin is Iterable:
        return list[normalize_annotation(arguments[0])] if arguments else list
    if (type(annotation).__module__, type(annotation).__name__) == ("typing_extensions", "TypeAliasType"):
        return normalize_annotation(annotation.__value__)
    if origin is Annotated:
        inner = normalize_annotation(arguments[0])
        return annotation if inner is arguments[0] else Annotated[(inner, *annotation.__metadata__)]
    if origin in UNION_ORIGINS:
        members = [normalize_annotation(argument) for argument in arguments]
        is_unchanged = all(new is old for new, old in zip(members, arguments, strict=True))
        return annotation if is_unchanged else functools.reduce(operator.or_, members)
    return annotation


def is_subclass_of(annotation: Any, parent: type) -> bool:
    """Whether the annotation is this class, one below it, or either of them with parameters."""
    annotation = typing.get_origin(annotation) or annotation
    return isinstance(annotation, type) and issubclass(annotation, parent)


def is_path_type(annotation: Any) -> bool:
    """Whether the annotation names a path. Whoever has one has loaded the module, which brings a dozen others."""
    pathlib = sys.modules.get("pathlib")
    return pathlib is not None and is_subclass_of(annotation, pathlib.PurePath)


def format_reason(exc: msgspec.ValidationError, root: str = "", options: Collection[str] = ()) -> str:
    """One line: where and why. Never the value, which may be long or secret."""
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
    if not path:
        return text_without_path
    return f"a key of `{path}`: {text_without_path}" if location and location[1] else f"`{path}`: {text_without_path}"


def format_reasons(exc: MismatchError, prefix: str) -> Iterator[str]:
    """One line for each thing wrong; `place` is the reason of the whole, which begins with where it stands."""
    root = prefix[1:].partition("`")[0] if prefix.startswith("`") else ""
    for path, reason in exc.mismatches:
        full_path = format_path(path, root)
        text = clip(reason[:1].lower() + reason[1:], MAX_REASON_CHARS)
        yield f"`{full_path}`: {text}" if full_path else text


def _build_custom_schema(type_: type, *, output: bool) -> dict[str, Any]:
    if is_foreign_type(type_):
        return typing.cast("type[ForeignType]", type_).schema(output)
    if is_path_type(type_):
        return {"type": "string"}
    if is_pydantic_type(type_):
        from dovetail.server.parameters import pydantic_types  # the author has it loaded already

        return pydantic_types.build_schema(type_, output=output)
    raise TypeError(f"the type `{type_.__qualname__}` has no JSON form")


def _decode_hook(type_: type, value: Any) -> Any:
    if is_foreign_type(type_):
        return typing.cast("type[ForeignType]", type_).read(value)
    if isinstance(value, type_):
        return value
    if is_pydantic_type(type_):
        from dovetail.server.parameters import pydantic_types

        return pydantic_types.validate(type_, value)
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
            from dovetail.server.parameters import pydantic_types

            return pydantic_types.dump(value)
        case _ if hasattr(value, "__await__"):
            raise TypeError(_format_not_awaited(value))
        case _:
            raise TypeError(f"a value of type `{type(value).__qualname__}` has no JSON form")


def _format_not_awaited(value: Any) -> str:
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if hasattr(value, "close"):
        value.close()  # or Python complains of it once more, later and elsewhere
    return (
        f"`{name}` was not awaited: write `await` before it, in an `async def`; in a plain function, Context.wait(...)"
    )


def is_table_type(type_: Any) -> bool:
    """Whether a class is a frame, series or array of pandas, polars or numpy; told by name, never imported."""
    return isinstance(type_, type) and type_.__module__.partition(".")[0] in _TABLE_LIBRARIES


def _table_to_json(value: Any) -> Any:
    """A frame as a list of records, anything with a dimension less as a list or a number."""
    # Their own writers say null for what is missing.
    if hasattr(value, "iloc"):
        return msgspec.json.decode(value.to_json(orient="records", date_format="iso"))
    if hasattr(value, "write_json"):
        return msgspec.json.decode(value.write_json())
    for name in ("tolist", "to_list", "isoformat"):  # the last for a moment, which is a datetime with more to it
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
    """Where the first float is that JSON cannot write, as "NaN at $.path"; empty if there is none."""
    if isinstance(data, float):
        return "" if math.isfinite(data) else f"{'NaN' if math.isnan(data) else 'Infinity'} at $"
    pairs: Iterable[tuple[Any, Any]] = data.items() if isinstance(data, dict) else enumerate(data)
    for key, item in pairs:
        if type(item) in _FLOAT_CONTAINER_TYPES and (location := _find_non_finite(item)):
            step = f".{key}" if isinstance(data, dict) else f"[{key}]"
            return location.replace("$", f"${step}", 1)
    return ""


def iter_reachable_types(annotations: Sequence[Any]) -> Iterator[Any]:
    """Some annotations and all that stand in them, in classes with fields too; peeled, each once."""
    seen_ids: set[int] = set()
    pending = list(annotations)
    while pending:
        annotation = unwrap_annotation(pending.pop(0))
        if id(annotation) in seen_ids:
            continue
        seen_ids.add(id(annotation))
        yield annotation
        origin = typing.get_origin(annotation) or annotation
        if isinstance(origin, type) and not is_pydantic_type(origin):
            with contextlib.suppress(Exception):  # what cannot be read here is told when the schema is made
                pending += typing.get_type_hints(origin, include_extras=True).values()
        pending += typing.get_args(annotation) if typing.get_origin(annotation) is not typing.Literal else ()


def _find_literal_values(annotations: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The values of every Literal as their author wrote them, which msgspec does not remember."""
    for annotation in iter_reachable_types(annotations):
        if typing.get_origin(annotation) is typing.Literal:
            yield typing.get_args(annotation)


def format_type_error(exc: TypeError) -> str:
    """Why an annotation has no JSON form, in one line."""
    text = str(exc).splitlines()[-1]
    if text.startswith("unhashable"):
        return "its annotation has no JSON form"
    if "Struct types" in text or "dict-like" in text:
        text += "; JSON cannot tell these apart: use one type, or msgspec Structs with a `tag`"
    return text
