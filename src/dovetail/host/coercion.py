"""What a server may make of the arguments of a call.

A model may write a number, a boolean or an object as text, and most servers accept that. `normalize` decodes such texts
where the tool's schema is clear about it, so that a policy judges the values the server will use. Elsewhere `readings`
lists the values a server may take an argument for.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from dovetail.errors import ParseError
from dovetail.server.arguments import mended
from dovetail.wire.codec import decode, encode

NOTHING: Final = object()  # no value is there
UNCLEAR: Final = object()  # a value that the schema forbids: the server refuses it, or coerces it in a way of its own

_ANY_TYPE: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_TYPES: Final[Mapping[str, frozenset[str]]] = {
    **{name: frozenset({name}) for name in _ANY_TYPE},
    "number": frozenset({"number", "integer"}),
}
_BOOLEANS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
_MAX_SCHEMAS: Final = 256  # looked at for one value; a schema that takes more says nothing
_MAX_NESTED_TEXTS: Final = 4

Schema: TypeAlias = Mapping[str, Any]


def normalize(schema: Schema | None, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments with each text decoded that the schema allows only as another type."""
    if not schema or all(_is_certain(schema, name, value) for name, value in arguments.items()):
        return arguments  # most calls: walking through a schema takes thirty times as long
    return mended(schema, arguments)


def _is_certain(schema: Schema, name: str, value: Any) -> bool:
    """Whether an argument needs no second look: a number, a boolean, or a text that is declared as one."""
    if isinstance(value, str):
        declared = _member(schema, name)
        return isinstance(declared, Mapping) and declared.get("type") == "string"
    return isinstance(value, bool | int | float)


class Expected(NamedTuple):
    """The schemas one value may have to fit, any of them; with none, anything is possible."""

    schemas: Sequence[Any]
    root: Schema

    @property
    def types(self) -> frozenset[str]:
        """The JSON types that are possible, and perhaps some that are not."""
        if not self.schemas:
            return _ANY_TYPE
        budget = iter(range(_MAX_SCHEMAS))
        return frozenset[str]().union(*(_types(schema, self.root, budget) for schema in self.schemas))

    def inside(self, step: str | int) -> "Expected":
        """The schemas for one member of an object, or one item of an array."""
        budget = iter(range(_MAX_SCHEMAS))
        found = [_inner(schema, self.root, step, budget) for schema in self.schemas]
        return Expected([one for each in found for one in each] if all(found) else (), self.root)


def expected(schema: Schema | None) -> Expected:
    """What is expected of the arguments of a tool with this schema."""
    return Expected((), {}) if schema is None else Expected((schema,), schema)


def readings(value: Any, wanted: Expected) -> list[Any]:
    """Return the values a server may take this one for, first the value itself; UNCLEAR if the schema forbids it."""
    types, own = wanted.types, json_type(value)
    if own not in types:
        return [UNCLEAR]
    if types == frozenset({own}):
        return [value]
    return [value, *(one for one in _coerced(value, _MAX_NESTED_TEXTS) if one is UNCLEAR or json_type(one) in types)]


def places(arguments: Mapping[str, Any], pointer: str, schema: Schema | None) -> Iterator[tuple[Any, Expected]]:
    """Yield each value a server may find at a JSON pointer, NOTHING or UNCLEAR included; at least one."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]
    yield from _walk(arguments, expected(schema), steps)


def _walk(value: Any, wanted: Expected, steps: Sequence[str]) -> Iterator[tuple[Any, Expected]]:
    if not steps:
        yield value, wanted
        return
    step, rest = steps[0], steps[1:]
    for reading in readings(value, wanted):
        if isinstance(reading, Mapping) and step in reading:
            yield from _walk(reading[step], wanted.inside(step), rest)
        elif isinstance(reading, list) and step.isascii() and step.isdigit() and int(step) < len(reading):
            yield from _walk(reading[int(step)], wanted.inside(int(step)), rest)
        else:
            yield UNCLEAR if reading is UNCLEAR else NOTHING, wanted


def json_type(value: Any) -> str:
    """The name of a value's type in JSON Schema; a number without a fraction is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


