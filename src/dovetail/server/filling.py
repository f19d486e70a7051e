"""Filling: the defaults msgspec leaves out of a dataclass it reads, because the class has them.

Whoever looks at the instance finds them there; whoever writes it out again, or asks for its `vars`, would not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

from dovetail.server.schema import reachable


class _Class(NamedTuple):
    """A class with fields: which of them have a value if unsaid, and which may hold something to fill."""

    fields: tuple[str, ...]
    defaults: Mapping[str, Any]
    deep: tuple[str, ...]


Classes = Mapping[type, _Class]


def filling(types: Mapping[str, Any]) -> Callable[[Any], None] | None:
    """Completes what was read, member by member; None where nothing can be missing."""
    lacking = tuple(name for name, kind in types.items() if _lacks(kind))
    if not lacking:
        return None
    classes = {one: _read(one) for name in lacking for one in _classes(types[name])}

    def fill(arguments: Any) -> None:
        for name in lacking:
            _fill(getattr(arguments, name), classes)

    return fill


def _lacks(annotation: Any) -> bool:
    return any(_defaults(kind) for kind in _classes(annotation))


def _may_lack(annotation: Any) -> bool:
    """As a field of a class that may be generic: what stands for a type can be any."""
    return _lacks(annotation) or any(isinstance(one, TypeVar) for one in reachable([annotation]))


def _classes(annotation: Any) -> Iterator[type]:
    kinds = (getattr(kind, "__origin__", kind) for kind in reachable([annotation]))
    return (kind for kind in kinds if isinstance(kind, type) and _fields(kind))


def _read(kind: type) -> _Class:
    hints = get_type_hints(kind, include_extras=True)
    deep = tuple(name for name in _fields(kind) if _may_lack(hints.get(name, Any)))
    return _Class(_fields(kind), _defaults(kind), deep)


def _defaults(kind: Any) -> dict[str, Any]:
    # With slots there is no default on the class to be found, so there msgspec sets it.
    if not hasattr(kind, "__dataclass_fields__") or not kind.__dictoffset__:
        return {}
    import dataclasses  # the author has it loaded already

    fields = dataclasses.fields(kind)
    return {field.name: field.default for field in fields if field.init and field.default is not dataclasses.MISSING}


def _fields(kind: Any) -> tuple[str, ...]:
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(kind.__dataclass_fields__)
    named = getattr(kind, "__struct_fields__", None) or getattr(kind, "__attrs_attrs__", None) or ()
    return tuple(getattr(one, "name", one) for one in named)


def _fill(value: Any, classes: Classes) -> None:
    kind = type(value)
    if (known := classes.get(kind)) is not None:
        if known.defaults and len(own := value.__dict__) < len(known.fields):
            said = {**known.defaults, **own}
            own.clear()
            own.update({name: said.pop(name) for name in known.fields if name in said}, **said)
        for name in known.deep:
            _fill(getattr(value, name, None), classes)
    elif kind in (list, tuple, set, frozenset, dict):
        inside = cast("dict[Any, Any]", value).values() if kind is dict else cast("Iterable[Any]", value)
        for one in inside:
            _fill(one, classes)
