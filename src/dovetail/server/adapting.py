"""Adapting: annotations msgspec would refuse or overlook, replaced by types that say themselves how they are read.

Constraints of annotated-types become msgspec's where it has them, and checks where it has not; whatever pydantic made
is left to pydantic. Loaded only where the author has imported one of the two.
"""

import operator
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from dovetail.errors import clip
from dovetail.server.foreign import Foreign, foreign, is_foreign, is_model, needs_hook
from dovetail.server.schema import UNIONS, read_as, schema_of

_META: Final = {
    "Gt": "gt",
    "Ge": "ge",
    "Lt": "lt",
    "Le": "le",
    "MultipleOf": "multiple_of",
    "MinLen": "min_length",
    "MaxLen": "max_length",
}
_CHECKS: Final[dict[str, tuple[Callable[[Any, Any], Any], str]]] = {
    "gt": (operator.gt, "must be more than"),
    "ge": (operator.ge, "must be at least"),
    "lt": (operator.lt, "must be less than"),
    "le": (operator.le, "must be at most"),
    "multiple_of": (lambda value, step: value % step == 0, "must be a multiple of"),
    "min_length": (lambda value, size: len(value) >= size, "must have a length of at least"),
    "max_length": (lambda value, size: len(value) <= size, "must have a length of at most"),
}

Check = tuple[Callable[[Any], Any], str]


def adapt(annotation: Any) -> Any:
    """The same annotation, if msgspec can be trusted with it; otherwise one that it can be trusted with.

    Raises:
        TypeError: nobody here would keep what it demands.
    """
    return _Adapting().adapt(annotation)


class _Adapting:
    def __init__(self) -> None:
        self._inside: set[Any] = set()

    def adapt(self, annotation: Any) -> Any:
        origin = typing.get_origin(annotation)
        if origin is Annotated:
            return self._annotated(annotation)
        if origin in UNIONS:
            return self._union(annotation)
        if origin is typing.Literal or annotation in self._inside_hashable(annotation):
            return annotation
        if hasattr(annotation, "__supertype__"):
            return self._unless_same(annotation, annotation.__supertype__)
        if type(annotation).__name__ == "TypeAliasType":
            self._inside.add(annotation)
            return self._unless_same(annotation, annotation.__value__)
        if isinstance(annotation, type) and origin is None:
            return self._class(annotation)
        arguments = typing.get_args(annotation)
        if not isinstance(origin, type) or not arguments:
            return annotation
        adapted = tuple(self.adapt(one) for one in arguments)
        if all(new is old for new, old in zip(adapted, arguments, strict=True)):
            return annotation
        return origin[adapted]  # pyright: ignore[reportIndexIssue]

    def _inside_hashable(self, annotation: Any) -> set[Any]:
        try:
            hash(annotation)
        except TypeError:
            return set()
        return self._inside

    def _unless_same(self, annotation: Any, inner: Any) -> Any:
        adapted = self.adapt(inner)
        return annotation if adapted is inner else adapted

    def _annotated(self, annotation: Any) -> Any:
        inner, notes = annotation.__origin__, [*_spread(annotation.__metadata__)]
        if any(_library(note) == "pydantic" for note in notes):
            own = [note for note in notes if isinstance(note, str)]
            made: Any = _from_pydantic(annotation)
            return Annotated[made, msgspec.Meta(description=own[0])] if own else made
        meta, checks, kept = _sorted(notes)
        adapted = self.adapt(inner)
        if not meta and not checks:
            return annotation if adapted is inner else _annotate(adapted, kept)
        members = typing.get_args(inner) if typing.get_origin(inner) in UNIONS else (inner,)
        constrained = [
            one if one in (None, types.NoneType) else _constrained(self.adapt(one), meta, checks) for one in members
        ]
        return _annotate(_either(constrained), kept)

    def _union(self, annotation: Any) -> Any:
        members = typing.get_args(annotation)
        adapted = [self.adapt(one) for one in members]
        others = [one for one in adapted if one is not types.NoneType]
        if len(others) > 1 and any(needs_hook(one) or is_model(one) for one in others):
            return _either(adapted)
        return annotation if all(new is old for new, old in zip(adapted, members, strict=True)) else _either(adapted)

    def _class(self, kind: type) -> Any:
        if is_model(kind) and hasattr(kind, "model_validate"):
            return kind
        if is_model(kind) or (hasattr(kind, "__get_pydantic_core_schema__") and _home(kind) != "builtins"):
            return _from_pydantic(kind)
        hints = _own_hints(kind)
        if not hints:
            return kind
        self._inside.add(kind)
        try:
            overlooked = [name for name, hint in hints.items() if self.adapt(hint) is not hint]
        finally:
            self._inside.discard(kind)
        if not overlooked:
            return kind
        if issubclass(kind, msgspec.Struct) or hasattr(kind, "__attrs_attrs__"):
            raise TypeError(
                f"{kind.__name__}.{overlooked[0]}: constraints of pydantic and annotated-types are not kept inside "
                f"this kind of class; say it with msgspec.Meta"
            )
        return _from_pydantic(kind)


