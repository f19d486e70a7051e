"""Arguments that did not fit: mended where a model only wrote them as text, or explained, every misfit at once.

Works on the schema and the decoded JSON, and only after a conversion has failed, so a call that fits pays nothing.
"""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from dovetail.errors import ParseError, clip
from dovetail.wire.codec import decode

MAX_NAMES: Final = 20  # of each kind in one error text: enough to repair a call, too few to be an echo
MAX_NAME: Final = 64
MAX_TEXT: Final = 2048
_MAX_SUGGESTIONS: Final = 5  # comparing names costs more than all else here
_MAX_OPTIONS: Final = 20
_MAX_DEPTH: Final = 64
_MAX_PATTERN: Final = 200
_MAX_BRANCHES: Final = 4
_REF: Final = "#/$defs/"

_EXAMPLES: Final = {
    "date-time": "a date and time such as `1999-12-31T09:30:00Z`",
    "date": "a date such as `1999-12-31`",
    "time": "a time such as `09:30:00`",
    "duration": "a duration such as `PT1H30M`",
    "uuid": "a UUID such as `6f1c2b7a-e64d-4c3a-9f1c-2b7ae64d0a51`",
    "decimal": "a decimal number such as `12.50`",
    "base64": "base64 such as `aGVsbG8=`",
}

# The names msgspec has for JSON's types, so that all reasons read alike.
_NAMES: Final = {"integer": "int", "number": "float", "string": "str", "boolean": "bool"}
_BOUNDS: Final[tuple[tuple[str, str, Callable[[Any, Any], bool]], ...]] = (
    ("minimum", "must be at least", operator.ge),
    ("exclusiveMinimum", "must be more than", operator.gt),
    ("maximum", "must be at most", operator.le),
    ("exclusiveMaximum", "must be less than", operator.lt),
    ("minLength", "must have a length of at least", operator.ge),
    ("maxLength", "must have a length of at most", operator.le),
    ("minItems", "must have a length of at least", operator.ge),
    ("maxItems", "must have a length of at most", operator.le),
)

_NOTHING: Final = object()

Schema = Mapping[str, Any]


class Stranger(str):
    """A line about members that nobody knows: readers of values pass over these."""

    __slots__ = ()


class _Place(NamedTuple):
    """A value, the schema it stands under, and the way to it."""

    schema: Schema
    shared: Schema
    path: str
    depth: int = 0
    branches: int = 0  # how often on the way there was more than one alternative

    def inner(self, schema: Any, step: str) -> "_Place":
        return self._replace(
            schema=schema if isinstance(schema, dict) else {}, path=f"{self.path}{step}", depth=self.depth + 1
        )


def mended(schema: Schema, value: Any) -> Any:
    """The value with every text decoded that stands where no text may, but what it says in JSON may; or the same value.

    A text that the schema allows is never touched. Null for what may be left out but not be null is left out.
    """
    return _mended(_Place(schema, _table(schema, "$defs"), ""), value)


def misfits(schema: Schema, value: Any, shared: Schema, path: str) -> Iterator[str]:
    """Everything about a value that its schema forbids, one line each; never the value, which may be long or secret."""
    yield from _misfits(_Place(schema, shared, path), value)


