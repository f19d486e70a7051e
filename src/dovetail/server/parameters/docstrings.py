"""Parser for docstrings in Google, NumPy and Sphinx style. It separates parameter descriptions from the other text.

Sections about parameters are removed, because the schema has the descriptions. Sections about exceptions are removed,
because they are for Python callers. Sections about return values, notes and examples are kept, because a model has no
other source for them.
"""

import inspect
import re
from collections.abc import Sequence
from typing import Final

from dovetail.wire.base import Struct

_PARAMETER_HEADINGS: Final = frozenset(
    ("args", "arguments", "parameters", "params", "other parameters", "keyword args", "keyword arguments", "attributes")
)
_EXCEPTION_HEADINGS: Final = frozenset(("raises", "raise", "exceptions", "except"))
# These patterns are compiled only when a docstring has sections.
_HEADING_PATTERN: Final = r"([A-Z][A-Za-z ]*):\s*"
_UNDERLINE_PATTERN: Final = r"-{3,}\s*"
_ITEM_PATTERN: Final = r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:(?!:)\s*(.*)"
_NUMPY_ITEM_PATTERN: Final = r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::(?!:).*)?"
_FIELD_PATTERN: Final = r":(\w+)(?:\s+([^:]*))?:(?:\s+(.*)|\s*)"
_PARAMETER_FIELDS: Final = frozenset(("param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var"))
_IGNORED_FIELDS: Final = frozenset(("type", "rtype", "raises", "raise", "except", "exception", "vartype"))
_RESULT_FIELDS: Final = frozenset(("return", "returns", "yield", "yields"))


class Docstring(Struct, frozen=True):
    """The text of a docstring, and the descriptions of the parameters."""

    text: str
    parameters: dict[str, str]


def parse(doc: str | None) -> Docstring:
    """Parse a docstring. If it has no sections, the whole text is the description."""
    if not doc:
        return Docstring("", {})
    if "\n" not in doc:
        return Docstring(doc.strip(), {})
    lines = inspect.cleandoc(doc).splitlines()
    text_lines: list[str] = []
    descriptions: dict[str, str] = {}
    index = 0
    while index < len(lines):
        end, parameters, replacement = _parse_section(lines, index)
        if end > index:
            descriptions = parameters | descriptions
            text_lines += replacement
            index = end
        else:
            text_lines.append(lines[index])
            index += 1
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(text_lines)).strip()
    return Docstring(text, descriptions)


def _parse_section(lines: Sequence[str], start: int) -> tuple[int, dict[str, str], list[str]]:
    line = lines[start]
    if start + 1 < len(lines) and re.fullmatch(_UNDERLINE_PATTERN, lines[start + 1]):
        return _parse_numpy(lines, start)
    if (heading := re.fullmatch(_HEADING_PATTERN, line)) is not None:
        return _parse_google(lines, start, heading[1].lower())
    if (field := re.fullmatch(_FIELD_PATTERN, line)) is not None:
        return _parse_sphinx(lines, start, field)
    return start, {}, []


def _parse_google(lines: Sequence[str], start: int, heading: str) -> tuple[int, dict[str, str], list[str]]:
    end = _find_indented_end(lines, start + 1)
    if heading in _EXCEPTION_HEADINGS and end > start + 1:
        return end, {}, []
    if heading not in _PARAMETER_HEADINGS:
        return start, {}, []
    body = inspect.cleandoc("\n".join(["", *lines[start + 1 : end]])).splitlines()
    items = _parse_items(body, _ITEM_PATTERN)
    return (
        (end, {match[1]: _join_lines(match[2], continuation) for match, continuation in items}, [])
        if items
        else (start, {}, [])
    )


def _parse_numpy(lines: Sequence[str], start: int) -> tuple[int, dict[str, str], list[str]]:
    heading, end = lines[start].strip().lower(), start + 2
    while end < len(lines) and not (end + 1 < len(lines) and re.fullmatch(_UNDERLINE_PATTERN, lines[end + 1])):
        end += 1
    if heading in _EXCEPTION_HEADINGS:
        return end, {}, []
    if heading not in _PARAMETER_HEADINGS:
        return start, {}, []
    descriptions: dict[str, str] = {}
    for match, continuation in _parse_items(lines[start + 2 : end], _NUMPY_ITEM_PATTERN):
        for name in match[1].split(","):
            descriptions[name.strip(" *")] = _join_lines("", continuation)
    return end, descriptions, []


def _parse_sphinx(lines: Sequence[str], start: int, field: re.Match[str]) -> tuple[int, dict[str, str], list[str]]:
    end = _find_indented_end(lines, start + 1)
    while end > start + 1 and not lines[end - 1].strip():
        end -= 1
    role, subject, text = field[1], (field[2] or "").split(), _join_lines(field[3] or "", lines[start + 1 : end])
    if role in _PARAMETER_FIELDS and subject:
        return end, {subject[-1].lstrip("*"): text}, []
    if role in _RESULT_FIELDS and text:
        return end, {}, [f"{role.capitalize().removesuffix('s')}s: {text}"]
    return (end, {}, []) if role in _IGNORED_FIELDS else (start, {}, [])


def _parse_items(body: Sequence[str], pattern: str) -> list[tuple[re.Match[str], list[str]]]:
    """Return the lines that match the pattern, each with the indented lines below it.

    Return an empty list if there is any other line without indentation.
    """
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


def _find_indented_end(lines: Sequence[str], start: int) -> int:
    end = start
    for index in range(start, len(lines)):
        if lines[index].strip():
            if not lines[index][:1].isspace():
                break
            end = index + 1
    return end


def _join_lines(first: str, continuation: Sequence[str]) -> str:
    paragraphs = [
        " ".join(paragraph.split())
        for paragraph in "\n".join([first, *(line.strip() for line in continuation)]).split("\n\n")
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
