"""Docstrings in the styles of Google, NumPy and Sphinx: what they say of each parameter, and the text without that.

Only sections that tell what the schema tells anyway (parameters) or that concern Python callers (exceptions) are taken
out; what comes back, notes and examples stay, because a model has them from nowhere else.
"""

import inspect
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_PARAMETERS: Final = frozenset(
    ("args", "arguments", "parameters", "params", "other parameters", "keyword args", "keyword arguments", "attributes")
)
_EXCEPTIONS: Final = frozenset(("raises", "raise", "exceptions", "except"))
# Compiled by the first docstring that needs them.
_HEADING: Final = r"([A-Z][A-Za-z ]*):\s*"
_RULE: Final = r"-{3,}\s*"
_ITEM: Final = r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:(?!:)\s*(.*)"
_NUMPY_ITEM: Final = r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::(?!:).*)?"
_FIELD: Final = r":(\w+)(?:\s+([^:]*))?:(?:\s+(.*)|\s*)"
_FIELD_PARAMETERS: Final = frozenset(("param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var"))
_FIELD_SILENT: Final = frozenset(("type", "rtype", "raises", "raise", "except", "exception", "vartype"))
_FIELD_RESULT: Final = frozenset(("return", "returns", "yield", "yields"))


class Docstring(NamedTuple):
    """What is left of the text, and the description of each parameter it had."""

    text: str
    parameters: dict[str, str]


def read(doc: str | None) -> Docstring:
    """A docstring taken apart; one without sections comes back as it is, without its indentation."""
    if not doc:
        return Docstring("", {})
    if "\n" not in doc:
        return Docstring(doc.strip(), {})
    lines = inspect.cleandoc(doc).splitlines()
    kept: list[str] = []
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        end, parameters, instead = _section(lines, at)
        if end > at:
            found = parameters | found
            kept += instead
            at = end
        else:
            kept.append(lines[at])
            at += 1
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return Docstring(text, found)


def _section(lines: Sequence[str], at: int) -> tuple[int, dict[str, str], list[str]]:
    """Where the section beginning here ends, its parameters, and what stays of it; if there is none, the same place."""
    line = lines[at]
    if at + 1 < len(lines) and re.fullmatch(_RULE, lines[at + 1]):
        return _numpy(lines, at)
    if (heading := re.fullmatch(_HEADING, line)) is not None:
        return _google(lines, at, heading[1].lower())
    if (field := re.fullmatch(_FIELD, line)) is not None:
        return _sphinx(lines, at, field)
    return at, {}, []


def _google(lines: Sequence[str], at: int, heading: str) -> tuple[int, dict[str, str], list[str]]:
    end = _indented_end(lines, at + 1)
    if heading in _EXCEPTIONS and end > at + 1:
        return end, {}, []
    if heading not in _PARAMETERS:
        return at, {}, []
    body = inspect.cleandoc("\n".join(["", *lines[at + 1 : end]])).splitlines()
    items = _items(body, _ITEM)
    return (end, {match[1]: _joined(match[2], more) for match, more in items}, []) if items else (at, {}, [])


def _numpy(lines: Sequence[str], at: int) -> tuple[int, dict[str, str], list[str]]:
    heading, end = lines[at].strip().lower(), at + 2
    while end < len(lines) and not (end + 1 < len(lines) and re.fullmatch(_RULE, lines[end + 1])):
        end += 1
    if heading in _EXCEPTIONS:
        return end, {}, []
    if heading not in _PARAMETERS:
        return at, {}, []
    found: dict[str, str] = {}
    for match, more in _items(lines[at + 2 : end], _NUMPY_ITEM):
        for name in match[1].split(","):
            found[name.strip(" *")] = _joined("", more)
    return end, found, []


def _sphinx(lines: Sequence[str], at: int, field: re.Match[str]) -> tuple[int, dict[str, str], list[str]]:
    end = _indented_end(lines, at + 1)
    while end > at + 1 and not lines[end - 1].strip():
        end -= 1
    role, subject, text = field[1], (field[2] or "").split(), _joined(field[3] or "", lines[at + 1 : end])
    if role in _FIELD_PARAMETERS and subject:
        return end, {subject[-1].lstrip("*"): text}, []
    if role in _FIELD_RESULT and text:
        return end, {}, [f"{role.capitalize().removesuffix('s')}s: {text}"]
    return (end, {}, []) if role in _FIELD_SILENT else (at, {}, [])


def _items(body: Sequence[str], pattern: str) -> list[tuple[re.Match[str], list[str]]]:
    """Lines that name something, each with the indented lines below it; none if a line at the margin names nothing."""
    items: list[tuple[re.Match[str], list[str]]] = []
    for line in body:
        if line[:1].isspace() or not line:
            if items:
                items[-1][1].append(line)
        elif (match := re.fullmatch(pattern, line)) is not None:
            items.append((match, []))
        else:
            return []
    return items


def _indented_end(lines: Sequence[str], start: int) -> int:
    end = start
    for place in range(start, len(lines)):
        if lines[place].strip():
            if not lines[place][:1].isspace():
                break
            end = place + 1
    return end


def _joined(first: str, more: Sequence[str]) -> str:
    """Lines as one text; an empty line separates paragraphs."""
    paragraphs = [" ".join(part.split()) for part in "\n".join([first, *(line.strip() for line in more)]).split("\n\n")]
    return "\n\n".join(part for part in paragraphs if part)
