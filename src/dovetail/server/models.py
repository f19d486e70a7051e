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

from dovetail.server.arguments import posing
from dovetail.server.foreign import Misfits


class _Closed(GenerateJsonSchema):
    """Writes pydantic's schemas, closing what would pass over members it does not know without having been told to."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return self._closed(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return self._closed(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        return self._closed(super().typed_dict_schema(schema), schema.get("cls"))

    def _closed(self, written: dict[str, Any], kind: Any) -> dict[str, Any]:
        if self.mode == "validation" and "properties" in written and _knows_all(kind):
            written.setdefault("additionalProperties", False)
        return written


def _knows_all(kind: Any) -> bool:
    """Whether the schema names every member that would be read: no aliases, and no code of the author's before."""
    config: Any = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    fields: Any = getattr(kind, "__pydantic_fields__", None) or {}
    decorators = getattr(kind, "__pydantic_decorators__", None)
    validators: Any = decorators.model_validators.values() if decorators is not None else ()
    return (
        config.get("extra") is None
        and not any(field.validation_alias is not None for field in fields.values())
        and not any(one.info.mode != "after" for one in validators)
    )


@functools.lru_cache(maxsize=1024)
def _known(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def adapter(kind: Any) -> TypeAdapter[Any]:
    """What pydantic knows of a type; TypeError if it cannot handle it."""
    try:
        return _known(kind)
    except PydanticUserError as exc:
        raise TypeError(str(exc).splitlines()[0]) from None


def schema(kind: Any, *, output: bool) -> dict[str, Any]:
    """The JSON Schema of a type, as arguments or as a result."""
    try:
        mode = "serialization" if output else "validation"
        return adapter(kind).json_schema(mode=mode, schema_generator=_Closed)
    except PydanticUserError as exc:
        raise TypeError(str(exc).splitlines()[0]) from None


def read(kind: Any, value: Any) -> Any:
    """JSON as a value of the type; Misfits names everything that does not fit."""
    # pydantic counts with booleans unless it is told to be strict, which would cost dates and much else.
    if _holds_boolean(value) and (found := [*posing(_written(kind), value)]):
        raise Misfits(found)
    try:
        return adapter(kind).validate_python(value, by_alias=True, by_name=True)
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_input=False, include_context=False)
        reasons = [(tuple(one["loc"]), "missing" if one["type"] == "missing" else one["msg"]) for one in found]
        raise Misfits(reasons) from None


@functools.lru_cache(maxsize=1024)
def _written(kind: Any) -> dict[str, Any]:
    return schema(kind, output=False)


def _holds_boolean(value: Any, depth: int = 64) -> bool:
    if isinstance(value, bool):
        return True
    if not depth or not isinstance(value, dict | list):
        return False
    members: Iterable[Any] = value.values() if isinstance(value, dict) else value
    return any(_holds_boolean(one, depth - 1) for one in members)


def dump(value: Any) -> Any:
    """A value as JSON has it."""
    return adapter(type(value)).dump_python(value, mode="json", by_alias=True)


def default_of(field: FieldInfo) -> tuple[bool, Any]:
    """Whether a `Field(...)` written as a parameter's default has a default itself, and which."""
    return (False, None) if field.is_required() else (True, field.get_default(call_default_factory=True))
