"""Compile a function once into a JSON Schema and a function that binds arguments to its parameters.

This module does not depend on tools, prompts or requests. `annotations` and `pydantic_types` interpret the types. A
compiled signature does not inspect the function again.
"""

import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import convert
from msgspec.structs import astuple

from dovetail.error_context import clip
from dovetail.errors import ToolError
from dovetail.server.parameters import docstrings
from dovetail.server.parameters.annotations import (
    build_schemas,
    convert_leniently,
    convert_value,
    convert_with_hook,
    format_reason,
    to_json,
)
from dovetail.server.parameters.argument_messages import (
    MAX_LISTED_NAMES,
    MAX_NAME_CHARS,
    ArgumentMessage,
    MismatchError,
    OverlookedMessage,
    format_path,
    truncate,
)
from dovetail.server.parameters.dataclass_defaults import make_default_filler
from dovetail.server.parameters.library_choice import resolve_types
from dovetail.server.parameters.type_hints import is_subclass_of, list_alternatives, rewrite_annotation
from dovetail.server.parameters.unknown_fields import compile_unknown_field_check

if TYPE_CHECKING:
    from dovetail.server.parameters.pydantic_types import PydanticArguments


def _unwrap_function(function: Any) -> Any:
    while True:
        if isinstance(function, functools.partial):
            function = typing.cast("functools.partial[Any]", function).func
        elif isinstance(function, (staticmethod, classmethod, types.MethodType)):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not inspect.isroutine(function) and inspect.isfunction(call := type(function).__call__):
            function = call
        else:
            return function


