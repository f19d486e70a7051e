"""Grade the changes of a tool, resource or prompt definition by their risk.

A model reads every word of a definition, so a changed word counts as an instruction. Only changes of whitespace and
order are cosmetic. A change that cannot be graded counts as widening. Definitions above a size limit are not compared,
because a comparison runs on the event loop. A change of such a definition counts as egress.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from dovetail.protocol.safe_text import escape_line
from dovetail.schemas.definition_diff import SCHEMA_KEYWORDS, Difference, find_differences, is_named_schema
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode_canonical, to_plain

ChangeSeverity: TypeAlias = Literal["cosmetic", "narrowing", "widening", "instruction", "egress"]

_SEVERITY_ORDER: Final = {"cosmetic": 0, "narrowing": 1, "widening": 2, "instruction": 3, "egress": 4}
# A change in one of these fields matters to a model or a user.
_PINNED_FIELDS: Final = (
    "name", "title", "description", "inputSchema", "outputSchema", "annotations", "arguments", "uri", "uriTemplate",
    "mimeType", "frontmatter", "files",
)  # fmt: skip
_ADDRESS_WORDS: Final = frozenset(
    ("url", "uri", "href", "link", "webhook", "callback", "endpoint", "host", "hostname", "server", "proxy", "address",
     "email", "mail", "to", "cc", "bcc", "recipient", "recipients", "forward", "upload", "destination", "remote")
)  # fmt: skip
_ADDRESS_FORMATS: Final = frozenset(
    ("uri", "uri-reference", "iri", "url", "email", "idn-email", "hostname", "ipv4", "ipv6")
)
# This pattern matches the end of a URL or an email address. `_find_addresses` then looks for the start.
_ADDRESS_END: Final = re.compile(r"://[^\s\"'<>)]{1,200}|@[\w-]{1,63}\.[\w.-]{1,63}")
_ADDRESS_START: Final = re.compile(r"[\w.+-]*")
_MAX_ADDRESS_START_CHARS: Final = 64
# Schema keywords and type names. All other strings in a schema may be text for a model.
_SCHEMA_VOCABULARY: Final = SCHEMA_KEYWORDS | {"string", "number", "integer", "boolean", "null", "array", "object"}
MAX_COMPARED_BYTES: Final = 64 * 1024  # Definitions above this size are not compared.
_MAX_COMPARED_CHANGES: Final = 5000
_MAX_SHOWN_LINES: Final = 40
# A line in the definition of a skill: the path, the digest and the size of a file.
_FILE_LINE: Final = re.compile(r"(.+): (sha256:\S+) (\d+)")
_MAX_NAME_CHARS: Final = 256  # Names in a JSON pointer are shortened to this length.
_MAX_REPORTED_CHANGES: Final = 200  # Only the most severe changes are reported.
_MAX_SHOWN_CHARS: Final = 300  # In the text for the user, values and lines are shortened to this length.


class DefinitionChange(Struct, frozen=True):
    """One change in the definition of a tool, resource or prompt."""

    path: str  # the JSON pointer to the changed value
    severity: ChangeSeverity  # the risk of the change
    message: str  # the description of the change


def extract_pinned_fields(definition: Any) -> dict[str, Any]:
    """Return the fields of a definition that a pin contains."""
    members: Mapping[str, Any] = definition if isinstance(definition, Mapping) else to_plain(definition)
    return {name: members[name] for name in _PINNED_FIELDS if members.get(name) is not None}


def diff_definitions(old: object, new: object) -> list[DefinitionChange]:
    """Return the changes between two definitions, the most severe first.

    Args:
        old: The old definition.
        new: The new definition.
    """
    old_fields, new_fields = extract_pinned_fields(old), extract_pinned_fields(new)
    old_encoded, new_encoded = encode_canonical(old_fields), encode_canonical(new_fields)
    if old_encoded == new_encoded:
        return []
    size = max(len(old_encoded), len(new_encoded))
    if size > MAX_COMPARED_BYTES:
        text = (
            f"changed. Definitions of more than {MAX_COMPARED_BYTES} bytes are not compared. This one has {size} bytes"
        )
        return [DefinitionChange("", "egress", text)]
    known_strings = {*_iter_strings(old_fields)}
    differences = islice(find_differences(old_fields, new_fields), _MAX_COMPARED_CHANGES)
    graded = [_grade_difference(difference, known_strings) for difference in differences]
    # The most severe changes come first, so that shortening the list removes only the least severe changes.
    graded.sort(key=lambda grade: -_SEVERITY_ORDER[grade.severity])
    changes = [_describe_grade(grade) for grade in graded[:_MAX_REPORTED_CHANGES]]
    if len(graded) == _MAX_COMPARED_CHANGES:
        changes.insert(0, DefinitionChange("", "egress", f"more than {_MAX_COMPARED_CHANGES} changes"))
    return changes[:_MAX_REPORTED_CHANGES] or [
        DefinitionChange("", "widening", "changed in a way that cannot be shown")
    ]


class _GradedDifference(NamedTuple):
    severity: ChangeSeverity
    difference: Difference
    new_strings: set[str]  # the strings that were not in the old definition


def _grade_difference(difference: Difference, known_strings: set[str]) -> _GradedDifference:
    # An enum or another restriction can contain text that a model reads.
    if (
        difference.effect in ("narrower", "unknown")
        and difference.kind != "removed"
        and not is_named_schema(difference)
    ):
        new_strings = {*_iter_strings(difference.new)} - known_strings - _SCHEMA_VOCABULARY
        if new_strings:
            severity: ChangeSeverity = "egress" if any(map(_ADDRESS_END.search, new_strings)) else "instruction"
            return _GradedDifference(severity, difference, new_strings)
    return _GradedDifference(_grade_effect(difference), difference, set())


def _describe_grade(grade: _GradedDifference) -> DefinitionChange:
    names = (name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}…" for name in grade.difference.path)
    path = "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)
    message = (
        _format_difference("", "\n".join(sorted(grade.new_strings)))
        if grade.new_strings
        else _describe(grade.difference)
    )
    return DefinitionChange(path, grade.severity, message)


def _grade_effect(difference: Difference) -> ChangeSeverity:
    match difference.effect:
        case "same":
            return "cosmetic"
        case "text":
            old_addresses, new_addresses = (
                _find_addresses(_to_text(value)) for value in (difference.old, difference.new)
            )
            return "egress" if new_addresses - old_addresses else "instruction"
        case _ if is_named_schema(difference):
            is_removed = difference.kind == "removed"
            return "narrowing" if is_removed else _grade_new_schema(difference.path[-1], difference.new)
        case _ if difference.path == ("annotations", "openWorldHint") and difference.new is not False:
            return "egress"
        case _:
            return "narrowing" if difference.effect == "narrower" else "widening"


def _find_addresses(text: str) -> set[str]:
    addresses: set[str] = set()
    for end in _ADDRESS_END.finditer(text):
        before = text[max(0, end.start() - _MAX_ADDRESS_START_CHARS) : end.start()][::-1]
        start = _ADDRESS_START.match(before)
        assert start is not None
        addresses.add(start[0][::-1] + end[0])
    return addresses


def _grade_new_schema(name: str, schema: Any) -> ChangeSeverity:
    name_words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[:256]).lower())
    format_ = schema.get("format") if isinstance(schema, Mapping) else None
    is_address = not _ADDRESS_WORDS.isdisjoint(name_words) or (isinstance(format_, str) and format_ in _ADDRESS_FORMATS)
    return "egress" if is_address or _ADDRESS_END.search(_to_text(schema)) else "widening"


def _describe(difference: Difference) -> str:
    old, new = _to_text(difference.old), _to_text(difference.new)
    if difference.path == ("files",):
        return _describe_files(old, new)
    if difference.path == ("frontmatter",):
        return _describe_front_matter(old, new)
    if difference.effect == "same":
        return f"only {'whitespace' if isinstance(difference.new, str) else 'the order'} changed"
    if difference.path[-1] == "required" and (isinstance(difference.new, str) or isinstance(difference.old, str)):
        return f"{'now' if new else 'no longer'} required: {escape_line(new or old, _MAX_SHOWN_CHARS)}"
    if difference.kind == "changed":
        return _format_difference(old, new)
    is_removed = difference.kind == "removed"
    return f"{'removed' if is_removed else 'added'}: {escape_line(old if is_removed else new, _MAX_SHOWN_CHARS)}"


def _describe_files(old: str, new: str) -> str:
    """Return the changes in the list of a skill's files: added, removed and changed files."""
    old_files, new_files = _parse_files(old), _parse_files(new)
    if old_files is None or new_files is None:
        return "\n".join([f"- {_summarize_files(old, old_files)}", f"+ {_summarize_files(new, new_files)}"])
    lines: list[str] = []
    for path in sorted(old_files.keys() | new_files.keys()):
        before, now = old_files.get(path), new_files.get(path)
        if before == now:
            continue
        if before is None or now is None:
            change, size = ("added", now) if now is not None else ("removed", before)
            text = f"{change}: {path} ({size[1] if size is not None else 0} bytes)"
        else:
            text = f"changed: {path} ({before[1]} bytes before, {now[1]} bytes now)"
        lines.append(escape_line(text, _MAX_SHOWN_CHARS))
    return _join_lines(lines)


