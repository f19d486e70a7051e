"""Profiles: what the makers of models accept as the schema of a tool, as data, and schemas rewritten to fit.

A rule set says what is refused; `refusals` holds a tool against it. A profile is a rule set that `fitted` can rewrite a
schema for: what a maker does not know is told in the description instead, and what it cannot express is asked for as
JSON text, which the server reads where no text may stand. docs/schemas.md names the sources.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from dovetail.protocol.resolving import as_object, listed, named, number, required

Schema = dict[str, Any]

_REF: Final = "#/$defs/"
_COMBINATORS: Final = ("anyOf", "oneOf", "allOf", "not", "enum")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_UNROLLED: Final = 2  # levels of a type that contains itself, where there are no references


class Rules(NamedTuple):
    """What one interface of one maker takes; None where it does not say."""

    name: str = r"[A-Za-z0-9_-]{1,64}"
    parameter: str = r"[^\x00-\x1f]+"
    description: int | None = None
    keywords: frozenset[str] | None = None
    formats: frozenset[str] | None = None
    text_enums: bool = False  # only texts may be enumerated
    references: bool = True
    loops: bool = True
    needs_items: bool = False
    needs_type: bool = False
    closed: bool = False  # every object names all it may have
    all_required: bool = False
    few_items: bool = False  # minItems may only be 0 or 1


_WORDS: Final = frozenset(("type", "description", "title", "enum", "anyOf", "properties", "required", "items"))
_LOCAL: Final = frozenset(("$ref", "$defs", "additionalProperties", "const"))
_TEXT_FORMATS: Final = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))

RULES: Final[Mapping[str, Rules]] = {
    "openai": Rules(description=1024, needs_items=True),
    "openai-strict": Rules(
        description=1024,
        needs_items=True,
        needs_type=True,
        closed=True,
        all_required=True,
        formats=_TEXT_FORMATS,
        keywords=_WORDS
        | _LOCAL
        | {"pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
        | {"minItems", "maxItems"},
    ),
    "gemini": Rules(name=r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}", parameter=r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
    "gemini-openapi": Rules(
        name=r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}",
        parameter=r"[A-Za-z_][A-Za-z0-9_]{0,63}",
        needs_items=True,
        needs_type=True,
        text_enums=True,
        references=False,
        loops=False,
        formats=frozenset(("enum", "date-time", "float", "double", "int32", "int64")),
        keywords=_WORDS
        | {"format", "nullable", "default", "example", "pattern", "propertyOrdering", "minimum", "maximum"}
        | {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"},
    ),
    "anthropic": Rules(parameter=r"[A-Za-z0-9_.-]{1,64}"),
    "anthropic-strict": Rules(
        parameter=r"[A-Za-z0-9_.-]{1,64}",
        needs_type=True,
        closed=True,
        loops=False,
        few_items=True,
        formats=_TEXT_FORMATS | {"uri"},
        keywords=_WORDS | _LOCAL | {"allOf", "default", "format", "minItems"},
    ),
}

PROFILES: Final = {"openai": "openai-strict", "gemini": "gemini-openapi", "anthropic": "anthropic-strict"}
AS_PUBLISHED: Final = ("openai", "gemini", "anthropic")  # what a schema meets that a host hands on as it is


def refusals(rules: str, name: str, description: str | None, schema: Schema) -> Iterator[str]:
    """Everything about a tool that a rule set forbids, one line each."""
    rule = RULES[rules]
    if not re.fullmatch(rule.name, name):
        yield f"the name does not match {rule.name}"
    if rule.description is not None and len(description or "") > rule.description:
        yield f"the description is longer than {rule.description} characters"
    if schema.get("type") != "object":
        yield "the schema is not one of an object"
    for word in _COMBINATORS:
        if word in schema:
            yield f"{word} stands at the top"
    for parameter in named(schema):
        if not re.fullmatch(rule.parameter, parameter):
            yield f"`{parameter}`: the name does not match {rule.parameter}"
    if not rule.loops and (looping := _looping(schema)):
        yield f"{', '.join(sorted(looping))} contains itself"
    for place, one in _everywhere(schema, ""):
        yield from (f"`{place or '.'}`: {why}" for why in _against(rule, one, root=place == ""))


def _against(rule: Rules, schema: Schema, *, root: bool) -> Iterator[str]:
    if rule.keywords is not None:
        yield from (f"{word} is not known" for word in schema if word not in rule.keywords)
    if rule.formats is not None and "format" in schema and str(schema["format"]) not in rule.formats:
        yield f"the format {schema['format']} is not known"
    if not rule.references and "$ref" in schema:
        yield "a reference"
    if rule.text_enums and not all(isinstance(value, str) for value in listed(schema, "enum")):
        yield "only texts can be enumerated"
    kind = schema.get("type")
    if rule.needs_type and not isinstance(kind, str) and not {"anyOf", "$ref"} & schema.keys():
        yield "the type is missing"
    if rule.needs_items and kind == "array" and "items" not in schema:
        yield "items is missing"
    if rule.few_items and number(schema, "minItems") > 1:
        yield "minItems is more than 1"
    if kind == "object" and not root and rule.needs_type and not named(schema):
        yield "an object without properties"
    if kind == "object" and rule.closed and schema.get("additionalProperties") is not False:
        yield "additionalProperties is not false"
    if kind == "object" and rule.all_required and set(required(schema)) != set(named(schema)):
        yield "not every property is required"


def fitted(profile: str, schema: Schema) -> Schema:
    """The schema of a tool's arguments, rewritten so that the profile's maker takes it, strictly where it can."""
    if profile not in PROFILES:
        raise ValueError(f"profile must be one of {', '.join(PROFILES)}, not {profile!r}")
    return _Fitting(profile, schema).root()


class _Fitting:
    def __init__(self, profile: str, schema: Schema) -> None:
        self._rule = RULES[PROFILES[profile]]
        self._nullable = "nullable" in (self._rule.keywords or ())
        self._schema = schema
        self._shared = named(schema, "$defs")

    def root(self) -> Schema:
        fit = self._object({key: value for key, value in self._schema.items() if key != "$defs"}, {})
        if self._shared and self._rule.loops:
            fit["$defs"] = {name: self._fit(part, {}) for name, part in self._shared.items()}
        return fit

    def _fit(self, schema: Any, depth: dict[str, int]) -> Schema:
        if not isinstance(schema, dict) or not schema:
            return self._anything()
        given = cast("Schema", schema)
        if "$ref" in given:
            return self._reference(given, depth)
        if members := listed(given, "anyOf") or listed(given, "oneOf"):
            return self._union(given, members, depth)
        match given.get("type"):
            case "object":
                return self._object(given, depth) if named(given) else self._as_text(given, "object")
            case "array":
                return self._array(given, depth)
            case str():
                return self._told(given)
            case _:
                return self._told(given) if "enum" in given else self._anything() | self._words(given)

    def _reference(self, schema: Schema, depth: dict[str, int]) -> Schema:
        name = str(schema["$ref"]).removeprefix(_REF)
        if self._rule.loops:
            return {"$ref": schema["$ref"]}
        if depth.get(name, 0) >= _UNROLLED or name not in self._shared:
            return self._as_text(dict(as_object(self._shared.get(name))), "object")
        return self._fit(
            {**as_object(self._shared[name]), **self._words(schema)}, depth | {name: depth.get(name, 0) + 1}
        )

    def _union(self, schema: Schema, members: list[Schema], depth: dict[str, int]) -> Schema:
        empty = any(as_object(member).get("type") == "null" for member in members)
        fit = [self._fit(member, depth) for member in members if as_object(member).get("type") != "null"]
        words = self._words(schema)
        if not self._nullable:
            return {"anyOf": [*fit, *([{"type": "null"}] if empty else [])], **words}
        nullable = {"nullable": True} if empty else {}
        return fit[0] | words | nullable if len(fit) == 1 else {"anyOf": fit, **words, **nullable}

    def _object(self, schema: Schema, depth: dict[str, int]) -> Schema:
        needed = required(schema)
        properties = {name: self._fit(one, depth) for name, one in named(schema).items()}
        if self._rule.all_required:
            properties = {
                name: one if name in needed else _or_null(_without(one, "default")) for name, one in properties.items()
            }
            needed = [*properties]
        fit: Schema = {"type": "object", **self._words(schema), "properties": properties}
        if needed:
            fit["required"] = needed
        return fit | ({"additionalProperties": False} if self._rule.closed else {})

    def _array(self, schema: Schema, depth: dict[str, int]) -> Schema:
        items = [self._fit(one, depth) for one in listed(schema, "prefixItems")]
        unique = [one for at, one in enumerate(items) if one not in items[:at]]
        if unique:
            inner = unique[0] if len(unique) == 1 else {"anyOf": unique}
        else:
            inner = self._fit(schema.get("items"), depth)
        told = self._told({key: value for key, value in schema.items() if key not in ("items", "prefixItems")})
        return told | {"items": inner}

    def _told(self, schema: Schema) -> Schema:
        """Without the keywords the maker does not know; they are said in words."""
        fit: Schema = {}
        said: list[str] = []
        for key, value in self._closed_bounds(schema).items():
            if key == "enum" and not isinstance(value, list):
                said.append(f"{key} {value}")
            elif key == "enum" and self._rule.text_enums and not all(isinstance(one, str) for one in value):
                fit |= {"type": "string", "enum": [str(one) for one in value]}
            elif self._knows(key, value):
                fit.setdefault(key, value)
            elif key != "default":
                said.append(f"{key} {value}")
        if fit.get("enum") and fit.get("type") != "string" and self._rule.text_enums:
            fit["type"] = "string"
        elif "enum" in fit and "type" not in fit and self._rule.needs_type:
            choices = [_choices(kind, fit["enum"]) for kind in _kinds(fit["enum"])]
            fit = cast("Schema", {"anyOf": choices}) | self._words(fit)
        if said:
            fit["description"] = f"{fit.get('description', '')} ({'; '.join(said)})".strip()
        return fit

    def _knows(self, key: str, value: Any) -> bool:
        if key == "format":
            return self._rule.formats is None or str(value) in self._rule.formats
        if key == "minItems" and self._rule.few_items:
            return isinstance(value, int) and value <= 1
        return self._rule.keywords is None or key in self._rule.keywords

    def _closed_bounds(self, schema: Schema) -> Schema:
        """Where only closed bounds are known, an integer's open one is the next number."""
        fit = dict(schema)
        for bound, opened, step in (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)):
            if (
                isinstance(fit.get(opened), int)
                and not self._knows(opened, 0)
                and self._knows(bound, 0)
                and fit.get("type") == "integer"
            ):
                fit[bound] = fit.pop(opened) + step
        return fit

    def _words(self, schema: Schema) -> Schema:
        return {
            key: schema[key] for key in ("description", "title", "default") if key in schema and self._knows(key, 0)
        }

    def _as_text(self, schema: Schema, kind: str) -> Schema:
        said = f"{schema.get('description', '')} A JSON {kind}, written as text.".strip()
        return {"type": "string", "description": said}

    def _anything(self) -> Schema:
        return {"type": "string", "description": "Any text."}


