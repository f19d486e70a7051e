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

from dovetail.errors import clip
from dovetail.server.foreign import Foreign, Misfits, is_foreign, is_model, way
from dovetail.wire.codec import encode

MAX_REASON: Final = 200

# Compiled by the first argument that does not fit.
_PLACE: Final = r" - at (`key` in )?`\$([^`]*)`$"
_ECHO: Final = r"Invalid (?:enum )?value (?=['\"\d-])"
_TABLES: Final = frozenset(("pandas", "polars", "numpy"))
_MAY_HOLD_FLOATS: Final = frozenset((float, dict, list, tuple))
UNIONS: Final = (types.UnionType, vars(typing)["Union"])  # `|` makes either, by its operands


def schemas_of(kinds: Sequence[Any], *, output: bool = False) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The JSON Schemas of some annotations, written out in full, and the recursive types they refer to.

    Raises:
        TypeError: one of them has no JSON form; the text says why in one line.
    """
    from dovetail.server.shapes import Shapes  # what it takes to look at types is loaded by the first who do

    try:
        nodes = msgspec.inspect.multi_type_info(kinds)
        shapes = Shapes(functools.partial(_schema_hook, output=output), [*_orders(kinds)], output=output)
        return [shapes.write(node) for node in nodes], shapes.shared
    except NameError as exc:
        raise TypeError(f"the name `{exc.name}` in its annotations is not defined in its module") from None
    except TypeError as exc:
        raise TypeError(why_not(exc)) from None


def schema_of(kind: Any, *, output: bool = False) -> dict[str, Any]:
    """The JSON Schema of one annotation, as an argument or as a result; its root is never a bare reference.

    Raises:
        TypeError: it has no JSON form.
    """
    (schema,), shared = schemas_of([kind], output=output)
    if "$ref" in schema:
        name: str = schema["$ref"].rpartition("/")[2]
        schema = shared[name] | {key: value for key, value in schema.items() if key != "$ref"}
    return {**schema, "$defs": shared} if shared else schema


def read_as(kind: Any, value: Any, *, lax: bool = False) -> Any:
    """JSON as a value of the annotated type; instances of it are trusted.

    Raises:
        ValueError: it does not fit; the text says where and why, without quoting values.
    """
    try:
        return msgspec.convert(value, kind, strict=not lax, dec_hook=_decode)
    except (msgspec.ValidationError, RecursionError):
        pass
    try:
        return read_closely(kind, value, strict=not lax)
    except msgspec.ValidationError as exc:
        raise ValueError(reason(exc)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_hooked(kind: Any, value: Any, *, strict: bool) -> Any:
    """The way to read types msgspec does not know by itself: raises what msgspec raises."""
    return msgspec.convert(value, kind, strict=strict, dec_hook=_decode)


def read_closely(kind: Any, value: Any, *, strict: bool) -> Any:
    """The dear way to read, for what the cheap way refused: raises what msgspec raises."""
    # JSON spells every key as text and may spell an integer as 3.0.
    return msgspec.convert(_whole(value), kind, strict=strict, str_keys=True, dec_hook=_decode)


def to_json(value: Any) -> tuple[Any, bytes]:
    """A value as dicts, lists, strings and numbers, and as JSON text.

    Raises:
        TypeError: a type in it has no JSON form.
        ValueError: the value has none: NaN, a cycle, half a surrogate pair, keys that are not text.
    """
    try:
        data = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)
        text = encode(data)
        # msgspec writes null for what is not a number, so without a null there is nothing to look for.
        if b"null" in text and type(data) in _MAY_HOLD_FLOATS and (found := _not_a_number(data)):
            raise ValueError(f"not JSON: {found}")
    except RecursionError:
        raise ValueError("not JSON: the value contains itself, or is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("not JSON: a text in it contains half a surrogate pair") from None
    except TypeError as exc:
        if str(exc).startswith("Only dicts with"):
            raise ValueError("not JSON: a dict has keys that are neither text nor numbers") from None
        raise
    return data, text


def default_factories(kind: type) -> dict[str, Callable[[], Any]]:
    """The fields of a class whose default is made anew each time, by their name on the wire; no schema shows them."""
    fields: Sequence[msgspec.inspect.Field] = getattr(msgspec.inspect.type_info(kind), "fields", ())
    return {field.encode_name: field.default_factory for field in fields if callable(field.default_factory)}


def peel(annotation: Any) -> Any:
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


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, peeled; the peeled annotation itself if it is none."""
    kind = peel(annotation)
    if typing.get_origin(kind) not in UNIONS:
        return [kind]
    return [found for member in typing.get_args(kind) for found in alternatives(member)]


