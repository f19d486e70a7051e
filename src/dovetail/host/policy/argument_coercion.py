"""Find the values that a server may read from the arguments of a call.

A model may write a number, a boolean or an object as text, and most servers accept such a text. `normalize` decodes the
text if the schema of the tool allows only one type, so that a policy checks the values that the server will use. In
other cases, `iter_readings` yields all values that a server may read.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dovetail.errors import ParseError
from dovetail.server.parameters.argument_errors import repair_arguments
from dovetail.wire.codec import decode, encode

MISSING: Final = object()  # This object marks an argument that is missing.
# Stands for a value that a server may reject or convert, because the schema does not allow it.
UNCLEAR: Final = object()

_ANY_TYPE: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_TYPES: Final[Mapping[str, frozenset[str]]] = {
    **{name: frozenset({name}) for name in _ANY_TYPE},
    "number": frozenset({"number", "integer"}),
}
_BOOLEANS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
_MAX_SCHEMAS: Final = 256  # If more schemas than this apply to a value, the schemas are ignored.
_MAX_NESTED_TEXTS: Final = 4
# Python can print integers of up to 4,300 decimal digits, or 3,571 hexadecimal digits.
_MAX_NUMBER_CHARS: Final = 3_000
_MAX_REFERENCE_CHARS: Final = 1_000
_MAX_STEPS: Final = 50_000  # the maximum number of values and schemas in one decision
_CHARS_PER_STEP: Final = 128  # Reading a long text counts as several steps.

_PREFIXED_NUMBER: Final = re.compile(r"[+-]?0[box][0-9a-f_]+", re.IGNORECASE)

Schema: TypeAlias = Mapping[str, Any]


def normalize(schema: Schema | None, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Decode each string argument whose schema requires another type. Many servers do the same."""
    if not schema:
        return arguments
    for name, value in arguments.items():
        # This quick check avoids a slow walk through the schema.
        # Only a string can mean different values, and only if the schema does not require a string.
        if isinstance(value, str):
            member_schema = _find_member_schema(schema, name)
            if not isinstance(member_schema, Mapping) or member_schema.get("type") != "string":
                return repair_arguments(schema, arguments)
        elif not isinstance(value, bool | int | float):
            return repair_arguments(schema, arguments)
    return arguments


class TooManySteps(Exception):
    """Raised if the evaluation of a condition takes too many steps."""


class StepBudget:
    """Limits the number of steps for one decision, because untrusted arguments and schemas may be large."""

    __slots__ = ("_steps_left",)

    def __init__(self) -> None:
        self._steps_left = _MAX_STEPS

    @property
    def is_used_up(self) -> bool:
        """Return whether an evaluation took too many steps."""
        return self._steps_left < 0

    def use(self, count: int = 1) -> None:
        """Add steps to the count. Raise TooManySteps if the limit is exceeded."""
        self._steps_left -= count
        if self._steps_left < 0:
            raise TooManySteps


class ExpectedSchemas:
    """Alternative schemas for a value. A value must match at least one. Without schemas, any value is allowed."""

    __slots__ = ("_children", "_defaults", "_remaining_items", "_root", "_schemas", "_types", "steps")

    def __init__(self, schemas: Sequence[Any], root: Schema, steps: StepBudget) -> None:
        self._schemas = schemas
        self._root = root
        self.steps = steps
        self._types: frozenset[str] | None = None
        self._defaults: Sequence[Any] | None = None
        self._children: dict[str | int, ExpectedSchemas] = {}
        self._remaining_items: ExpectedSchemas | None = None

    @property
    def types(self) -> frozenset[str]:
        """Return the JSON types that the schemas allow."""
        if self._types is None:
            walk = _SchemaWalk(self._root, self.steps)
            self._types = walk.collect_types(self._schemas) if self._schemas else _ANY_TYPE
        return self._types

    @property
    def defaults(self) -> Sequence[Any]:
        """Return the defaults in the schemas. A server uses a default if the value is missing."""
        if self._defaults is None:
            self._defaults = _SchemaWalk(self._root, self.steps).collect_defaults(self._schemas)
        return self._defaults

    def get_child(self, step: str | int) -> "ExpectedSchemas":
        """Return the schemas for a member of an object or an item of an array."""
        if self._remaining_items is not None and isinstance(step, int):
            return self._remaining_items
        if step not in self._children:
            self._add_child(step)
        return self._children[step]

    def _add_child(self, step: str | int) -> None:
        walk = _SchemaWalk(self._root, self.steps)
        schemas = walk.collect_child_schemas(self._schemas, step)
        self._children[step] = ExpectedSchemas(schemas, self._root, self.steps)
        if isinstance(step, int) and not walk.is_by_position:
            self._remaining_items = self._children[step]


