"""A user's function, compiled once: its JSON Schema, and the way a call's arguments reach its parameters.

Knows nothing of tools, prompts or requests, and leaves what a type means to `schema`. Invariant: once compiled, a
signature never looks at the function again.
"""

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

from dovetail.errors import ToolError, clip
from dovetail.server import docstrings
from dovetail.server.arguments import MAX_NAME, MAX_NAMES, Stranger, cut, listed, mended, misfits, unlike
from dovetail.server.closing import closing
from dovetail.server.filling import filling
from dovetail.server.foreign import Misfits, may_be_noted, needs_hook, way
from dovetail.server.functions import hints_of, where_is
from dovetail.server.schema import (
    alternatives,
    is_a,
    read_as,
    read_closely,
    read_hooked,
    reason,
    reasons,
    schemas_of,
    to_json,
    usual,
    why_not,
)

_MOST_STEPS: Final = 100_000
_MOST_FAULTS: Final = 100  # looked for in one call

METHOD: Final = ": mark it with dovetail.tool, resource or prompt, and offer the object by app.add(object)"
_EMPTY: Final = inspect.Parameter.empty
_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_IMMUTABLE: Final = (str, int, float, bytes, Enum, types.NoneType)


Word = Callable[[str], str | None]


class BadArguments(ToolError):
    """The arguments of a call do not fit; the text names every misfit, for a model to repair them.

    `tell` says the same where arguments have other names, or none; with nothing left to say, the text is empty.
    """

    def __init__(self, tell: Callable[[Word], str], word: Word = str) -> None:
        super().__init__(tell(word))
        self._tell = tell
        self._word = word

    def retold(self, word: Word) -> "BadArguments":
        """The same for whoever knows the arguments by other words; those that are None are not spoken of."""

        def both(name: str) -> str | None:
            known = self._word(name)
            return None if known is None else word(known)

        return BadArguments(self._tell, both)


