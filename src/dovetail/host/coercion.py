"""What a server may make of the arguments of a call.

A model may write a number, a boolean or an object as text, and most servers accept that. `normalize` decodes such texts
where the tool's schema is clear about it, so that a policy judges the values the server will use. Elsewhere `readings`
lists the values a server may take an argument for.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

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
_MAX_NUMBER_CHARS: Final = 3_000  # Python refuses to print a number of more than 4,300 digits, as hex has 3,571
_MAX_REFERENCE_CHARS: Final = 1_000
_MAX_STEPS: Final = 100_000  # values and schemas looked at for one condition

_PREFIXED_NUMBER: Final = re.compile(r"[+-]?0[box][0-9a-f_]+", re.IGNORECASE)

Schema: TypeAlias = Mapping[str, Any]


def normalize(schema: Schema | None, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments with each text decoded that the schema allows only as another type."""
    if not schema or all(_is_certain(schema, name, value) for name, value in arguments.items()):
        return arguments  # most calls: walking through a schema takes thirty times as long
    return mended(schema, arguments)


def _is_certain(schema: Schema, name: str, value: Any) -> bool:
    """Return whether an argument can have only one meaning.

    That is a number, a boolean, or a text that is declared as a text.
    """
    if isinstance(value, str):
        declared = _member(schema, name)
        return isinstance(declared, Mapping) and declared.get("type") == "string"
    return isinstance(value, bool | int | float)


class TooManySteps(Exception):
    """A condition would take more steps than a decision may."""


class Steps:
    """The steps that one condition may take. Arguments and schemas are untrusted, so their size must not matter."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _MAX_STEPS

    def take(self, count: int = 1) -> None:
        """Count steps. Raise TooManySteps if there are too many."""
        self._left -= count
        if self._left < 0:
            raise TooManySteps


class Expected:
    """The schemas of which a value fits at least one. If there are none, the value may be anything."""

    __slots__ = ("_inside", "_rest", "_root", "_schemas", "_types", "steps")

    def __init__(self, schemas: Sequence[Any], root: Schema, steps: Steps) -> None:
        self._schemas = schemas
        self._root = root
        self.steps = steps
        self._types: frozenset[str] | None = None
        self._inside: dict[str | int, Expected] = {}
        self._rest: Expected | None = None  # of the items after those that have a schema for their position

    @property
    def types(self) -> frozenset[str]:
        """The possible JSON types. Some of them may not be possible after all."""
        if self._types is None:
            walk = _Walk(self._root, self.steps)
            self._types = walk.types_of_any(self._schemas) if self._schemas else _ANY_TYPE
        return self._types

    def inside(self, step: str | int) -> "Expected":
        """Return what is expected of a member of an object, or of an item of an array."""
        if self._rest is not None and isinstance(step, int):
            return self._rest
        if step not in self._inside:
            self._find_inside(step)
        return self._inside[step]

    def _find_inside(self, step: str | int) -> None:
        walk = _Walk(self._root, self.steps)
        schemas = walk.inside_of_any(self._schemas, step)
        self._inside[step] = Expected(schemas, self._root, self.steps)
        if isinstance(step, int) and not walk.is_by_position:
            self._rest = self._inside[step]


def expected(schema: Schema | None) -> Expected:
    """Return what is expected of the arguments of a tool with this schema."""
    return Expected((), {}, Steps()) if schema is None else Expected((schema,), schema, Steps())


def readings(value: Any, wanted: Expected) -> Iterator[Any]:
    """Yield the values a server may read this one as. The value comes first, or UNCLEAR if the schema forbids it."""
    wanted.steps.take()
    types, own = wanted.types, json_type(value)
    if own not in types:
        yield UNCLEAR
        return
    yield value
    if len(types) == 1:
        return
    for reading in _coerce(value, _MAX_NESTED_TEXTS):
        wanted.steps.take()
        if reading is UNCLEAR or json_type(reading) in types:
            yield reading


def places(arguments: Mapping[str, Any], pointer: str, schema: Schema | None) -> Iterator[tuple[Any, Expected]]:
    """Yield each value a server may find at a JSON pointer, NOTHING or UNCLEAR included. There is at least one."""
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
    """Return the name of a value's type in JSON Schema. A number without a fraction is an integer."""
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


def _coerce(value: Any, nested: int) -> Iterator[Any]:
    if isinstance(value, str):
        yield from _coerce_text(value.strip(), nested)
    elif isinstance(value, bool | int | float):
        if value in (0, 1):
            yield int(value) if isinstance(value, bool) else bool(value)
        yield encode(value).decode()
        yield str(value)


