"""Rules of model providers for JSON Schemas, and conversion of schemas for a provider.

`find_violations` checks a tool against the rules of a provider. `fit_schema` rewrites a schema so that a provider
accepts it: unsupported keywords move into the description, and types that a provider cannot express become JSON text,
which the server parses. docs/schemas.md lists the sources.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from dovetail.schemas.reader import as_object, get_list, get_mapping, get_number, get_required

Schema = dict[str, Any]

_DEFS_PREFIX: Final = "#/$defs/"
_COMBINATORS: Final = ("anyOf", "oneOf", "allOf", "not", "enum")
_LIST_KEYWORDS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAX_UNROLLED_LEVELS: Final = 2  # For providers without references, a recursive type is expanded this many times.


class SchemaRules(NamedTuple):
    """The rules that one provider's API has for schemas. If a field is None, the provider has no such rule."""

    name_pattern: str = r"[A-Za-z0-9_-]{1,64}"
    parameter_pattern: str = r"[^\x00-\x1f]+"
    max_description_chars: int | None = None
    keywords: frozenset[str] | None = None
    formats: frozenset[str] | None = None
    only_text_enums: bool = False  # All enum values must be strings.
    allows_references: bool = True
    allows_recursion: bool = True
    needs_items: bool = False
    needs_type: bool = False
    requires_closed_objects: bool = False  # `additionalProperties` must be false.
    requires_all_properties: bool = False
    limits_min_items: bool = False  # `minItems` must be 0 or 1.


_BASIC_KEYWORDS: Final = frozenset(("type", "description", "title", "enum", "anyOf", "properties", "required", "items"))
_REFERENCE_KEYWORDS: Final = frozenset(("$ref", "$defs", "additionalProperties", "const"))
_TEXT_FORMATS: Final = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))

# The message about a long description starts with this text.
LONG_DESCRIPTION: Final = "the description is longer than"
PROVIDER_RULES: Final[Mapping[str, SchemaRules]] = {
    "openai": SchemaRules(max_description_chars=1024, needs_items=True),
    "openai-strict": SchemaRules(
        max_description_chars=1024,
        needs_items=True,
        needs_type=True,
        requires_closed_objects=True,
        requires_all_properties=True,
        formats=_TEXT_FORMATS,
        keywords=_BASIC_KEYWORDS
        | _REFERENCE_KEYWORDS
        | {"pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
        | {"minItems", "maxItems"},
    ),
    "gemini": SchemaRules(
        name_pattern=r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}", parameter_pattern=r"[A-Za-z_][A-Za-z0-9_]{0,63}"
    ),
    "gemini-openapi": SchemaRules(
        name_pattern=r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}",
        parameter_pattern=r"[A-Za-z_][A-Za-z0-9_]{0,63}",
        needs_items=True,
        needs_type=True,
        only_text_enums=True,
        allows_references=False,
        allows_recursion=False,
        formats=frozenset(("enum", "date-time", "float", "double", "int32", "int64")),
        keywords=_BASIC_KEYWORDS
        | {"format", "nullable", "default", "example", "pattern", "propertyOrdering", "minimum", "maximum"}
        | {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"},
    ),
    "anthropic": SchemaRules(parameter_pattern=r"[A-Za-z0-9_.-]{1,64}"),
    "anthropic-strict": SchemaRules(
        parameter_pattern=r"[A-Za-z0-9_.-]{1,64}",
        needs_type=True,
        requires_closed_objects=True,
        allows_recursion=False,
        limits_min_items=True,
        formats=_TEXT_FORMATS | {"uri"},
        keywords=_BASIC_KEYWORDS | _REFERENCE_KEYWORDS | {"allOf", "default", "format", "minItems"},
    ),
}

# The model provider whose strict mode accepts the published schemas.
SchemaProfile: TypeAlias = Literal["openai", "gemini", "anthropic"]
PROFILES: Final[Mapping[SchemaProfile, str]] = {
    "openai": "openai-strict",
    "gemini": "gemini-openapi",
    "anthropic": "anthropic-strict",
}
# Some hosts send schemas unchanged to these providers, so the rules of these providers are checked by default.
UNMODIFIED_RULE_SETS: Final = ("openai", "gemini", "anthropic")