def usual(annotation: Any) -> Any:
    """An argument's annotation in words msgspec has: an Iterable is a list, an alias what it stands for."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Iterable or origin is Iterable:
        return list[usual(arguments[0])] if arguments else list
    if (type(annotation).__module__, type(annotation).__name__) == ("typing_extensions", "TypeAliasType"):
        return usual(annotation.__value__)
    if origin is Annotated:
        inner = usual(arguments[0])
        return annotation if inner is arguments[0] else Annotated[(inner, *annotation.__metadata__)]
    if origin in UNIONS:
        members = [usual(one) for one in arguments]
        same = all(new is old for new, old in zip(members, arguments, strict=True))
        return annotation if same else functools.reduce(operator.or_, members)
    return annotation


def is_a(kind: Any, parent: type) -> bool:
    """Whether the annotation is this class, one below it, or either of them with parameters."""
    kind = typing.get_origin(kind) or kind
    return isinstance(kind, type) and issubclass(kind, parent)


def is_path(kind: Any) -> bool:
    """Whether the annotation names a path. Whoever has one has loaded the module, which brings a dozen others."""
    pathlib = sys.modules.get("pathlib")
    return pathlib is not None and is_a(kind, pathlib.PurePath)


def reason(exc: msgspec.ValidationError, root: str = "", options: Collection[str] = ()) -> str:
    """One line: where and why. Never the value, which may be long or secret."""
    text = str(exc)
    place = re.search(_PLACE, text)
    why = text[: place.start()] if place else text
    path = place[2] if place else ""
    if re.match(_ECHO, why):
        listed = ", ".join(f"`{option}`" for option in options)
        why = f"expected one of {listed}" if listed and not path else "not one of the allowed values"
    why = clip(why[:1].lower() + why[1:], MAX_REASON)
    path = f"{root}{path}".removeprefix(".")
    if not path:
        return why
    return f"a key of `{path}`: {why}" if place and place[1] else f"`{path}`: {why}"


def reasons(exc: Misfits, place: str) -> Iterator[str]:
    """One line for each thing wrong; `place` is the reason of the whole, which begins with where it stands."""
    root = place[1:].partition("`")[0] if place.startswith("`") else ""
    for path, why in exc.places:
        where = way(path, root)
        text = clip(why[:1].lower() + why[1:], MAX_REASON)
        yield f"`{where}`: {text}" if where else text


def _schema_hook(kind: type, *, output: bool) -> dict[str, Any]:
    if is_foreign(kind):
        return typing.cast("type[Foreign]", kind).schema(output)
    if is_path(kind):
        return {"type": "string"}
    if is_model(kind):
        from dovetail.server import models  # the author has it loaded already

        return models.schema(kind, output=output)
    raise TypeError(f"the type `{kind.__qualname__}` has no JSON form")


def _decode(kind: type, value: Any) -> Any:
    if is_foreign(kind):
        return typing.cast("type[Foreign]", kind).read(value)
    if isinstance(value, kind):
        return value
    if is_model(kind):
        from dovetail.server import models

        return models.read(kind, value)
    if is_path(kind) and isinstance(value, str):
        return kind(value)
    raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _encode(value: Any) -> Any:
    match value:
        case _ if is_path(type(value)):
            return str(value)
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case _ if is_table(type(value)):
            return _rows(value)
        case _ if is_model(type(value)) or type(value).__module__.startswith("pydantic."):
            from dovetail.server import models

            return models.dump(value)
        case _ if hasattr(value, "__await__"):
            raise TypeError(_not_awaited(value))
        case _:
            raise TypeError(f"a value of type `{type(value).__qualname__}` has no JSON form")


def _not_awaited(value: Any) -> str:
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if hasattr(value, "close"):
        value.close()  # or Python complains of it once more, later and elsewhere
    return (
        f"`{name}` was not awaited: write `await` before it, in an `async def`; in a plain function, Context.wait(...)"
    )


def is_table(kind: Any) -> bool:
    """Whether a class is a frame, series or array of pandas, polars or numpy; told by name, never imported."""
    return isinstance(kind, type) and kind.__module__.partition(".")[0] in _TABLES


def _rows(value: Any) -> Any:
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


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_whole(item) for item in typing.cast("list[Any]", value)]
        case dict():
            return {key: _whole(item) for key, item in typing.cast("dict[Any, Any]", value).items()}
        case _:
            return value


def _not_a_number(data: Any, /) -> str:
    """Where the first float is that JSON cannot write, as "NaN at $.path"; empty if there is none."""
    if isinstance(data, float):
        return "" if math.isfinite(data) else f"{'NaN' if math.isnan(data) else 'Infinity'} at $"
    pairs: Iterable[tuple[Any, Any]] = data.items() if isinstance(data, dict) else enumerate(data)
    for key, item in pairs:
        if type(item) in _MAY_HOLD_FLOATS and (found := _not_a_number(item)):
            step = f".{key}" if isinstance(data, dict) else f"[{key}]"
            return found.replace("$", f"${step}", 1)
    return ""


def reachable(kinds: Sequence[Any]) -> Iterator[Any]:
    """Some annotations and all that stand in them, in classes with fields too; peeled, each once."""
    met: set[int] = set()
    todo = list(kinds)
    while todo:
        kind = peel(todo.pop(0))
        if id(kind) in met:
            continue
        met.add(id(kind))
        yield kind
        home = typing.get_origin(kind) or kind
        if isinstance(home, type) and not is_model(home):
            with contextlib.suppress(Exception):  # what cannot be read here is told when the schema is made
                todo += typing.get_type_hints(home, include_extras=True).values()
        todo += typing.get_args(kind) if typing.get_origin(kind) is not typing.Literal else ()


def _orders(kinds: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The values of every Literal as their author wrote them, which msgspec does not remember."""
    for kind in reachable(kinds):
        if typing.get_origin(kind) is typing.Literal:
            yield typing.get_args(kind)


def why_not(exc: TypeError) -> str:
    """Why an annotation has no JSON form, in one line."""
    text = str(exc).splitlines()[-1]
    if text.startswith("unhashable"):
        return "its annotation has no JSON form"
    if "Struct types" in text or "dict-like" in text:
        text += "; JSON cannot tell these apart: use one type, or msgspec Structs with a `tag`"
    return text
