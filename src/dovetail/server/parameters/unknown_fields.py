"""Check that the arguments of a call contain no unknown fields.

msgspec and pydantic ignore unknown fields, so a misspelled optional field would have no effect. The check is compiled
from the schema. A signature without nested objects has no check.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

from dovetail.server.parameters.argument_messages import Schema
from dovetail.server.parameters.json_schema import REF_PREFIX

# A function that returns False if a value has unknown fields.
FieldCheck = Callable[[Any], bool]


def compile_unknown_field_check(schema: Schema) -> FieldCheck | None:
    """Create a check for unknown fields in the arguments. If no argument needs the check, return None."""
    # This code checks only fields inside of arguments. Other code rejects unknown arguments.
    extra_schema = schema.get("additionalProperties")
    open_schema = {**schema, "additionalProperties": extra_schema if isinstance(extra_schema, dict) else True}
    return _CheckCompiler(schema.get("$defs", {})).compile_object(open_schema)


class _CheckCompiler:
    def __init__(self, definitions: Schema) -> None:
        self._definitions = definitions
        self._check_by_name: dict[str, FieldCheck] = {}

    def _compile_members(self, schema: Schema) -> dict[str, FieldCheck]:
        checks = {name: self.compile_node(member) for name, member in schema.get("properties", {}).items()}
        return {name: check for name, check in checks.items() if check is not None}

    def compile_node(self, schema: Any) -> FieldCheck | None:
        if not isinstance(schema, dict):
            return None
        schema = cast("Schema", schema)
        if "$ref" in schema:
            return self._compile_reference(str(schema["$ref"]).removeprefix(REF_PREFIX))
        if alternatives := schema.get("anyOf") or schema.get("oneOf"):
            return self._compile_alternatives(alternatives)
        match schema.get("type"):
            case "object":
                return self.compile_object(schema)
            case "array":
                return self._compile_array(schema)
            case _:
                return None

    def _compile_reference(self, name: str) -> FieldCheck:
        if name not in self._check_by_name:
            # The check of a recursive type calls itself. Until the check exists, a lambda stands in for it.
            self._check_by_name[name] = lambda value: self._check_by_name[name](value)
            self._check_by_name[name] = self.compile_node(self._definitions.get(name, {})) or _always_valid
        return self._check_by_name[name]

    def _compile_alternatives(self, schemas: list[Schema]) -> FieldCheck | None:
        checks = [self.compile_node(schema) for schema in schemas]
        if not any(checks):
            return None
        if (
            len(present_checks := [check for check in checks if check is not None]) == 1
            and _count_scalars(schemas) == len(schemas) - 1
        ):
            return present_checks[0]  # A union of one object and scalars needs only the check of the object.
        resolved = [
            self._definitions.get(str(schema["$ref"]).removeprefix(REF_PREFIX), {}) if "$ref" in schema else schema
            for schema in schemas
        ]
        if not all("type" in schema for schema in resolved):
            return None
        # This import is here because few signatures need the module.
        from dovetail.server.parameters.argument_errors import select_matching

        check_by_id = {id(schema): check for schema, check in zip(resolved, checks, strict=True)}
        return lambda value: _any_passes(
            [check_by_id[id(schema)] for schema in select_matching(resolved, value)], value
        )

    def compile_object(self, schema: Schema) -> FieldCheck | None:
        member_checks, extra_check = (
            self._compile_members(schema),
            self.compile_node(schema.get("additionalProperties")),
        )
        names = frozenset[str](schema.get("properties", ()))
        if schema.get("additionalProperties") is False:
            if not member_checks:
                return lambda value: type(value) is not dict or cast("Any", value).keys() <= names
            check_members = _make_members_check(member_checks)
            return lambda value: (
                type(value) is not dict or (cast("Any", value).keys() <= names and check_members(value))
            )
        if extra_check is None:
            return _make_members_check(member_checks) if member_checks else None
        return lambda value: (
            type(value) is not dict
            or all(
                member_checks.get(name, _always_valid if name in names else extra_check)(member)
                for name, member in cast("dict[str, Any]", value).items()
            )
        )

    def _compile_array(self, schema: Schema) -> FieldCheck | None:
        prefix_checks, item_check = (
            [self.compile_node(item_schema) or _always_valid for item_schema in schema.get("prefixItems", ())],
            self.compile_node(schema.get("items")),
        )
        if prefix_checks:
            return lambda value: (
                type(value) is not list
                or all(check(item) for check, item in zip(prefix_checks, cast("list[Any]", value), strict=False))
            )
        return None if item_check is None else lambda value: type(value) is not list or all(map(item_check, value))


def _make_members_check(checks: Mapping[str, FieldCheck]) -> FieldCheck:
    pairs = tuple(checks.items())

    def check_members(value: Any) -> bool:
        if type(value) is dict:
            for name, check in pairs:
                if name in value and not check(cast("dict[str, Any]", value)[name]):
                    return False
        return True

    return check_members


def _count_scalars(schemas: list[Schema]) -> int:
    return sum(schema.get("type") not in ("object", "array", None) for schema in schemas)


def _any_passes(checks: list[FieldCheck | None], value: Any) -> bool:
    return not checks or any(check is None or check(value) for check in checks)


def _always_valid(_: Any) -> bool:
    return True
