"""Simplify pydantic's schemas: no titles, and references only for recursive types.

The result has the same form as the schemas from `json_schema`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from dovetail.server.parameters.json_schema import REF_PREFIX, Schema, build_items_schema

_LIST_KEYWORDS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPPING_KEYWORDS: Final = ("properties", "patternProperties", "$defs")
_SCHEMA_KEYWORDS: Final = ("items", "additionalProperties", "propertyNames")


def flatten_schema(schema: Schema) -> Schema:
    """Replace each reference in a schema with its definition. The root of the result is never a reference."""
    definitions: dict[str, Schema] = schema.get("$defs", {})
    recursive_names = [name for name in definitions if name in _find_reachable_names(definitions[name], definitions)]
    inlinable = {name: definition for name, definition in definitions.items() if name not in recursive_names}
    root = {key: value for key, value in schema.items() if key != "$defs"}
    if (name := _get_reference_name(root)) in recursive_names:
        root = definitions[name] | {key: value for key, value in root.items() if key != "$ref"}
    recursive = {name: _inline_references(definitions[name], inlinable) for name in recursive_names}
    return _inline_references(root, inlinable) | ({"$defs": recursive} if recursive else {})


def extract_schema(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return a part of a schema, with the definitions that the part needs. The root is never a reference."""
    if (name := _get_reference_name(schema)) in definitions:
        schema = definitions[name] | {key: value for key, value in schema.items() if key != "$ref"}
    reachable = _find_reachable_names(schema, definitions)
    needed = {name: definition for name, definition in definitions.items() if name in reachable}
    return {**schema, "$defs": needed} if needed else schema


def _get_reference_name(schema: Mapping[str, Any]) -> str:
    reference = schema.get("$ref", "")
    return reference.removeprefix(REF_PREFIX) if reference.startswith(REF_PREFIX) else ""


def _inline_references(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    if (name := _get_reference_name(schema)) in definitions:
        schema = definitions[name] | {key: value for key, value in schema.items() if key != "$ref"}
    if "const" in schema and isinstance(schema["const"], (str, int)):
        schema = {key: value for key, value in schema.items() if key != "const"} | {"enum": [schema["const"]]}
    result = {
        key: _map_subschemas(key, value, lambda subschema: _inline_references(subschema, definitions))
        for key, value in schema.items()
        if key not in ("discriminator", "title") and not (key == "additionalProperties" and value is True)
    }
    if not result.get("required", True):
        del result["required"]
    if "prefixItems" in result:
        result.setdefault("items", build_items_schema(result["prefixItems"]))
    return result


def _map_subschemas(key: str, value: Any, transform: Callable[[Schema], Schema]) -> Any:
    if key in _MAPPING_KEYWORDS and isinstance(value, dict):
        return {name: transform(subschema) for name, subschema in cast("dict[str, Schema]", value).items()}
    if key in _LIST_KEYWORDS and isinstance(value, list):
        return [transform(subschema) for subschema in cast("list[Schema]", value)]
    return transform(cast("Schema", value)) if key in _SCHEMA_KEYWORDS and isinstance(value, dict) else value


def _find_reachable_names(schema: Schema, definitions: Mapping[str, Schema]) -> set[str]:
    reachable: set[str] = set()
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            name = _get_reference_name(cast("Schema", node))
            if name in definitions and name not in reachable:
                reachable.add(name)
                pending.append(definitions[name])
            pending += cast("Schema", node).values()
        elif isinstance(node, list):
            pending += cast("list[Any]", node)
    return reachable