def posing(schema: Schema, value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every boolean that stands where only a number may, which Python takes for one: the way to it, and why not."""
    yield from _posing(_Place(schema, schema.get("$defs", {}), ""), value, ())


def _posing(place: _Place, value: Any, way: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    schemas = _open(place)
    if not schemas or place.depth > _MAX_DEPTH:
        return
    if isinstance(value, bool):
        kinds = {str(schema["type"]) for schema in schemas}
        if "boolean" not in kinds and not kinds.isdisjoint(("integer", "number")):
            yield way, f"expected {_alternatives(schemas)}, got `bool`"
        return
    found = fitting(schemas, value) if isinstance(value, (dict, list)) else []
    if len(found) > 1:
        place = place._replace(branches=place.branches + 1)
        found = found if place.branches <= _MAX_BRANCHES else found[:1]
    inside = [[*_posing_inside(place._replace(schema=schema), value, way)] for schema in found]
    yield from min(inside, key=len, default=())


def _posing_inside(
    place: _Place, value: dict[str, Any] | list[Any], way: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield from _posing(place.inner(_item_schema(place.schema, at), ""), one, (*way, at))
        return
    for name, one in value.items():
        yield from _posing(place.inner(_member_schema(place.schema, name), ""), one, (*way, name))


def listed(names: Sequence[str], candidates: Collection[str] = ()) -> str:
    """Names in one line, each with the candidate it may stand for."""
    import difflib  # only mistaken calls pay for it

    texts: list[str] = []
    for index, name in enumerate(names[:MAX_NAMES]):
        close = difflib.get_close_matches(name[:MAX_NAME], candidates, n=1) if index < _MAX_SUGGESTIONS else ()
        texts.append(f"`{clip(name, MAX_NAME)}`" + (f" (did you mean `{close[0]}`?)" if close else ""))
    return ", ".join(texts) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def unlike(pattern: str) -> str:
    """What is told of a text that does not fit."""
    return f"does not fit the pattern `{clip(pattern, _MAX_PATTERN)}`"


def type_words(types: Sequence[str], value: Any) -> str:
    """What is told of a value of another type."""
    return f"expected `{' | '.join(_NAMES.get(one, one) for one in types)}`, got `{_type_name(value)}`"


def cut(text: str) -> str:
    """A text for a model, bounded."""
    raw = text.encode()
    return text if len(raw) <= MAX_TEXT else raw[: MAX_TEXT - 3].decode("utf-8", "ignore") + "…"


def _mended(place: _Place, value: Any) -> Any:
    schemas = _open(place)
    if place.depth > _MAX_DEPTH or not schemas:
        return value
    if isinstance(value, str):
        if any(_allows(schema, value) for schema in schemas):
            return value
        found = _decoded(value)
        if found is None or not any(_allows(schema, found[0]) for schema in schemas):
            return value
        return _mended(place._replace(depth=place.depth + 1), found[0])
    schema = next(iter(fitting(schemas, value)), None)
    if schema is None or not isinstance(value, (dict, list)):
        return value
    return _mended_members(place._replace(schema=schema), cast("dict[str, Any] | list[Any]", value))


def _mended_members(place: _Place, value: dict[str, Any] | list[Any]) -> Any:
    if isinstance(value, list):
        items = [_mended(place.inner(_item_schema(place.schema, at), ""), one) for at, one in enumerate(value)]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    members = {
        name: _mended(place.inner(_member_schema(place.schema, name), ""), one)
        for name, one in value.items()
        if one is not None or not _left_out(place, name)
    }
    same = len(members) == len(value) and all(members[name] is one for name, one in value.items())
    return value if same else members


def _left_out(place: _Place, name: str) -> bool:
    """Whether null can only mean that nothing was said; a model that must name everything says so."""
    properties, required = _table(place.schema, "properties"), place.schema.get("required", ())
    optional = name in properties and isinstance(required, (list, tuple)) and name not in required
    schemas = _open(place.inner(properties[name], "")) if optional else []
    return bool(schemas) and not any(_allows(schema, None) for schema in schemas)


def _misfits(place: _Place, value: Any) -> Iterator[str]:
    schemas = _open(place)
    if not schemas or place.depth > _MAX_DEPTH:
        return
    found = fitting(schemas, value)
    if not found:
        what = "text that is no such JSON" if _is_broken(schemas, value) else f"`{_type_name(value)}`"
        yield f"`{place.path}`: expected {_alternatives(schemas)}, got {what}"
    elif len(found) > 1 and (mark := _mark(found, value)):
        name, options = mark
        where = f"`{place.path}.{clip(name, MAX_NAME)}`"
        yield f"{where}: {'expected' if name in value else 'missing;'} one of {_options(options)}"
    elif len(found) == 1 or place.branches >= _MAX_BRANCHES:
        yield from _inside(place._replace(schema=found[0]), value)
    else:
        # Each alternative may branch again, so the effort grows with the power of how often it has.
        branched = place._replace(branches=place.branches + 1)
        yield from min(([*_inside(branched._replace(schema=schema), value)] for schema in found), key=len)


def _is_broken(schemas: Sequence[Schema], value: Any) -> bool:
    """Whether a text tried to be an object or an array; nothing else could be meant where one has to stand."""
    return isinstance(value, str) and all(schema["type"] in ("object", "array", "null") for schema in schemas)


def _inside(place: _Place, value: Any) -> Iterator[str]:
    schema = place.schema
    if "enum" in schema and value not in schema["enum"]:
        yield f"`{place.path}`: expected one of {_options(schema['enum'])}"
        return
    measure = len(value) if isinstance(value, (str, list)) else value
    for keyword, words, holds in _BOUNDS:
        if keyword in schema and not holds(measure, schema[keyword]):
            yield f"`{place.path}`: {words} {schema[keyword]}"
    if isinstance(value, str) and (why := _ill_formed(schema, value)):
        yield f"`{place.path}`: {why}"
    if isinstance(value, list):
        for at, item in enumerate(cast("list[Any]", value)):
            yield from _misfits(place.inner(_item_schema(schema, at), f"[{at}]"), item)
    elif isinstance(value, dict):
        yield from _inside_object(place, cast("dict[str, Any]", value))


def _options(options: Sequence[Any]) -> str:
    shown = ", ".join(f"`{clip('null' if one is None else str(one), MAX_NAME)}`" for one in options[:_MAX_OPTIONS])
    return f"{shown}{' and others' if len(options) > _MAX_OPTIONS else ''}"


def _mark(schemas: Sequence[Schema], value: Any) -> tuple[str, list[Any]] | None:
    """The member that tells these kinds of object apart, and all it may be; None if the value has it right."""
    marks = [_tags(schema) for schema in schemas] if isinstance(value, dict) else []
    for name in marks[0] if marks else ():
        options = [one for tags in marks for one in tags.get(name, ())]
        if len(options) == len(marks) and value.get(name, _NOTHING) not in options:
            return name, options
    return None


def _ill_formed(schema: Schema, value: str) -> str:
    """What is wrong with a text that stands for something else, such as a date; empty if nothing is."""
    if "format" not in schema and "contentEncoding" not in schema:
        return ""
    import datetime
    import decimal
    import uuid

    kinds = {
        "date-time": datetime.datetime,
        "date": datetime.date,
        "time": datetime.time,
        "duration": datetime.timedelta,
        "uuid": uuid.UUID,
        "decimal": decimal.Decimal,
        "base64": bytes,
    }
    form = schema.get("format") or schema.get("contentEncoding", "")
    try:
        msgspec.convert(value, kinds.get(form, str))
    except msgspec.ValidationError:
        return f"expected {_EXAMPLES[form]}"
    return ""


def _inside_object(place: _Place, value: dict[str, Any]) -> Iterator[str]:
    properties: Mapping[str, Any] = place.schema.get("properties", {})
    missing = [name for name in place.schema.get("required", ()) if name not in value]
    for name in missing[:MAX_NAMES]:
        yield f"`{place.path}.{clip(name, MAX_NAME)}`: missing"
    if place.schema.get("additionalProperties") is False:
        unknown = [name for name in value if name not in properties]
        unused = [name for name in properties if name not in value][:MAX_NAMES]
        if unknown:
            yield Stranger(f"`{place.path}`: unknown {listed(unknown, unused)}")
    for name, member in value.items():
        yield from _misfits(place.inner(_member_schema(place.schema, name), f".{clip(name, MAX_NAME)}"), member)


def _open(place: _Place) -> list[Schema]:
    """The alternatives of a schema, references followed; none where anything may stand."""
    todo, found = [place.schema], list[Schema]()
    for _ in range(_MAX_DEPTH):
        if not todo:
            return found
        schema = todo.pop(0)
        if "$ref" in schema:
            todo.insert(0, _table(place.shared, str(schema["$ref"]).removeprefix(_REF)))
        elif inner := schema.get("anyOf") or schema.get("oneOf"):
            if not isinstance(inner, list) or not all(isinstance(one, dict) for one in inner):
                return []  # `true` allows everything
            todo = [*inner, *todo]
        elif isinstance(schema.get("type"), str):
            found.append(schema)
        else:
            return []
    return []


def fitting(schemas: Sequence[Schema], value: Any) -> list[Schema]:
    """The alternatives of the right type; of several kinds of object, those whose tag the value has."""
    found = [schema for schema in schemas if _allows(schema, value)]
    if len(found) > 1 and isinstance(value, dict):
        found = [schema for schema in found if _tagged(schema, cast("dict[str, Any]", value))] or found
    return found


def _tagged(schema: Schema, value: dict[str, Any]) -> bool:
    tags = _tags(schema)
    return bool(tags) and all(value.get(name) in allowed for name, allowed in tags.items())


def _tags(schema: Schema) -> dict[str, list[Any]]:
    """The members of an object that can only have one value."""
    members = {name: one.get("enum") for name, one in _table(schema, "properties").items() if isinstance(one, dict)}
    return {name: choices for name, choices in members.items() if isinstance(choices, list) and len(choices) == 1}


def _allows(schema: Schema, value: Any) -> bool:
    match schema["type"]:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "null":
            return value is None
        case _:
            return True


def _decoded(text: str) -> tuple[Any] | None:
    try:
        return (decode(text.strip().encode()),)
    except (ParseError, UnicodeEncodeError):
        return None


def _item_schema(schema: Schema, at: int) -> Any:
    prefix = schema.get("prefixItems", ())
    return prefix[at] if isinstance(prefix, (list, tuple)) and at < len(prefix) else schema.get("items")


def _member_schema(schema: Schema, name: str) -> Any:
    return _table(schema, "properties").get(name) or schema.get("additionalProperties")


def _table(schema: Schema, name: str) -> Schema:
    """A member that is an object; an empty one where a schema, which may be a stranger's, has something else."""
    found = schema.get(name)
    return cast("Schema", found) if isinstance(found, dict) else {}


def _alternatives(schemas: Sequence[Schema]) -> str:
    kinds = dict.fromkeys(_NAMES.get(kind, kind) for kind in (str(schema["type"]) for schema in schemas))
    return f"`{' | '.join(kinds)}`"


def _type_name(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case None:
            return "null"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return type(value).__name__