class Signature:
    """What a function takes, as JSON Schema and as a binder. Made by `compile_signature`."""

    __slots__ = (
        "_closed",
        "_closely",
        "_direct",
        "_fill",
        "_layout",
        "_patterns",
        "_strict",
        "_struct",
        "choices",
        "context",
        "defaults",
        "parameters",
        "returns",
        "schema",
        "where",
    )

    def __init__(self, layout: "_Layout", *, lax: bool) -> None:
        self.schema: dict[str, Any] = layout.schema()
        self.parameters: tuple[str, ...] = tuple(layout.types)
        self.defaults: dict[str, Any] = layout.defaults
        self.context: str | None = layout.context
        self.choices: dict[str, tuple[str, ...]] = {
            name: found for name, kind in layout.types.items() if (found := _choices(kind))
        }
        self.returns: Any = layout.returns  # resolved; Any when the function does not say
        self.where: str = layout.where  # name, file and line: how an error text about the function begins
        self._layout = layout
        self._struct = layout.struct()
        self._strict = not lax
        self._patterns = _pattern_check(self.schema) if self._strict else None
        self._closed = closing(self.schema)
        self._fill = filling(layout.types)
        # What msgspec alone would read wrongly, or could be sent astray by.
        kinds = (*layout.types.values(), layout.further)
        looks = (self._patterns, self._closed, self._fill)
        self._closely = any(look is not None for look in looks) or any(needs_hook(kind) for kind in kinds)
        self._direct = layout.positional == len(layout.types) and layout.context is None and layout.further is None

    def bind(self, arguments: dict[str, Any] | None, context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments as the function takes them: by position, and by keyword.

        Raises:
            BadArguments: they do not fit.
        """
        given = arguments or {}
        if self._closely:
            given, struct = self._close_look(given)
        else:
            try:
                # Naming an option costs as much as the conversion, so the common case names none.
                struct = convert(given, self._struct) if self._strict else convert(given, self._struct, strict=False)
            except (msgspec.ValidationError, RecursionError):
                given, struct = self._second_look(given)
        if self._direct:
            return astuple(struct), {}
        return self._place(astuple(struct), given, context)

    def _close_look(self, given: dict[str, Any]) -> tuple[dict[str, Any], msgspec.Struct]:
        try:
            return given, self._read(read_hooked, given)
        except (msgspec.ValidationError, RecursionError):
            return self._second_look(given)

    def _second_look(self, given: dict[str, Any]) -> tuple[dict[str, Any], msgspec.Struct]:
        """The arguments, perhaps mended, and what they are; a model may spell a number 3.0, or an object as text."""
        given = mended(self.schema, given)
        try:
            return given, self._read(read_closely, given)
        except (msgspec.ValidationError, RecursionError):
            raise self._refusal(given) from None

    def _read(self, read: Callable[..., msgspec.Struct], given: dict[str, Any]) -> msgspec.Struct:
        if self._patterns is not None and not self._patterns.is_valid(given):
            raise msgspec.ValidationError
        if self._closed is not None and not self._closed(given):
            raise msgspec.ValidationError
        struct = read(self._struct, given, strict=self._strict)
        if self._fill is not None:
            self._fill(struct)
        return struct

    def _place(
        self, values: tuple[Any, ...], given: dict[str, Any], context: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        layout = self._layout
        kwargs: dict[str, Any] = {}
        if layout.keywords:
            kwargs.update(zip(layout.keywords, values[layout.positional :], strict=True))
            values = values[: layout.positional]
        if (index := layout.context_index) is not None:
            values = (*values[:index], context, *values[index:])
        elif layout.context is not None:
            kwargs[layout.context] = context
        if layout.further is not None:
            kwargs |= self._further(given)
        return values, kwargs

    def _further(self, given: dict[str, Any]) -> dict[str, Any]:
        names = [name for name in given if name not in self._layout.types]
        # What the server fills in must not be replaceable from outside.
        if not self._layout.hidden.isdisjoint(names):
            raise self._refusal(given)
        try:
            return {name: read_as(self._layout.further, given[name], lax=not self._strict) for name in names}
        except ValueError:
            raise self._refusal(given) from None

    def _refusal(self, given: dict[str, Any]) -> BadArguments:
        return BadArguments(lambda word: self._told(given, word))

    def _told(self, given: dict[str, Any], word: Word) -> str:
        """Goes field by field, because the one conversion stops at its first misfit."""
        layout = self._layout
        open_ended = layout.further is not None
        missing = [name for name in layout.types if name not in layout.defaults and name not in given]
        unknown = [name for name in given if (name in layout.hidden if open_ended else name not in layout.types)]
        known = [name for name in given if name in layout.types or (open_ended and name not in layout.hidden)]
        texts = ["Invalid arguments."]
        if missing := worded(missing, word):
            texts.append(f"Missing: {listed(missing)}.")
        if unknown := worded(unknown, word):
            unused = worded([name for name in layout.types if name not in given], word)[:MAX_NAMES]
            texts.append(f"Unknown: {listed(unknown, unused)}.")
        ill = _ill_patterned(self._patterns, given, word)
        called = {name: shown for name in known if (shown := word(name)) is not None}
        lines = (
            line
            for name, shown in called.items()
            for line in self._misfits(name, given[name], clip(shown, MAX_NAME), tried=name not in ill)
        )
        texts += (f"{line}." for line in itertools.islice(lines, MAX_NAMES))
        texts += (f"{line}." for line in itertools.islice(itertools.chain(*ill.values()), MAX_NAMES))
        return cut(" ".join(texts)) if len(texts) > 1 else ""

    def _misfits(self, name: str, value: Any, shown: str, *, tried: bool) -> Iterator[str]:
        kind = self._layout.types.get(name, self._layout.further)
        schema = self.schema["properties"].get(name, self.schema["additionalProperties"])
        shared = self.schema.get("$defs", {})
        wrong = misfits(schema, value, shared, shown) if isinstance(schema, dict) else ()
        found = [*itertools.islice(wrong, MAX_NAMES)]
        if not tried:
            yield from found  # msgspec must not try a pattern that does not fit: that can take for ever
            return
        try:
            read_closely(kind, value, strict=self._strict)
        except msgspec.ValidationError as exc:
            choices = self.choices.get(name, ())
            may_be_null = ("null",) if choices and _takes_none(kind) else ()
            yield from _told(exc, found, shown) or [reason(exc, shown, choices + may_be_null)]
        except RecursionError:
            yield f"`{shown}`: nested too deeply"
        else:
            yield from (line for line in found if isinstance(line, Stranger))


def worded(names: Iterable[str], word: Word) -> list[str]:
    """The names in other words, without those that are not spoken of."""
    return [shown for name in names if (shown := word(name)) is not None]


def _told(exc: msgspec.ValidationError, found: list[str], root: str) -> list[str]:
    """What the schema found, unless the type itself tells: pydantic knows better what it would have read."""
    if not isinstance(exc.__cause__, Misfits):
        return found
    where = reason(exc, root)
    told = [*reasons(exc.__cause__, where)]
    root = where[1:].partition("`")[0]
    return told + [line for line in found if isinstance(line, Stranger) or not line.startswith(f"`{root}")]


class Carrying(Signature):
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
    carries: bool = False,
) -> Signature:
    """Reads a function once. In `lax` mode strings become numbers, booleans and the like.

    The parameter annotated with `context_type` is filled by `bind`. Those named in `skip` are in no schema; whoever
    calls the function passes them by keyword. With `carries`, the context goes before all other arguments.

    Raises:
        TypeError: a parameter cannot be filled from JSON; the text says which, of which function, and where.
    """
    where = where_is(function)
    hints = hints_of(function, context_type, where)
    try:
        signature = inspect.signature(function)
    except ValueError as exc:
        raise TypeError(f"{where}: {exc}") from None
    _check_bound(signature, hints, where)
    layout = _Layout(where, hints.get("return", Any), docstrings.read(inspect.getdoc(function)).parameters)
    for parameter in signature.parameters.values():
        annotation = hints.get(parameter.name, Any)
        if parameter.name in skip:
            layout.leave_out(parameter)
        elif any(is_a(kind, context_type) for kind in alternatives(annotation)):
            layout.add_context(parameter)
        else:
            layout.add(parameter, annotation)
    return (Carrying if carries else Signature)(layout, lax=lax)


def _check_bound(signature: inspect.Signature, hints: Mapping[str, Any], where: str) -> None:
    """Refuse a method that has no object yet, as one has none in the body of its class."""
    first = next(iter(signature.parameters), "")
    if first in ("self", "cls") and first not in hints:
        raise TypeError(f"{where}: parameter `{first}`: a method without its object{METHOD}")


class _Layout:
    """Where the value of each parameter comes from, and how it is passed."""

    def __init__(self, where: str, returns: Any, told: Mapping[str, str]) -> None:
        self.where = where
        self._told = told  # what the docstring says of each parameter
        self.returns = returns
        self.types: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.positional = 0  # how many of `types` are passed by position; the others are `keywords`
        self.keywords: list[str] = []
        self.context: str | None = None
        self.context_index: int | None = None
        self.further: Any = None  # the type of arguments no parameter names, if there may be any
        self.hidden: set[str] = set()
        self._by_position = True

    def add(self, parameter: inspect.Parameter, annotation: Any) -> None:
        name, default = parameter.name, parameter.default
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"{self.where}: parameter `*{name}`: arguments have names, these cannot be filled")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            self.further = self._adapted(name, annotation)
            return
        annotation = Any if annotation is object else usual(annotation)
        if type(default).__module__ == "pydantic.fields":
            annotation, default = _unpacked(annotation, default)
        if default is None:
            annotation = self._or_none(name, annotation)
        self.types[name] = self._adapted(name, _described(annotation, self._told.get(name)))
        if default is not _EMPTY:
            self.defaults[name] = default
        if self._passed_by_position(parameter):
            self.positional += 1
        else:
            self.keywords.append(name)

    def add_context(self, parameter: inspect.Parameter) -> None:
        if self.context is not None:
            raise TypeError(f"{self.where}: parameter `{parameter.name}`: `{self.context}` already takes the context")
        if self._passed_by_position(parameter):
            self.context_index = self.positional
        self.context = parameter.name
        self.hidden.add(parameter.name)

    def leave_out(self, parameter: inspect.Parameter) -> None:
        self._by_position = False
        self._passed_by_position(parameter)
        self.hidden.add(parameter.name)

    def _passed_by_position(self, parameter: inspect.Parameter) -> bool:
        self._by_position = self._by_position and parameter.kind in _BY_POSITION
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and not self._by_position:
            raise TypeError(f"{self.where}: parameter `{parameter.name}`: positional only, it cannot be passed by name")
        return self._by_position

    def _or_none(self, name: str, annotation: Any) -> Any:
        """Whoever may leave a parameter at None may also say so, whatever the annotation forgot."""
        kinds = alternatives(annotation)
        if Any in kinds or types.NoneType in kinds:
            return annotation
        try:
            return annotation | None
        except TypeError:
            raise TypeError(f"{self.where}: parameter `{name}`: its annotation is no type") from None

    def _adapted(self, name: str, annotation: Any) -> Any:
        if not may_be_noted():
            return annotation
        from dovetail.server.adapting import adapt

        try:
            return adapt(annotation)
        except TypeError as exc:
            raise TypeError(f"{self.where}: parameter `{name}`: {why_not(exc)}") from None

    def struct(self) -> type[msgspec.Struct]:
        return msgspec.defstruct(
            "Arguments",
            [self._field(name, kind) for name, kind in self.types.items()],
            kw_only=True,
            forbid_unknown_fields=self.further is None,
            gc=False,  # it does not outlive `bind`
        )

    def _field(self, name: str, kind: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
        if name not in self.defaults:
            return name, kind
        default = self.defaults[name]
        if isinstance(default, _IMMUTABLE):
            return name, kind, default
        fresh = default.copy if type(default) in (list, dict, set) else lambda: default
        return name, kind, msgspec.field(default_factory=fresh)

    def schema(self) -> dict[str, Any]:
        kinds = {**self.types, "**": Any if self.further is None else self.further}
        for name, kind in kinds.items():
            self._check(name, kind)
        schemas, shared = schemas_of(list(kinds.values()))
        properties = dict(zip(kinds, schemas, strict=True))
        further = properties.pop("**")
        for name, default in self.defaults.items():
            _show_default(properties[name], default)
        required = [name for name in self.types if name not in self.defaults]
        return {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": self.further is not None and (further or True),
            **({"$defs": shared} if shared else {}),
        }

    def _check(self, name: str, kind: Any) -> None:
        try:
            schemas_of([kind])
        except TypeError as exc:
            raise TypeError(f"{self.where}: parameter `{name}`: {exc}") from None


def _show_default(schema: dict[str, Any], default: Any) -> None:
    try:
        schema["default"] = to_json(default)[0]
    except (TypeError, ValueError):
        return  # it has no JSON form, so only the function knows it


def _described(annotation: Any, told: str | None) -> Any:
    """Text in Annotated is a description, as is a Doc; failing that, what the docstring says."""
    notes: list[Any] = [*annotation.__metadata__] if typing.get_origin(annotation) is Annotated else []
    texts = [note if isinstance(note, str) else getattr(note, "documentation", None) for note in notes]
    said = [text for text in texts if isinstance(text, str)]
    if not said and told and not any(getattr(note, "description", None) for note in notes):
        said = [told]
    for text in said:
        annotation = Annotated[annotation, msgspec.Meta(description=text)]
    return annotation


def _unpacked(annotation: Any, field: Any) -> tuple[Any, Any]:
    """pydantic's `Field(...)` written as a default: a note about the parameter, and perhaps a default."""
    from dovetail.server import models  # the author has it loaded already

    has_default, default = models.default_of(field)
    return Annotated[annotation, field], default if has_default else _EMPTY


def _choices(annotation: Any) -> tuple[str, ...]:
    match [kind for kind in alternatives(annotation) if kind is not types.NoneType]:
        case [kind] if typing.get_origin(kind) is Literal:
            return tuple(_spelled(value) for value in typing.get_args(kind) if value is not None)
        case [kind] if is_a(kind, Enum):
            return tuple(_spelled(member.value) for member in kind)
        case [kind] if kind is bool:
            return ("true", "false")
        case _:
            return ()


def _takes_none(annotation: Any) -> bool:
    kinds = alternatives(annotation)
    return types.NoneType in kinds or any(
        typing.get_origin(one) is Literal and None in typing.get_args(one) for one in kinds
    )


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pattern_check(schema: dict[str, Any]) -> Any:
    """A check to make first where a pattern is at work: msgspec's own engine can be sent astray by a few characters."""
    if b'"pattern":' not in msgspec.json.encode(schema):
        return None
    import jsonschema_rs  # only servers with patterns pay for it

    try:
        return jsonschema_rs.validator_for(schema, pattern_options=jsonschema_rs.RegexOptions())
    except ValueError:  # looks around, which a linear engine cannot: then in a bounded number of steps
        return jsonschema_rs.validator_for(
            schema, pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MOST_STEPS)
        )


def _ill_patterned(validator: Any, given: dict[str, Any], word: Word) -> dict[str, list[str]]:
    """What does not fit its pattern, by the argument it stands in; arguments where it may hide have an empty list."""
    found: dict[str, list[str]] = {}
    errors = [] if validator is None else [*itertools.islice(validator.iter_errors(given), _MOST_FAULTS)]
    for error in errors:
        rule = str(error.schema_path[-1]) if error.schema_path else ""
        if error.instance_path and rule in ("pattern", "anyOf", "oneOf"):
            first, *rest = error.instance_path
            lines = found.setdefault(str(first), [])
            if rule == "pattern" and (shown := word(str(first))) is not None:
                lines.append(f"`{way([shown, *rest])}`: {unlike(error.kind.pattern)}")
    return found if len(errors) < _MOST_FAULTS else {name: found.get(name, []) for name in given}
