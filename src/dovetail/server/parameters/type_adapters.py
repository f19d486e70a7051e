"""Adapting: annotations msgspec would refuse or overlook, replaced by types that say themselves how they are read.

Constraints of annotated-types become msgspec's where it has them, and checks where it has not; whatever pydantic made
is left to pydantic. Loaded only where the author has imported one of the two.
"""

import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast, get_type_hints

import msgspec

from dovetail.error_context import clip
from dovetail.server.parameters.annotations import UNION_ORIGINS, build_schema, convert_value, iter_reachable_types
from dovetail.server.parameters.foreign_types import (
    ForeignType,
    is_foreign_type,
    is_pydantic_type,
    make_foreign_type,
    needs_hook,
)

_META_FIELD_BY_CONSTRAINT: Final = {
    "Gt": "gt",
    "Ge": "ge",
    "Lt": "lt",
    "Le": "le",
    "MultipleOf": "multiple_of",
    "MinLen": "min_length",
    "MaxLen": "max_length",
}
_CONSTRAINT_CHECKS: Final[dict[str, tuple[Callable[[Any, Any], Any], str]]] = {
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
    return _Adapter().adapt(annotation)


class _Adapter:
    def __init__(self) -> None:
        self._active_types: set[Any] = set()

    def adapt(self, annotation: Any) -> Any:
        origin = typing.get_origin(annotation)
        if origin is Annotated:
            return self._adapt_annotated(annotation)
        if origin in UNION_ORIGINS:
            return self._adapt_union(annotation)
        if origin is typing.Literal or annotation in self._get_active_types(annotation):
            return annotation
        if hasattr(annotation, "__supertype__"):
            return self._adapt_inner(annotation, annotation.__supertype__)
        if type(annotation).__name__ == "TypeAliasType":
            self._active_types.add(annotation)
            return self._adapt_inner(annotation, annotation.__value__)
        if isinstance(annotation, type) and origin is None:
            return self._adapt_class(annotation)
        arguments = typing.get_args(annotation)
        if not isinstance(origin, type) or not arguments:
            return annotation
        adapted = tuple(self.adapt(argument) for argument in arguments)
        if all(new is old for new, old in zip(adapted, arguments, strict=True)):
            return annotation
        return origin[adapted]  # pyright: ignore[reportIndexIssue]

    def _get_active_types(self, annotation: Any) -> set[Any]:
        try:
            hash(annotation)
        except TypeError:
            return set()
        return self._active_types

    def _adapt_inner(self, annotation: Any, inner: Any) -> Any:
        adapted = self.adapt(inner)
        return annotation if adapted is inner else adapted

    def _adapt_annotated(self, annotation: Any) -> Any:
        inner, notes = annotation.__origin__, [*_expand_notes(annotation.__metadata__)]
        if any(_get_package(note) == "pydantic" for note in notes):
            descriptions = [note for note in notes if isinstance(note, str)]
            foreign_type: Any = _make_pydantic_type(annotation)
            return Annotated[foreign_type, msgspec.Meta(description=descriptions[0])] if descriptions else foreign_type
        meta, checks, other_notes = _partition_notes(notes)
        adapted = self.adapt(inner)
        if not meta and not checks:
            return annotation if adapted is inner else _annotate(adapted, other_notes)
        members = typing.get_args(inner) if typing.get_origin(inner) in UNION_ORIGINS else (inner,)
        constrained = [
            member if member in (None, types.NoneType) else _apply_constraints(self.adapt(member), meta, checks)
            for member in members
        ]
        return _annotate(_make_union(constrained), other_notes)

    def _adapt_union(self, annotation: Any) -> Any:
        members = typing.get_args(annotation)
        adapted = [self.adapt(member) for member in members]
        non_null_members = [member for member in adapted if member is not types.NoneType]
        if len(non_null_members) > 1 and any(
            needs_hook(member) or is_pydantic_type(member) for member in non_null_members
        ):
            return _make_union(adapted)
        return (
            annotation if all(new is old for new, old in zip(adapted, members, strict=True)) else _make_union(adapted)
        )

    def _adapt_class(self, class_type: type) -> Any:
        if is_pydantic_type(class_type) and hasattr(class_type, "model_validate"):
            return class_type
        if is_pydantic_type(class_type) or (
            hasattr(class_type, "__get_pydantic_core_schema__") and _get_type_package(class_type) != "builtins"
        ):
            return _make_pydantic_type(class_type)
        hints = _get_field_hints(class_type)
        if not hints:
            return class_type
        self._active_types.add(class_type)
        try:
            constrained_fields = [name for name, hint in hints.items() if self.adapt(hint) is not hint]
        finally:
            self._active_types.discard(class_type)
        if not constrained_fields:
            return class_type
        if issubclass(class_type, msgspec.Struct) or hasattr(class_type, "__attrs_attrs__"):
            raise TypeError(
                f"{class_type.__name__}.{constrained_fields[0]}: constraints of pydantic and "
                f"annotated-types are not kept inside "
                f"this kind of class; say it with msgspec.Meta"
            )
        return _make_pydantic_type(class_type)


def _expand_notes(notes: Sequence[Any]) -> Iterator[Any]:
    """The notes one by one: an Interval or a Len is several."""
    for note in notes:
        if _get_package(note) == "annotated_types" and hasattr(note, "__iter__"):
            yield from note
        else:
            yield note


def _get_package(value: Any) -> str:
    return _get_type_package(type(value))


def _get_type_package(type_: type) -> str:
    return type_.__module__.partition(".")[0]


def _partition_notes(notes: Sequence[Any]) -> tuple[dict[str, Any], list[Check], list[Any]]:
    """What can be said to msgspec, what has to be checked here, and the notes of others."""
    meta: dict[str, Any] = {}
    checks: list[Check] = []
    other_notes: list[Any] = []
    for note in notes:
        name = type(note).__name__
        if _get_package(note) != "annotated_types":
            other_notes.append(note)
        elif name in _META_FIELD_BY_CONSTRAINT:
            (value,) = (getattr(note, field) for field in (_META_FIELD_BY_CONSTRAINT[name],))
            meta[_META_FIELD_BY_CONSTRAINT[name]] = value
        elif name == "Predicate":
            checks.append((note.func, f"does not pass `{getattr(note.func, '__name__', 'its check')}`"))
        elif name == "Timezone" and note.tz in (None, ...):
            meta["tz"] = note.tz is ...
        elif name not in ("Unit", "DocInfo"):
            raise TypeError(f"{name} in Annotated is not understood; say it with msgspec.Meta")
    return meta, checks, other_notes


def _apply_constraints(type_: Any, meta: dict[str, Any], checks: list[Check]) -> Any:
    if meta:
        try:
            annotated = Annotated[type_, msgspec.Meta(**meta)]
            msgspec.inspect.type_info(annotated)
            type_ = annotated
        except TypeError:  # on a Decimal or a date, say
            checks = [*(_make_check(name, bound) for name, bound in meta.items()), *checks]
    return _make_checked_type(type_, checks) if checks else type_


def _make_check(name: str, bound: Any) -> Check:
    if name not in _CONSTRAINT_CHECKS:
        raise TypeError(f"the constraint {name} does not apply to this type")
    predicate, text = _CONSTRAINT_CHECKS[name]
    return (lambda value: predicate(value, bound)), f"{text} {bound}"


def _make_checked_type(type_: Any, checks: Sequence[Check]) -> type[ForeignType]:
    def read(value: Any) -> Any:
        converted = convert_value(type_, value)
        for predicate, text in checks:
            if not predicate(converted):
                raise ValueError(text)
        return converted

    return make_foreign_type(lambda output: build_schema(type_, output=output), read)


def _make_union(members: Sequence[Any]) -> Any:
    """A union; where one of its members is foreign, they are tried in turn."""
    non_null_members = [member for member in members if member not in (None, types.NoneType)]
    is_optional = len(non_null_members) < len(members)
    if len(non_null_members) > 1 and any(needs_hook(member) or is_pydantic_type(member) for member in non_null_members):
        non_null_members = [_make_ordered_union(non_null_members)]
    union = non_null_members[0]
    for member in non_null_members[1:]:
        union = typing.Union[union, member]  # noqa: UP007  # pyright: ignore[reportDeprecated]
    return typing.Optional[union] if is_optional else union  # noqa: UP045  # pyright: ignore[reportDeprecated]


def _make_ordered_union(members: Sequence[Any]) -> type[ForeignType]:
    def read(value: Any) -> Any:
        if isinstance(
            value, tuple(member for member in members if isinstance(member, type) and not is_foreign_type(member))
        ):
            return value
        reasons: list[str] = []
        for member in members:
            try:
                return convert_value(member, value)
            except ValueError as exc:
                reasons.append(clip(str(exc), 200))
        raise ValueError("fits none of its types: " + " | ".join(reasons))

    return make_foreign_type(
        lambda output: {"anyOf": [build_schema(member, output=output) for member in members]}, read
    )


def _make_pydantic_type(type_: Any) -> type[ForeignType]:
    try:
        from dovetail.server.parameters import pydantic_types
    except ImportError:
        raise TypeError("pydantic is needed to keep the constraints of annotated-types inside a class") from None
    pydantic_types.get_adapter(type_)
    return make_foreign_type(
        lambda output: pydantic_types.build_schema(type_, output=output),
        lambda value: pydantic_types.validate(type_, value),
    )


def _annotate(type_: Any, notes: Sequence[Any]) -> Any:
    for note in notes:
        type_ = Annotated[type_, note]
    return type_


def _get_field_hints(type_: type) -> dict[str, Any]:
    """The annotations of a class with fields; none for other classes, and none where a name is not known yet."""
    field_markers = ("__dataclass_fields__", "__struct_fields__", "__attrs_attrs__", "__total__", "_field_defaults")
    if not any(hasattr(type_, name) for name in field_markers):
        return {}
    try:
        return typing.get_type_hints(type_, include_extras=True)
    except Exception:  # whatever it is, it shows again, and is said, when the schema is made
        return {}


class _ClassInfo(NamedTuple):
    """A class with fields: which of them have a value if unsaid, and which may hold something to fill."""

    fields: tuple[str, ...]
    defaults: Mapping[str, Any]
    nested_fields: tuple[str, ...]


ClassInfos = Mapping[type, _ClassInfo]


def make_default_filler(types: Mapping[str, Any]) -> Callable[[Any], None] | None:
    """Completes what was read, member by member; None where nothing can be missing."""
    incomplete_names = tuple(name for name, annotation in types.items() if _has_defaults(annotation))
    if not incomplete_names:
        return None
    classes = {
        class_type: _inspect_class(class_type) for name in incomplete_names for class_type in _find_classes(types[name])
    }

    def fill(arguments: Any) -> None:
        for name in incomplete_names:
            _fill_defaults(getattr(arguments, name), classes)

    return fill


def _has_defaults(annotation: Any) -> bool:
    return any(_get_defaults(class_type) for class_type in _find_classes(annotation))


def _may_have_defaults(annotation: Any) -> bool:
    """As a field of a class that may be generic: what stands for a type can be any."""
    return _has_defaults(annotation) or any(isinstance(type_, TypeVar) for type_ in iter_reachable_types([annotation]))


def _find_classes(annotation: Any) -> Iterator[type]:
    types = (getattr(type_, "__origin__", type_) for type_ in iter_reachable_types([annotation]))
    return (type_ for type_ in types if isinstance(type_, type) and _get_fields(type_))


def _inspect_class(class_type: type) -> _ClassInfo:
    hints = get_type_hints(class_type, include_extras=True)
    nested_fields = tuple(name for name in _get_fields(class_type) if _may_have_defaults(hints.get(name, Any)))
    return _ClassInfo(_get_fields(class_type), _get_defaults(class_type), nested_fields)


def _get_defaults(class_type: Any) -> dict[str, Any]:
    # With slots there is no default on the class to be found, so there msgspec sets it.
    if not hasattr(class_type, "__dataclass_fields__") or not class_type.__dictoffset__:
        return {}
    import dataclasses  # the author has it loaded already

    fields = dataclasses.fields(class_type)
    return {field.name: field.default for field in fields if field.init and field.default is not dataclasses.MISSING}


def _get_fields(class_type: Any) -> tuple[str, ...]:
    if hasattr(class_type, "__dataclass_fields__"):
        return tuple(class_type.__dataclass_fields__)
    raw_fields = getattr(class_type, "__struct_fields__", None) or getattr(class_type, "__attrs_attrs__", None) or ()
    return tuple(getattr(raw_field, "name", raw_field) for raw_field in raw_fields)


def _fill_defaults(value: Any, classes: ClassInfos) -> None:
    value_type = type(value)
    if (info := classes.get(value_type)) is not None:
        if info.defaults and len(attributes := value.__dict__) < len(info.fields):
            values = {**info.defaults, **attributes}
            attributes.clear()
            attributes.update({name: values.pop(name) for name in info.fields if name in values}, **values)
        for name in info.nested_fields:
            _fill_defaults(getattr(value, name, None), classes)
    elif value_type in (list, tuple, set, frozenset, dict):
        items = cast("dict[Any, Any]", value).values() if value_type is dict else cast("Iterable[Any]", value)
        for item in items:
            _fill_defaults(item, classes)