def describe_location(function: Any) -> str:
    """Return the name, file and line of a function for error messages."""
    inner = _unwrap_function(function)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    code = getattr(inner, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def resolve_hints(function: Any, context_type: type, where: str) -> dict[str, Any]:
    """Return the resolved annotations of a function.

    Raise TypeError if a name is unknown. The error message starts with `where`.
    """
    inner = _unwrap_function(function)
    if isinstance(inner, type) or not callable(inner):
        raise TypeError(f"{where}: not a function")
    try:
        try:
            return typing.get_type_hints(inner, include_extras=True)
        except NameError:
            # If the user's code imports the context class only for type checkers, the name must be defined here.
            local_names = {context_type.__name__: context_type}
            return typing.get_type_hints(inner, localns=local_names, include_extras=True)
    except NameError as exc:
        raise TypeError(f"{where}: the name `{exc.name}` in an annotation is not defined in the module") from None
    except (TypeError, SyntaxError, AttributeError) as exc:
        raise TypeError(f"{where}: the annotations cannot be read: {exc}") from None


_MAX_BACKTRACK_STEPS: Final = 100_000
_MAX_ERRORS: Final = 100  # An error message describes at most this many pattern mismatches.

METHOD_HINT: Final = (
    ". Decorate the method with dovetail.tool, dovetail.resource or dovetail.prompt, and pass the object to "
    "app.include(object)"
)
_NO_DEFAULT: Final = inspect.Parameter.empty
_CONTEXT_NAMES: Final = ("ctx", "context")
_POSITIONAL_KINDS: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_IMMUTABLE_TYPES: Final = (str, int, float, bytes, Enum, types.NoneType)


_READ_ERRORS: Final = (msgspec.ValidationError, MismatchError, RecursionError)

ArgumentNamer = Callable[[str], str | None]
MessageFinder = Callable[[ArgumentNamer], Sequence[ArgumentMessage]]


class InvalidArguments(ToolError):
    """Raised if the arguments of a call are invalid. The message lists all problems, so that a model can correct the
    call.
    """

    def __init__(self, find_messages: MessageFinder, rename: ArgumentNamer = str) -> None:
        messages = find_messages(rename)
        texts = (f"{message}." for message in messages)
        super().__init__(truncate(" ".join(("Invalid arguments.", *texts))) if messages else "")
        # The path of the first invalid argument, such as `lines[0].sku`, or None if no message has a path.
        self.field = next((message.path for message in messages if message.path), None)
        self._find_messages = find_messages
        self._rename = rename

    def rename_arguments(self, rename: ArgumentNamer) -> "InvalidArguments":
        """Return this error with renamed arguments.

        Arguments that `rename` maps to None are left out, so the message may become empty.
        """

        def rename_both(name: str) -> str | None:
            inner_name = self._rename(name)
            return None if inner_name is None else rename(inner_name)

        return InvalidArguments(self._find_messages, rename_both)


class Signature:
    """A function's input schema, and methods that convert its arguments. Create it with `compile_signature`."""

    __slots__ = (
        "_fill_defaults",
        "_has_only_known_fields",
        "_is_all_positional",
        "_is_strict",
        "_layout",
        "_needs_checks",
        "_pattern_validator",
        "_pydantic_arguments",
        "_struct_type",
        "choices",
        "context",
        "defaults",
        "parameters",
        "returns",
        "schema",
        "where",
    )

    def __init__(self, layout: "_Layout", *, lax: bool) -> None:
        self.schema: dict[str, Any] = layout.build_schema()
        self.parameters: tuple[str, ...] = tuple(layout.types)
        self.defaults: dict[str, Any] = layout.defaults
        self.context: str | None = layout.context
        self.choices: dict[str, tuple[str, ...]] = {
            name: choices for name, annotation in layout.types.items() if (choices := _list_choices(annotation))
        }
        self.returns: Any = layout.returns  # Any if the function has no return annotation
        self.where: str = layout.where  # the name, file and line of the function for error messages
        self._layout = layout
        self._struct_type = layout.build_struct()
        self._is_strict = not lax
        self._pydantic_arguments = layout.pydantic_arguments
        uses_msgspec = layout.pydantic_arguments is None
        self._pattern_validator = _make_pattern_validator(self.schema) if uses_msgspec and self._is_strict else None
        self._has_only_known_fields = compile_unknown_field_check(self.schema)
        self._fill_defaults = make_default_filler(layout.types) if uses_msgspec else None
        # msgspec accepts some invalid input and may be slow, so these functions check the input first.
        checks = (self._pattern_validator, self._has_only_known_fields, self._fill_defaults)
        self._needs_checks = not uses_msgspec or any(check is not None for check in checks)
        self._is_all_positional = (
            layout.positional_count == len(layout.types) and layout.context is None and layout.extra_type is None
        )

    def bind(self, arguments: dict[str, Any] | None, context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert the arguments of a call to the arguments of the function.

        Raises:
            InvalidArguments: the arguments do not match the signature.
        """
        raw_arguments = arguments or {}
        if self._needs_checks:
            raw_arguments, struct = self._read_checked(raw_arguments)
        else:
            try:
                # The option `strict=` makes the conversion twice as slow, so it is passed only if needed.
                struct = (
                    convert(raw_arguments, self._struct_type)
                    if self._is_strict
                    else convert(raw_arguments, self._struct_type, strict=False)
                )
            except (msgspec.ValidationError, RecursionError):
                raw_arguments, struct = self._read_repaired(raw_arguments)
        if self._is_all_positional:
            return astuple(struct), {}
        return self._place_values(astuple(struct), raw_arguments, context)

    def _read_checked(self, raw_arguments: dict[str, Any]) -> tuple[dict[str, Any], msgspec.Struct]:
        try:
            return raw_arguments, self._read_struct(convert_with_hook, raw_arguments)
        except _READ_ERRORS:
            return self._read_repaired(raw_arguments)

    def _read_repaired(self, raw_arguments: dict[str, Any]) -> tuple[dict[str, Any], msgspec.Struct]:
        """Repair the arguments and convert them to their types. Return the repaired and the converted arguments.

        For example, a model may write an integer as 3.0, or an object as a string.
        """
        # This import is here because only invalid calls need the module.
        from dovetail.server.parameters.argument_errors import repair_arguments

        raw_arguments = repair_arguments(self.schema, raw_arguments)
        try:
            return raw_arguments, self._read_struct(convert_leniently, raw_arguments)
        except _READ_ERRORS:
            raise self._make_error(raw_arguments) from None

    def _read_struct(
        self, convert_arguments: Callable[..., msgspec.Struct], raw_arguments: dict[str, Any]
    ) -> msgspec.Struct:
        if self._pattern_validator is not None and not self._pattern_validator.is_valid(raw_arguments):
            raise msgspec.ValidationError
        if self._has_only_known_fields is not None and not self._has_only_known_fields(raw_arguments):
            raise msgspec.ValidationError
        if self._pydantic_arguments is not None:
            return self._struct_type(**self._pydantic_arguments.read(raw_arguments))
        struct = convert_arguments(self._struct_type, raw_arguments, strict=self._is_strict)
        if self._fill_defaults is not None:
            self._fill_defaults(struct)
        return struct

    def _place_values(
        self, values: tuple[Any, ...], raw_arguments: dict[str, Any], context: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        layout = self._layout
        kwargs: dict[str, Any] = {}
        if layout.keywords:
            kwargs.update(zip(layout.keywords, values[layout.positional_count :], strict=True))
            values = values[: layout.positional_count]
        if (index := layout.context_index) is not None:
            values = (*values[:index], context, *values[index:])
        elif layout.context is not None:
            kwargs[layout.context] = context
        if layout.extra_type is not None:
            kwargs |= self._read_extra_arguments(raw_arguments)
        return values, kwargs

    def _read_extra_arguments(self, raw_arguments: dict[str, Any]) -> dict[str, Any]:
        names = [name for name in raw_arguments if name not in self._layout.types]
        # The server sets these parameters, so callers must not pass them.
        if not self._layout.reserved_names.isdisjoint(names):
            raise self._make_error(raw_arguments)
        try:
            if self._pydantic_arguments is not None:
                return self._pydantic_arguments.read_extra(raw_arguments)
            return {
                name: convert_value(self._layout.extra_type, raw_arguments[name], lax=not self._is_strict)
                for name in names
            }
        except ValueError:
            raise self._make_error(raw_arguments) from None

    def _make_error(self, raw_arguments: dict[str, Any]) -> InvalidArguments:
        return InvalidArguments(lambda rename: self._describe_problems(raw_arguments, rename))

    def _describe_problems(self, raw_arguments: dict[str, Any], rename: ArgumentNamer) -> list[ArgumentMessage]:
        """Describe the problems of all arguments.

        Each argument is checked separately, because a conversion stops at the first problem.
        """
        from dovetail.server.parameters.argument_errors import describe_names

        layout = self._layout
        allows_extra = layout.extra_type is not None
        missing = [name for name in layout.types if name not in layout.defaults and name not in raw_arguments]
        unknown = [
            name
            for name in raw_arguments
            if (name in layout.reserved_names if allows_extra else name not in layout.types)
        ]
        known_names = [
            name
            for name in raw_arguments
            if name in layout.types or (allows_extra and name not in layout.reserved_names)
        ]
        messages: list[ArgumentMessage] = []
        if missing := rename_all(missing, rename):
            messages.append(describe_names("Missing", missing))
        if unknown := rename_all(unknown, rename):
            unused = rename_all([name for name in layout.types if name not in raw_arguments], rename)[:MAX_LISTED_NAMES]
            messages.append(describe_names("Unknown", unknown, unused))
        pattern_errors = _find_pattern_errors(self._pattern_validator, raw_arguments, rename)
        outer_names = {
            name: clip(outer_name, MAX_NAME_CHARS) for name in known_names if (outer_name := rename(name)) is not None
        }
        mismatches = (
            self._find_mismatches(raw_arguments, outer_names, pattern_errors)
            if self._pydantic_arguments is None
            else self._find_pydantic_mismatches(self._pydantic_arguments, raw_arguments, outer_names)
        )
        messages += itertools.islice(mismatches, MAX_LISTED_NAMES)
        messages += itertools.islice(itertools.chain(*pattern_errors.values()), MAX_LISTED_NAMES)
        return messages

    def _find_mismatches(
        self, raw_arguments: dict[str, Any], outer_names: Mapping[str, str], pattern_errors: Collection[str]
    ) -> Iterator[ArgumentMessage]:
        for name, outer_name in outer_names.items():
            messages = self._find_schema_mismatches(name, raw_arguments[name], outer_name)
            if name in pattern_errors:
                # The regex engine of msgspec can be very slow, so the argument is not converted.
                yield from messages
            else:
                yield from self._find_argument_mismatches(name, raw_arguments[name], outer_name, messages)

    def _find_schema_mismatches(self, name: str, value: Any, outer_name: str) -> list[ArgumentMessage]:
        from dovetail.server.parameters.argument_errors import find_mismatches

        schema = self.schema["properties"].get(name, self.schema["additionalProperties"])
        definitions = self.schema.get("$defs", {})
        mismatches = find_mismatches(schema, value, definitions, outer_name) if isinstance(schema, dict) else ()
        return [*itertools.islice(mismatches, MAX_LISTED_NAMES)]

    def _find_argument_mismatches(
        self, name: str, value: Any, outer_name: str, messages: list[ArgumentMessage]
    ) -> Iterator[ArgumentMessage]:
        annotation = self._layout.types.get(name, self._layout.extra_type)
        try:
            convert_leniently(annotation, value, strict=self._is_strict)
        except msgspec.ValidationError as exc:
            choices = self.choices.get(name, ())
            may_be_null = ("null",) if choices and _accepts_none(annotation) else ()
            yield from messages or [format_reason(exc, outer_name, choices + may_be_null)]
        except RecursionError:
            yield ArgumentMessage.about(outer_name, "nested too deeply")
        else:
            yield from (message for message in messages if isinstance(message, OverlookedMessage))

    def _find_pydantic_mismatches(
        self, arguments: "PydanticArguments", raw_arguments: dict[str, Any], outer_names: Mapping[str, str]
    ) -> Iterator[ArgumentMessage]:
        from dovetail.server.parameters.argument_errors import merge_mismatches

        mismatches = [*arguments.find_mismatches(raw_arguments)]
        yield from (ArgumentMessage(mismatch.reason, "") for mismatch in mismatches if not mismatch.path)
        for name, outer_name in outer_names.items():
            own_mismatches = [mismatch for mismatch in mismatches if mismatch.path[:1] == (name,)]
            messages = self._find_schema_mismatches(name, raw_arguments[name], outer_name)
            yield from merge_mismatches(own_mismatches, messages, outer_name)


def rename_all(names: Iterable[str], rename: ArgumentNamer) -> list[str]:
    """Replace each name with the result of `rename`. If `rename` returns None, leave out the name."""
    return [outer_name for name in names if (outer_name := rename(name)) is not None]


class ContextSignature(Signature):
    """The signature of a function that gets the context as its first argument."""

    __slots__ = ()

    def __init__(self, layout: "_Layout", *, lax: bool) -> None:
        super().__init__(layout, lax=lax)
        self.context = self.context or ""

    def bind(self, arguments: dict[str, Any] | None, context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert the arguments of a call, and put the context before them."""
        args, kwargs = super().bind(arguments, context)
        return (context, *args), kwargs


def compile_signature(
    function: Callable[..., Any],
    *,
    context_type: type,
    lax: bool = False,
    skip: Collection[str] = (),
    passes_context: bool = False,
) -> Signature:
    """Create the signature of a function. If `lax` is True, arguments may be text, such as "3" for an int.

    `bind` passes the context to the parameter annotated with `context_type`. Parameters in `skip` are not in the
    schema, and the caller of the function passes them by keyword. If `passes_context` is True, the context is the first
    argument.

    Raises:
        TypeError: the value of a parameter cannot come from JSON. The message names the parameter, the function and its
            file.
    """
    where = describe_location(function)
    hints = resolve_hints(function, context_type, where)
    try:
        signature = inspect.signature(function)
    except ValueError as exc:
        raise TypeError(f"{where}: {exc}") from None
    _check_is_bound(signature, hints, where)
    layout = _Layout(where, hints.get("return", Any), docstrings.parse(inspect.getdoc(function)).parameters)
    for parameter in signature.parameters.values():
        annotation = hints.get(parameter.name, Any)
        if parameter.name in skip:
            layout.add_hidden(parameter)
        elif any(is_subclass_of(alternative, context_type) for alternative in list_alternatives(annotation)):
            layout.add_context(parameter)
        else:
            if parameter.name in _CONTEXT_NAMES and parameter.name not in hints:
                raise TypeError(
                    f"{where}: parameter `{parameter.name}` has no annotation. Write `{parameter.name}: Context` to "
                    "get the context, or annotate the parameter with the type of the argument"
                )
            layout.add(parameter, annotation)
    layout.choose_library()
    return (ContextSignature if passes_context else Signature)(layout, lax=lax)


def _check_is_bound(signature: inspect.Signature, hints: Mapping[str, Any], where: str) -> None:
    first = next(iter(signature.parameters), "")
    if first in ("self", "cls") and first not in hints:
        raise TypeError(f"{where}: parameter `{first}`: the method is not bound to an object{METHOD_HINT}")


class _Layout:
    def __init__(self, where: str, returns: Any, descriptions: Mapping[str, str]) -> None:
        self.where = where
        self._descriptions = descriptions  # from the docstring
        self.returns = returns
        self.types: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.positional_count = 0  # the number of parameters in `types` that are positional
        self.keywords: list[str] = []
        self.context: str | None = None
        self.context_index: int | None = None
        self.extra_type: Any = None  # The type of `**kwargs`, or None if the function has none.
        self._extra_name = ""
        self.reserved_names: set[str] = set()
        self.pydantic_arguments: PydanticArguments | None = None
        self._allows_positional = True

    def add(self, parameter: inspect.Parameter, annotation: Any) -> None:
        name, default = parameter.name, parameter.default
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"{self.where}: parameter `*{name}` is not supported, because arguments are passed by name")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            self.extra_type, self._extra_name = annotation, name
            return
        annotation = Any if annotation is object else rewrite_annotation(annotation, _replace_iterable)
        if type(default).__module__ == "pydantic.fields":
            annotation, default = _unpack_field(annotation, default)
        if default is None:
            annotation = self._allow_none(name, annotation)
        self.types[name] = _add_description(annotation, self._descriptions.get(name))
        if default is not _NO_DEFAULT:
            self.defaults[name] = default
        if self._is_passed_by_position(parameter):
            self.positional_count += 1
        else:
            self.keywords.append(name)

    def add_context(self, parameter: inspect.Parameter) -> None:
        if self.context is not None:
            raise TypeError(
                f"{self.where}: parameter `{parameter.name}`: only one parameter can receive the "
                f"context, and `{self.context}` already does"
            )
        if self._is_passed_by_position(parameter):
            self.context_index = self.positional_count
        self.context = parameter.name
        self.reserved_names.add(parameter.name)

    def add_hidden(self, parameter: inspect.Parameter) -> None:
        self._allows_positional = False
        self._is_passed_by_position(parameter)
        self.reserved_names.add(parameter.name)

    def _is_passed_by_position(self, parameter: inspect.Parameter) -> bool:
        self._allows_positional = self._allows_positional and parameter.kind in _POSITIONAL_KINDS
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and not self._allows_positional:
            raise TypeError(
                f"{self.where}: parameter `{parameter.name}`: a positional-only parameter cannot be passed by name"
            )
        return self._allows_positional

    def _allow_none(self, name: str, annotation: Any) -> Any:
        members = list_alternatives(annotation)
        if Any in members or types.NoneType in members:
            return annotation
        try:
            return annotation | None
        except TypeError:
            raise TypeError(f"{self.where}: parameter `{name}`: its annotation is not a type") from None

    def choose_library(self) -> None:
        annotations = self.types if self.extra_type is None else self.types | {self._extra_name: self.extra_type}
        try:
            library, translated_types = resolve_types(annotations)
            if self.extra_type is not None:
                self.extra_type = translated_types.pop(self._extra_name)
            self.types = translated_types
            if library == "pydantic":
                from dovetail.server.parameters.pydantic_types import PydanticArguments

                required = [name for name in self.types if name not in self.defaults]
                self.pydantic_arguments = PydanticArguments(self.types, required, self.extra_type)
        except TypeError as exc:
            raise TypeError(f"{self.where}: {exc}") from None

    def build_struct(self) -> type[msgspec.Struct]:
        return msgspec.defstruct(
            "Arguments",
            [
                self._build_field(name, annotation if self.pydantic_arguments is None else Any)
                for name, annotation in self.types.items()
            ],
            kw_only=True,
            forbid_unknown_fields=self.extra_type is None,
            gc=False,  # Instances are short-lived, so they need no garbage collection.
        )

    def _build_field(self, name: str, annotation: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
        if name not in self.defaults:
            return name, annotation
        default = self.defaults[name]
        if isinstance(default, _IMMUTABLE_TYPES):
            return name, annotation, default
        factory = default.copy if type(default) in (list, dict, set) else lambda: default
        return name, annotation, msgspec.field(default_factory=factory)

    def build_schema(self) -> dict[str, Any]:
        properties, extra_schema, definitions = self._build_schemas()
        for name, default in self.defaults.items():
            _add_default(properties[name], default)
        required = [name for name in self.types if name not in self.defaults]
        return {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": self.extra_type is not None and (extra_schema or True),
            **({"$defs": definitions} if definitions else {}),
        }

    def _build_schemas(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if (arguments := self.pydantic_arguments) is not None:
            return arguments.properties, arguments.extra_schema, arguments.definitions
        annotations = {**self.types, "**": Any if self.extra_type is None else self.extra_type}
        for name, annotation in annotations.items():
            self._check_annotation(name, annotation)
        schemas, definitions = build_schemas(list(annotations.values()))
        properties = dict(zip(annotations, schemas, strict=True))
        return properties, properties.pop("**"), definitions

    def _check_annotation(self, name: str, annotation: Any) -> None:
        try:
            build_schemas([annotation])
        except TypeError as exc:
            raise TypeError(f"{self.where}: parameter `{name}`: {exc}") from None


def _add_default(schema: dict[str, Any], default: Any) -> None:
    try:
        schema["default"] = to_json(default)[0]
    except (TypeError, ValueError):
        # The default is left out of the schema if it is not JSON, or if a factory creates it in each call.
        return


def _replace_iterable(annotation: Any) -> Any:
    if annotation is Iterable:
        return list
    return list[typing.get_args(annotation)] if typing.get_origin(annotation) is Iterable else annotation


def _add_description(annotation: Any, description: str | None) -> Any:
    """Add the description of a parameter. A string or Doc in Annotated takes precedence over the docstring."""
    notes: list[Any] = [*annotation.__metadata__] if typing.get_origin(annotation) is Annotated else []
    texts = [note if isinstance(note, str) else getattr(note, "documentation", None) for note in notes]
    descriptions = [text for text in texts if isinstance(text, str)]
    if not descriptions and description and not any(getattr(note, "description", None) for note in notes):
        descriptions = [description]
    for text in descriptions:
        annotation = Annotated[annotation, msgspec.Meta(description=text)]
    return annotation


def _unpack_field(annotation: Any, field: Any) -> tuple[Any, Any]:
    """Move a pydantic `Field(...)` from the default to the annotation. Return the annotation and the new default."""
    # The user's code has already imported pydantic, so this import takes no time.
    from dovetail.server.parameters import pydantic_types

    has_default, default = pydantic_types.get_default(field)
    return Annotated[annotation, field], default if has_default else _NO_DEFAULT


def _list_choices(annotation: Any) -> tuple[str, ...]:
    match [kind for kind in list_alternatives(annotation) if kind is not types.NoneType]:
        case [kind] if typing.get_origin(kind) is Literal:
            return tuple(_format_choice(value) for value in typing.get_args(kind) if value is not None)
        case [kind] if is_subclass_of(kind, Enum):
            return tuple(_format_choice(member.value) for member in kind)
        case [kind] if kind is bool:
            return ("true", "false")
        case _:
            return ()


def _accepts_none(annotation: Any) -> bool:
    members = list_alternatives(annotation)
    return types.NoneType in members or any(
        typing.get_origin(member) is Literal and None in typing.get_args(member) for member in members
    )


def _format_choice(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _make_pattern_validator(schema: dict[str, Any]) -> Any:
    """Return a validator for the patterns in a schema. Without patterns, return None.

    The validator runs before msgspec, whose regex engine can be very slow.
    """
    return make_validator(schema) if has_pattern(schema) else None


def has_pattern(schema: dict[str, Any]) -> bool:
    return b'"pattern":' in msgspec.json.encode(schema)


def make_validator(schema: dict[str, Any]) -> Any:
    """Return a validator for a schema. Its error messages contain no values."""
    # This import is here because only some servers need the package.
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, pattern_options=jsonschema_rs.RegexOptions(), mask="value")
    except ValueError:
        # The linear-time regex engine does not support lookaround. For lookaround, an engine with a step limit is used.
        return jsonschema_rs.validator_for(
            schema,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACK_STEPS),
            mask="value",
        )


def _find_pattern_errors(
    validator: Any, raw_arguments: dict[str, Any], rename: ArgumentNamer
) -> dict[str, list[ArgumentMessage]]:
    messages_by_argument: dict[str, list[ArgumentMessage]] = {}
    errors = [] if validator is None else [*itertools.islice(validator.iter_errors(raw_arguments), _MAX_ERRORS)]
    for error in errors:
        keyword = str(error.schema_path[-1]) if error.schema_path else ""
        if error.instance_path and keyword in ("pattern", "anyOf", "oneOf"):
            first, *rest = error.instance_path
            messages = messages_by_argument.setdefault(str(first), [])
            if keyword == "pattern" and (outer_name := rename(str(first))) is not None:
                from dovetail.server.parameters.argument_errors import format_pattern_mismatch

                reason = format_pattern_mismatch(error.kind.pattern)
                messages.append(ArgumentMessage.about(format_path([outer_name, *rest]), reason))
    return (
        messages_by_argument
        if len(errors) < _MAX_ERRORS
        else {name: messages_by_argument.get(name, []) for name in raw_arguments}
    )
