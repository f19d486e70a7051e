"""Translation of constraints from annotated-types to `msgspec.Meta`.

This module is imported only if the user's code imports annotated-types.
"""

import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from dovetail.server.parameters.type_hints import UNION_ORIGINS, make_union, rewrite_annotation

_META_FIELD_BY_CONSTRAINT: Final = {
    "Gt": "gt",
    "Ge": "ge",
    "Lt": "lt",
    "Le": "le",
    "MultipleOf": "multiple_of",
    "MinLen": "min_length",
    "MaxLen": "max_length",
}
_IGNORED_NOTES: Final = ("Unit", "DocInfo")


class InexpressibleConstraint(TypeError):
    """Raised if `msgspec.Meta` has no equivalent for a constraint of annotated-types."""


def get_package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def expand_notes(notes: Sequence[Any]) -> Iterator[Any]:
    """Yield the metadata of an Annotated type. Each Interval or Len becomes several constraints."""
    for note in notes:
        if get_package(note) == "annotated_types" and hasattr(note, "__iter__"):
            yield from note
        else:
            yield note


def is_constraint(note: Any) -> bool:
    return get_package(note) == "annotated_types" and type(note).__name__ not in _IGNORED_NOTES


def translate_constraints(annotation: Any) -> Any:
    """Replace constraints of annotated-types with `msgspec.Meta`.

    Raises:
        InexpressibleConstraint: `msgspec.Meta` has no equivalent for a constraint.
    """
    return rewrite_annotation(annotation, _translate_notes)


def _translate_notes(annotation: Any) -> Any:
    notes = annotation.__metadata__ if typing.get_origin(annotation) is Annotated else ()
    constraints = [note for note in expand_notes(notes) if is_constraint(note)]
    if not constraints:
        return annotation
    meta = dict(_to_meta_field(note) for note in constraints)
    inner = annotation.__origin__
    members = typing.get_args(inner) if typing.get_origin(inner) in UNION_ORIGINS else (inner,)
    constrained = make_union([member if member is types.NoneType else _constrain(member, meta) for member in members])
    other_notes = [note for note in notes if get_package(note) != "annotated_types"]
    return Annotated[(constrained, *other_notes)] if other_notes else constrained


def _to_meta_field(note: Any) -> tuple[str, Any]:
    name = type(note).__name__
    if name == "Timezone":
        if note.tz not in (None, ...):
            raise TypeError(
                "JSON Schema cannot express a named time zone. Use `Timezone(None)` or `Timezone(...)` from "
                "annotated-types"
            )
        return "tz", note.tz is ...
    if name not in _META_FIELD_BY_CONSTRAINT:
        raise InexpressibleConstraint(name)
    field = _META_FIELD_BY_CONSTRAINT[name]
    return field, getattr(note, field)


def _constrain(type_: Any, meta: dict[str, Any]) -> Any:
    try:
        annotated = Annotated[type_, msgspec.Meta(**meta)]
        msgspec.inspect.type_info(annotated)
    except TypeError:
        # msgspec does not support some constraints, such as limits for a Decimal.
        raise InexpressibleConstraint(", ".join(meta)) from None
    return annotated
