"""Choose msgspec or pydantic for all types of one signature or one result.

If one type or its metadata requires pydantic, pydantic handles all types. Otherwise msgspec handles them. This
module chooses without importing pydantic.
"""

import sys
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from dovetail.server.parameters.type_hints import is_pydantic_type, iter_annotations

Library = Literal["msgspec", "pydantic"]

_ADVICE: Final = (
    "Use one library for all types: pydantic models and Field, or msgspec Structs, attrs classes and "
    "Meta. Dataclasses, TypedDict and NamedTuple work with both"
)
_PYDANTIC_HOOK: Final = "__get_pydantic_core_schema__"


class _Need(msgspec.Struct, frozen=True):
    library: Library
    name: str
    parameter: str = ""

    def __str__(self) -> str:
        if not self.parameter:
            return f"{self.name} needs {self.library}"
        return f"parameter `{self.parameter}` needs {self.library} for {self.name}"


def resolve_types(annotations: Mapping[str, Any]) -> tuple[Library, dict[str, Any]]:
    """Choose msgspec or pydantic, and adapt the annotations to the chosen library.

    Raises:
        TypeError: neither library supports all annotations.
    """
    if "pydantic" not in sys.modules and "annotated_types" not in sys.modules:
        # No annotation can use pydantic or annotated-types, because neither is imported.
        return "msgspec", {**annotations}
    needs: list[_Need] = []
    for parameter, annotation in annotations.items():
        try:
            needs += [msgspec.structs.replace(need, parameter=parameter) for need in _find_needs(annotation)]
        except TypeError as exc:
            raise TypeError(f"parameter `{parameter}`: {exc}" if parameter else str(exc)) from None
    need_by_library = {need.library: need for need in reversed(needs)}
    if len(need_by_library) > 1:
        raise TypeError(f"{need_by_library['pydantic']}, and {need_by_library['msgspec']}. {_ADVICE}")
    if "pydantic" not in need_by_library:
        from dovetail.server.parameters.constraints import translate_constraints

        return "msgspec", {name: translate_constraints(annotation) for name, annotation in annotations.items()}
    try:
        from dovetail.server.parameters.pydantic_types import translate_meta
    except ImportError:
        raise TypeError(f"{need_by_library['pydantic']}, which is not installed") from None
    return "pydantic", {name: translate_meta(annotation) for name, annotation in annotations.items()}


def _find_needs(annotation: Any) -> Iterator[_Need]:
    from dovetail.server.parameters.constraints import InexpressibleConstraint, expand_notes, translate_constraints

    try:
        translate_constraints(annotation)
    except InexpressibleConstraint as exc:
        yield _Need("pydantic", f"`{exc}`")
    for part, field in iter_annotations(annotation):
        class_type = typing.get_origin(part) or part
        if class_type is Annotated:
            for note in expand_notes(part.__metadata__):
                yield from _find_note_needs(note, field)
        elif is_pydantic_type(class_type):
            yield _Need("pydantic", f"`{class_type.__name__}`")
        elif _is_msgspec_class(class_type):
            yield _Need("msgspec", f"`{class_type.__name__}`")


def _find_note_needs(note: Any, field: tuple[type, str] | None) -> Iterator[_Need]:
    from dovetail.server.parameters.constraints import is_constraint

    name = f"`{type(note).__name__.removesuffix('Info')}`"
    if field is not None:
        name += f" in `{field[0].__name__}.{field[1]}`"
    if _is_pydantic_note(note):
        yield _Need("pydantic", name)
    elif isinstance(note, msgspec.Meta):
        # pydantic cannot use msgspec metadata in class fields, and has no equivalent for time zones.
        if field is not None or note.tz is not None:
            yield _Need("msgspec", name)
    elif field is not None and is_constraint(note):
        if _is_msgspec_class(field[0]) or type(note).__name__ == "Timezone":
            raise TypeError(f"the constraint {name} has no effect. Use msgspec.Meta")
        yield _Need("pydantic", name)
    elif type(note).__name__ == "Timezone":
        yield _Need("msgspec", name)


def _is_msgspec_class(class_type: Any) -> bool:
    return isinstance(class_type, type) and (
        issubclass(class_type, msgspec.Struct)
        or hasattr(class_type, "__attrs_attrs__")
        or class_type in (msgspec.Raw, msgspec.UnsetType)
    )


def _is_pydantic_note(note: Any) -> bool:
    class_type = note if isinstance(note, type) else type(note)
    return class_type.__module__.partition(".")[0] == "pydantic" or hasattr(class_type, _PYDANTIC_HOOK)
