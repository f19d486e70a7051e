"""Models: pydantic's types, for authors who use them.

The only module that imports pydantic, loaded by the first such type. What it makes of JSON and what it says in a schema
is pydantic's own.
"""

import functools
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from dovetail.server.foreign import Misfits


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
        return adapter(kind).json_schema(mode="serialization" if output else "validation")
    except PydanticUserError as exc:
        raise TypeError(str(exc).splitlines()[0]) from None


def read(kind: Any, value: Any) -> Any:
    """JSON as a value of the type; Misfits names everything that does not fit."""
    try:
        return adapter(kind).validate_python(value, by_alias=True, by_name=True)
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_input=False, include_context=False)
        raise Misfits([(tuple(one["loc"]), one["msg"]) for one in found]) from None


def dump(value: Any) -> Any:
    """A value as JSON has it."""
    return adapter(type(value)).dump_python(value, mode="json", by_alias=True)


def default_of(field: FieldInfo) -> tuple[bool, Any]:
    """Whether a `Field(...)` written as a parameter's default has a default itself, and which."""
    return (False, None) if field.is_required() else (True, field.get_default(call_default_factory=True))