def find_violations(rule_set: str, name: str, description: str | None, schema: Schema) -> Iterator[str]:
    """Yield a message for each provider rule that a tool definition violates."""
    schema_rules = PROVIDER_RULES[rule_set]
    if not re.fullmatch(schema_rules.name_pattern, name):
        yield f"the name does not match {schema_rules.name_pattern}"
    if schema_rules.max_description_chars is not None and len(description or "") > schema_rules.max_description_chars:
        yield f"{LONG_DESCRIPTION} {schema_rules.max_description_chars} characters"
    if schema.get("type") != "object":
        yield "the schema must describe an object"
    for keyword in _COMBINATORS:
        if keyword in schema:
            yield f"{keyword} is not allowed at the top level"
    for parameter in get_mapping(schema):
        if not re.fullmatch(schema_rules.parameter_pattern, parameter):
            yield f"`{parameter}`: the name does not match {schema_rules.parameter_pattern}"
    if not schema_rules.allows_recursion and (recursive_names := _find_recursive(schema)):
        yield f"{', '.join(sorted(recursive_names))} contains itself"
    for path, subschema in _iter_subschemas(schema, ""):
        yield from (
            f"`{path or '.'}`: {problem}" for problem in _check_subschema(schema_rules, subschema, is_root=path == "")
        )


def _check_subschema(schema_rules: SchemaRules, schema: Schema, *, is_root: bool) -> Iterator[str]:
    yield from _check_keywords(schema_rules, schema)
    json_type = schema.get("type")
    if schema_rules.needs_type and not isinstance(json_type, str) and not {"anyOf", "$ref"} & schema.keys():
        yield "the type is missing"
    if schema_rules.needs_items and json_type == "array" and "items" not in schema:
        yield "items is missing"
    if schema_rules.limits_min_items and get_number(schema, "minItems") > 1:
        yield "minItems is more than 1"
    if json_type == "object":
        yield from _check_object(schema_rules, schema, is_root=is_root)


def _check_keywords(schema_rules: SchemaRules, schema: Schema) -> Iterator[str]:
    if schema_rules.keywords is not None:
        yield from (f"{keyword} is not supported" for keyword in schema if keyword not in schema_rules.keywords)
    if schema_rules.formats is not None and "format" in schema and str(schema["format"]) not in schema_rules.formats:
        yield f"the format {schema['format']} is not supported"
    if not schema_rules.allows_references and "$ref" in schema:
        yield "a reference"
    if schema_rules.only_text_enums and not all(isinstance(value, str) for value in get_list(schema, "enum")):
        yield "enum values must be strings"


def _check_object(schema_rules: SchemaRules, schema: Schema, *, is_root: bool) -> Iterator[str]:
    properties = get_mapping(schema)
    if schema_rules.needs_type and not is_root and not properties:
        yield "an object must have properties"
    if schema_rules.requires_closed_objects and schema.get("additionalProperties") is not False:
        yield "additionalProperties must be false"
    if schema_rules.requires_all_properties and set(get_required(schema)) != set(properties):
        yield "every property must be required"


def fit_schema(profile: SchemaProfile, schema: Schema) -> Schema:
    """Rewrite a tool's input schema so that a provider accepts it. Use the provider's strict mode if possible."""
    if profile not in PROFILES:
        raise ValueError(f"schema_profile must be one of {', '.join(PROFILES)}, not {profile!r}")
    return _SchemaFitter(profile, schema).fit_root()


