"""Arguments that did not fit: mended where a model only wrote them as text, or explained, every misfit at once.

Works on the schema and the decoded JSON, and only after a conversion has failed, so a call that fits pays nothing.
"""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from dovetail.error_context import clip
from dovetail.errors import ParseError
from dovetail.wire.codec import decode

MAX_LISTED_NAMES: Final = 20  # of each kind in one error text: enough to repair a call, too few to be an echo
MAX_NAME_CHARS: Final = 64
MAX_TEXT_BYTES: Final = 2048
_MAX_SUGGESTIONS: Final = 5  # comparing names costs more than all else here
_MAX_LISTED_OPTIONS: Final = 20
_MAX_DEPTH: Final = 64
_MAX_PATTERN_CHARS: Final = 200
_MAX_BRANCHES: Final = 4
_REF_PREFIX: Final = "#/$defs/"

_FORMAT_EXAMPLES: Final = {
    "date-time": "a date and time such as `1999-12-31T09:30:00Z`",
    "date": "a date such as `1999-12-31`",
    "time": "a time such as `09:30:00`",
    "duration": "a duration such as `PT1H30M`",
    "uuid": "a UUID such as `6f1c2b7a-e64d-4c3a-9f1c-2b7ae64d0a51`",
    "decimal": "a decimal number such as `12.50`",
    "base64": "base64 such as `aGVsbG8=`",
}

# The names msgspec has for JSON's types, so that all reasons read alike.
_TYPE_NAMES: Final = {"integer": "int", "number": "float", "string": "str", "boolean": "bool"}
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

_MISSING: Final = object()

Schema = Mapping[str, Any]


class UnknownMemberMessage(str):
    """A line about members that nobody knows: readers of values pass over these."""

    __slots__ = ()


class _Location(NamedTuple):
    """A value, the schema it stands under, and the way to it."""

    schema: Schema
    definitions: Schema
    path: str
    depth: int = 0
    branches: int = 0  # how often on the way there was more than one alternative

    def descend(self, schema: Any, step: str) -> "_Location":
        return self._replace(
            schema=schema if isinstance(schema, dict) else {}, path=f"{self.path}{step}", depth=self.depth + 1
        )


def repair_arguments(schema: Schema, value: Any) -> Any:
    """The value with every text decoded that stands where no text may, but what it says in JSON may; or the same value.

    A text that the schema allows is never touched. Null for what may be left out but not be null is left out.
    """
    return _repair(_Location(schema, _get_object(schema, "$defs"), ""), value)


def find_mismatches(schema: Schema, value: Any, definitions: Schema, path: str) -> Iterator[str]:
    """Everything about a value that its schema forbids, one line each; never the value, which may be long or secret."""
    yield from _find_mismatches(_Location(schema, definitions, path), value)


