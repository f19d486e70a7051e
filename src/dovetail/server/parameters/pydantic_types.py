"""Pydantic support: pydantic converts arguments, results and forms, and builds their schemas.

Only this module imports pydantic, and only if a type needs pydantic. The rules of pydantic apply, but a boolean in
JSON data is never a number. `PydanticArguments` rejects unknown arguments, and `unknown_fields` rejects unknown fields
inside arguments. Forms and results ignore unknown fields unless the class forbids them.
"""

import functools
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Final, NotRequired, cast

import msgspec
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError
from typing_extensions import TypedDict

from dovetail.server.parameters import docstrings
from dovetail.server.parameters.argument_errors import find_boolean_mismatches
from dovetail.server.parameters.argument_messages import Mismatch, MismatchError, Path
from dovetail.server.parameters.flat_schema import flatten_schema
from dovetail.server.parameters.json_schema import get_own_docstring
from dovetail.server.parameters.type_hints import rewrite_annotation
from dovetail.wire.codec import encode

UNKNOWN_DEFAULT: Final = object()  # This object marks a default value that a factory creates in each call.
_ARGUMENT_CONFIG: Final = ConfigDict(extra="forbid", val_json_bytes="base64", ser_json_bytes="base64")


class PydanticType:
    """Converts JSON data to a type and back with pydantic.

    Raises:
        TypeError: pydantic does not support the type.
    """

    def __init__(self, type_: Any, *, output: bool = False, config: ConfigDict | None = None) -> None:
        mode = "serialization" if output else "validation"
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(type_, config=config)
            schema = self._adapter.json_schema(mode=mode, schema_generator=_SchemaGenerator)
        except (PydanticUserError, PydanticUndefinedAnnotation) as exc:
            raise _to_type_error(exc) from None
        except SchemaError as exc:
            # pydantic raises SchemaError if a pattern is invalid, for example.
            raise TypeError(str(exc).splitlines()[-1].strip()) from None
        self.schema: dict[str, Any] = flatten_schema(schema)

    def read(self, value: Any) -> Any:
        """Convert JSON data to the type. Raise MismatchError with all problems."""
        try:
            text = encode(value)
        except UnicodeEncodeError:
            raise MismatchError([Mismatch((), "a string contains half a surrogate pair")]) from None
        except RecursionError:
            raise MismatchError([Mismatch((), "nested too deeply")]) from None
        # pydantic accepts booleans as numbers. Its strict mode does not, but it also rejects dates in strings.
        has_boolean = b"true" in text or b"false" in text
        messages = find_boolean_mismatches(self.schema, value) if has_boolean else []
        try:
            result = self._adapter.validate_json(text, by_alias=True, by_name=True)
        except ValidationError as exc:
            raise MismatchError([*_list_mismatches(exc, value)], messages) from None
        if messages:
            raise MismatchError([], messages)
        return result

    def convert(self, value: Any) -> Any:
        """Convert a value to the type, and return instances of the type unchanged.

        Raise MismatchError if the value does not match.
        """
        try:
            return self._adapter.validate_python(value, by_alias=True, by_name=True)
        except ValidationError as exc:
            raise MismatchError([*_list_mismatches(exc, value)]) from None

    def dump(self, value: Any) -> Any:
        """Convert a value of this type to JSON data."""
        return self._adapter.dump_python(value, mode="json", by_alias=True)


class PydanticArguments:
    """Uses pydantic to convert the arguments of one function and to build their schemas.

    Raises:
        TypeError: pydantic does not support a type. The message contains the name of the parameter.
    """

    def __init__(self, types: Mapping[str, Any], required: Collection[str], extra_type: Any) -> None:
        self._names = types.keys()
        # This key contains the additional arguments. No parameter can have the name `**`.
        fields = {name: type_ if name in required else NotRequired[type_] for name, type_ in types.items()}
        all_fields = fields if extra_type is None else fields | {"**": NotRequired[extra_type]}
        typed_dict: Any = cast("Any", TypedDict)("Arguments", all_fields)
        typed_dict.__pydantic_config__ = _ARGUMENT_CONFIG
        try:
            self._named = PydanticType(typed_dict)
        except TypeError:
            for name, type_ in types.items():
                _check_parameter(name, type_)
            raise
        self._extra = None if extra_type is None else PydanticType(dict[str, extra_type], config=_ARGUMENT_CONFIG)
        self.properties: dict[str, Any] = self._named.schema.get("properties", {})
        self.extra_schema: dict[str, Any] = self.properties.pop("**", {})
        self.definitions: dict[str, Any] = self._named.schema.get("$defs", {})

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the passed arguments. If some are invalid, raise one MismatchError with all problems."""
        return self._named.read(arguments if self._extra is None else self._select(arguments, extra=False))

    def read_extra(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that do not match any parameter."""
        return {} if self._extra is None else self._extra.read(self._select(arguments, extra=True))

    def find_mismatches(self, arguments: dict[str, Any]) -> Iterator[Mismatch]:
        """Yield all problems of the arguments. Each path starts with an argument name."""
        for read in (self.read, self.read_extra):
            try:
                read(arguments)
            except MismatchError as exc:
                yield from exc.mismatches

    def _select(self, arguments: dict[str, Any], *, extra: bool) -> dict[str, Any]:
        return {name: value for name, value in arguments.items() if (name not in self._names) is extra}


