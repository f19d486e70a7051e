"""Add a server to the MCP configuration file of a host such as Claude Desktop or VS Code, or remove it.

Only the entry is changed. The rest of the file does not change, including comments and spacing. The result is parsed
before it replaces the old file. A change that would lose data is refused.
"""

import codecs
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from dovetail.host.config.config_files import ServerConfig, parse_config
from dovetail.host.config.host_formats import HOST_FORMATS, format_entry
from dovetail.storage import replace_file


def format_document(host: str, entry: ServerConfig) -> str:
    """Return the text of a configuration file that contains only this entry."""
    return insert_entry(host, "", entry.name, format_entry(host, entry))


def add_entry(host: str, path: Path, entry: ServerConfig, *, replace: bool = False) -> None:
    """Add an entry to a host's configuration file.

    Create the file if needed. Raise ValueError if this is impossible.
    """
    bom, text = _read_file(path) if path.exists() else (b"", "")
    _write_file(path, bom + insert_entry(host, text, entry.name, format_entry(host, entry), replace=replace).encode())


def remove_entry(host: str, path: Path, name: str) -> None:
    """Remove an entry from a host's configuration file. Raise ValueError if this is impossible."""
    bom, text = _read_file(path)
    _write_file(path, bom + delete_entry(host, text, name).encode())


def read_entries(host: str, path: Path) -> dict[str, Any]:
    """Return the entries in a host's configuration file without changes. Raise ValueError if the file is not valid."""
    _, text = _read_file(path)
    return _parse_sections(host, text)[1] or {}


def _read_file(path: Path) -> tuple[bytes, str]:
    """Return the byte order mark of a file, which may be empty, and its text."""
    content = path.read_bytes()
    bom = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    return bom, content[len(bom) :].decode()


def _get_suffix(host: str) -> str:
    return Path(HOST_FORMATS[host].user_file or HOST_FORMATS[host].project_file or "").suffix