class _SchemaFitter:
    def __init__(self, profile: SchemaProfile, schema: Schema) -> None:
        self._rules = PROVIDER_RULES[PROFILES[profile]]
        self._uses_nullable = "nullable" in (self._rules.keywords or ())
        self._schema = schema
        self._definitions = get_mapping(schema, "$defs")

    def fit_root(self) -> Schema:
        fit = self._fit_object({key: value for key, value in self._schema.items() if key != "$defs"}, {})
        if self._definitions and self._rules.allows_recursion:
            fit["$defs"] = {name: self._fit(definition, {}) for name, definition in self._definitions.items()}
        return fit

    def _fit(self, schema: Any, depth: dict[str, int]) -> Schema:
        if not isinstance(schema, dict) or not schema:
            return self._build_any_schema()
        node = cast("Schema", schema)
        if "$ref" in node:
            return self._fit_reference(node, depth)
        if members := get_list(node, "anyOf") or get_list(node, "oneOf"):
            return self._fit_union(node, members, depth)
        # If `anyOf` or `oneOf` is present here, it contains no schemas, so it is removed.
        node = _drop_keys(node, "anyOf", "oneOf")
        match node.get("type"):
            case "object":
                return self._fit_object(node, depth) if get_mapping(node) else self._build_text_schema(node, "object")
            case "array":
                return self._fit_array(node, depth)
            case str():
                return self._fit_keywords(node)
            case _:
                return (
                    self._fit_keywords(node)
                    if "enum" in node
                    else self._build_any_schema() | self._select_annotations(node)
                )

    def _fit_reference(self, schema: Schema, depth: dict[str, int]) -> Schema:
        name = str(schema["$ref"]).removeprefix(_DEFS_PREFIX)
        if self._rules.allows_recursion:
            return {"$ref": schema["$ref"]}
        if depth.get(name, 0) >= _MAX_UNROLLED_LEVELS or name not in self._definitions:
            return self._build_text_schema(dict(as_object(self._definitions.get(name))), "object")
        return self._fit(
            {**as_object(self._definitions[name]), **self._select_annotations(schema)},
            depth | {name: depth.get(name, 0) + 1},
        )

    def _fit_union(self, schema: Schema, members: list[Schema], depth: dict[str, int]) -> Schema:
        has_null = any(as_object(member).get("type") == "null" for member in members)
        fit = [self._fit(member, depth) for member in members if as_object(member).get("type") != "null"]
        annotations = self._select_annotations(schema)
        if not self._uses_nullable:
            return {"anyOf": [*fit, *([{"type": "null"}] if has_null else [])], **annotations}
        nullable = {"nullable": True} if has_null else {}
        return fit[0] | annotations | nullable if len(fit) == 1 else {"anyOf": fit, **annotations, **nullable}

    def _fit_object(self, schema: Schema, depth: dict[str, int]) -> Schema:
        required_names = get_required(schema)
        properties = {name: self._fit(property_schema, depth) for name, property_schema in get_mapping(schema).items()}
        if self._rules.requires_all_properties:
            properties = {
                name: property_schema
                if name in required_names
                else _make_nullable(_drop_keys(property_schema, "default"))
                for name, property_schema in properties.items()
            }
            required_names = [*properties]
        fit: Schema = {"type": "object", **self._select_annotations(schema), "properties": properties}
        if required_names:
            fit["required"] = required_names
        return fit | ({"additionalProperties": False} if self._rules.requires_closed_objects else {})

    def _fit_array(self, schema: Schema, depth: dict[str, int]) -> Schema:
        items = [self._fit(item, depth) for item in get_list(schema, "prefixItems")]
        unique = [item for index, item in enumerate(items) if item not in items[:index]]
        if unique:
            item_schema = unique[0] if len(unique) == 1 else {"anyOf": unique}
        else:
            item_schema = self._fit(schema.get("items"), depth)
        array_schema = self._fit_keywords(
            {key: value for key, value in schema.items() if key not in ("items", "prefixItems")}
        )
        return array_schema | {"items": item_schema}

    def _fit_keywords(self, schema: Schema) -> Schema:
        """Remove keywords that the provider does not support, and add them to the description."""
        fit: Schema = {}
        notes: list[str] = []
        for key, value in self._close_bounds(schema).items():
            if key == "enum" and not isinstance(value, list):
                notes.append(f"{key} {value}")
            elif key == "enum" and self._rules.only_text_enums and not all(isinstance(item, str) for item in value):
                fit |= {"type": "string", "enum": [str(item) for item in value]}
            elif self._is_supported(key, value):
                fit.setdefault(key, value)
            elif key != "default":
                notes.append(f"{key} {value}")
        if fit.get("enum") and fit.get("type") != "string" and self._rules.only_text_enums:
            fit["type"] = "string"
        elif "enum" in fit and "type" not in fit and self._rules.needs_type:
            choices = [_build_enum_schema(json_type, fit["enum"]) for json_type in _list_value_types(fit["enum"])]
            fit = cast("Schema", {"anyOf": choices}) | self._select_annotations(fit)
        if notes:
            fit["description"] = f"{fit.get('description', '')} ({'; '.join(notes)})".strip()
        return fit

    def _is_supported(self, key: str, value: Any) -> bool:
        if key == "format":
            return self._rules.formats is None or str(value) in self._rules.formats
        if key == "minItems" and self._rules.limits_min_items:
            return isinstance(value, int) and value <= 1
        return self._rules.keywords is None or key in self._rules.keywords

    def _close_bounds(self, schema: Schema) -> Schema:
        fit = dict(schema)
        for bound, exclusive_bound, step in (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)):
            if (
                isinstance(fit.get(exclusive_bound), int)
                and not self._is_supported(exclusive_bound, 0)
                and self._is_supported(bound, 0)
                and fit.get("type") == "integer"
            ):
                fit[bound] = fit.pop(exclusive_bound) + step
        return fit

    def _select_annotations(self, schema: Schema) -> Schema:
        return {
            key: schema[key]
            for key in ("description", "title", "default")
            if key in schema and self._is_supported(key, 0)
        }

    def _build_text_schema(self, schema: Schema, json_type: str) -> Schema:
        description = f"{schema.get('description', '')} A JSON {json_type}, written as text.".strip()
        return {"type": "string", "description": description}

    def _build_any_schema(self) -> Schema:
        return {"type": "string", "description": "Any text."}


