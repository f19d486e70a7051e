"""Inspect the parts of type annotations. This module imports no third-party library."""

import functools
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final

# Depending on its operands, the `|` operator creates a types.UnionType or a typing.Union.
UNION_ORIGINS: Final = (types.UnionType, vars(typing)["Union"])
_FIELD_MARKERS: Final = ("__dataclass_fields__", "__struct_fields__", "__attrs_attrs__", "__total__", "_field_defaults")
_PYDANTIC_MARKERS: Final = ("__pydantic_validator__", "__get_pydantic_core_schema__", "__pydantic_config__")


def unwrap_annotation(annotation: Any) -> Any:
    """Return an annotation without Annotated, Required, NewType or a type alias around it."""
    while (inner := _unwrap_once(annotation)) is not annotation:
        annotation = inner
    return types.NoneType if annotation is None else annotation


def _unwrap_once(annotation: Any) -> Any:
    if typing.get_origin(annotation) is Annotated:
        return annotation.__origin__
    if typing.get_origin(annotation) in (typing.Required, typing.NotRequired):
        return typing.get_args(annotation)[0]
    if hasattr(annotation, "__supertype__"):
        return annotation.__supertype__
    return annotation.__value__ if type(annotation).__name__ == "TypeAliasType" else annotation


def list_alternatives(annotation: Any) -> list[Any]:
    """Return the members of a union. For any other annotation, return only the annotation itself."""
    unwrapped = unwrap_annotation(annotation)
    if typing.get_origin(unwrapped) not in UNION_ORIGINS:
        return [unwrapped]
    return [alternative for member in typing.get_args(unwrapped) for alternative in list_alternatives(member)]


def rewrite_annotation(annotation: Any, rewrite: Callable[[Any], Any], aliases: tuple[Any, ...] = ()) -> Any:
    """Apply `rewrite` to each part of an annotation, starting with the innermost part. Fields of classes are not
    changed.

    If nothing changes, return the same object. Aliases of typing_extensions are replaced, because msgspec does not
    support them.
    """
    origin, arguments, inner = typing.get_origin(annotation), typing.get_args(annotation), _unwrap_once(annotation)
    if origin is Annotated:
        rewritten = rewrite_annotation(inner, rewrite, aliases)
        return rewrite(annotation if rewritten is inner else Annotated[(rewritten, *annotation.__metadata__)])
    if inner is not annotation:
        if any(alias is annotation for alias in aliases):
            return annotation  # The alias is recursive.
        rewritten = rewrite_annotation(inner, rewrite, (*aliases, annotation))
        return annotation if rewritten is inner and type(annotation).__module__ == "typing" else rewritten
    if origin is not typing.Literal and arguments:
        rewritten_arguments = tuple(
            argument if isinstance(argument, list) else rewrite_annotation(argument, rewrite, aliases)
            for argument in arguments
        )
        if any(new is not old for new, old in zip(rewritten_arguments, arguments, strict=True)):
            annotation = make_union(rewritten_arguments) if origin in UNION_ORIGINS else origin[rewritten_arguments]
    return rewrite(annotation)


def make_union(members: Sequence[Any]) -> Any:
    return functools.reduce(operator.or_, members)


def is_subclass_of(annotation: Any, parent: type) -> bool:
    """Return whether an annotation is this class or a subclass of it."""
    annotation = typing.get_origin(annotation) or annotation
    return isinstance(annotation, type) and issubclass(annotation, parent)


def is_pydantic_type(annotation: Any) -> bool:
    return isinstance(annotation, type) and any(hasattr(annotation, name) for name in _PYDANTIC_MARKERS)


def is_path_type(annotation: Any) -> bool:
    """Return whether an annotation is a path class. This check does not import pathlib, which is slow."""
    pathlib = sys.modules.get("pathlib")
    return pathlib is not None and is_subclass_of(annotation, pathlib.PurePath)


def iter_annotations(annotation: Any) -> Iterator[tuple[Any, tuple[type, str] | None]]:
    """Yield an annotation and all its parts, each with the class and the field that contain it.

    The fields of pydantic classes are not included.
    """
    pending: list[tuple[Any, tuple[type, str] | None]] = [(annotation, None)]
    # The dict keeps a reference to each annotation, so that the IDs are not reused.
    seen: dict[tuple[int, bool], Any] = {}
    while pending:
        part, field = pending.pop(0)
        if (key := (id(part), field is None)) in seen:
            continue
        seen[key] = part
        yield part, field
        if (inner := _unwrap_once(part)) is not part:
            pending.append((inner, field))
        elif typing.get_origin(part) is not typing.Literal:
            class_type = typing.get_origin(part) or part
            pending += [(hint, (class_type, name)) for name, hint in _get_field_hints(class_type).items()]
            pending += [(argument, field) for argument in typing.get_args(part)]


def iter_reachable_types(annotations: Sequence[Any]) -> Iterator[Any]:
    """Yield all types in these annotations and in the fields of their classes."""
    for annotation in annotations:
        yield from (part for part, _ in iter_annotations(annotation) if _unwrap_once(part) is part)


def _get_field_hints(class_type: Any) -> dict[str, Any]:
    if is_pydantic_type(class_type) or not any(hasattr(class_type, name) for name in _FIELD_MARKERS):
        return {}
    try:
        return typing.get_type_hints(class_type, include_extras=True)
    except Exception:
        # Building the schema reports this error later, so it is ignored here.
        return {}
