"""Compare two definitions of a tool, resource or prompt, and grade each change by its risk.

Pure. Every word of a definition reaches a model, so a changed word is an instruction. Only blanks are cosmetic. A
change that cannot be graded counts as widening.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from dovetail.protocol.safe_text import escape_line
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode_canonical, to_plain

ChangeSeverity: TypeAlias = Literal["cosmetic", "narrowing", "widening", "instruction", "egress"]

# What a definition is: what a model or a user is told of it, and what it takes.
_PINNED_FIELDS: Final = (
    "name", "title", "description", "inputSchema", "outputSchema", "annotations", "arguments", "uri", "uriTemplate",
    "mimeType",
)  # fmt: skip

_TEXT_KEYWORDS: Final = frozenset(("title", "description", "$comment", "examples", "default", "name"))
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
# More of these is more that is refused.
_MINIMUM_KEYWORDS: Final = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))
_MAXIMUM_KEYWORDS: Final = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))
_RESTRICTING_KEYWORDS: Final = frozenset(("pattern", "format", "const", "multipleOf", "uniqueItems", "not"))
# What a schema is written in; anything else in one is words.
_SCHEMA_VOCABULARY: Final = (
    _TEXT_KEYWORDS | _MINIMUM_KEYWORDS | _MAXIMUM_KEYWORDS | _RESTRICTING_KEYWORDS
    | {"string", "number", "integer", "boolean", "null", "array", "object", "type", "enum", "items", "properties",
       "required", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "contains",
       "prefixItems", "anyOf", "oneOf", "allOf", "if", "then", "else", "dependentSchemas", "dependentRequired"}
)  # fmt: skip
_MAX_SCHEMA_DEPTH: Final = 32
_MAX_COMPARED_CHANGES: Final = 5000  # differences
_MAX_REPORTED_CHANGES: Final = 200  # of them told, the gravest
_MAX_SHOWN_CHARS: Final = 300  # characters of a value or a line


class DefinitionChange(Struct, frozen=True):
    """One change of a definition: where (a JSON pointer), how grave, and in words."""

    path: str
    severity: ChangeSeverity
    message: str


def extract_pinned_fields(definition: Any) -> dict[str, Any]:
    """What a pin is about: a definition, as the JSON object it travels as, without what nobody is told."""
    members: Mapping[str, Any] = definition if isinstance(definition, Mapping) else to_plain(definition)
    return {name: members[name] for name in _PINNED_FIELDS if members.get(name) is not None}


def diff_definitions(old: Any, new: Any) -> list[DefinitionChange]:
    """What changed between two definitions, gravest first."""
    old_fields, new_fields = extract_pinned_fields(old), extract_pinned_fields(new)
    found_changes = [*islice(_iter_changes(old_fields, new_fields), _MAX_COMPARED_CHANGES)]
    if len(found_changes) == _MAX_COMPARED_CHANGES:
        found_changes.append(DefinitionChange("", "widening", "more changed than is looked at"))
    if not found_changes and encode_canonical(old_fields) != encode_canonical(
        new_fields
    ):  # too deep to be told, never silent
        found_changes.append(DefinitionChange("", "widening", "changed, too deep to be shown"))
    known_strings = {*_iter_strings(old_fields)}
    graded_changes = [_regrade_by_text(change, known_strings, new_fields) for change in found_changes]
    return sorted(graded_changes, key=lambda change: -_SEVERITY_ORDER[change.severity])[
        :_MAX_REPORTED_CHANGES
    ]  # cut last, so that no crowd hides anything


def _iter_changes(old_fields: Mapping[str, Any], new_fields: Mapping[str, Any]) -> Iterator[DefinitionChange]:
    for name in _PINNED_FIELDS:
        old_value, new_value = old_fields.get(name), new_fields.get(name)
        if encode_canonical(old_value) != encode_canonical(new_value):
            yield from _compare_member(f"/{name}", name, old_value, new_value)


_SEVERITY_ORDER: Final = {"cosmetic": 0, "narrowing": 1, "widening": 2, "instruction": 3, "egress": 4}


def _regrade_by_text(change: DefinitionChange, known_strings: set[str], new_definition: Any) -> DefinitionChange:
    """What narrows and brings words with it is graded by them: a model reads them wherever they stand in a schema."""
    new_strings = (
        {*_iter_strings(_resolve_pointer(new_definition, change.path))} - known_strings - _SCHEMA_VOCABULARY
        if change.severity == "narrowing"
        else None
    )
    if not new_strings:
        return change
    severity: ChangeSeverity = "egress" if any(map(_ADDRESS_IN_TEXT.search, new_strings)) else "instruction"
    return DefinitionChange(change.path, severity, _format_difference("", "\n".join(sorted(new_strings))))


def _iter_strings(value: Any) -> Iterator[str]:
    """Every text in a value, the names of members too."""
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


def _resolve_pointer(value: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None  # the new definition has something else there
    return value


def format_changes(changes: Sequence[DefinitionChange]) -> str:
    """The changes for a reader; whatever the server wrote is escaped."""
    return "\n".join(
        f"{change.severity}: {escape_line(change.path, _MAX_SHOWN_CHARS)}\n{_indent(change.message)}"
        for change in changes
    )


def _indent(text: str) -> str:
    return "\n".join(f"    {text_line}" for text_line in text.split("\n"))


def _compare_member(path: str, name: str, old: Any, new: Any) -> Iterator[DefinitionChange]:
    match name:
        case "inputSchema" | "outputSchema":
            yield from _compare_schemas(path, old, new, 0)
        case "annotations":
            yield from _compare_annotations(path, old or {}, new or {})
        case _:
            yield _compare_text(path, old, new)


def _compare_text(path: str, old: Any, new: Any) -> DefinitionChange:
    """A changed text, or anything else a model reads."""
    old_text, new_text = _to_text(old), _to_text(new)
    if isinstance(old, str) and isinstance(new, str) and old_text.split() == new_text.split():
        return DefinitionChange(path, "cosmetic", "only blanks changed")
    new_addresses = set(_ADDRESS_IN_TEXT.findall(new_text)) - set(_ADDRESS_IN_TEXT.findall(old_text))
    return DefinitionChange(path, "egress" if new_addresses else "instruction", _format_difference(old_text, new_text))


def _compare_annotations(path: str, old: Any, new: Any) -> Iterator[DefinitionChange]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield DefinitionChange(path, "widening", _format_difference(_to_text(old), _to_text(new)))
        return
    for name in sorted({*old, *new}):
        old_value, new_value = old.get(name), new.get(name)
        if encode_canonical(old_value) == encode_canonical(new_value):
            continue
        if name == "title":
            yield _compare_text(f"{path}/title", old_value, new_value)
        else:
            is_open_world = name == "openWorldHint" and new_value is not False
            yield DefinitionChange(
                f"{path}/{name}",
                "egress" if is_open_world else "widening",
                _format_difference(_to_text(old_value), _to_text(new_value)),
            )


def _compare_schemas(path: str, old: Any, new: Any, depth: int) -> Iterator[DefinitionChange]:
    if encode_canonical(old) == encode_canonical(new):
        return
    if depth > _MAX_SCHEMA_DEPTH or not isinstance(old, Mapping) or not isinstance(new, Mapping):
        is_narrower = new is False or (old in (None, True) and isinstance(new, Mapping))
        yield DefinitionChange(
            path, "narrowing" if is_narrower else "widening", _format_difference(_to_text(old), _to_text(new))
        )
        return
    for name in sorted({*old, *new}):
        if encode_canonical(old.get(name)) != encode_canonical(new.get(name)):
            yield from _compare_keyword(f"{path}/{_escape_pointer(name)}", name, old.get(name), new.get(name), depth)


def _compare_keyword(path: str, name: str, old: Any, new: Any, depth: int) -> Iterator[DefinitionChange]:
    match name:
        case "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas":
            yield from _compare_properties(path, old or {}, new or {}, depth)
        case "required":
            yield from _compare_required(path, old or [], new or [])
        case "enum" | "type":
            yield DefinitionChange(path, _grade_value_sets(old, new), _format_difference(_to_text(old), _to_text(new)))
        case "anyOf" | "oneOf" | "allOf" | "prefixItems" if isinstance(old, list) and isinstance(new, list):
            yield from _compare_schema_lists(path, name, old, new, depth)
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
            yield from _compare_schemas(path, old, new, depth + 1)
        case _ if name in _TEXT_KEYWORDS:
            yield _compare_text(path, old, new)
        case _:
            yield DefinitionChange(path, _grade_bound(name, old, new), _format_difference(_to_text(old), _to_text(new)))


def _compare_properties(path: str, old: Any, new: Any, depth: int) -> Iterator[DefinitionChange]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield DefinitionChange(path, "widening", _format_difference(_to_text(old), _to_text(new)))
        return
    for name in sorted({*old, *new}):
        property_path = f"{path}/{_escape_pointer(name)}"
        if name not in new:
            yield DefinitionChange(
                property_path, "narrowing", f"gone: {escape_line(_to_text(old[name]), _MAX_SHOWN_CHARS)}"
            )
        elif name not in old:
            yield DefinitionChange(
                property_path,
                _grade_new_property(name, new[name]),
                f"new: {escape_line(_to_text(new[name]), _MAX_SHOWN_CHARS)}",
            )
        else:
            yield from _compare_schemas(property_path, old[name], new[name], depth + 1)


def _grade_new_property(name: str, schema: Any) -> ChangeSeverity:
    name_words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[:256]).lower())
    format_ = schema.get("format") if isinstance(schema, Mapping) else None
    is_address = not _ADDRESS_WORDS.isdisjoint(name_words) or (isinstance(format_, str) and format_ in _ADDRESS_FORMATS)
    return "egress" if is_address or _ADDRESS_IN_TEXT.search(_to_text(schema)) else "widening"


def _compare_required(path: str, old: Any, new: Any) -> Iterator[DefinitionChange]:
    old_names, new_names = _to_text_set(old), _to_text_set(new)
    if removed := old_names - new_names:
        yield DefinitionChange(
            path, "widening", f"no longer required: {escape_line(', '.join(sorted(removed)), _MAX_SHOWN_CHARS)}"
        )
    if added := new_names - old_names:
        yield DefinitionChange(
            path, "narrowing", f"now required: {escape_line(', '.join(sorted(added)), _MAX_SHOWN_CHARS)}"
        )
    if not removed and not added:
        yield DefinitionChange(path, "cosmetic", "only the order changed")


def _compare_schema_lists(
    path: str, name: str, old: list[Any], new: list[Any], depth: int
) -> Iterator[DefinitionChange]:
    for index in range(max(len(old), len(new))):
        item_path = f"{path}/{index}"
        if index >= len(new):
            severity: ChangeSeverity = "widening" if name == "allOf" else "narrowing"
            yield DefinitionChange(item_path, severity, f"gone: {escape_line(_to_text(old[index]), _MAX_SHOWN_CHARS)}")
        elif index >= len(old):
            severity = "narrowing" if name == "allOf" else "widening"
            yield DefinitionChange(item_path, severity, f"new: {escape_line(_to_text(new[index]), _MAX_SHOWN_CHARS)}")
        else:
            yield from _compare_schemas(item_path, old[index], new[index], depth + 1)


def _grade_value_sets(old: Any, new: Any) -> ChangeSeverity:
    if new is None:
        return "widening"
    if old is None:
        return "narrowing"
    old_values, new_values = (
        {encode_canonical(value) for value in (values if isinstance(values, list) else [values])}
        for values in (old, new)
    )
    if old_values == new_values:
        return "cosmetic"
    return "narrowing" if new_values < old_values else "widening"


def _to_text_set(values: Any) -> set[str]:
    return {_to_text(value) for value in values} if isinstance(values, list) else {_to_text(values)}


def _grade_bound(name: str, old: Any, new: Any) -> ChangeSeverity:
    if name in _RESTRICTING_KEYWORDS:
        return "narrowing" if old is None else "widening"
    if name not in _MINIMUM_KEYWORDS and name not in _MAXIMUM_KEYWORDS:
        return "widening"
    if old is None or new is None:
        return "narrowing" if old is None else "widening"
    if not isinstance(old, int | float) or not isinstance(new, int | float):
        return "widening"
    return "narrowing" if (new > old) == (name in _MINIMUM_KEYWORDS) else "widening"


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else encode_canonical(value).decode()


def _format_difference(old: str, new: str) -> str:
    """The lines that went and those that came, each escaped, cut around where it differs."""
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
        lines = [*lines[:40], f"… and {len(lines) - 40} lines more"]
    if len(old) > 20_000 or len(new) > 20_000:
        lines.append(f"… of {len(old)} and {len(new)} characters")
    return "\n".join(lines) or "changed beyond what is shown"


def _common_prefix_length(left: str, right: str) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _cut_window(text: str, start: int) -> str:
    begin = max(0, start - 60) if len(text) > _MAX_SHOWN_CHARS else 0
    return ("…" if begin else "") + escape_line(text[begin:], _MAX_SHOWN_CHARS)


def _escape_pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
