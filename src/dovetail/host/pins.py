"""Pins: the digest of a definition, so that a changed one is noticed, and what changed in it, graded and readable.

Pure. Every word of a definition reaches a model, so a changed word is an instruction; only blanks are cosmetic. What
cannot be graded counts as widening.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from dovetail.host.escaping import line
from dovetail.wire.codec import canonical, plain
from dovetail.wire.shape import Struct

Grade: TypeAlias = Literal["cosmetic", "narrowing", "widening", "instruction", "egress"]

# What a definition is: what a model or a user is told of it, and what it takes.
_PINNED: Final = (
    "name", "title", "description", "inputSchema", "outputSchema", "annotations", "arguments", "uri", "uriTemplate",
    "mimeType",
)  # fmt: skip

_WORDS: Final = frozenset(("title", "description", "$comment", "examples", "default", "name"))
_ADDRESS: Final = frozenset(
    ("url", "uri", "href", "link", "webhook", "callback", "endpoint", "host", "hostname", "server", "proxy", "address",
     "email", "mail", "to", "cc", "bcc", "recipient", "recipients", "forward", "upload", "destination", "remote")
)  # fmt: skip
_ADDRESS_FORMATS: Final = frozenset(
    ("uri", "uri-reference", "iri", "url", "email", "idn-email", "hostname", "ipv4", "ipv6")
)
_IN_TEXT: Final = re.compile(
    r"[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>)]{1,200}|[\w.+-]{1,64}@[\w-]{1,63}\.[\w.-]{1,63}", re.IGNORECASE
)
# More of these is more that is refused.
_FLOORS: Final = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))
_CEILINGS: Final = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))
_REFUSING: Final = frozenset(("pattern", "format", "const", "multipleOf", "uniqueItems", "not"))
# What a schema is written in; anything else in one is words.
_VOCABULARY: Final = (
    _WORDS | _FLOORS | _CEILINGS | _REFUSING
    | {"string", "number", "integer", "boolean", "null", "array", "object", "type", "enum", "items", "properties",
       "required", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "contains",
       "prefixItems", "anyOf", "oneOf", "allOf", "if", "then", "else", "dependentSchemas", "dependentRequired"}
)  # fmt: skip
_DEEPEST: Final = 32
_LOOKED_AT: Final = 5000  # differences
_MOST: Final = 200  # of them told, the gravest
_SHOWN: Final = 300  # characters of a value or a line


class Difference(Struct, frozen=True):
    """One change of a definition: where (a JSON pointer), how grave, and in words."""

    path: str
    kind: Grade
    text: str


def pinned(definition: Any) -> dict[str, Any]:
    """What a pin is about: a definition, as the JSON object it travels as, without what nobody is told."""
    given: Mapping[str, Any] = definition if isinstance(definition, Mapping) else plain(definition)
    return {name: given[name] for name in _PINNED if given.get(name) is not None}


def fingerprint(definition: Any) -> str:
    """The digest of a definition; another for every other one, whatever the order of its members."""
    return hashlib.sha256(canonical(pinned(definition))).hexdigest()


def changes(old: Any, new: Any) -> list[Difference]:
    """What changed between two definitions, gravest first."""
    before, after = pinned(old), pinned(new)
    found = [*islice(_differences(before, after), _LOOKED_AT)]
    if len(found) == _LOOKED_AT:
        found.append(Difference("", "widening", "more changed than is looked at"))
    if not found and canonical(before) != canonical(after):  # too deep to be told, never silent
        found.append(Difference("", "widening", "changed, too deep to be shown"))
    known = {*_strings(before)}
    graded = [_reworded(one, known, after) for one in found]
    return sorted(graded, key=lambda one: -_GRAVITY[one.kind])[:_MOST]  # cut last, so that no crowd hides anything


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for name in _PINNED:
        one, other = before.get(name), after.get(name)
        if canonical(one) != canonical(other):
            yield from _member(f"/{name}", name, one, other)


_GRAVITY: Final = {"cosmetic": 0, "narrowing": 1, "widening": 2, "instruction": 3, "egress": 4}


def _reworded(found: Difference, known: set[str], new: Any) -> Difference:
    """What narrows and brings words with it is graded by them: a model reads them wherever they stand in a schema."""
    fresh = {*_strings(_place(new, found.path))} - known - _VOCABULARY if found.kind == "narrowing" else None
    if not fresh:
        return found
    kind: Grade = "egress" if any(map(_IN_TEXT.search, fresh)) else "instruction"
    return Difference(found.path, kind, _compared("", "\n".join(sorted(fresh))))


def _strings(value: Any) -> Iterator[str]:
    """Every text in a value, the names of members too."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case Mapping() as members:
                yield from members
                waiting += members.values()
            case list() as items:
                waiting += items
            case _:
                pass


