"""The front matter of a SKILL.md file: find it, parse its YAML as JSON, check its fields, and write it.

The text may come from an untrusted server. It is therefore parsed event by event, within limits on size, depth, values
and aliases. Values follow the core schema of YAML 1.2, so dates and words like `yes` stay text. This module does no
I/O.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dovetail.error_context import clip

MAX_FRONT_MATTER_BYTES: Final = 64 * 1024
MAX_DESCRIPTION_CHARS: Final = 1024
_MAX_DEPTH: Final = 16
_MAX_VALUES: Final = 4096
_MAX_ALIASES: Final = 16
_MIN_INTEGER: Final = -(2**63)
_MAX_INTEGER: Final = 2**64 - 1
_MAX_NUMBER_CHARS: Final = 64

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_FRONT_MATTER: Final = re.compile(rb"---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_NAME: Final = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_DECIMAL: Final = re.compile(r"[-+]?[0-9]+")
_OCTAL: Final = re.compile(r"0o[0-7]+")
_HEXADECIMAL: Final = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_STRING_TAGS: Final = frozenset({"!", "tag:yaml.org,2002:str"})
_CONTAINER_TAGS: Final = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})

_PLAIN_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# JSON strings may contain these characters. YAML forbids them or reads them as line breaks, so they are escaped.
_YAML_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

# PyYAML reports this if a text without quotes contains a colon and a space.
_COLON_PROBLEM: Final = "mapping values are not allowed"
_NO_KEY: Final = object()


class FrontMatterError(ValueError):
    """Raised if a file has no front matter, or if its front matter is invalid."""


def parse_front_matter(data: bytes) -> dict[str, Any]:
    """Return the front matter of a SKILL.md file as a JSON object.

    Raises:
        FrontMatterError: the file has no valid front matter.
    """
    text = _extract(data)
    yaml = import_yaml()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        value = _Builder().build(yaml.parse(text, Loader=loader))
    except yaml.YAMLError as exc:
        mark, problem = getattr(exc, "problem_mark", None), getattr(exc, "problem", None)
        # PyYAML counts lines from 0. The YAML text starts in the second line of the file, after the line `---`.
        place = "" if mark is None else f" in line {mark.line + 2}"
        reason = clip(str(problem or exc))
        solution = ". Put a text that contains `: ` in quotes" if reason.startswith(_COLON_PROBLEM) else ""
        raise FrontMatterError(f"the front matter is not valid YAML{place}: {reason}{solution}") from None
    if not isinstance(value, dict):
        raise FrontMatterError("the front matter must be a list of fields such as `name: my-skill`")
    return value


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise FrontMatterError unless the front matter has a valid name and description."""
    check_name(fields.get("name"))
    description = fields.get("description")
    if not isinstance(description, str) or not description.strip():
        raise FrontMatterError("the front matter must have a `description` that is a non-empty string")
    if len(description) > MAX_DESCRIPTION_CHARS:
        raise FrontMatterError(
            f"the description has {len(description)} characters, but the limit is {MAX_DESCRIPTION_CHARS}. Shorten it"
        )


