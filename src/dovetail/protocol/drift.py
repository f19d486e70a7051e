"""Drift: what is different between two states of what a server offers, and what of it breaks those who rely on it.

A caller is broken by what it can no longer say: a tool that is gone, an argument that is gone or has become required, a
value that is no longer taken. A reader is broken by what it is no longer told. Words that changed break nobody, but a
user who agreed to a tool may want to look at it again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from dovetail.protocol.resolving import NOTHING, as_object, listed, named, required, types
from dovetail.wire.shape import Struct

Kind = Literal["removed", "added", "changed", "words"]
Offer = Mapping[str, Mapping[str, Any]]  # by name or URI, as it is published


class Difference(Struct, frozen=True):
    """One thing that is not as it was."""

    kind: Kind
    what: str  # "tool forecast"
    text: str
    breaks: bool = False


def differences(what: str, old: Offer, new: Offer) -> Iterator[Difference]:
    """What is different between two lists of things of one kind."""
    for name in old:
        if name not in new:
            yield Difference("removed", f"{what} {name}", "is gone", True)
    for name in new:
        if name not in old:
            yield Difference("added", f"{what} {name}", "is new")
    for name, one in old.items():
        if name in new and new[name] != one:
            yield from _changed(f"{what} {name}", one, new[name])


def _changed(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for member in dict.fromkeys([*old, *new]):
        before, after = old.get(member), new.get(member)
        if before == after:
            continue
        match member:
            case "inputSchema":
                yield from _schema(what, as_object(before), as_object(after), "", given=True)
            case "outputSchema":
                yield from _output(what, before, after)
            case "arguments":
                yield from _arguments(what, before or [], after or [])
            case "description" | "title" | "icons" | "_meta":
                yield Difference("words", what, f"its {member.strip('_')} is another")
            case _:
                yield Difference("changed", what, f"its {member} is another", member == "mimeType")


def _arguments(what: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Difference]:
    """Of a prompt."""

    def as_schema(given: Sequence[Any]) -> Mapping[str, Any]:
        return {
            "properties": {one["name"]: {"description": one.get("description")} for one in given},
            "required": [one["name"] for one in given if one.get("required")],
        }

    yield from _schema(what, as_schema(old), as_schema(new), "", given=True)


def _output(what: str, old: Any, new: Any) -> Iterator[Difference]:
    if old is None:
        yield Difference("added", what, "it now says what it returns")
    elif new is None:
        yield Difference("removed", what, "it no longer says what it returns", True)
    else:
        yield from _schema(what, as_object(old), as_object(new), "", given=False)


def _schema(
    what: str, old: Mapping[str, Any], new: Mapping[str, Any], place: str, *, given: bool
) -> Iterator[Difference]:
    """`given`: whether it describes what callers give; else what they get."""
    before, after = named(old), named(new)
    side = "argument" if given else "result's"
    for name in sorted(before.keys() - after.keys()):
        yield Difference("removed", what, f"the {side} `{place}{name}` is gone", True)
    needed_before, needed_after = set(required(old)), set(required(new))
    for name in after:
        path = f"{place}{name}"
        if name not in before:
            must = given and name in needed_after
            yield Difference("added", what, f"the {side} `{path}` is new{', and required' if must else ''}", must)
            continue
        if given and name in needed_after - needed_before:
            yield Difference("changed", what, f"the {side} `{path}` is now required", True)
        if not given and name in needed_before - needed_after:
            yield Difference("changed", what, f"the {side} `{path}` may now be missing", True)
        yield from _property(what, as_object(before[name]), as_object(after[name]), path, given=given)
    rest = ("properties", "required", "description", "title")
    if _without(old, rest) != _without(new, rest):
        yield Difference("changed", what, f"the schema{f' of `{place[:-1]}`' if place else ''} is another", True)


def _property(
    what: str, old: Mapping[str, Any], new: Mapping[str, Any], path: str, *, given: bool
) -> Iterator[Difference]:
    if old == new:
        return
    if named(old) or named(new):
        yield from _schema(what, old, new, f"{path}.", given=given)
        return
    before, after = _types(old), _types(new)
    if before != after:
        lost = not _holds(after, before) if given else not _holds(before, after)
        yield Difference("changed", what, f"`{path}` was {_named(before)} and is {_named(after)}", lost)
    if old.get("enum") != new.get("enum"):
        yield from _choices(what, old.get("enum"), new.get("enum"), path, given=given)
    rules = ("type", "enum", "anyOf", "oneOf", *_WORDS) if before != after else ("enum", *_WORDS)
    was, now = (_without(one, rules) if one != NOTHING else {} for one in (old, new))
    if was != now:
        breaks = _narrower(was, now) if given else _narrower(now, was)
        yield Difference("changed", what, f"the rules for `{path}` are others", breaks or before == after)
    elif before == after and old.get("enum") == new.get("enum"):
        yield Difference("words", what, f"`{path}` is described otherwise")


_WORDS = ("description", "title", "examples", "default")


def _narrower(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether some rule is there now that was not, or is another."""
    return any(name not in was or was[name] != rule for name, rule in now.items())


def _choices(what: str, old: Any, new: Any, path: str, *, given: bool) -> Iterator[Difference]:
    before, after = listed({"enum": old}, "enum"), listed({"enum": new}, "enum")
    lost = [one for one in before if new is not None and one not in after]
    more = [one for one in after if old is not None and one not in before]
    narrower = bool(lost) or old is None
    told = ", ".join([*(f"without {one!r}" for one in lost), *(f"with {one!r}" for one in more)])
    breaks = narrower if given else bool(more) or new is None
    yield Difference("changed", what, f"the choices of `{path}` are others: {told or 'a list of them'}", breaks)


_EVERY = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


def _types(schema: Any) -> frozenset[str]:
    """The types it takes: all of them if it names none."""
    one = as_object(schema)
    if one == NOTHING:
        return frozenset()
    if kinds := types(one):
        return frozenset(kinds)
    parts = [*listed(one, "anyOf"), *listed(one, "oneOf")]
    return frozenset().union(*map(_types, parts)) if parts else _EVERY


def _holds(some: frozenset[str], others: frozenset[str]) -> bool:
    """Whether all of the others are among them; a number may be an integer."""
    return others <= some | ({"integer"} if "number" in some else frozenset[str]())


def _named(some: frozenset[str]) -> str:
    return "anything" if some == _EVERY else " or ".join(sorted(some)) or "nothing"


def _without(schema: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in names}