def find_boolean_mismatches(schema: Schema, value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every boolean that stands where only a number may, which Python takes for one: the way to it, and why not."""
    yield from _find_boolean_mismatches(_Location(schema, schema.get("$defs", {}), ""), value, ())


def _find_boolean_mismatches(
    location: _Location, value: Any, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    schemas = _expand_alternatives(location)
    if not schemas or location.depth > _MAX_DEPTH:
        return
    if isinstance(value, bool):
        type_names = {str(schema["type"]) for schema in schemas}
        if "boolean" not in type_names and not type_names.isdisjoint(("integer", "number")):
            yield path, f"expected {_format_alternatives(schemas)}, got `bool`"
        return
    matching = select_matching(schemas, value) if isinstance(value, (dict, list)) else []
    if len(matching) > 1:
        location = location._replace(branches=location.branches + 1)
        matching = matching if location.branches <= _MAX_BRANCHES else matching[:1]
    mismatches_by_schema = [
        [*_find_nested_boolean_mismatches(location._replace(schema=schema), value, path)] for schema in matching
    ]
    yield from min(mismatches_by_schema, key=len, default=())


def _find_nested_boolean_mismatches(
    location: _Location, value: dict[str, Any] | list[Any], path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, list):
        for index, child in enumerate(value):
            yield from _find_boolean_mismatches(
                location.descend(_item_schema(location.schema, index), ""), child, (*path, index)
            )
        return
    for name, child in value.items():
        yield from _find_boolean_mismatches(
            location.descend(_member_schema(location.schema, name), ""), child, (*path, name)
        )


def format_names(names: Sequence[str], candidates: Collection[str] = ()) -> str:
    """Names in one line, each with the candidate it may stand for."""
    import difflib  # only mistaken calls pay for it

    texts: list[str] = []
    for index, name in enumerate(names[:MAX_LISTED_NAMES]):
        matches = difflib.get_close_matches(name[:MAX_NAME_CHARS], candidates, n=1) if index < _MAX_SUGGESTIONS else ()
        texts.append(f"`{clip(name, MAX_NAME_CHARS)}`" + (f" (did you mean `{matches[0]}`?)" if matches else ""))
    return ", ".join(texts) + (f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else "")


def format_pattern_mismatch(pattern: str) -> str:
    """What is told of a text that does not fit."""
    return f"does not fit the pattern `{clip(pattern, _MAX_PATTERN_CHARS)}`"


def format_type_mismatch(types: Sequence[str], value: Any) -> str:
    """What is told of a value of another type."""
    expected = " | ".join(_TYPE_NAMES.get(type_name, type_name) for type_name in types)
    return f"expected `{expected}`, got `{_type_name(value)}`"


def truncate(text: str) -> str:
    """A text for a model, bounded."""
    raw = text.encode()
    return text if len(raw) <= MAX_TEXT_BYTES else raw[: MAX_TEXT_BYTES - 3].decode("utf-8", "ignore") + "…"


def _repair(location: _Location, value: Any) -> Any:
    schemas = _expand_alternatives(location)
    if location.depth > _MAX_DEPTH or not schemas:
        return value
    if isinstance(value, str):
        if any(_allows_type(schema, value) for schema in schemas):
            return value
        decoded = _try_decode(value)
        if decoded is None or not any(_allows_type(schema, decoded[0]) for schema in schemas):
            return value
        return _repair(location._replace(depth=location.depth + 1), decoded[0])
    schema = next(iter(select_matching(schemas, value)), None)
    if schema is None or not isinstance(value, (dict, list)):
        return value
    return _repair_members(location._replace(schema=schema), cast("dict[str, Any] | list[Any]", value))


def _repair_members(location: _Location, value: dict[str, Any] | list[Any]) -> Any:
    if isinstance(value, list):
        items = [
            _repair(location.descend(_item_schema(location.schema, index), ""), item)
            for index, item in enumerate(value)
        ]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    members = {
        name: _repair(location.descend(_member_schema(location.schema, name), ""), member)
        for name, member in value.items()
        if member is not None or not _is_omitted(location, name)
    }
    is_unchanged = len(members) == len(value) and all(members[name] is member for name, member in value.items())
    return value if is_unchanged else members


def _is_omitted(location: _Location, name: str) -> bool:
    """Whether null can only mean that nothing was said; a model that must name everything says so."""
    properties, required = _get_object(location.schema, "properties"), location.schema.get("required", ())
    is_optional = name in properties and isinstance(required, (list, tuple)) and name not in required
    schemas = _expand_alternatives(location.descend(properties[name], "")) if is_optional else []
    return bool(schemas) and not any(_allows_type(schema, None) for schema in schemas)


def _find_mismatches(location: _Location, value: Any) -> Iterator[str]:
    schemas = _expand_alternatives(location)
    if not schemas or location.depth > _MAX_DEPTH:
        return
    matching = select_matching(schemas, value)
    if not matching:
        actual = "text that is no such JSON" if _is_broken_json(schemas, value) else f"`{_type_name(value)}`"
        yield f"`{location.path}`: expected {_format_alternatives(schemas)}, got {actual}"
    elif len(matching) > 1 and (discriminator := _find_discriminator(matching, value)):
        name, options = discriminator
        member_path = f"`{location.path}.{clip(name, MAX_NAME_CHARS)}`"
        yield f"{member_path}: {'expected' if name in value else 'missing;'} one of {_format_options(options)}"
    elif len(matching) == 1 or location.branches >= _MAX_BRANCHES:
        yield from _find_value_mismatches(location._replace(schema=matching[0]), value)
    else:
        # Each alternative may branch again, so the effort grows with the power of how often it has.
        branch_location = location._replace(branches=location.branches + 1)
        yield from min(
            ([*_find_value_mismatches(branch_location._replace(schema=schema), value)] for schema in matching), key=len
        )


def _is_broken_json(schemas: Sequence[Schema], value: Any) -> bool:
    """Whether a text tried to be an object or an array; nothing else could be meant where one has to stand."""
    return isinstance(value, str) and all(schema["type"] in ("object", "array", "null") for schema in schemas)


def _find_value_mismatches(location: _Location, value: Any) -> Iterator[str]:
    schema = location.schema
    if "enum" in schema and value not in schema["enum"]:
        yield f"`{location.path}`: expected one of {_format_options(schema['enum'])}"
        return
    measured = len(value) if isinstance(value, (str, list)) else value
    for keyword, message, is_satisfied in _BOUNDS:
        if keyword in schema and not is_satisfied(measured, schema[keyword]):
            yield f"`{location.path}`: {message} {schema[keyword]}"
    if isinstance(value, str) and (problem := _check_format(schema, value)):
        yield f"`{location.path}`: {problem}"
    if isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _find_mismatches(location.descend(_item_schema(schema, index), f"[{index}]"), item)
    elif isinstance(value, dict):
        yield from _find_object_mismatches(location, cast("dict[str, Any]", value))


def _format_options(options: Sequence[Any]) -> str:
    text = ", ".join(
        f"`{clip('null' if option is None else str(option), MAX_NAME_CHARS)}`"
        for option in options[:_MAX_LISTED_OPTIONS]
    )
    return f"{text}{' and others' if len(options) > _MAX_LISTED_OPTIONS else ''}"


def _find_discriminator(schemas: Sequence[Schema], value: Any) -> tuple[str, list[Any]] | None:
    """The member that tells these kinds of object apart, and all it may be; None if the value has it right."""
    tags_by_schema = [_get_constant_members(schema) for schema in schemas] if isinstance(value, dict) else []
    for name in tags_by_schema[0] if tags_by_schema else ():
        options = [option for tags in tags_by_schema for option in tags.get(name, ())]
        if len(options) == len(tags_by_schema) and value.get(name, _MISSING) not in options:
            return name, options
    return None


def _check_format(schema: Schema, value: str) -> str:
    """What is wrong with a text that stands for something else, such as a date; empty if nothing is."""
    if "format" not in schema and "contentEncoding" not in schema:
        return ""
    import datetime
    import decimal
    import uuid

    type_by_format = {
        "date-time": datetime.datetime,
        "date": datetime.date,
        "time": datetime.time,
        "duration": datetime.timedelta,
        "uuid": uuid.UUID,
        "decimal": decimal.Decimal,
        "base64": bytes,
    }
    format_name = schema.get("format") or schema.get("contentEncoding", "")
    try:
        msgspec.convert(value, type_by_format.get(format_name, str))
    except msgspec.ValidationError:
        return f"expected {_FORMAT_EXAMPLES[format_name]}"
    return ""


def _find_object_mismatches(location: _Location, value: dict[str, Any]) -> Iterator[str]:
    properties: Mapping[str, Any] = location.schema.get("properties", {})
    missing = [name for name in location.schema.get("required", ()) if name not in value]
    for name in missing[:MAX_LISTED_NAMES]:
        yield f"`{location.path}.{clip(name, MAX_NAME_CHARS)}`: missing"
    if location.schema.get("additionalProperties") is False:
        unknown = [name for name in value if name not in properties]
        unused = [name for name in properties if name not in value][:MAX_LISTED_NAMES]
        if unknown:
            yield UnknownMemberMessage(f"`{location.path}`: unknown {format_names(unknown, unused)}")
    for name, member in value.items():
        yield from _find_mismatches(
            location.descend(_member_schema(location.schema, name), f".{clip(name, MAX_NAME_CHARS)}"), member
        )


def _expand_alternatives(location: _Location) -> list[Schema]:
    """The alternatives of a schema, references followed; none where anything may stand."""
    pending, alternatives = [location.schema], list[Schema]()
    for _ in range(_MAX_DEPTH):
        if not pending:
            return alternatives
        schema = pending.pop(0)
        if "$ref" in schema:
            pending.insert(0, _get_object(location.definitions, str(schema["$ref"]).removeprefix(_REF_PREFIX)))
        elif branches := schema.get("anyOf") or schema.get("oneOf"):
            if not isinstance(branches, list) or not all(isinstance(branch, dict) for branch in branches):
                return []  # `true` allows everything
            pending = [*branches, *pending]
        elif isinstance(schema.get("type"), str):
            alternatives.append(schema)
        else:
            return []
    return []


def select_matching(schemas: Sequence[Schema], value: Any) -> list[Schema]:
    """The alternatives of the right type; of several kinds of object, those whose tag the value has."""
    matching = [schema for schema in schemas if _allows_type(schema, value)]
    if len(matching) > 1 and isinstance(value, dict):
        matching = [
            schema for schema in matching if _has_matching_tags(schema, cast("dict[str, Any]", value))
        ] or matching
    return matching


def _has_matching_tags(schema: Schema, value: dict[str, Any]) -> bool:
    tags = _get_constant_members(schema)
    return bool(tags) and all(value.get(name) in allowed for name, allowed in tags.items())


def _get_constant_members(schema: Schema) -> dict[str, list[Any]]:
    """The members of an object that can only have one value."""
    members = {
        name: member.get("enum")
        for name, member in _get_object(schema, "properties").items()
        if isinstance(member, dict)
    }
    return {name: choices for name, choices in members.items() if isinstance(choices, list) and len(choices) == 1}


def _allows_type(schema: Schema, value: Any) -> bool:
    match schema["type"]:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            is_whole_number = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return is_whole_number and not isinstance(value, bool)
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


def _try_decode(text: str) -> tuple[Any] | None:
    try:
        return (decode(text.strip().encode()),)
    except (ParseError, UnicodeEncodeError):
        return None


def _item_schema(schema: Schema, index: int) -> Any:
    prefix = schema.get("prefixItems", ())
    return prefix[index] if isinstance(prefix, (list, tuple)) and index < len(prefix) else schema.get("items")


def _member_schema(schema: Schema, name: str) -> Any:
    return _get_object(schema, "properties").get(name) or schema.get("additionalProperties")


def _get_object(schema: Schema, name: str) -> Schema:
    """A member that is an object; an empty one where a schema, which may be a stranger's, has something else."""
    member = schema.get(name)
    return cast("Schema", member) if isinstance(member, dict) else {}


def _format_alternatives(schemas: Sequence[Schema]) -> str:
    type_names = dict.fromkeys(
        _TYPE_NAMES.get(type_name, type_name) for type_name in (str(schema["type"]) for schema in schemas)
    )
    return f"`{' | '.join(type_names)}`"


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
