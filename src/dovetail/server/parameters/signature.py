"""A user's function, compiled once: its JSON Schema, and the way a call's arguments reach its parameters.

Knows nothing of tools, prompts or requests, and leaves what a type means to `schema`. Invariant: once compiled, a
signature never looks at the function again.
"""

import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Final, Literal

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
    format_reasons,
    format_type_error,
    is_subclass_of,
    list_alternatives,
    normalize_annotation,
    to_json,
)
from dovetail.server.parameters.argument_errors import (
    MAX_LISTED_NAMES,
    MAX_NAME_CHARS,
    UnknownMemberMessage,
    find_mismatches,
    format_names,
    format_pattern_mismatch,
    repair_arguments,
    truncate,
)
from dovetail.server.parameters.foreign_types import MismatchError, format_path, may_need_adapters, needs_hook
from dovetail.server.parameters.type_adapters import make_default_filler
from dovetail.server.parameters.unknown_fields import compile_unknown_field_check


def _unwrap_function(function: Any) -> Any:
    """The plain function that carries the annotations."""
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
    """Name, file and line of a function."""
    inner = _unwrap_function(function)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    code = getattr(inner, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def resolve_hints(function: Any, context_type: type, where: str) -> dict[str, Any]:
    """The resolved annotations of a function; TypeError, beginning with `where`, if they cannot be."""
    inner = _unwrap_function(function)
    if isinstance(inner, type) or not callable(inner):
        raise TypeError(f"{where}: not a function")
    try:
        try:
            return typing.get_type_hints(inner, include_extras=True)
        except NameError:
            # A context imported only for the type checker is still the context.
            local_names = {context_type.__name__: context_type}
            return typing.get_type_hints(inner, localns=local_names, include_extras=True)
    except NameError as exc:
        raise TypeError(f"{where}: the name `{exc.name}` in its annotations is not defined in its module") from None
    except (TypeError, SyntaxError, AttributeError) as exc:
        raise TypeError(f"{where}: its annotations cannot be read: {exc}") from None


_MAX_BACKTRACK_STEPS: Final = 100_000
_MAX_ERRORS: Final = 100  # looked for in one call

METHOD_HINT: Final = ": mark it with dovetail.tool, resource or prompt, and offer the object by app.add(object)"
_NO_DEFAULT: Final = inspect.Parameter.empty
_POSITIONAL_KINDS: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_IMMUTABLE_TYPES: Final = (str, int, float, bytes, Enum, types.NoneType)


ArgumentNamer = Callable[[str], str | None]


class InvalidArguments(ToolError):
    """The arguments of a call do not fit; the text names every misfit, for a model to repair them.

    `tell` says the same where arguments have other names, or none; with nothing left to say, the text is empty.
    """

    def __init__(self, format_message: Callable[[ArgumentNamer], str], rename: ArgumentNamer = str) -> None:
        super().__init__(format_message(rename))
        self._format_message = format_message
        self._rename = rename

    def rename_arguments(self, rename: ArgumentNamer) -> "InvalidArguments":
        """The same for whoever knows the arguments by other words; those that are None are not spoken of."""

        def rename_both(name: str) -> str | None:
            inner_name = self._rename(name)
            return None if inner_name is None else rename(inner_name)

        return InvalidArguments(self._format_message, rename_both)


class Signature:
    """What a function takes, as JSON Schema and as a binder. Made by `compile_signature`."""

    __slots__ = (
        "_fill_defaults",
        "_has_only_known_fields",
        "_is_all_positional",
        "_is_strict",
        "_layout",
        "_needs_checks",
        "_pattern_validator",
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
        self.returns: Any = layout.returns  # resolved; Any when the function does not say
        self.where: str = layout.where  # name, file and line: how an error text about the function begins
        self._layout = layout
        self._struct_type = layout.build_struct()
        self._is_strict = not lax
        self._pattern_validator = _make_pattern_validator(self.schema) if self._is_strict else None
        self._has_only_known_fields = compile_unknown_field_check(self.schema)
        self._fill_defaults = make_default_filler(layout.types)
        # What msgspec alone would read wrongly, or could be sent astray by.
        annotations = (*layout.types.values(), layout.extra_type)
        checks = (self._pattern_validator, self._has_only_known_fields, self._fill_defaults)
        self._needs_checks = any(check is not None for check in checks) or any(
            needs_hook(annotation) for annotation in annotations
        )
        self._is_all_positional = (
            layout.positional_count == len(layout.types) and layout.context is None and layout.extra_type is None
        )

    def bind(self, arguments: dict[str, Any] | None, context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments as the function takes them: by position, and by keyword.

        Raises:
            BadArguments: they do not fit.
        """
        raw_arguments = arguments or {}
        if self._needs_checks:
            raw_arguments, struct = self._read_checked(raw_arguments)
        else:
            try:
                # Naming an option costs as much as the conversion, so the common case names none.
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
        except (msgspec.ValidationError, RecursionError):
            return self._read_repaired(raw_arguments)

    def _read_repaired(self, raw_arguments: dict[str, Any]) -> tuple[dict[str, Any], msgspec.Struct]:
        """The arguments, perhaps mended, and what they are; a model may spell a number 3.0, or an object as text."""
        raw_arguments = repair_arguments(self.schema, raw_arguments)
        try:
            return raw_arguments, self._read_struct(convert_leniently, raw_arguments)
        except (msgspec.ValidationError, RecursionError):
            raise self._make_error(raw_arguments) from None

    def _read_struct(
        self, convert_arguments: Callable[..., msgspec.Struct], raw_arguments: dict[str, Any]
    ) -> msgspec.Struct:
        if self._pattern_validator is not None and not self._pattern_validator.is_valid(raw_arguments):
            raise msgspec.ValidationError
        if self._has_only_known_fields is not None and not self._has_only_known_fields(raw_arguments):
            raise msgspec.ValidationError
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
        # What the server fills in must not be replaceable from outside.
        if not self._layout.reserved_names.isdisjoint(names):
            raise self._make_error(raw_arguments)
        try:
            return {
                name: convert_value(self._layout.extra_type, raw_arguments[name], lax=not self._is_strict)
                for name in names
            }
        except ValueError:
            raise self._make_error(raw_arguments) from None

    def _make_error(self, raw_arguments: dict[str, Any]) -> InvalidArguments:
        return InvalidArguments(lambda rename: self._format_errors(raw_arguments, rename))

    def _format_errors(self, raw_arguments: dict[str, Any], rename: ArgumentNamer) -> str:
        """Goes field by field, because the one conversion stops at its first misfit."""
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
        texts = ["Invalid arguments."]
        if missing := rename_all(missing, rename):
            texts.append(f"Missing: {format_names(missing)}.")
        if unknown := rename_all(unknown, rename):
            unused = rename_all([name for name in layout.types if name not in raw_arguments], rename)[:MAX_LISTED_NAMES]
            texts.append(f"Unknown: {format_names(unknown, unused)}.")
        pattern_errors = _find_pattern_errors(self._pattern_validator, raw_arguments, rename)
        outer_names = {name: outer_name for name in known_names if (outer_name := rename(name)) is not None}
        messages = (
            message
            for name, outer_name in outer_names.items()
            for message in self._find_mismatches(
                name, raw_arguments[name], clip(outer_name, MAX_NAME_CHARS), can_convert=name not in pattern_errors
            )
        )
        texts += (f"{message}." for message in itertools.islice(messages, MAX_LISTED_NAMES))
        texts += (
            f"{message}." for message in itertools.islice(itertools.chain(*pattern_errors.values()), MAX_LISTED_NAMES)
        )
        return truncate(" ".join(texts)) if len(texts) > 1 else ""

    def _find_mismatches(self, name: str, value: Any, outer_name: str, *, can_convert: bool) -> Iterator[str]:
        annotation = self._layout.types.get(name, self._layout.extra_type)
        schema = self.schema["properties"].get(name, self.schema["additionalProperties"])
        definitions = self.schema.get("$defs", {})
        mismatches = find_mismatches(schema, value, definitions, outer_name) if isinstance(schema, dict) else ()
        messages = [*itertools.islice(mismatches, MAX_LISTED_NAMES)]
        if not can_convert:
            yield from messages  # msgspec must not try a pattern that does not fit: that can take for ever
            return
        try:
            convert_leniently(annotation, value, strict=self._is_strict)
        except msgspec.ValidationError as exc:
            choices = self.choices.get(name, ())
            may_be_null = ("null",) if choices and _accepts_none(annotation) else ()
            yield from _merge_messages(exc, messages, outer_name) or [
                format_reason(exc, outer_name, choices + may_be_null)
            ]
        except RecursionError:
            yield f"`{outer_name}`: nested too deeply"
        else:
            yield from (message for message in messages if isinstance(message, UnknownMemberMessage))


def rename_all(names: Iterable[str], rename: ArgumentNamer) -> list[str]:
    """The names in other words, without those that are not spoken of."""
    return [outer_name for name in names if (outer_name := rename(name)) is not None]


def _merge_messages(exc: msgspec.ValidationError, schema_messages: list[str], root: str) -> list[str]:
    """What the schema found, unless the type itself tells: pydantic knows better what it would have read."""
    if not isinstance(exc.__cause__, MismatchError):
        return schema_messages
    prefix = format_reason(exc, root)
    type_messages = [*format_reasons(exc.__cause__, prefix)]
    root = prefix[1:].partition("`")[0]
    return type_messages + [
        message
        for message in schema_messages
        if isinstance(message, UnknownMemberMessage) or not message.startswith(f"`{root}")
    ]


class ContextSignature(Signature):
    """The signature of a function whose runner needs the context too: it is the first argument `bind` gives."""

    __slots__ = ()

    def __init__(self, layout: "_Layout", *, lax: bool) -> None:
        super().__init__(layout, lax=lax)
        self.context = self.context or ""

    def bind(self, arguments: dict[str, Any] | None, context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As before, with the context in front."""
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
    """Reads a function once. In `lax` mode strings become numbers, booleans and the like.

    The parameter annotated with `context_type` is filled by `bind`. Those named in `skip` are in no schema; whoever
    calls the function passes them by keyword. With `carries`, the context goes before all other arguments.

    Raises:
        TypeError: a parameter cannot be filled from JSON; the text says which, of which function, and where.
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
            layout.add(parameter, annotation)
    return (ContextSignature if passes_context else Signature)(layout, lax=lax)


def _check_is_bound(signature: inspect.Signature, hints: Mapping[str, Any], where: str) -> None:
    """Refuse a method that has no object yet, as one has none in the body of its class."""
    first = next(iter(signature.parameters), "")
    if first in ("self", "cls") and first not in hints:
        raise TypeError(f"{where}: parameter `{first}`: a method without its object{METHOD_HINT}")


class _Layout:
    """Where the value of each parameter comes from, and how it is passed."""

    def __init__(self, where: str, returns: Any, descriptions: Mapping[str, str]) -> None:
        self.where = where
        self._descriptions = descriptions  # what the docstring says of each parameter
        self.returns = returns
        self.types: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.positional_count = 0  # how many of `types` are passed by position; the others are `keywords`
        self.keywords: list[str] = []
        self.context: str | None = None
        self.context_index: int | None = None
        self.extra_type: Any = None  # the type of arguments no parameter names, if there may be any
        self.reserved_names: set[str] = set()
        self._allows_positional = True

    def add(self, parameter: inspect.Parameter, annotation: Any) -> None:
        name, default = parameter.name, parameter.default
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"{self.where}: parameter `*{name}`: arguments have names, these cannot be filled")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            self.extra_type = self._adapt(name, annotation)
            return
        annotation = Any if annotation is object else normalize_annotation(annotation)
        if type(default).__module__ == "pydantic.fields":
            annotation, default = _unpack_field(annotation, default)
        if default is None:
            annotation = self._allow_none(name, annotation)
        self.types[name] = self._adapt(name, _add_description(annotation, self._descriptions.get(name)))
        if default is not _NO_DEFAULT:
            self.defaults[name] = default
        if self._is_passed_by_position(parameter):
            self.positional_count += 1
        else:
            self.keywords.append(name)

    def add_context(self, parameter: inspect.Parameter) -> None:
        if self.context is not None:
            raise TypeError(f"{self.where}: parameter `{parameter.name}`: `{self.context}` already takes the context")
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
            raise TypeError(f"{self.where}: parameter `{parameter.name}`: positional only, it cannot be passed by name")
        return self._allows_positional

    def _allow_none(self, name: str, annotation: Any) -> Any:
        """Whoever may leave a parameter at None may also say so, whatever the annotation forgot."""
        members = list_alternatives(annotation)
        if Any in members or types.NoneType in members:
            return annotation
        try:
            return annotation | None
        except TypeError:
            raise TypeError(f"{self.where}: parameter `{name}`: its annotation is no type") from None

    def _adapt(self, name: str, annotation: Any) -> Any:
        if not may_need_adapters():
            return annotation
        from dovetail.server.parameters.type_adapters import adapt

        try:
            return adapt(annotation)
        except TypeError as exc:
            raise TypeError(f"{self.where}: parameter `{name}`: {format_type_error(exc)}") from None

    def build_struct(self) -> type[msgspec.Struct]:
        return msgspec.defstruct(
            "Arguments",
            [self._build_field(name, annotation) for name, annotation in self.types.items()],
            kw_only=True,
            forbid_unknown_fields=self.extra_type is None,
            gc=False,  # it does not outlive `bind`
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
        annotations = {**self.types, "**": Any if self.extra_type is None else self.extra_type}
        for name, annotation in annotations.items():
            self._check_annotation(name, annotation)
        schemas, definitions = build_schemas(list(annotations.values()))
        properties = dict(zip(annotations, schemas, strict=True))
        extra_schema = properties.pop("**")
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

    def _check_annotation(self, name: str, annotation: Any) -> None:
        try:
            build_schemas([annotation])
        except TypeError as exc:
            raise TypeError(f"{self.where}: parameter `{name}`: {exc}") from None


def _add_default(schema: dict[str, Any], default: Any) -> None:
    try:
        schema["default"] = to_json(default)[0]
    except (TypeError, ValueError):
        return  # it has no JSON form, so only the function knows it


def _add_description(annotation: Any, description: str | None) -> Any:
    """Text in Annotated is a description, as is a Doc; failing that, what the docstring says."""
    notes: list[Any] = [*annotation.__metadata__] if typing.get_origin(annotation) is Annotated else []
    texts = [note if isinstance(note, str) else getattr(note, "documentation", None) for note in notes]
    descriptions = [text for text in texts if isinstance(text, str)]
    if not descriptions and description and not any(getattr(note, "description", None) for note in notes):
        descriptions = [description]
    for text in descriptions:
        annotation = Annotated[annotation, msgspec.Meta(description=text)]
    return annotation


def _unpack_field(annotation: Any, field: Any) -> tuple[Any, Any]:
    """pydantic's `Field(...)` written as a default: a note about the parameter, and perhaps a default."""
    from dovetail.server.parameters import pydantic_types  # the author has it loaded already

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
    """A check to make first where a pattern is at work: msgspec's own engine can be sent astray by a few characters."""
    if b'"pattern":' not in msgspec.json.encode(schema):
        return None
    import jsonschema_rs  # only servers with patterns pay for it

    try:
        return jsonschema_rs.validator_for(schema, pattern_options=jsonschema_rs.RegexOptions())
    except ValueError:  # looks around, which a linear engine cannot: then in a bounded number of steps
        return jsonschema_rs.validator_for(
            schema, pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACK_STEPS)
        )


def _find_pattern_errors(validator: Any, raw_arguments: dict[str, Any], rename: ArgumentNamer) -> dict[str, list[str]]:
    """What does not fit its pattern, by the argument it stands in; arguments where it may hide have an empty list."""
    messages_by_argument: dict[str, list[str]] = {}
    errors = [] if validator is None else [*itertools.islice(validator.iter_errors(raw_arguments), _MAX_ERRORS)]
    for error in errors:
        keyword = str(error.schema_path[-1]) if error.schema_path else ""
        if error.instance_path and keyword in ("pattern", "anyOf", "oneOf"):
            first, *rest = error.instance_path
            messages = messages_by_argument.setdefault(str(first), [])
            if keyword == "pattern" and (outer_name := rename(str(first))) is not None:
                messages.append(f"`{format_path([outer_name, *rest])}`: {format_pattern_mismatch(error.kind.pattern)}")
    return (
        messages_by_argument
        if len(errors) < _MAX_ERRORS
        else {name: messages_by_argument.get(name, []) for name in raw_arguments}
    )
