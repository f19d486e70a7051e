"""Filling: the defaults msgspec leaves out of a dataclass it reads, because the class has them.

Whoever looks at the instance finds them there; whoever writes it out again, or asks for its `vars`, would not.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from dovetail.server.schema import reachable

Defaults = Mapping[type, Mapping[str, Any]]  # of each class with fields, the values some of them have if unsaid


def filling(types: Mapping[str, Any]) -> Callable[[Any], None] | None:
    """Completes what was read, member by member; None where nothing can be missing."""
    found = {name: _defaults(kind) for name, kind in types.items()}
    lacking = {name: defaults for name, defaults in found.items() if any(defaults.values())}
    if not lacking:
        return None

    def fill(arguments: Any) -> None:
        for name, defaults in lacking.items():
            _fill(getattr(arguments, name), defaults)

    return fill


def _defaults(annotation: Any) -> Defaults:
    classes = (getattr(kind, "__origin__", kind) for kind in reachable([annotation]))
    return {kind: _plain_defaults(kind) for kind in classes if isinstance(kind, type) and _fields(kind)}


def _plain_defaults(kind: Any) -> dict[str, Any]:
    # With slots there is no default on the class to be found, so there msgspec sets it.
    if not hasattr(kind, "__dataclass_fields__") or not kind.__dictoffset__:
        return {}
    import dataclasses  # the author has it loaded already

    fields = dataclasses.fields(kind)
    return {field.name: field.default for field in fields if field.init and field.default is not dataclasses.MISSING}


@functools.lru_cache(maxsize=256)
def _fields(kind: Any) -> tuple[str, ...]:
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(kind.__dataclass_fields__)
    named = getattr(kind, "__struct_fields__", None) or getattr(kind, "__attrs_attrs__", None) or ()
    return tuple(getattr(one, "name", one) for one in named)


def _fill(value: Any, defaults: Defaults) -> None:
    kind = type(value)
    if kind in defaults:
        if missing := {name: one for name, one in defaults[kind].items() if name not in vars(value)}:
            own = vars(value)
            said = {**missing, **own}
            own.clear()
            own.update({name: said.pop(name) for name in _fields(kind) if name in said}, **said)
        for name in _fields(kind):
            _fill(getattr(value, name, None), defaults)
    elif kind in (list, tuple, set, frozenset, dict):
        inside = cast("dict[Any, Any]", value).values() if kind is dict else cast("Iterable[Any]", value)
        for one in inside:
            _fill(one, defaults)