def create_expected_schemas(schema: Schema | None, steps: StepBudget | None = None) -> ExpectedSchemas:
    """Create the schemas of a tool's arguments from its input schema."""
    steps = StepBudget() if steps is None else steps
    return ExpectedSchemas((), {}, steps) if schema is None else ExpectedSchemas((schema,), schema, steps)


def iter_readings(value: Any, expected_schemas: ExpectedSchemas) -> Iterator[Any]:
    """Yield each way in which a server may read a value. For example, some servers convert "1" to 1.

    The first one is `value` itself, or UNCLEAR if the schema does not allow it.
    """
    expected_schemas.steps.use()
    types, value_type = expected_schemas.types, get_json_type(value)
    if value_type not in types:
        yield UNCLEAR
        return
    yield value
    if len(types) == 1:
        return
    if isinstance(value, str):
        expected_schemas.steps.use(len(value) // _CHARS_PER_STEP)
    for reading in _coerce(value, _MAX_NESTED_TEXTS):
        expected_schemas.steps.use()
        if reading is UNCLEAR or get_json_type(reading) in types:
            yield reading


def parse_pointer(pointer: str) -> list[str]:
    """Return the names and indexes in a JSON pointer."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def iter_values_at(
    arguments: Mapping[str, Any], pointer: str, schema: Schema | None, steps: StepBudget
) -> Iterator[tuple[Any, ExpectedSchemas]]:
    """Yield every value that a server may read at a JSON pointer.

    There is at least one value, which may be MISSING or UNCLEAR.
    """
    yield from _iter_values(arguments, create_expected_schemas(schema, steps), parse_pointer(pointer))


def iter_defaults_at(
    arguments: Mapping[str, Any], pointer: str, schema: Schema | None, steps: StepBudget
) -> Iterator[tuple[Any, ExpectedSchemas]]:
    """Yield the defaults that a server may use if the value at a JSON pointer is missing."""
    yield from _iter_defaults(arguments, create_expected_schemas(schema, steps), parse_pointer(pointer))


def _iter_defaults(
    value: Any, expected_schemas: ExpectedSchemas, names: Sequence[str], *, is_default: bool = False
) -> Iterator[tuple[Any, ExpectedSchemas]]:
    if not names:
        if is_default:
            yield value, expected_schemas
        return
    if not isinstance(value, Mapping):
        return
    name, remaining_names = names[0], names[1:]
    child = expected_schemas.get_child(name)
    if name in value:
        yield from _iter_defaults(value[name], child, remaining_names, is_default=is_default)
        return
    for default in child.defaults:
        yield from _iter_defaults(default, child, remaining_names, is_default=True)


def _iter_values(
    value: Any, expected_schemas: ExpectedSchemas, steps: Sequence[str]
) -> Iterator[tuple[Any, ExpectedSchemas]]:
    if not steps:
        yield value, expected_schemas
        return
    step, remaining_steps = steps[0], steps[1:]
    for reading in iter_readings(value, expected_schemas):
        if isinstance(reading, Mapping) and step in reading:
            yield from _iter_values(reading[step], expected_schemas.get_child(step), remaining_steps)
        elif isinstance(reading, list) and step.isascii() and step.isdigit() and int(step) < len(reading):
            yield from _iter_values(reading[int(step)], expected_schemas.get_child(int(step)), remaining_steps)
        else:
            yield UNCLEAR if reading is UNCLEAR else MISSING, expected_schemas


def get_json_type(value: Any) -> str:
    """Return the JSON Schema type of a value. A float such as 1.0 is an integer."""
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


# These functions convert values like pydantic and other validators.


def _coerce(value: Any, levels_left: int) -> Iterator[Any]:
    if isinstance(value, str):
        yield from _coerce_text(value.strip(), levels_left)
    elif isinstance(value, bool | int | float):
        if value in (0, 1):
            yield int(value) if isinstance(value, bool) else bool(value)
        yield encode(value).decode()
        yield str(value)


def _coerce_text(text: str, levels_left: int) -> Iterator[Any]:
    if text[:1].isalpha() and text.lower() not in _BOOLEANS and text != "null":
        # Such a text is neither a number nor a JSON value.
        return
    if len(text) > _MAX_NUMBER_CHARS:
        if _is_number(text):
            yield UNCLEAR
    else:
        for scalar in (_BOOLEANS.get(text.lower()), _parse_number(text)):
            if scalar is not None:
                yield scalar
                yield from _coerce(scalar, levels_left)
    try:
        decoded = decode(text.encode())
    except (ParseError, UnicodeEncodeError):
        return
    yield decoded
    if isinstance(decoded, str):
        yield from _coerce_text(decoded.strip(), levels_left - 1) if levels_left else (UNCLEAR,)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return _PREFIXED_NUMBER.fullmatch(text) is not None
    return True


def _parse_number(text: str) -> int | float | None:
    """Parse a number. Underscores, non-ASCII digits and prefixes such as 0x are allowed."""
    for base in (10, 0):
        try:
            return int(text, base)
        except ValueError:
            continue
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# Schemas are untrusted, so a schema with an unknown keyword counts as a schema for every type.


class _SchemaWalk:
    """Finds the types and child schemas in untrusted schemas. It visits only a limited number of schemas."""

    __slots__ = ("_root", "_schemas_left", "_steps", "is_by_position")

    def __init__(self, root: Schema, steps: StepBudget) -> None:
        self._root = root
        self._steps = steps
        self._schemas_left = _MAX_SCHEMAS
        self.is_by_position = False

    def collect_types(self, schemas: Sequence[Any]) -> frozenset[str]:
        types = frozenset[str]()
        for schema in schemas:
            types |= self._find_types(schema)
            if types == _ANY_TYPE:
                break
        return types

    def _find_types(self, schema: Any) -> frozenset[str]:
        if not self._can_enter(schema):
            return _ANY_TYPE
        types = self._find_declared_types(schema)
        for alternatives in self._iter_alternatives(schema):
            types &= self.collect_types(alternatives)
        return types

    def _find_declared_types(self, schema: Schema) -> frozenset[str]:
        types, type_names = _ANY_TYPE, schema.get("type")
        type_names = type_names if isinstance(type_names, list) else [type_names]
        self._steps.use(len(type_names))
        type_sets = [_TYPES.get(name) if isinstance(name, str) else None for name in type_names]
        if type_sets and None not in type_sets:
            types = frozenset[str]().union(*filter(None, type_sets))
        if isinstance(schema.get("enum"), list):
            self._steps.use(len(schema["enum"]))
            types &= frozenset(map(get_json_type, schema["enum"]))
        if "const" in schema:
            types &= {get_json_type(schema["const"])}
        return types

    def collect_defaults(self, schemas: Sequence[Any]) -> Sequence[Any]:
        defaults: list[Any] = []
        for schema in schemas:
            if self._can_enter(schema):
                if "default" in schema:
                    defaults.append(schema["default"])
                for alternatives in self._iter_alternatives(schema):
                    defaults += self.collect_defaults(alternatives)
        return defaults

    def collect_child_schemas(self, schemas: Sequence[Any], step: str | int) -> Sequence[Any]:
        """Return the schemas of a member or item. If any of `schemas` lacks the member or item, return no schemas."""
        child_schemas: list[Any] = []
        for schema in schemas:
            children = self._find_child_schemas(schema, step)
            if not children:
                return ()
            child_schemas += children
        return child_schemas

    def _find_child_schemas(self, schema: Any, step: str | int) -> Sequence[Any]:
        if not self._can_enter(schema):
            return ()
        direct_schema = (
            _find_member_schema(schema, step) if isinstance(step, str) else self._find_item_schema(schema, step)
        )
        if isinstance(direct_schema, Mapping):
            return (direct_schema,)
        container = "object" if isinstance(step, str) else "array"
        for alternatives in self._iter_alternatives(schema):
            containers = [alternative for alternative in alternatives if container in self._find_types(alternative)]
            if child_schemas := self.collect_child_schemas(containers, step):
                return child_schemas
        return ()

    def _find_item_schema(self, schema: Schema, index: int) -> Any:
        items = schema.get("items")
        prefix = items if isinstance(items, list) else schema.get("prefixItems")
        if isinstance(prefix, list) and index < len(prefix):
            self.is_by_position = True
            return prefix[index]
        return schema.get("additionalItems") if isinstance(items, list) else items

    def _iter_alternatives(self, schema: Schema) -> Iterator[Sequence[Any]]:
        """Yield lists of alternative subschemas. A value must match at least one subschema in each list."""
        if "$ref" in schema:
            yield [self._resolve_reference(schema["$ref"])]
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword]:
                yield schema[keyword]
        if isinstance(schema.get("allOf"), list):
            yield from ([schema_part] for schema_part in schema["allOf"])

    def _resolve_reference(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#") or len(reference) > _MAX_REFERENCE_CHARS:
            return None
        target: Any = self._root
        for name in reference[1:].split("/")[1:]:
            self._steps.use()
            target = target.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        return target if reference == "#" or reference.startswith("#/") else None

    def _can_enter(self, schema: Any) -> bool:
        self._steps.use()
        self._schemas_left -= 1
        return self._schemas_left >= 0 and isinstance(schema, Mapping)


def _find_member_schema(schema: Schema, name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return None if schema.get("patternProperties") else schema.get("additionalProperties")