def _parse_sections(host: str, text: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the content of a configuration file, and its section with servers."""
    section, suffix = HOST_FORMATS[host].section, _get_suffix(host)
    document = _check_object(parse_config(text, suffix) if text.strip() else {}, suffix)
    servers = document.get(section)
    if servers is not None and not isinstance(servers, dict):
        raise ValueError(f"the value of {section} must be an object")
    return document, servers


class EntryExists(ValueError):
    """Raised if a configuration file has another entry with the same name."""


def insert_entry(host: str, old: str, name: str, entry: Mapping[str, Any], *, replace: bool = False) -> str:
    """Add an entry to the text of a configuration file, and return the new text with the same line endings."""
    section, suffix = HOST_FORMATS[host].section, _get_suffix(host)
    original, servers = _parse_sections(host, old)
    if servers and name in servers:
        if servers[name] == entry:
            return old
        if not replace:
            raise EntryExists(f"a different server named {name!r} already exists")
    line_end = "\r\n" if "\r\n" in old else "\n"
    match suffix:
        case ".toml":
            new = _insert_toml(old, section, name, entry, line_end)
        case ".yaml":
            new = _insert_yaml(old, section, name, entry, line_end, is_taken=bool(servers) and name in (servers or {}))
        case _:
            new = _insert_json(old, section, name, entry, line_end)
    if _parse_result(new, suffix, section) != original | {section: (servers or {}) | {name: dict(entry)}}:
        raise ValueError(_UNCHANGEABLE_MESSAGE)
    return new


def delete_entry(host: str, old: str, name: str) -> str:
    """Return the text of a configuration file without an entry. Raise ValueError if the entry cannot be removed."""
    section, suffix = HOST_FORMATS[host].section, _get_suffix(host)
    original, servers = _parse_sections(host, old)
    if not servers or name not in servers:
        raise ValueError(f"no server named {name!r}")
    match suffix:
        case ".toml":
            new = _delete_toml(old, section, name)
        case ".yaml":
            new = _delete_yaml(old, section, name)
        case _:
            new = _delete_json(old, section, name)
    remaining = {other: entry for other, entry in servers.items() if other != name}
    changed = _check_object(_parse_result(new, suffix, section), suffix)
    if changed | {section: changed.get(section) or {}} != original | {section: remaining}:
        raise ValueError(_UNCHANGEABLE_MESSAGE)
    return new


_UNCHANGEABLE_MESSAGE: Final = "the file has a form that cannot be edited without losing data"


def _check_object(parsed: Any, suffix: str) -> dict[str, Any]:
    if parsed is None and suffix == ".yaml":  # The value of a YAML file that contains only comments is None.
        return {}
    if not isinstance(parsed, dict):
        raise ValueError("the file must contain a JSON object")
    return cast("dict[str, Any]", parsed)


def _parse_result(new: str, suffix: str, section: str) -> Any:
    # Without the yaml library, dovetail can only create new files.
    # New entries are written as JSON, which is valid YAML.
    if suffix == ".yaml" and not _has_yaml():
        return {section: json.loads("{" + new.partition("\n")[2] + "}")}
    try:
        parsed = parse_config(new, suffix)
    except ValueError:
        raise ValueError(_UNCHANGEABLE_MESSAGE) from None
    if suffix == ".yaml":
        _compose_unique(new, section)
    return parsed


_UNSAFE_CHARS: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _format_value(value: Any, indent: int | None = None) -> str:
    """Format a value so that JSON, TOML and YAML all accept it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNSAFE_CHARS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|//[^\n]*|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+', re.DOTALL)


class MemberSpan(NamedTuple):
    """The positions in the text where the value of a JSON member starts and ends, and where its name starts."""

    start: int
    end: int
    name_start: int


def _find_members(text: str, brace: int) -> dict[str, MemberSpan]:
    members: dict[str, MemberSpan] = {}
    depth, name, name_start, value_start, last_end = 0, "", 0, -1, brace
    for token, start, end in _iter_tokens(text, brace):
        if token in "{[":
            depth += 1
            if depth == 2 and value_start == 0:
                value_start = start
        if depth == 1 and token[0] == '"' and value_start < 0:
            name, name_start = json.loads(token), start
        elif depth == 1 and token == ":":
            value_start = 0
        elif depth == 1 and value_start == 0 and token not in "}]":
            value_start = start
        if depth == 1 and token in ",}" and value_start > 0:
            members[name], value_start = MemberSpan(value_start, last_end, name_start), -1
        if token in "}]":
            depth -= 1
            if depth == 0:
                return members
        last_end = end
    raise ValueError("the file ends before its JSON is complete")


def _iter_tokens(text: str, position: int) -> Iterator[tuple[str, int, int]]:
    for match in _JSON_TOKEN.finditer(text, position):
        if not match[0].startswith(("//", "/*")):
            yield match[0], match.start(), match.end()


def _insert_json(old: str, section: str, name: str, entry: Mapping[str, Any], line_end: str) -> str:
    if not old.strip():
        return _format_value({section: {name: entry}}, 2) + "\n"
    root_brace = next((start for token, start, _ in _iter_tokens(old, 0) if token == "{"), None)
    if root_brace is None:
        raise ValueError("the file must contain a JSON object")
    sections = _find_members(old, root_brace)
    if section not in sections:
        return _insert_member(old, root_brace, bool(sections), section, {name: entry}, 1, line_end)
    start, stop, _ = sections[section]
    if old[start:stop] == "null":
        return old[:start] + _format_indented({name: entry}, 1, line_end) + old[stop:]
    servers = _find_members(old, start)
    if name in servers:
        first, last, _ = servers[name]
        return old[:first] + _format_indented(entry, 2, line_end) + old[last:]
    return _insert_member(old, start, bool(servers), name, entry, 2, line_end)


def _insert_member(text: str, brace: int, has_members: bool, name: str, value: Any, depth: int, line_end: str) -> str:
    member_line = f"{line_end}{'  ' * depth}{_format_value(name)}: {_format_indented(value, depth, line_end)}"
    remainder = text[brace + 1 :]
    separator = "," if has_members else line_end + "  " * (depth - 1) if remainder.lstrip(" ").startswith("}") else ""
    return f"{text[: brace + 1]}{member_line}{separator}{remainder}"


def _format_indented(value: Any, depth: int, line_end: str) -> str:
    return _format_value(value, 2).replace("\n", line_end + "  " * depth)


def _delete_json(old: str, section: str, name: str) -> str:
    root_brace = next(start for token, start, _ in _iter_tokens(old, 0) if token == "{")
    span = _find_members(old, _find_members(old, root_brace)[section].start)[name]
    next_token, _, comma_end = next(_iter_tokens(old, span.end))
    if next_token == ",":
        return _cut(old, span.name_start, comma_end)
    # This is the last member, so the comma before it is removed, too.
    *_, (previous_token, position, _) = (token for token in _iter_tokens(old, root_brace) if token[1] < span.name_start)
    shortened = _cut(old, span.name_start, span.end)
    if previous_token == ",":
        return shortened[:position] + shortened[position + 1 :]
    empty_object = re.compile(r"\{\s*\}").match(shortened, position)
    return shortened if empty_object is None else f"{shortened[:position]}{{}}{shortened[empty_object.end() :]}"


def _cut(text: str, start: int, end: int) -> str:
    """Remove a part of a text, and its lines if nothing else is on them."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end) + 1 or len(text)
    if not text[line_start:start].strip() and not text[end:line_end].strip():
        return text[:line_start] + text[line_end:]
    return text[:start] + text[end:].lstrip(" ")


def _insert_toml(old: str, section: str, name: str, entry: Mapping[str, Any], line_end: str) -> str:
    """Add a TOML table, or replace the table with the same name. Keep comments before the next table."""
    table = "".join(line + line_end for line in _iter_table_lines(section, name, entry))
    kept_lines: list[str] = []
    pending_lines: list[str] = []
    is_inside = is_placed = False
    for line in re.findall(r"[^\n]*\n|[^\n]+", old):
        if (table_path := _parse_table_header(line)) is not None:
            is_inside = table_path[:2] == (section, name)
            kept_lines += [] if is_inside else pending_lines
            kept_lines += [table] if is_inside and not is_placed else []
            pending_lines, is_placed = [], is_placed or is_inside
        if not is_inside:
            kept_lines.append(line)
        else:
            pending_lines = [*pending_lines, line] if not line.strip() or line.lstrip().startswith("#") else []
    text = "".join([*kept_lines, *pending_lines])
    if is_placed:
        return text
    separator = line_end if text and text.endswith("\n") else line_end * 2 if text else ""
    return f"{text}{separator}{table}"


def _delete_toml(old: str, section: str, name: str) -> str:
    """Remove the tables of an entry. Keep comments before the next table."""
    kept_lines: list[str] = []
    pending_lines: list[str] = []
    is_inside = False
    for line in [*re.findall(r"[^\n]*\n|[^\n]+", old), None]:
        table_path = _parse_table_header(line) if line is not None else ()
        if table_path is not None:
            if is_inside and kept_lines and not kept_lines[-1].strip():
                # One of the empty lines around the entry is enough.
                pending_lines = pending_lines[1:] if pending_lines and not pending_lines[0].strip() else pending_lines
                kept_lines = kept_lines if line is not None or pending_lines else kept_lines[:-1]
            kept_lines += pending_lines
            pending_lines, is_inside = [], table_path[:2] == (section, name)
        if line is None or is_inside:
            is_comment = line is not None and (not line.strip() or line.lstrip().startswith("#"))
            pending_lines = [*pending_lines, line] if line is not None and is_comment else []
        else:
            kept_lines.append(line)
    return "".join(kept_lines)


def _iter_table_lines(section: str, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{section}.{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else _format_value(name)}]"
    for member, value in entry.items():
        if isinstance(value, dict):
            pairs = ", ".join(f"{_format_value(str(key))} = {_format_value(value[key])}" for key in value)
            yield f"{member} = {{ {pairs} }}"
        else:
            yield f"{member} = {_format_value(value)}"


def _parse_table_header(line: str) -> tuple[str, ...] | None:
    if not line.lstrip().startswith("["):
        return None
    try:
        parsed: Any = tomllib.loads(line)
    except ValueError:
        return None
    names: list[str] = []
    while isinstance(parsed, dict) and parsed:
        ((name, parsed),) = cast("dict[str, Any]", parsed).items()
        names.append(name)
    return tuple(names)


# New entries are written as JSON, which is valid YAML.


def _has_yaml() -> bool:
    try:
        import yaml  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        return False
    return True


def _insert_yaml(old: str, section: str, name: str, entry: Mapping[str, Any], line_end: str, *, is_taken: bool) -> str:
    if is_taken:
        raise ValueError(f"a server named {name!r} already exists. Edit the file with a text editor")
    member = f"{_format_value(name)}: {_format_value(entry)}"
    if not old.strip() or (section_node := _find_section_node(old, section)) is None:
        separator = "" if not old or old.endswith("\n") else line_end
        return f"{old}{separator}{section}:{line_end}  {member}{line_end}"
    start, stop = section_node.start_mark.index, section_node.end_mark.index
    if not section_node.value or isinstance(section_node.value, str):  # The section is empty.
        return f"{old[:start].rstrip(' ')}{line_end}  {member}{old[stop:]}"
    if section_node.flow_style:
        return f"{old[: start + 1]}{member}, {old[start + 1 :]}"
    return f"{old[:start]}{member}{line_end}{' ' * section_node.start_mark.column}{old[start:]}"


def _delete_yaml(old: str, section: str, name: str) -> str:
    section_node = _find_section_node(old, section)
    members: list[tuple[Any, Any]] = section_node.value
    if len(members) == 1:
        return f"{old[: section_node.start_mark.index]}{{}}{old[_find_yaml_end(section_node) :]}"
    key, value = next((key, value) for key, value in members if str(key.value) == name)
    start, end = key.start_mark.index, _find_yaml_end(value)
    if not section_node.flow_style:
        return _cut(old, start, end)
    remainder = old[end:].lstrip()
    if remainder.startswith(","):
        return old[:start] + remainder[1:].lstrip(" ")
    return old[:start].rstrip().removesuffix(",") + old[end:]


def _find_yaml_end(node: Any) -> int:
    """Return the end of a node, without comments that follow it. The end mark of a block collection is after them."""
    if isinstance(node.value, list) and node.value and not node.flow_style:
        last: Any = node.value[-1]
        return _find_yaml_end(last[1] if isinstance(last, tuple) else last)
    return node.end_mark.index


def _find_section_node(text: str, section: str) -> Any:
    _, *values = _compose_unique(text, section)
    return values[0] if values else None


def _compose_unique(text: str, section: str) -> list[Any]:
    """Return the root node of a YAML document and the nodes of a section. Raise ValueError if a key is repeated."""
    import yaml

    root_node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    members: list[tuple[Any, Any]] = root_node.value if isinstance(root_node, yaml.MappingNode) else []
    nodes = [root_node, *(value for key, value in members if key.value == section)]
    for node in nodes:
        names = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        if duplicate := next((candidate for candidate in names if names.count(candidate) > 1), None):
            raise ValueError(f"the key {duplicate} is defined twice")
    return nodes


def _write_file(path: Path, content: bytes) -> None:
    """Replace a file atomically. Keep its permissions, and write through symbolic links."""
    target_path = Path(os.path.realpath(path))
    target_path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target_path, content, target_path.stat().st_mode & 0o777 if target_path.exists() else 0o600)
