"""Grade the changes of a definition by their risk.

A model reads every word of a definition, so a changed word counts as an instruction. Only changes of whitespace and
order are cosmetic. A change that cannot be graded counts as widening.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from dovetail.protocol.safe_text import escape_line
from dovetail.schemas.definition_diff import SCHEMA_KEYWORDS, Difference, find_differences, is_named_schema
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode_canonical, to_plain

ChangeSeverity: TypeAlias = Literal["cosmetic", "narrowing", "widening", "instruction", "egress"]

_SEVERITY_ORDER: Final = {"cosmetic": 0, "narrowing": 1, "widening": 2, "instruction": 3, "egress": 4}
# Fields that a model or user reads, and fields that define the arguments
_PINNED_FIELDS: Final = (
    "name", "title", "description", "inputSchema", "outputSchema", "annotations", "arguments", "uri", "uriTemplate",
    "mimeType",
)  # fmt: skip
_ADDRESS_WORDS: Final = frozenset(
    ("url", "uri", "href", "link", "webhook", "callback", "endpoint", "host", "hostname", "server", "proxy", "address",
     "email", "mail", "to", "cc", "bcc", "recipient", "recipients", "forward", "upload", "destination", "remote")
)  # fmt: skip
_ADDRESS_FORMATS: Final = frozenset(
    ("uri", "uri-reference", "iri", "url", "email", "idn-email", "hostname", "ipv4", "ipv6")
)
_ADDRESS_IN_TEXT: Final = re.compile(
    r"[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>)]{1,200}|[\w.+-]{1,64}@[\w-]{1,63}\.[\w.-]{1,63}", re.IGNORECASE
)
# Schema keywords and type names. Every other string in a schema may be text for a model.
_SCHEMA_VOCABULARY: Final = SCHEMA_KEYWORDS | {"string", "number", "integer", "boolean", "null", "array", "object"}
_MAX_COMPARED_CHANGES: Final = 5000
_MAX_REPORTED_CHANGES: Final = 200  # report only the most severe changes
_MAX_SHOWN_CHARS: Final = 300  # maximum length of a value or line that is shown


class DefinitionChange(Struct, frozen=True):
    """One change in the definition of a tool, resource or prompt."""

    path: str  # JSON pointer to the changed value
    severity: ChangeSeverity  # the risk of the change
    message: str  # what has changed


def extract_pinned_fields(definition: Any) -> dict[str, Any]:
    """Return the fields of a definition that a pin protects."""
    members: Mapping[str, Any] = definition if isinstance(definition, Mapping) else to_plain(definition)
    return {name: members[name] for name in _PINNED_FIELDS if members.get(name) is not None}


def diff_definitions(old: object, new: object) -> list[DefinitionChange]:
    """Return the changes between two definitions, the most severe first.

    Args:
        old: The old definition.
        new: The new definition.
    """
    old_fields, new_fields = extract_pinned_fields(old), extract_pinned_fields(new)
    known_strings = {*_iter_strings(old_fields)}
    differences = islice(find_differences(old_fields, new_fields), _MAX_COMPARED_CHANGES)
    changes = [_grade_difference(difference, known_strings) for difference in differences]
    if len(changes) == _MAX_COMPARED_CHANGES:
        changes.append(DefinitionChange("", "widening", f"more than {_MAX_COMPARED_CHANGES} changes"))
    if not changes and encode_canonical(old_fields) != encode_canonical(new_fields):
        changes.append(DefinitionChange("", "widening", "changed in a way that cannot be shown"))
    # Sort before shortening the list, so that many small changes cannot hide a severe one.
    return sorted(changes, key=lambda change: -_SEVERITY_ORDER[change.severity])[:_MAX_REPORTED_CHANGES]


def _grade_difference(difference: Difference, known_strings: set[str]) -> DefinitionChange:
    path = "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in difference.path)
    # An enum or another restriction can contain text that a model reads.
    if (
        difference.effect in ("narrower", "unknown")
        and difference.kind != "removed"
        and not is_named_schema(difference)
    ):
        new_strings = {*_iter_strings(difference.new)} - known_strings - _SCHEMA_VOCABULARY
        if new_strings:
            severity: ChangeSeverity = "egress" if any(map(_ADDRESS_IN_TEXT.search, new_strings)) else "instruction"
            return DefinitionChange(path, severity, _format_difference("", "\n".join(sorted(new_strings))))
    return DefinitionChange(path, _grade_effect(difference), _describe(difference))


def _grade_effect(difference: Difference) -> ChangeSeverity:
    match difference.effect:
        case "same":
            return "cosmetic"
        case "text":
            old_addresses, new_addresses = (
                {*_ADDRESS_IN_TEXT.findall(_to_text(value))} for value in (difference.old, difference.new)
            )
            return "egress" if new_addresses - old_addresses else "instruction"
        case _ if is_named_schema(difference):
            is_removed = difference.kind == "removed"
            return "narrowing" if is_removed else _grade_new_schema(difference.path[-1], difference.new)
        case _ if difference.path == ("annotations", "openWorldHint") and difference.new is not False:
            return "egress"
        case _:
            return "narrowing" if difference.effect == "narrower" else "widening"


def _grade_new_schema(name: str, schema: Any) -> ChangeSeverity:
    name_words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[:256]).lower())
    format_ = schema.get("format") if isinstance(schema, Mapping) else None
    is_address = not _ADDRESS_WORDS.isdisjoint(name_words) or (isinstance(format_, str) and format_ in _ADDRESS_FORMATS)
    return "egress" if is_address or _ADDRESS_IN_TEXT.search(_to_text(schema)) else "widening"


def _describe(difference: Difference) -> str:
    old, new = _to_text(difference.old), _to_text(difference.new)
    if difference.effect == "same":
        return f"only {'whitespace' if isinstance(difference.new, str) else 'the order'} changed"
    if difference.path[-1] == "required" and (isinstance(difference.new, str) or isinstance(difference.old, str)):
        return f"{'now' if new else 'no longer'} required: {escape_line(new or old, _MAX_SHOWN_CHARS)}"
    if difference.kind == "changed":
        return _format_difference(old, new)
    is_removed = difference.kind == "removed"
    return f"{'removed' if is_removed else 'added'}: {escape_line(old if is_removed else new, _MAX_SHOWN_CHARS)}"


def _iter_strings(value: Any) -> Iterator[str]:
    """Yield every string and every member name in a value."""
    pending = [value]
    while pending:
        match pending.pop():
            case str() as text:
                yield text
            case Mapping() as members:
                yield from members
                pending += members.values()
            case list() as items:
                pending += items
            case _:
                pass


def format_changes(changes: Sequence[DefinitionChange]) -> str:
    """Return the changes as text for the user. Text from the server is escaped.

    Args:
        changes: The changes.
    """
    return "\n".join(
        f"{change.severity}: {escape_line(change.path, _MAX_SHOWN_CHARS)}\n{_indent(change.message)}"
        for change in changes
    )


def _indent(text: str) -> str:
    return "\n".join(f"    {text_line}" for text_line in text.split("\n"))


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else encode_canonical(value).decode()


def _format_difference(old: str, new: str) -> str:
    """Return the removed and added lines. They are escaped, and shortened around the difference."""
    old_lines, new_lines = old[:20_000].split("\n")[:400], new[:20_000].split("\n")[:400]
    lines: list[str] = []
    for tag, i, j, k, m in SequenceMatcher(None, old_lines, new_lines, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        removed, added = old_lines[i:j], new_lines[k:m]
        start = _common_prefix_length(removed[0], added[0]) if len(removed) == len(added) == 1 else 0
        lines += [f"- {_cut_window(text_line, start)}" for text_line in removed if old] + [
            f"+ {_cut_window(text_line, start)}" for text_line in added if new
        ]
    if len(lines) > 40:
        lines = [*lines[:40], f"… and {len(lines) - 40} more lines"]
    if len(old) > 20_000 or len(new) > 20_000:
        lines.append(f"… of {len(old)} and {len(new)} characters")
    return "\n".join(lines) or "changed after the shown part"


def _common_prefix_length(left: str, right: str) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _cut_window(text: str, start: int) -> str:
    begin = max(0, start - 60) if len(text) > _MAX_SHOWN_CHARS else 0
    return ("…" if begin else "") + escape_line(text[begin:], _MAX_SHOWN_CHARS)