# Coercions, as pydantic and other validators make them


def _coerced(value: Any, nested: int) -> Iterator[Any]:
    if isinstance(value, str):
        yield from _coerced_text(value.strip(), nested)
    elif isinstance(value, bool | int | float):
        if value in (0, 1):
            yield int(value) if isinstance(value, bool) else bool(value)
        yield encode(value).decode()
        yield str(value)


def _coerced_text(text: str, nested: int) -> Iterator[Any]:
    for scalar in (_BOOLEANS.get(text.lower()), _number(text)):
        if scalar is not None:
            yield scalar
            yield from _coerced(scalar, nested)
    try:
        decoded = decode(text.encode())
    except (ParseError, UnicodeEncodeError):
        return
    yield decoded
    if isinstance(decoded, str):
        yield from _coerced_text(decoded.strip(), nested - 1) if nested else (UNCLEAR,)


def _number(text: str) -> int | float | None:
    """A number in any spelling: Python's, with underscores or other digits than ASCII's, or 0x10."""
    for base in (10, 0):
        try:
            return int(text, base)
        except ValueError:
            continue
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


# Schemas of a stranger: whatever is not understood allows everything, so nothing is taken for certain that is not


def _types(schema: Any, root: Schema, budget: Iterator[int]) -> frozenset[str]:
    if not isinstance(schema, Mapping) or next(budget, None) is None:
        return _ANY_TYPE
    found = _declared_types(schema)
    for alternatives in _conjuncts(schema, root):
        found &= frozenset[str]().union(*(_types(one, root, budget) for one in alternatives))
    return found


def _declared_types(schema: Schema) -> frozenset[str]:
    found, declared = _ANY_TYPE, schema.get("type")
    names = [_TYPES.get(str(name)) for name in (declared if isinstance(declared, list) else [declared])]
    if names and None not in names:
        found = frozenset[str]().union(*filter(None, names))
    if isinstance(schema.get("enum"), list):
        found &= frozenset(map(json_type, schema["enum"]))
    if "const" in schema:
        found &= {json_type(schema["const"])}
    return found


def _conjuncts(schema: Schema, root: Schema) -> Iterator[Sequence[Any]]:
    """Yield groups of schemas: a value fits at least one of each group."""
    if "$ref" in schema:
        yield [_resolve(schema["$ref"], root)]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list) and schema[keyword]:
            yield schema[keyword]
    if isinstance(schema.get("allOf"), list):
        yield from ([one] for one in schema["allOf"])


def _inner(schema: Any, root: Schema, step: str | int, budget: Iterator[int]) -> Sequence[Any]:
    """Return the schemas of which what is inside fits one; none if nothing is known of it."""
    if not isinstance(schema, Mapping) or next(budget, None) is None:
        return ()
    own = _member(schema, step) if isinstance(step, str) else _item(schema, step)
    if isinstance(own, Mapping):
        return (own,)
    container = "object" if isinstance(step, str) else "array"
    for alternatives in _conjuncts(schema, root):
        holding = [one for one in alternatives if container in _types(one, root, budget)]
        found = [_inner(one, root, step, budget) for one in holding]
        if found and all(found):
            return [one for each in found for one in each]
    return ()


def _member(schema: Schema, name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return None if schema.get("patternProperties") else schema.get("additionalProperties")


def _item(schema: Schema, index: int) -> Any:
    items = schema.get("items")
    prefix = items if isinstance(items, list) else schema.get("prefixItems")
    if isinstance(prefix, list) and index < len(prefix):
        return prefix[index]
    return schema.get("additionalItems") if isinstance(items, list) else items


def _resolve(reference: Any, root: Schema) -> Any:
    """Return the schema a reference within the root means; None if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if reference == "#" or reference.startswith("#/") else None
