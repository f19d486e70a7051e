"""Repair invalid arguments that a model wrote as text, and describe all other problems in one message.

This module works on the schema and the decoded JSON. It runs only after a conversion has failed, so valid calls have no
overhead.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from dovetail.error_context import clip, find_similar
from dovetail.errors import ParseError
from dovetail.server.parameters.argument_messages import (
    MAX_LISTED_NAMES,
    MAX_NAME_CHARS,
    ArgumentMessage,
    BooleanMessage,
    Mismatch,
    OverlookedMessage,
    Schema,
    format_path,
)
from dovetail.server.parameters.json_schema import REF_PREFIX
from dovetail.wire.codec import decode

_MAX_SUGGESTIONS: Final = 5  # Finding similar names is slow, so the number of suggestions is limited.
_MAX_LISTED_OPTIONS: Final = 20
_MAX_DEPTH: Final = 64
_MAX_PATTERN_CHARS: Final = 200
_MAX_REASON_CHARS: Final = 200
_MAX_BRANCHES: Final = 4
# This limit is enough for a message with 50,000 members, because each member needs several steps.
_MAX_STEPS: Final = 250_000

_FORMAT_EXAMPLES: Final = {
    "date-time": "a date and time such as `1999-12-31T09:30:00Z`",
    "date": "a date such as `1999-12-31`",
    "time": "a time such as `09:30:00`",
    "duration": "a duration such as `PT1H30M`",
    "uuid": "a UUID such as `6f1c2b7a-e64d-4c3a-9f1c-2b7ae64d0a51`",
    "decimal": "a decimal number such as `12.50`",
    "base64": "base64 such as `aGVsbG8=`",
}

# All messages use the type names of msgspec.
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


class _SchemaSteps:
    """Limits the number of steps, because a large schema or value would take too long to check."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _MAX_STEPS

    def use(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooManySteps


class _TooManySteps(Exception):
    """Raised if checking a value takes too many steps."""


class _Location(NamedTuple):
    schema: Schema
    definitions: Schema
    path: str
    steps: _SchemaSteps | None = None  # the limit for the number of steps, or None
    depth: int = 0
    branches: int = 0  # The number of unions around this value for which several alternatives match.

    def descend(self, schema: Any, step: str) -> "_Location":
        return self._replace(
            schema=schema if isinstance(schema, dict) else {}, path=f"{self.path}{step}", depth=self.depth + 1
        )


def repair_arguments(schema: Schema, value: Any) -> Any:
    """Decode strings that contain JSON if the schema does not allow a string.

    If nothing is decoded or removed, return the same object.

    A string that the schema allows is not changed. A null is removed if its field is optional and cannot be null. If
    the value and the schema are too large to compare, nothing is changed.
    """
    try:
        return _repair(_Location(schema, _get_object(schema, "$defs"), "", _SchemaSteps()), value)
    except _TooManySteps:
        return value


def find_mismatches(schema: Schema, value: Any, definitions: Schema, path: str) -> Iterator[ArgumentMessage]:
    """Yield a message for each part of a value that does not match its schema.

    Messages do not contain the value, because it may be long or secret.
    """
    yield from _find_mismatches(_Location(schema, definitions, path), value)


def find_boolean_mismatches(schema: Schema, value: Any) -> list[str]:
    """Return a message for each boolean in a place where the schema requires a number."""
    messages = find_mismatches(schema, value, _get_object(schema, "$defs"), "")
    return [message for message in messages if isinstance(message, BooleanMessage)]


def merge_mismatches(
    mismatches: Iterable[Mismatch], schema_messages: Sequence[ArgumentMessage], root: str
) -> Iterator[ArgumentMessage]:
    """Yield one message for each problem of an argument. If the schema check reports a problem, use its message.

    The schema check alone is not enough, because pydantic may accept values that its schema does not describe.
    """
    confirmed_messages: set[ArgumentMessage] = {
        message for message in schema_messages if isinstance(message, OverlookedMessage)
    }
    for mismatch in mismatches:
        path, reason, branch = mismatch.path, mismatch.reason, mismatch.branch
        full_path = format_path(path[1:], root)
        branch_path = None if branch is None else format_path(branch[1:], root)
        same_messages = [message for message in schema_messages if _is_about(message, full_path, branch_path)]
        confirmed_messages.update(same_messages)
        if not same_messages:
            yield ArgumentMessage.about(full_path, clip(reason[:1].lower() + reason[1:], _MAX_REASON_CHARS))
    yield from (message for message in schema_messages if message in confirmed_messages)


def _is_about(message: ArgumentMessage, path: str, branch_path: str | None) -> bool:
    return _contains_path(message.path, path) or (branch_path is not None and _contains_path(branch_path, message.path))


def _contains_path(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith((f"{outer}.", f"{outer}["))


def format_names(names: Sequence[str], candidates: Collection[str] = ()) -> str:
    """Format unknown names in one line, each with the most similar known name."""
    texts: list[str] = []
    for index, name in enumerate(names[:MAX_LISTED_NAMES]):
        matches = find_similar(name[:MAX_NAME_CHARS], candidates) if index < _MAX_SUGGESTIONS else ()
        texts.append(f"`{clip(name, MAX_NAME_CHARS)}`" + (f" (did you mean `{matches[0]}`?)" if matches else ""))
    return ", ".join(texts) + (f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else "")


def describe_names(problem: str, names: Sequence[str], candidates: Collection[str] = ()) -> ArgumentMessage:
    """Return a message that starts with the problem and lists the argument names, such as "Missing: a, b"."""
    return ArgumentMessage(f"{problem}: {format_names(names, candidates)}", clip(names[0], MAX_NAME_CHARS))


def format_pattern_mismatch(pattern: str) -> str:
    return f"does not match the pattern `{clip(pattern, _MAX_PATTERN_CHARS)}`"


def format_type_mismatch(types: Sequence[str], value: Any) -> str:
    expected = " | ".join(_TYPE_NAMES.get(type_name, type_name) for type_name in types)
    return f"expected `{expected}`, got `{_type_name(value)}`"


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
    if location.steps is not None and isinstance(value, dict) and len(schemas) > 1:
        location.steps.use(sum(len(_get_object(schema, "properties")) for schema in schemas))
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
    """Return whether null stands for a missing field. Some models write null for each field that they leave out."""
    properties, required = _get_object(location.schema, "properties"), location.schema.get("required", ())
    if location.steps is not None and isinstance(required, (list, tuple)):
        location.steps.use(len(required))
    is_optional = name in properties and isinstance(required, (list, tuple)) and name not in required
    schemas = _expand_alternatives(location.descend(properties[name], "")) if is_optional else []
    return bool(schemas) and not any(_allows_type(schema, None) for schema in schemas)


def _find_mismatches(location: _Location, value: Any) -> Iterator[ArgumentMessage]:
    schemas = _expand_alternatives(location)
    if not schemas or location.depth > _MAX_DEPTH:
        return
    matching = select_matching(schemas, value)
    if not matching:
        actual = "text that is not JSON of this type" if _is_broken_json(schemas, value) else f"`{_type_name(value)}`"
        reason = f"expected {_format_alternatives(schemas)}, got {actual}"
        is_number_expected = any(schema["type"] in ("integer", "number") for schema in schemas)
        message_type = BooleanMessage if isinstance(value, bool) and is_number_expected else ArgumentMessage
        yield message_type.about(location.path, reason)
    elif len(matching) > 1 and (discriminator := _find_discriminator(matching, value)):
        name, options = discriminator
        member_path = f"{location.path}.{clip(name, MAX_NAME_CHARS)}"
        verb = "expected" if name in value else "missing, expected"
        yield ArgumentMessage.about(member_path, f"{verb} one of {_format_options(options)}")
    elif len(matching) == 1 or location.branches >= _MAX_BRANCHES:
        yield from _find_value_mismatches(location._replace(schema=matching[0]), value)
    else:
        # Each nested union doubles the work, so only a few levels are checked.
        branch_location = location._replace(branches=location.branches + 1)
        yield from min(
            ([*_find_value_mismatches(branch_location._replace(schema=schema), value)] for schema in matching), key=len
        )


def _is_broken_json(schemas: Sequence[Schema], value: Any) -> bool:
    return isinstance(value, str) and all(schema["type"] in ("object", "array", "null") for schema in schemas)


def _find_value_mismatches(location: _Location, value: Any) -> Iterator[ArgumentMessage]:
    schema = location.schema
    if "enum" in schema and value not in schema["enum"]:
        yield ArgumentMessage.about(location.path, f"expected one of {_format_options(schema['enum'])}")
        return
    measured = len(value) if isinstance(value, (str, list)) else value
    for keyword, message, is_satisfied in _BOUNDS:
        if keyword in schema and not is_satisfied(measured, schema[keyword]):
            yield ArgumentMessage.about(location.path, f"{message} {schema[keyword]}")
    if isinstance(value, str) and (problem := _check_format(schema, value)):
        yield ArgumentMessage.about(location.path, problem)
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
    """Find a discriminator field with an invalid value. Return the field's name and its allowed values.

    If the field is valid, return None.
    """
    tags_by_schema = [_get_constant_members(schema) for schema in schemas] if isinstance(value, dict) else []
    for name in tags_by_schema[0] if tags_by_schema else ():
        options = [option for tags in tags_by_schema for option in tags.get(name, ())]
        if len(options) == len(tags_by_schema) and value.get(name, _MISSING) not in options:
            return name, options
    return None


def _check_format(schema: Schema, value: str) -> str:
    """Return a message if a string does not have the required format, such as a date. Otherwise return ""."""
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


def _find_object_mismatches(location: _Location, value: dict[str, Any]) -> Iterator[ArgumentMessage]:
    properties: Mapping[str, Any] = location.schema.get("properties", {})
    missing = [name for name in location.schema.get("required", ()) if name not in value]
    for name in missing[:MAX_LISTED_NAMES]:
        yield ArgumentMessage.about(f"{location.path}.{clip(name, MAX_NAME_CHARS)}", "missing")
    if location.schema.get("additionalProperties") is False:
        unknown = [name for name in value if name not in properties]
        unused = [name for name in properties if name not in value][:MAX_LISTED_NAMES]
        if unknown:
            yield OverlookedMessage.about(location.path, f"unknown {format_names(unknown, unused)}")
    for name, member in value.items():
        yield from _find_mismatches(
            location.descend(_member_schema(location.schema, name), f".{clip(name, MAX_NAME_CHARS)}"), member
        )


def _expand_alternatives(location: _Location) -> list[Schema]:
    pending, alternatives = [location.schema], list[Schema]()
    for _ in range(_MAX_DEPTH):
        if not pending:
            return alternatives
        schema = pending.pop(0)
        if location.steps is not None:
            location.steps.use(1)
        if "$ref" in schema:
            pending.insert(0, _get_object(location.definitions, str(schema["$ref"]).removeprefix(REF_PREFIX)))
        elif branches := schema.get("anyOf") or schema.get("oneOf"):
            if not isinstance(branches, list):
                return []
            if location.steps is not None:
                location.steps.use(len(branches))
            if not all(isinstance(branch, dict) for branch in branches):
                return []  # The schema `true` allows every value.
            pending = [*branches, *pending]
        elif isinstance(schema.get("type"), str):
            alternatives.append(schema)
        else:
            return []
    return []


def select_matching(schemas: Sequence[Schema], value: Any) -> list[Schema]:
    """Return the schemas that allow the type of a value. For an object, prefer schemas with the same tag."""
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
