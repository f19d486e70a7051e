"""Differences between two definitions of a tool, resource or prompt.

Each difference has a path, both values, and an effect: whether the new schema accepts fewer or more values.
`dovetail diff` checks which differences break clients. A host rates differences by risk.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from dovetail.schemas.reader import get_list, get_mapping
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode_canonical

# "text" means that text for a model or a user changed. "same" means that only order or whitespace changed.
# "mixed" means that the new schema accepts some new values and rejects some old values.
Effect: TypeAlias = Literal["text", "same", "narrower", "wider", "mixed", "unknown"]
Path: TypeAlias = tuple[str, ...]

TEXT_KEYWORDS: Final = frozenset(("title", "description", "$comment", "examples", "default", "name"))
NAMED_SCHEMAS: Final = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "arguments")
)
SCHEMA_LISTS: Final = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_SUBSCHEMAS: Final = frozenset(
    ("items", "additionalProperties", "unevaluatedProperties", "contains", "propertyNames", "then", "else")
)
_MINIMUM_KEYWORDS: Final = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))
_MAXIMUM_KEYWORDS: Final = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))
_RESTRICTING_KEYWORDS: Final = frozenset(("pattern", "format", "const", "multipleOf", "uniqueItems", "not"))
SCHEMA_KEYWORDS: Final = (
    TEXT_KEYWORDS | (NAMED_SCHEMAS - {"arguments"}) | SCHEMA_LISTS | _SUBSCHEMAS | _MINIMUM_KEYWORDS | _MAXIMUM_KEYWORDS
    | _RESTRICTING_KEYWORDS | {"type", "enum", "required", "if", "dependentRequired"}
)  # fmt: skip
_MAX_SCHEMA_DEPTH: Final = 32


class Difference(Struct, frozen=True):
    """A difference between two definitions. `old` is None for a new field, and `new` is None for a removed field."""

    path: Path
    old: Any
    new: Any
    effect: Effect
    # Only a schema in a list or in a mapping such as `properties` can be "added" or "removed".
    kind: Literal["changed", "added", "removed"] = "changed"


def find_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences between two definitions, which are JSON objects."""
    for name in dict.fromkeys([*old, *new]):
        old_value, new_value = old.get(name), new.get(name)
        if _is_same(old_value, new_value):
            continue
        match name:
            case "inputSchema" | "outputSchema":
                yield from _compare_schemas((name,), old_value, new_value, 0)
            case "annotations":
                yield from _compare_annotations((name,), old_value or {}, new_value or {})
            case "arguments":
                yield from _compare_arguments((name,), old_value or [], new_value or [])
            case _:
                yield _compare_text((name,), old_value, new_value)


def is_breaking(difference: Difference) -> bool:
    """Return whether a difference may break clients that worked with the old definition.

    Valid arguments must stay valid. Results must keep their fields and must not contain new kinds of values.
    """
    if difference.path == ("mimeType",):
        return True
    is_output = difference.path[0] == "outputSchema"
    if difference.effect in ("text", "same") or not (is_output or difference.path[0] in ("inputSchema", "arguments")):
        return False
    if is_output and is_property(difference):
        return difference.kind == "removed"
    return difference.effect != ("narrower" if is_output else "wider")


def is_property(difference: Difference) -> bool:
    """Return whether an argument or a result field was added or removed."""
    return is_named_schema(difference) and difference.path[-2] in ("properties", "arguments")


def is_named_schema(difference: Difference) -> bool:
    """Return whether a named schema, such as a property, was added or removed."""
    return difference.kind != "changed" and difference.path[-2] in NAMED_SCHEMAS


def _is_same(old: Any, new: Any) -> bool:
    return encode_canonical(old) == encode_canonical(new)


def _compare_text(path: Path, old: Any, new: Any) -> Difference:
    is_reformatted = isinstance(old, str) and isinstance(new, str) and old.split() == new.split()
    return Difference(path, old, new, "same" if is_reformatted else "text")