def _spread(notes: Sequence[Any]) -> Iterator[Any]:
    """The notes one by one: an Interval or a Len is several."""
    for note in notes:
        if _library(note) == "annotated_types" and hasattr(note, "__iter__"):
            yield from note
        else:
            yield note


def _library(value: Any) -> str:
    return _home(type(value))


def _home(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _sorted(notes: Sequence[Any]) -> tuple[dict[str, Any], list[Check], list[Any]]:
    """What can be said to msgspec, what has to be checked here, and the notes of others."""
    meta: dict[str, Any] = {}
    checks: list[Check] = []
    kept: list[Any] = []
    for note in notes:
        name = type(note).__name__
        if _library(note) != "annotated_types":
            kept.append(note)
        elif name in _META:
            (value,) = (getattr(note, slot) for slot in (_META[name],))
            meta[_META[name]] = value
        elif name == "Predicate":
            checks.append((note.func, f"does not pass `{getattr(note.func, '__name__', 'its check')}`"))
        elif name == "Timezone" and note.tz in (None, ...):
            meta["tz"] = note.tz is ...
        elif name not in ("Unit", "DocInfo"):
            raise TypeError(f"{name} in Annotated is not understood; say it with msgspec.Meta")
    return meta, checks, kept


def _constrained(kind: Any, meta: dict[str, Any], checks: list[Check]) -> Any:
    if meta:
        try:
            said = Annotated[kind, msgspec.Meta(**meta)]
            msgspec.inspect.type_info(said)
            kind = said
        except TypeError:  # on a Decimal or a date, say
            checks = [*(_check(name, bound) for name, bound in meta.items()), *checks]
    return _checked(kind, checks) if checks else kind


def _check(name: str, bound: Any) -> Check:
    if name not in _CHECKS:
        raise TypeError(f"the constraint {name} does not apply to this type")
    holds, text = _CHECKS[name]
    return (lambda value: holds(value, bound)), f"{text} {bound}"


def _checked(kind: Any, checks: Sequence[Check]) -> type[Foreign]:
    def read(value: Any) -> Any:
        found = read_as(kind, value)
        for holds, text in checks:
            if not holds(found):
                raise ValueError(text)
        return found

    return foreign(lambda output: schema_of(kind, output=output), read)


def _either(members: Sequence[Any]) -> Any:
    """A union; where one of its members is foreign, they are tried in turn."""
    others = [one for one in members if one not in (None, types.NoneType)]
    optional = len(others) < len(members)
    if len(others) > 1 and any(needs_hook(one) or is_model(one) for one in others):
        others = [_first_of(others)]
    union = others[0]
    for one in others[1:]:
        union = typing.Union[union, one]  # noqa: UP007  # pyright: ignore[reportDeprecated]
    return typing.Optional[union] if optional else union  # noqa: UP045  # pyright: ignore[reportDeprecated]


def _first_of(members: Sequence[Any]) -> type[Foreign]:
    def read(value: Any) -> Any:
        if isinstance(value, tuple(one for one in members if isinstance(one, type) and not is_foreign(one))):
            return value
        reasons: list[str] = []
        for one in members:
            try:
                return read_as(one, value)
            except ValueError as exc:
                reasons.append(clip(str(exc), 200))
        raise ValueError("fits none of its types: " + " | ".join(reasons))

    return foreign(lambda output: {"anyOf": [schema_of(one, output=output) for one in members]}, read)


def _from_pydantic(kind: Any) -> type[Foreign]:
    try:
        from dovetail.server import models
    except ImportError:
        raise TypeError("pydantic is needed to keep the constraints of annotated-types inside a class") from None
    models.adapter(kind)
    return foreign(lambda output: models.schema(kind, output=output), lambda value: models.read(kind, value))


def _annotate(kind: Any, notes: Sequence[Any]) -> Any:
    for note in notes:
        kind = Annotated[kind, note]
    return kind


def _own_hints(kind: type) -> dict[str, Any]:
    """The annotations of a class with fields; none for other classes, and none where a name is not known yet."""
    fields = ("__dataclass_fields__", "__struct_fields__", "__attrs_attrs__", "__total__", "_field_defaults")
    if not any(hasattr(kind, name) for name in fields):
        return {}
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # whatever it is, it shows again, and is said, when the schema is made
        return {}
