"""Set the defaults of dataclass fields that a call omitted, on the objects that msgspec creates.

msgspec sets defaults only on the class, where `vars` and `asdict` do not find them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast, get_type_hints

import msgspec

from dovetail.server.parameters.type_hints import iter_reachable_types


class _ClassInfo(msgspec.Struct, frozen=True):
    fields: tuple[str, ...]
    defaults: Mapping[str, Any]
    nested_fields: tuple[str, ...]


ClassInfos = Mapping[type, _ClassInfo]


def make_default_filler(types: Mapping[str, Any]) -> Callable[[Any], None] | None:
    """Return a function that sets the default values of dataclass fields, or None if no type needs it."""
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
    """Return whether a field may contain a class with defaults. For a type variable, return True."""
    return _has_defaults(annotation) or any(isinstance(type_, TypeVar) for type_ in iter_reachable_types([annotation]))


def _find_classes(annotation: Any) -> Iterator[type]:
    types = (getattr(type_, "__origin__", type_) for type_ in iter_reachable_types([annotation]))
    return (type_ for type_ in types if isinstance(type_, type) and _get_fields(type_))


def _inspect_class(class_type: type) -> _ClassInfo:
    hints = get_type_hints(class_type, include_extras=True)
    nested_fields = tuple(name for name in _get_fields(class_type) if _may_have_defaults(hints.get(name, Any)))
    return _ClassInfo(_get_fields(class_type), _get_defaults(class_type), nested_fields)


def _get_defaults(class_type: Any) -> dict[str, Any]:
    # If a class has slots, msgspec already sets the default values.
    if not hasattr(class_type, "__dataclass_fields__") or not class_type.__dictoffset__:
        return {}
    # The user's code has already imported dataclasses, so this import takes no time.
    import dataclasses

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