def _compare_annotations(path: Path, old: Any, new: Any) -> Iterator[Difference]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield Difference(path, old, new, "unknown")
        return
    for name in sorted({*old, *new}):
        old_value, new_value = old.get(name), new.get(name)
        if name == "title" and old_value != new_value:
            yield _compare_text((*path, name), old_value, new_value)
        elif not _is_same(old_value, new_value):
            yield Difference((*path, name), old_value, new_value, "unknown")


def _compare_arguments(path: Path, old: Any, new: Any) -> Iterator[Difference]:
    old_schema, new_schema = _arguments_to_schema(old), _arguments_to_schema(new)
    if old_schema is None or new_schema is None:
        yield _compare_text(path, old, new)
    elif _is_same(old_schema, new_schema):
        yield Difference(path, old, new, "same")
    else:
        yield from _compare_named_schemas(path, old_schema, new_schema, "properties", 0)
        if old_schema["required"] != new_schema["required"]:
            yield from _compare_required((*path, "required"), old_schema, new_schema)


def _arguments_to_schema(arguments: Any) -> Mapping[str, Any] | None:
    if not isinstance(arguments, list) or not all(isinstance(argument, Mapping) for argument in arguments):
        return None
    names = [argument.get("name") for argument in arguments]
    has_valid_members = all(
        argument.get("required") in (None, True, False) and isinstance(argument.get("name"), str)
        for argument in arguments
    )
    if not has_valid_members or len({*names}) < len(names):
        return None
    return {
        "properties": {
            argument["name"]: {key: value for key, value in argument.items() if key not in ("name", "required")}
            for argument in arguments
        },
        "required": sorted(argument["name"] for argument in arguments if argument.get("required")),
    }


def _compare_schemas(path: Path, old: Any, new: Any, depth: int) -> Iterator[Difference]:
    if _is_same(old, new):
        return
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield Difference(path, old, new, _compare_boolean_schemas(old, new))
        return
    if depth > _MAX_SCHEMA_DEPTH:
        yield Difference(path, old, new, "unknown")
        return
    alternatives = _compare_alternatives(path, old, new)
    compared_keywords: set[str] = set() if alternatives is None else {*alternatives.old, *alternatives.new}
    if alternatives is not None:
        yield alternatives
    for name in sorted({*old, *new} - compared_keywords):
        if not _is_same(old.get(name), new.get(name)):
            yield from _compare_keyword(path, name, old, new, depth)


def _compare_boolean_schemas(old: Any, new: Any) -> Effect:
    if new is False or (old in (None, True) and isinstance(new, Mapping)):
        return "narrower"
    return "wider" if old is False or (new in (None, True) and isinstance(old, Mapping)) else "unknown"


