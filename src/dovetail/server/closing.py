"""Closing: whether everything in a call's arguments is something their types know.

msgspec and pydantic pass over members that no field has, so a name a model got wrong would be lost in silence. Compiled
from the schema; a signature without objects inside its arguments pays nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from dovetail.server.arguments import Schema, fitting

Look = Callable[[Any], bool]  # whether a value has nothing unknown in it; of another type than it should be, it passes

_REF: Final = "#/$defs/"


def closing(schema: Schema) -> Look | None:
    """The look to take at the arguments of a schema, apart from their own names; None if there is nothing to see."""
    looks = _Looks(schema.get("$defs", {}))
    members = looks.members(schema)
    return None if not members else _members(members)


class _Looks:
    def __init__(self, shared: Schema) -> None:
        self._shared = shared
        self._named: dict[str, Look] = {}

    def members(self, schema: Schema) -> dict[str, Look]:
        found = {name: self.look(one) for name, one in schema.get("properties", {}).items()}
        return {name: look for name, look in found.items() if look is not None}

    def look(self, schema: Any) -> Look | None:
        if not isinstance(schema, dict):
            return None
        schema = cast("Schema", schema)
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]).removeprefix(_REF))
        if alternatives := schema.get("anyOf") or schema.get("oneOf"):
            return self._any(alternatives)
        match schema.get("type"):
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case _:
                return None

    def _reference(self, name: str) -> Look:
        if name not in self._named:
            self._named[name] = lambda value: self._named[name](value)  # for the places where it contains itself
            self._named[name] = self.look(self._shared.get(name, {})) or _pass
        return self._named[name]

    def _any(self, schemas: list[Schema]) -> Look | None:
        looks = [self.look(one) for one in schemas]
        if not any(looks):
            return None
        if len(seen := [look for look in looks if look is not None]) == 1 and _scalars(schemas) == len(schemas) - 1:
            return seen[0]  # something or null, which is most of them
        whole = [self._shared.get(str(one["$ref"]).removeprefix(_REF), {}) if "$ref" in one else one for one in schemas]
        if not all("type" in one for one in whole):
            return None
        known = {id(one): look for one, look in zip(whole, looks, strict=True)}
        return lambda value: _one_passes([known[id(one)] for one in fitting(whole, value)], value)

    def _object(self, schema: Schema) -> Look | None:
        members, further = self.members(schema), self.look(schema.get("additionalProperties"))
        names = frozenset[str](schema.get("properties", ()))
        if schema.get("additionalProperties") is False:
            if not members:
                return lambda value: type(value) is not dict or cast("Any", value).keys() <= names
            inside = _members(members)
            return lambda value: type(value) is not dict or (cast("Any", value).keys() <= names and inside(value))
        if further is None:
            return _members(members) if members else None
        return lambda value: (
            type(value) is not dict
            or all(
                members.get(name, _pass if name in names else further)(one)
                for name, one in cast("dict[str, Any]", value).items()
            )
        )

    def _array(self, schema: Schema) -> Look | None:
        first, rest = [self.look(one) or _pass for one in schema.get("prefixItems", ())], self.look(schema.get("items"))
        if first:
            return lambda value: (
                type(value) is not list
                or all(look(one) for look, one in zip(first, cast("list[Any]", value), strict=False))
            )
        return None if rest is None else lambda value: type(value) is not list or all(map(rest, value))


def _members(looks: Mapping[str, Look]) -> Look:
    pairs = tuple(looks.items())

    def look(value: Any) -> bool:
        if type(value) is dict:
            for name, inner in pairs:
                if name in value and not inner(cast("dict[str, Any]", value)[name]):
                    return False
        return True

    return look


def _scalars(schemas: list[Schema]) -> int:
    return sum(one.get("type") not in ("object", "array", None) for one in schemas)


def _one_passes(looks: list[Look | None], value: Any) -> bool:
    return not looks or any(look is None or look(value) for look in looks)


def _pass(_: Any) -> bool:
    return True