def _place(value: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(name)
        else:
            value = value[int(name)] if isinstance(value, list) and int(name) < len(value) else None
    return value


def describe(differences: Sequence[Difference]) -> str:
    """The changes for a reader; whatever the server wrote is escaped."""
    return "\n".join(f"{one.kind}: {line(one.path, _SHOWN)}\n{_indented(one.text)}" for one in differences)


def _indented(text: str) -> str:
    return "\n".join(f"    {each}" for each in text.split("\n"))


def _member(path: str, name: str, old: Any, new: Any) -> Iterator[Difference]:
    match name:
        case "inputSchema" | "outputSchema":
            yield from _schemas(path, old, new, 0)
        case "annotations":
            yield from _annotations(path, old or {}, new or {})
        case _:
            yield _words(path, old, new)


def _words(path: str, old: Any, new: Any) -> Difference:
    """A changed text, or anything else a model reads."""
    before, after = _text(old), _text(new)
    if isinstance(old, str) and isinstance(new, str) and before.split() == after.split():
        return Difference(path, "cosmetic", "only blanks changed")
    fresh = set(_IN_TEXT.findall(after)) - set(_IN_TEXT.findall(before))
    return Difference(path, "egress" if fresh else "instruction", _compared(before, after))


def _annotations(path: str, old: Any, new: Any) -> Iterator[Difference]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield Difference(path, "widening", _compared(_text(old), _text(new)))
        return
    for name in sorted({*old, *new}):
        one, other = old.get(name), new.get(name)
        if canonical(one) == canonical(other):
            continue
        if name == "title":
            yield _words(f"{path}/title", one, other)
        else:
            outward = name == "openWorldHint" and other is not False
            yield Difference(f"{path}/{name}", "egress" if outward else "widening", _compared(_text(one), _text(other)))


def _schemas(path: str, old: Any, new: Any, depth: int) -> Iterator[Difference]:
    if canonical(old) == canonical(new):
        return
    if depth > _DEEPEST or not isinstance(old, Mapping) or not isinstance(new, Mapping):
        tighter = new is False or (old in (None, True) and isinstance(new, Mapping))
        yield Difference(path, "narrowing" if tighter else "widening", _compared(_text(old), _text(new)))
        return
    for name in sorted({*old, *new}):
        if canonical(old.get(name)) != canonical(new.get(name)):
            yield from _keyword(f"{path}/{_escaped(name)}", name, old.get(name), new.get(name), depth)


def _keyword(path: str, name: str, old: Any, new: Any, depth: int) -> Iterator[Difference]:
    match name:
        case "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas":
            yield from _properties(path, old or {}, new or {}, depth)
        case "required":
            yield from _required(path, old or [], new or [])
        case "enum" | "type":
            yield Difference(path, _sets(old, new), _compared(_text(old), _text(new)))
        case "anyOf" | "oneOf" | "allOf" | "prefixItems" if isinstance(old, list) and isinstance(new, list):
            yield from _listed(path, name, old, new, depth)
        case (
            "items"
            | "additionalProperties"
            | "unevaluatedProperties"
            | "contains"
            | "propertyNames"
            | "if"
            | "then"
            | "else"
        ):
            yield from _schemas(path, old, new, depth + 1)
        case _ if name in _WORDS:
            yield _words(path, old, new)
        case _:
            yield Difference(path, _bounds(name, old, new), _compared(_text(old), _text(new)))


def _properties(path: str, old: Any, new: Any, depth: int) -> Iterator[Difference]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield Difference(path, "widening", _compared(_text(old), _text(new)))
        return
    for name in sorted({*old, *new}):
        place = f"{path}/{_escaped(name)}"
        if name not in new:
            yield Difference(place, "narrowing", f"gone: {line(_text(old[name]), _SHOWN)}")
        elif name not in old:
            yield Difference(place, _new_property(name, new[name]), f"new: {line(_text(new[name]), _SHOWN)}")
        else:
            yield from _schemas(place, old[name], new[name], depth + 1)


def _new_property(name: str, schema: Any) -> Grade:
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[:256]).lower())
    format_ = schema.get("format") if isinstance(schema, Mapping) else None
    addressed = not _ADDRESS.isdisjoint(words) or (isinstance(format_, str) and format_ in _ADDRESS_FORMATS)
    return "egress" if addressed or _IN_TEXT.search(_text(schema)) else "widening"