def _make_nullable(schema: Schema) -> Schema:
    if "anyOf" in schema:
        members: list[Schema] = schema["anyOf"]
        return schema if {"type": "null"} in members else schema | {"anyOf": [*members, {"type": "null"}]}
    annotations = {key: schema[key] for key in ("description", "title") if key in schema}
    return {"anyOf": [_drop_keys(schema, *annotations), {"type": "null"}], **annotations}


def _drop_keys(schema: Schema, *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}


def _list_value_types(values: list[Any]) -> list[str]:
    names = {str: "string", bool: "boolean", int: "integer", float: "number"}
    return list(dict.fromkeys(names[type(value)] for value in values if type(value) in names))


def _build_enum_schema(json_type: str, values: list[Any]) -> Schema:
    return {"type": json_type, "enum": [value for value in values if _list_value_types([value]) == [json_type]]}


def _iter_subschemas(node: Any, path: str) -> Iterator[tuple[str, Schema]]:
    schema = dict(as_object(node))
    yield path, schema
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties") and isinstance(value, dict):
            for name, subschema in cast("dict[str, Any]", value).items():
                yield from _iter_subschemas(subschema, f"{path}.{name}".lstrip("."))
        elif key in _LIST_KEYWORDS and isinstance(value, list):
            for subschema in cast("list[Any]", value):
                yield from _iter_subschemas(subschema, f"{path}({key})")
        elif key in ("items", "additionalProperties", "propertyNames") and isinstance(value, dict):
            yield from _iter_subschemas(cast("Schema", value), f"{path}[]")


def _find_recursive(schema: Schema) -> set[str]:
    definitions = get_mapping(schema, "$defs")
    references = {
        name: {
            _get_reference_name(subschema) for _, subschema in _iter_subschemas(definition, "") if "$ref" in subschema
        }
        for name, definition in definitions.items()
    }
    recursive: set[str] = set()
    for name in definitions:
        pending, visited = [*references[name]], set[str]()
        while pending:
            reference = pending.pop()
            if reference not in visited:
                visited.add(reference)
                pending += references.get(reference, ())
        if name in visited:
            recursive.add(name)
    return recursive


def _get_reference_name(schema: Schema) -> str:
    return str(schema["$ref"]).removeprefix(_DEFS_PREFIX)
