"""Models: pydantic's types, for authors who use them.

The only module that imports pydantic, loaded by the first such type. What it makes of JSON and what it says in a schema
is pydantic's own.
"""

import functools
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from dovetail.server.parameters.argument_errors import find_boolean_mismatches
from dovetail.server.parameters.foreign_types import MismatchError


class _ClosedSchemaGenerator(GenerateJsonSchema):
    """Writes pydantic's schemas, closing what would pass over members it does not know without having been told to."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return self._forbid_unknown_members(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return self._forbid_unknown_members(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        return self._forbid_unknown_members(super().typed_dict_schema(schema), schema.get("cls"))

    def _forbid_unknown_members(self, json_schema: dict[str, Any], type_: Any) -> dict[str, Any]:
        if self.mode == "validation" and "properties" in json_schema and _names_all_members(type_):
            json_schema.setdefault("additionalProperties", False)
        return json_schema


def _names_all_members(type_: Any) -> bool:
    """Whether the schema names every member that would be read: no aliases, and no code of the author's before."""
    config: Any = getattr(type_, "model_config", None) or getattr(type_, "__pydantic_config__", None) or {}
    fields: Any = getattr(type_, "__pydantic_fields__", None) or {}
    decorators = getattr(type_, "__pydantic_decorators__", None)
    validators: Any = decorators.model_validators.values() if decorators is not None else ()
    return (
        config.get("extra") is None
        and not any(field.validation_alias is not None for field in fields.values())
        and not any(validator.info.mode != "after" for validator in validators)
    )


@functools.lru_cache(maxsize=1024)
def _get_cached_adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


def get_adapter(type_: Any) -> TypeAdapter[Any]:
    """What pydantic knows of a type; TypeError if it cannot handle it."""
    try:
        return _get_cached_adapter(type_)
    except PydanticUserError as exc:
        raise TypeError(str(exc).splitlines()[0]) from None


def build_schema(type_: Any, *, output: bool) -> dict[str, Any]:
    """The JSON Schema of a type, as arguments or as a result."""
    try:
        mode = "serialization" if output else "validation"
        return get_adapter(type_).json_schema(mode=mode, schema_generator=_ClosedSchemaGenerator)
    except PydanticUserError as exc:
        raise TypeError(str(exc).splitlines()[0]) from None


def validate(type_: Any, value: Any) -> Any:
    """JSON as a value of the type; Misfits names everything that does not fit."""
    # pydantic counts with booleans unless it is told to be strict, which would cost dates and much else.
    if _contains_boolean(value) and (errors := [*find_boolean_mismatches(_get_cached_schema(type_), value)]):
        raise MismatchError(errors)
    try:
        return get_adapter(type_).validate_python(value, by_alias=True, by_name=True)
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False, include_context=False)
        reasons = [(tuple(error["loc"]), "missing" if error["type"] == "missing" else error["msg"]) for error in errors]
        raise MismatchError(reasons) from None


@functools.lru_cache(maxsize=1024)
def _get_cached_schema(type_: Any) -> dict[str, Any]:
    return build_schema(type_, output=False)


def _contains_boolean(value: Any, depth: int = 64) -> bool:
    if isinstance(value, bool):
        return True
    if not depth or not isinstance(value, dict | list):
        return False
    members: Iterable[Any] = value.values() if isinstance(value, dict) else value
    return any(_contains_boolean(member, depth - 1) for member in members)


def dump(value: Any) -> Any:
    """A value as JSON has it."""
    return get_adapter(type(value)).dump_python(value, mode="json", by_alias=True)


def get_default(field: FieldInfo) -> tuple[bool, Any]:
    """Whether a `Field(...)` written as a parameter's default has a default itself, and which."""
    return (False, None) if field.is_required() else (True, field.get_default(call_default_factory=True))