def _parse_files(text: str) -> dict[str, tuple[str, str]] | None:
    """Return a dict that maps each path to the file's digest and size. Return None if the text lists no files."""
    files: dict[str, tuple[str, str]] = {}
    for line in text.split("\n"):
        match = _FILE_LINE.fullmatch(line)
        if match is None:
            return None
        files[match[1]] = match[2], match[3]
    return files


def _summarize_files(text: str, files: Mapping[str, object] | None) -> str:
    return escape_line(text, _MAX_SHOWN_CHARS) if files is None else f"{len(files)} files with known digests"


def _describe_front_matter(old: str, new: str) -> str:
    """Return the changed fields in the front matter of a skill, with their old and new values."""
    old_fields, new_fields = _parse_object(old), _parse_object(new)
    if old_fields is None or new_fields is None:
        return _format_difference(old, new)
    lines: list[str] = []
    for name in sorted(old_fields.keys() | new_fields.keys()):
        before, now = (_to_text(fields[name]) if name in fields else None for fields in (old_fields, new_fields))
        if before == now:
            continue
        label = escape_line(name, _MAX_SHOWN_CHARS)
        if before is None or now is None:
            change = "removed" if now is None else "added"
            lines.append(f"{change}: {label}: {escape_line(before or now or '', _MAX_SHOWN_CHARS)}")
        else:
            lines += [f"changed: {label}", *_format_difference(before, now).split("\n")]
    return _join_lines(lines)