def _required(path: str, old: Any, new: Any) -> Iterator[Difference]:
    before, after = _members(old), _members(new)
    if gone := before - after:
        yield Difference(path, "widening", f"no longer required: {line(', '.join(sorted(gone)), _SHOWN)}")
    if fresh := after - before:
        yield Difference(path, "narrowing", f"now required: {line(', '.join(sorted(fresh)), _SHOWN)}")
    if not gone and not fresh:
        yield Difference(path, "cosmetic", "only the order changed")


def _listed(path: str, name: str, old: list[Any], new: list[Any], depth: int) -> Iterator[Difference]:
    for at in range(max(len(old), len(new))):
        place = f"{path}/{at}"
        if at >= len(new):
            kind: Grade = "widening" if name == "allOf" else "narrowing"
            yield Difference(place, kind, f"gone: {line(_text(old[at]), _SHOWN)}")
        elif at >= len(old):
            kind = "narrowing" if name == "allOf" else "widening"
            yield Difference(place, kind, f"new: {line(_text(new[at]), _SHOWN)}")
        else:
            yield from _schemas(place, old[at], new[at], depth + 1)


def _sets(old: Any, new: Any) -> Grade:
    if new is None:
        return "widening"
    if old is None:
        return "narrowing"
    before, after = ({canonical(one) for one in (each if isinstance(each, list) else [each])} for each in (old, new))
    if before == after:
        return "cosmetic"
    return "narrowing" if after < before else "widening"


def _members(given: Any) -> set[str]:
    return {_text(one) for one in given} if isinstance(given, list) else {_text(given)}


def _bounds(name: str, old: Any, new: Any) -> Grade:
    if name in _REFUSING:
        return "narrowing" if old is None else "widening"
    if name not in _FLOORS and name not in _CEILINGS:
        return "widening"
    if old is None or new is None:
        return "narrowing" if old is None else "widening"
    if not isinstance(old, int | float) or not isinstance(new, int | float):
        return "widening"
    return "narrowing" if (new > old) == (name in _FLOORS) else "widening"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else canonical(value).decode()


def _compared(old: str, new: str) -> str:
    """The lines that went and those that came, each escaped, cut around where it differs."""
    before, after = old[:20_000].split("\n")[:400], new[:20_000].split("\n")[:400]
    lines: list[str] = []
    for tag, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        gone, come = before[i:j], after[k:m]
        start = _common(gone[0], come[0]) if len(gone) == len(come) == 1 else 0
        lines += [f"- {_window(one, start)}" for one in gone if old] + [
            f"+ {_window(one, start)}" for one in come if new
        ]
    if len(lines) > 40:
        lines = [*lines[:40], f"… and {len(lines) - 40} lines more"]
    if len(old) > 20_000 or len(new) > 20_000:
        lines.append(f"… of {len(old)} and {len(new)} characters")
    return "\n".join(lines) or "changed beyond what is shown"


def _common(one: str, other: str) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))


def _window(text: str, start: int) -> str:
    begin = max(0, start - 60) if len(text) > _SHOWN else 0
    return ("…" if begin else "") + line(text[begin:], _SHOWN)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