def _coerce_text(text: str, nested: int) -> Iterator[Any]:
    if text[:1].isalpha() and text.lower() not in _BOOLEANS and text != "null":
        return  # most texts: neither a number nor JSON begins with another letter
    if len(text) > _MAX_NUMBER_CHARS:
        if _is_number(text):
            yield UNCLEAR
    else:
        for scalar in (_BOOLEANS.get(text.lower()), _number(text)):
            if scalar is not None:
                yield scalar
                yield from _coerce(scalar, nested)
    try:
        decoded = decode(text.encode())
    except (ParseError, UnicodeEncodeError):
        return
    yield decoded
    if isinstance(decoded, str):
        yield from _coerce_text(decoded.strip(), nested - 1) if nested else (UNCLEAR,)


def _is_number(text: str) -> bool:
    """Return whether a text of any length is a number."""
    try:
        float(text)
    except ValueError:
        return _PREFIXED_NUMBER.fullmatch(text) is not None
    return True


def _number(text: str) -> int | float | None:
    """Return the number a text means: with underscores, other digits than ASCII's, or a prefix as in 0x10."""
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


# Schemas are untrusted. A keyword that is not understood allows every type.


class _Walk:
    """One walk through the schemas of a value."""

    __slots__ = ("_left", "_root", "_steps", "is_by_position")

    def __init__(self, root: Schema, steps: Steps) -> None:
        self._root = root
        self._steps = steps
        self._left = _MAX_SCHEMAS
        self.is_by_position = False  # whether another item of the same array may have another schema

    def types_of_any(self, schemas: Sequence[Any]) -> frozenset[str]:
        """Return the types that at least one of the schemas allows."""
        found = frozenset[str]()
        for schema in schemas:
            found |= self._types(schema)
            if found == _ANY_TYPE:
                break
        return found

    def _types(self, schema: Any) -> frozenset[str]:
        if not self._may_enter(schema):
            return _ANY_TYPE
        found = self._declared_types(schema)
        for alternatives in self._conjuncts(schema):
            found &= self.types_of_any(alternatives)
        return found

    def _declared_types(self, schema: Schema) -> frozenset[str]:
        found, declared = _ANY_TYPE, schema.get("type")
        declared = declared if isinstance(declared, list) else [declared]
        self._steps.take(len(declared))
        names = [_TYPES.get(name) if isinstance(name, str) else None for name in declared]
        if names and None not in names:
            found = frozenset[str]().union(*filter(None, names))
        if isinstance(schema.get("enum"), list):
            self._steps.take(len(schema["enum"]))
            found &= frozenset(map(json_type, schema["enum"]))
        if "const" in schema:
            found &= {json_type(schema["const"])}
        return found

    def inside_of_any(self, schemas: Sequence[Any], step: str | int) -> Sequence[Any]:
        """Return the schemas of a member or item, for a container that fits one of these. Empty if one is unknown."""
        found: list[Any] = []
        for schema in schemas:
            inner = self._inside(schema, step)
            if not inner:
                return ()
            found += inner
        return found

    def _inside(self, schema: Any, step: str | int) -> Sequence[Any]:
        """Return the schemas a member may match, or nothing if they are unknown."""
        if not self._may_enter(schema):
            return ()
        own = _member(schema, step) if isinstance(step, str) else self._item(schema, step)
        if isinstance(own, Mapping):
            return (own,)
        container = "object" if isinstance(step, str) else "array"
        for alternatives in self._conjuncts(schema):
            containers = [one for one in alternatives if container in self._types(one)]
            if found := self.inside_of_any(containers, step):
                return found
        return ()

    def _item(self, schema: Schema, index: int) -> Any:
        items = schema.get("items")
        prefix = items if isinstance(items, list) else schema.get("prefixItems")
        if isinstance(prefix, list) and index < len(prefix):
            self.is_by_position = True
            return prefix[index]
        return schema.get("additionalItems") if isinstance(items, list) else items

    def _conjuncts(self, schema: Schema) -> Iterator[Sequence[Any]]:
        """Yield groups of schemas. A value fits at least one of each group."""
        if "$ref" in schema:
            yield [self._resolve(schema["$ref"])]
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword]:
                yield schema[keyword]
        if isinstance(schema.get("allOf"), list):
            yield from ([one] for one in schema["allOf"])

    def _resolve(self, reference: Any) -> Any:
        """Return the schema that a reference within the root means, or None."""
        if not isinstance(reference, str) or not reference.startswith("#") or len(reference) > _MAX_REFERENCE_CHARS:
            return None
        found: Any = self._root
        for name in reference[1:].split("/")[1:]:
            self._steps.take()
            found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return found if reference == "#" or reference.startswith("#/") else None

    def _may_enter(self, schema: Any) -> bool:
        self._steps.take()
        self._left -= 1
        return self._left >= 0 and isinstance(schema, Mapping)


def _member(schema: Schema, name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return None if schema.get("patternProperties") else schema.get("additionalProperties")