def check_name(name: object) -> None:
    """Raise FrontMatterError unless a value is a valid name of a skill."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = clip(name) if isinstance(name, str) else type(name).__name__
        raise FrontMatterError(
            f"invalid skill name {shown!r}: use 1 to 64 lower-case letters, digits and single hyphens"
            if name is not None
            else "the front matter must have a `name`"
        )


def is_same_json(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal. Unlike in Python, true is not equal to 1."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(is_same_json(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_same_json, first, second))
    return isinstance(first, bool) == isinstance(second, bool) and first == second


def write_front_matter(fields: Mapping[str, Any]) -> str:
    """Return the front matter of a SKILL.md file, including both lines `---`.

    Each value is written as JSON, which YAML parsers can read.
    """
    lines = [f"{_write_key(key)}: {_write_value(value)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---", ""])


def _write_key(key: str) -> str:
    is_plain = _PLAIN_KEY.fullmatch(key) and isinstance(_read_plain(key), str)
    return key if is_plain else _write_value(key)


def _write_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _YAML_ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _extract(data: bytes) -> str:
    data = data.removeprefix(_BYTE_ORDER_MARK)
    if not data.startswith((b"---\n", b"---\r\n")):
        raise FrontMatterError("the file must start with a line `---`, the fields `name` and `description`, and a "
                               "second line `---`")  # fmt: skip
    match = _FRONT_MATTER.match(data[: MAX_FRONT_MATTER_BYTES + 1])
    if match is None or match.end() > MAX_FRONT_MATTER_BYTES:
        raise FrontMatterError(
            f"the second line `---` is missing, or the front matter is larger than {MAX_FRONT_MATTER_BYTES} bytes"
        )
    try:
        return match[1].decode()
    except UnicodeDecodeError:
        raise FrontMatterError("the front matter is not valid UTF-8. Save the file as UTF-8") from None


def import_yaml() -> Any:
    """Return the module `yaml`. Raise ImportError with the name of the extra if it is not installed."""
    try:
        import yaml
    except ImportError:
        raise ImportError('skills require PyYAML: pip install "dovetail-mcp[skills]"', name="yaml") from None
    return yaml


class _Container:
    """A YAML list or mapping whose end has not been read yet."""

    __slots__ = ("anchor", "first_value", "key", "value")

    def __init__(self, value: "dict[str, Any] | list[Any]", anchor: str | None, first_value: int) -> None:
        self.value = value
        self.anchor = anchor
        self.first_value = first_value  # the number of values in the document before this container
        self.key: Any = _NO_KEY

    def add(self, value: Any) -> None:
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.key is not _NO_KEY:
            self.value[self.key] = value
            self.key = _NO_KEY
        elif not isinstance(value, str):
            raise FrontMatterError(
                "each key must be a string. Put quotes around a key that looks like a number or a date"
            )
        elif value in self.value:
            raise FrontMatterError(f"the field {clip(value)!r} appears twice")
        else:
            self.key = value


class _Builder:
    """Builds a JSON value from YAML events, within limits."""

    def __init__(self) -> None:
        self._value_count = 0
        self._alias_count = 0
        self._document_count = 0
        # Maps the name of each anchor to the anchored value, and to how many values that value contains.
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._open: list[_Container] = []
        self._root: Any = None

    def build(self, events: Iterable[Any]) -> Any:
        for event in events:
            self._handle(event, type(event).__name__)
        return self._root

    def _handle(self, event: Any, kind: str) -> None:
        match kind:
            case "ScalarEvent":
                self._count(1)
                value = _read_scalar(event)
                if event.anchor is not None:
                    self._anchors[event.anchor] = value, 1
                self._add(value)
            case "AliasEvent":
                self._add(self._resolve(event.anchor))
            case "MappingStartEvent" | "SequenceStartEvent":
                self._begin(event, {} if kind == "MappingStartEvent" else [])
            case "MappingEndEvent" | "SequenceEndEvent":
                container = self._open.pop()
                if container.anchor is not None:
                    self._anchors[container.anchor] = container.value, self._value_count - container.first_value
                self._add(container.value)
            case "DocumentStartEvent":
                self._document_count += 1
                if self._document_count > 1:
                    raise FrontMatterError("the front matter must be one YAML document")
            case _:
                pass

    def _begin(self, event: Any, value: "dict[str, Any] | list[Any]") -> None:
        if event.tag not in _CONTAINER_TAGS:
            raise _make_tag_error(event.tag)
        if len(self._open) >= _MAX_DEPTH:
            raise FrontMatterError(f"the front matter is nested deeper than {_MAX_DEPTH} levels")
        self._open.append(_Container(value, event.anchor, self._value_count))
        self._count(1)

    def _add(self, value: Any) -> None:
        if self._open:
            self._open[-1].add(value)
        else:
            self._root = value

    def _resolve(self, anchor: str) -> Any:
        self._alias_count += 1
        if self._alias_count > _MAX_ALIASES:
            raise FrontMatterError(f"the front matter has more than {_MAX_ALIASES} aliases such as `*name`")
        # An anchor is added when its value is complete, so a value cannot contain an alias of itself.
        if anchor not in self._anchors:
            raise FrontMatterError(f"the alias `*{clip(anchor)}` has no matching anchor before it")
        value, size = self._anchors[anchor]
        self._count(size)
        return value

    def _count(self, values: int) -> None:
        self._value_count += values
        if self._value_count > _MAX_VALUES:
            raise FrontMatterError(f"the front matter has more than {_MAX_VALUES} values")


def _read_scalar(event: Any) -> Any:
    if event.tag is not None:
        if event.tag not in _STRING_TAGS:
            raise _make_tag_error(event.tag)
        return event.value
    return event.value if event.style else _read_plain(event.value)


def _read_plain(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] not in "+-.0123456789":
        return text
    if len(text) > _MAX_NUMBER_CHARS and _FLOAT.fullmatch(text):
        raise _make_number_error(text)
    if _DECIMAL.fullmatch(text):
        return _check_integer(text, int(text))
    if _OCTAL.fullmatch(text) or _HEXADECIMAL.fullmatch(text):
        return _check_integer(text, int(text, 0))
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return number
        raise _make_number_error(text)
    if _NOT_FINITE.fullmatch(text):
        raise FrontMatterError(f"{text} is not a number in JSON. Put it in quotes")
    return text


def _check_integer(text: str, number: int) -> int:
    if not _MIN_INTEGER <= number <= _MAX_INTEGER:
        raise _make_number_error(text)
    return number


def _make_number_error(text: str) -> FrontMatterError:
    return FrontMatterError(f"{clip(text)} is too large for a JSON number. Put it in quotes")


def _make_tag_error(tag: str) -> FrontMatterError:
    return FrontMatterError(f"the YAML tag {clip(tag)} is not supported. Remove it")