def _compare_alternatives(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference | None:
    """Compare two schemas, if only one of them has alternatives, such as `X` and `anyOf: [X, Y]`."""
    for name in ("anyOf", "oneOf"):
        if name not in old and (single := _find_alternative(old, new, name)):
            return Difference((*path, name), single, {name: new[name]}, "wider")
        if name not in new and (single := _find_alternative(new, old, name)):
            return Difference((*path, name), {name: old[name]}, single, "narrower")
    return None


def _find_alternative(schema: Mapping[str, Any], other: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    own_rules = {keyword: value for keyword, value in _drop_text(schema).items() if keyword not in other}
    if not own_rules:
        return None
    encoded_rules = encode_canonical(own_rules)
    is_alternative = any(
        isinstance(choice, Mapping) and encode_canonical(_drop_text(choice)) == encoded_rules
        for choice in get_list(other, name)
    )
    return own_rules if is_alternative else None


def _drop_text(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in TEXT_KEYWORDS}


def _compare_keyword(
    path: Path, name: str, old_schema: Mapping[str, Any], new_schema: Mapping[str, Any], depth: int
) -> Iterator[Difference]:
    keyword_path = (*path, name)
    old, new = old_schema.get(name), new_schema.get(name)
    if name == "required":
        yield from _compare_required(keyword_path, old_schema, new_schema)
    elif name in NAMED_SCHEMAS:
        yield from _compare_named_schemas(keyword_path, old_schema, new_schema, name, depth)
    elif name in SCHEMA_LISTS and isinstance(old, list) and isinstance(new, list):
        yield from _compare_schema_lists(keyword_path, name, old, new, depth)
    elif name in _SUBSCHEMAS:
        yield from _compare_schemas(keyword_path, old, new, depth + 1)
    elif name in TEXT_KEYWORDS:
        yield _compare_text(keyword_path, old, new)
    elif name in ("enum", "type"):
        yield Difference(keyword_path, old, new, _compare_value_sets(old, new, is_type=name == "type"))
    else:
        yield Difference(keyword_path, old, new, _compare_bounds(name, old, new))


def _compare_named_schemas(
    path: Path, old_schema: Mapping[str, Any], new_schema: Mapping[str, Any], member: str, depth: int
) -> Iterator[Difference]:
    old, new = old_schema.get(member) or {}, new_schema.get(member) or {}
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield Difference(path, old, new, "unknown")
        return
    required = {name for name in get_list(new_schema, "required") if isinstance(name, str)}
    for name in sorted({*old, *new}):
        if name in old and name in new:
            yield from _compare_schemas((*path, name), old[name], new[name], depth + 1)
        elif member != "properties":
            # For keywords other than `properties`, the effect of an added or removed schema is unknown.
            kind = "removed" if name in old else "added"
            yield Difference((*path, name), old.get(name), new.get(name), "unknown", kind)
        elif name in old:
            yield Difference((*path, name), old[name], None, "narrower", "removed")
        else:
            yield Difference((*path, name), None, new[name], "narrower" if name in required else "wider", "added")


def _compare_required(path: Path, old_schema: Mapping[str, Any], new_schema: Mapping[str, Any]) -> Iterator[Difference]:
    old, new = old_schema.get("required") or [], new_schema.get("required") or []
    if not isinstance(old, list) or not isinstance(new, list):
        yield Difference(path, old, new, "unknown")
        return
    old_names, new_names = ({encode_canonical(name): name for name in names} for names in (old, new))
    if old_names.keys() == new_names.keys():
        yield Difference(path, old, new, "same")
        return
    changed_properties = get_mapping(old_schema).keys() ^ get_mapping(new_schema).keys()
    for key in sorted(old_names.keys() ^ new_names.keys()):
        name = new_names[key] if key in new_names else old_names[key]
        if isinstance(name, str) and name in changed_properties:
            continue
        is_required = key in new_names
        yield Difference(
            path, None if is_required else name, name if is_required else None, "narrower" if is_required else "wider"
        )


def _compare_schema_lists(
    path: Path, name: str, old: Sequence[Any], new: Sequence[Any], depth: int
) -> Iterator[Difference]:
    for index in range(max(len(old), len(new))):
        item_path = (*path, str(index))
        if index >= len(new):
            yield Difference(item_path, old[index], None, "wider" if name == "allOf" else "narrower", "removed")
        elif index >= len(old):
            yield Difference(item_path, None, new[index], "narrower" if name == "allOf" else "wider", "added")
        else:
            yield from _compare_schemas(item_path, old[index], new[index], depth + 1)


def _compare_value_sets(old: Any, new: Any, *, is_type: bool) -> Effect:
    if old is None or new is None:
        return "narrower" if old is None else "wider"
    old_values, new_values = (
        {encode_canonical(value) for value in (values if isinstance(values, list) else [values])}
        for values in (old, new)
    )
    if old_values == new_values:
        return "same"
    # An integer is valid where a number is required.
    if is_type:
        for values in (old_values, new_values):
            values |= {b'"integer"'} if b'"number"' in values else set[bytes]()
    if new_values < old_values:
        return "narrower"
    return "wider" if old_values < new_values else "mixed"


def _compare_bounds(name: str, old: Any, new: Any) -> Effect:
    if name in _MINIMUM_KEYWORDS or name in _MAXIMUM_KEYWORDS:
        if old is None or new is None:
            return "narrower" if old is None else "wider"
        if isinstance(old, int | float) and isinstance(new, int | float):
            return "narrower" if (new > old) == (name in _MINIMUM_KEYWORDS) else "wider"
    if name in _RESTRICTING_KEYWORDS and (old is None or new is None):
        return "narrower" if old is None else "wider"
    return "unknown"