def _check_parameter(name: str, type_: Any) -> None:
    try:
        PydanticType(type_)
    except TypeError as exc:
        raise TypeError(f"parameter `{name}`: {exc}") from None


def translate_meta(annotation: Any) -> Any:
    """Replace `msgspec.Meta` with pydantic's `Field`."""
    return rewrite_annotation(annotation, _translate_notes)


def _translate_notes(annotation: Any) -> Any:
    notes = annotation.__metadata__ if typing.get_origin(annotation) is Annotated else ()
    if not any(isinstance(note, msgspec.Meta) for note in notes):
        return annotation
    fields = (_to_field(note) if isinstance(note, msgspec.Meta) else note for note in notes)
    return Annotated[(annotation.__origin__, *fields)]


def _to_field(meta: msgspec.Meta) -> Any:
    options: dict[str, Any] = dict(meta.__rich_repr__())
    options.pop("extra", None)
    extra_schema = options.pop("extra_json_schema", None)
    return Field(**options, json_schema_extra=extra_schema)


class _SchemaGenerator(GenerateJsonSchema):
    """Builds pydantic's schemas. Unless a class configures `extra`, its schema has `additionalProperties: false`."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return self._finish_class(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return self._finish_class(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        return self._finish_class(super().typed_dict_schema(schema), schema.get("cls"))

    def _finish_class(self, json_schema: dict[str, Any], class_type: Any) -> dict[str, Any]:
        if self.mode == "validation" and "properties" in json_schema and _lists_all_fields(class_type):
            json_schema.setdefault("additionalProperties", False)
        text = get_own_docstring(class_type) if class_type is not None else ""
        doc = docstrings.parse(text)
        if doc.text and json_schema.get("description") == text:
            json_schema["description"] = doc.text
        for name, member in json_schema.get("properties", {}).items():
            if name in doc.parameters:
                member.setdefault("description", doc.parameters[name])
        return json_schema


def _lists_all_fields(type_: Any) -> bool:
    """Return whether the schema of a class lists all accepted fields.

    Aliases, `extra` and validators may accept more.
    """
    config: Any = getattr(type_, "model_config", None) or getattr(type_, "__pydantic_config__", None) or {}
    fields: Any = getattr(type_, "__pydantic_fields__", None) or {}
    decorators = getattr(type_, "__pydantic_decorators__", None)
    validators: Any = decorators.model_validators.values() if decorators is not None else ()
    return (
        config.get("extra") is None
        and not any(field.validation_alias is not None for field in fields.values())
        and not any(validator.info.mode != "after" for validator in validators)
    )


def _list_mismatches(exc: ValidationError, value: Any) -> Iterator[Mismatch]:
    for error in exc.errors(include_url=False, include_input=False, include_context=False):
        location, is_missing = error["loc"], error["type"] == "missing"
        reason = "missing" if is_missing else error["msg"]
        if location[-1:] == ("[key]",):
            location, reason = location[:-1], f"invalid key: {reason}"
        path, branch = _resolve_location(location, value, is_missing=is_missing)
        # If the tag of a union is wrong, pydantic's message contains the value, which may be secret.
        is_tag_wrong = error["type"].startswith("union_tag_")
        yield Mismatch(path, reason, path if is_tag_wrong else branch)


def _resolve_location(location: Path, value: Any, *, is_missing: bool) -> tuple[Path, Path | None]:
    """Return the path of a problem, and the path of the first union that contains it.

    pydantic's location also contains the names of alternatives, which are removed.
    """
    path: Path = ()
    branch: Path | None = None
    for index, step in enumerate(location):
        if is_missing and index == len(location) - 1:
            return (*path, step), branch
        try:
            value = value[step]
            path = (*path, step)
        except (LookupError, TypeError):
            branch = path if branch is None else branch
    return path, branch


@functools.lru_cache(maxsize=1024)
def _get_adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


def dump(value: Any) -> Any:
    """Return a value of a pydantic type as JSON data. Raise TypeError if pydantic does not support the type."""
    try:
        adapter = _get_adapter(type(value))
    except (PydanticUserError, PydanticUndefinedAnnotation) as exc:
        raise _to_type_error(exc) from None
    return adapter.dump_python(value, mode="json", by_alias=True)


def _to_type_error(exc: PydanticUserError | PydanticUndefinedAnnotation) -> TypeError:
    return TypeError(str(exc).splitlines()[0])


def get_default(field: FieldInfo) -> tuple[bool, Any]:
    """Return whether a `Field(...)` has a default, and the default value.

    The value of a factory is `UNKNOWN_DEFAULT`, because pydantic calls the factory in each call.
    """
    if field.is_required():
        return False, None
    return True, field.get_default() if field.default_factory is None else UNKNOWN_DEFAULT