def _parse_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _join_lines(lines: Sequence[str]) -> str:
    hidden_count = len(lines) - _MAX_SHOWN_LINES
    shown_lines = [*lines[:_MAX_SHOWN_LINES], f"… and {hidden_count} more lines"] if hidden_count > 0 else lines
    return "\n".join(shown_lines) or "changed in a way that cannot be shown"


def _iter_strings(value: Any) -> Iterator[str]:
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
    """Return a text that describes changes to the user. Text from the server is escaped.

    Args:
        changes: The changes to describe.
    """
    return "\n".join(
        f"{change.severity}: {escape_line(change.path, _MAX_SHOWN_CHARS)}\n{_indent(change.message)}"
        for change in changes
    )


def describe_changes(changes: Sequence[DefinitionChange], definition: object) -> dict[str, Any]:
    """Return the text that the user sees before the host uses a changed definition.

    The text contains the changes. If they do not show all new text, it also contains the new definition.
    """
    text = format_changes(changes)
    # The list of changes is complete if no change was omitted and each change has a path.
    is_complete = "…" not in text and len(changes) < _MAX_REPORTED_CHANGES and all(change.path for change in changes)
    if is_complete:
        return {"changes": text}
    fields = extract_pinned_fields(definition)
    encoded = encode_canonical(fields)
    return {"changes": text, "new definition": fields if len(encoded) <= MAX_COMPARED_BYTES else encoded.decode()}


def _indent(text: str) -> str:
    return "\n".join(f"    {text_line}" for text_line in text.split("\n"))


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else encode_canonical(value).decode()


def _format_difference(old: str, new: str) -> str:
    old_lines, new_lines = old.split("\n"), new.split("\n")
    removed = _drop_lines(old_lines, new_lines) if old else []
    added = _drop_lines(new_lines, old_lines) if new else []
    lines: list[str] = []
    if len(removed) == len(added):
        for removed_line, added_line in zip(removed[:_MAX_SHOWN_LINES], added, strict=False):
            start = _common_prefix_length(removed_line, added_line)
            lines += [f"- {_cut_window(removed_line, start)}", f"+ {_cut_window(added_line, start)}"]
    else:
        lines += [f"- {_cut_window(line, 0)}" for line in removed[:_MAX_SHOWN_LINES]]
        lines += [f"+ {_cut_window(line, 0)}" for line in added[:_MAX_SHOWN_LINES]]
    hidden_count = len(removed) + len(added) - len(lines)
    if hidden_count:
        lines.append(f"… and {hidden_count} more lines")
    return "\n".join(lines) or "only the order of the lines changed"


def _drop_lines(lines: list[str], other_lines: list[str]) -> list[str]:
    """Return the lines that are not in `other_lines`. The function takes linear time."""
    remaining = Counter(other_lines)
    kept: list[str] = []
    for line in lines:
        if remaining[line]:
            remaining[line] -= 1
        else:
            kept.append(line)
    return kept


def _common_prefix_length(left: str, right: str) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _cut_window(text: str, start: int) -> str:
    begin = max(0, start - 60) if len(text) > _MAX_SHOWN_CHARS else 0
    return ("…" if begin else "") + escape_line(text[begin:], _MAX_SHOWN_CHARS)