def _or_null(schema: Schema) -> Schema:
    if "anyOf" in schema:
        members: list[Schema] = schema["anyOf"]
        return schema if {"type": "null"} in members else schema | {"anyOf": [*members, {"type": "null"}]}
    words = {key: schema[key] for key in ("description", "title") if key in schema}
    return {"anyOf": [_without(schema, *words), {"type": "null"}], **words}


def _without(schema: Schema, *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}


def _kinds(values: list[Any]) -> list[str]:
    names = {str: "string", bool: "boolean", int: "integer", float: "number"}
    return list(dict.fromkeys(names[type(value)] for value in values if type(value) in names))


def _choices(kind: str, values: list[Any]) -> Schema:
    return {"type": kind, "enum": [value for value in values if _kinds([value]) == [kind]]}


def _everywhere(given: Any, place: str) -> Iterator[tuple[str, Schema]]:
    schema = dict(as_object(given))
    yield place, schema
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties") and isinstance(value, dict):
            for name, one in cast("dict[str, Any]", value).items():
                yield from _everywhere(one, f"{place}.{name}".lstrip("."))
        elif key in _LISTS and isinstance(value, list):
            for one in cast("list[Any]", value):
                yield from _everywhere(one, f"{place}({key})")
        elif key in ("items", "additionalProperties", "propertyNames") and isinstance(value, dict):
            yield from _everywhere(cast("Schema", value), f"{place}[]")


def _looping(schema: Schema) -> set[str]:
    """The definitions from which a way leads back to themselves."""
    parts = named(schema, "$defs")
    near = {name: {_target(one) for _, one in _everywhere(part, "") if "$ref" in one} for name, part in parts.items()}
    found: set[str] = set()
    for name in parts:
        todo, met = [*near[name]], set[str]()
        while todo:
            step = todo.pop()
            if step not in met:
                met.add(step)
                todo += near.get(step, ())
        if name in met:
            found.add(name)
    return found


def _target(schema: Schema) -> str:
    return str(schema["$ref"]).removeprefix(_REF)
