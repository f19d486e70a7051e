"""One server more in the configuration of a known host: where its file is, how an entry is spelled, the file changed.

Only the entry is written; everything else in the file, comments and spacing too, stays as it is. What was written is
read again before it takes the place of the old file, and a change that would lose anything is refused.
"""

import codecs
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from dovetail.host.config import Entry, parse
from dovetail.login.files import replace

Scope = Literal["user", "project"]


class Dialect(NamedTuple):
    """How one host is told of servers."""

    title: str
    section: str
    project: str | None  # the file within a project
    user: str | None  # the file of the user: `~` is the home, `@` where the system keeps such things
    typed: bool = False  # whether an entry says what kind it is
    url: str | None = "url"  # what an address is called; None: only commands are known
    reference: str | None = None  # how a variable of the user's is named in a value


HOSTS: Final[Mapping[str, Dialect]] = {
    "mcp.json": Dialect("the project's own", "mcpServers", "mcp.json", None, reference="${%s}"),
    "claude-desktop": Dialect("Claude Desktop", "mcpServers", None, "@/Claude/claude_desktop_config.json", url=None),
    "claude-code": Dialect("Claude Code", "mcpServers", ".mcp.json", "~/.claude.json", typed=True, reference="${%s}"),
    "vscode": Dialect(
        "VS Code", "servers", ".vscode/mcp.json", "@/Code/User/mcp.json", typed=True, reference="${env:%s}"
    ),
    "cursor": Dialect("Cursor", "mcpServers", ".cursor/mcp.json", "~/.cursor/mcp.json", reference="${env:%s}"),
    "codex": Dialect("Codex", "mcp_servers", ".codex/config.toml", "~/.codex/config.toml"),
    "gemini": Dialect(
        "Gemini CLI", "mcpServers", ".gemini/settings.json", "~/.gemini/settings.json", url="httpUrl", reference="${%s}"
    ),
    "goose": Dialect("goose", "extensions", None, "~/.config/goose/config.yaml"),
    "opencode": Dialect("opencode", "mcp", "opencode.json", "~/.config/opencode/opencode.json", reference="{env:%s}"),
}


def file_of(host: str, scope: Scope, home: Path | None = None, here: Path | None = None) -> Path:
    """The file of a host; ValueError if it keeps none there."""
    dialect = HOSTS[host]
    name = dialect.project if scope == "project" else dialect.user
    if name is None:
        raise ValueError(f"{dialect.title} has no file for a {scope}")
    if scope == "project":
        return (here or Path.cwd()) / name
    home = home or Path.home()
    if name.startswith("@"):
        return _settings(home) / name[2:]
    place = name.removeprefix("~/")
    if place.startswith(".config/") and os.environ.get("XDG_CONFIG_HOME"):
        return Path(os.environ["XDG_CONFIG_HOME"]) / place.removeprefix(".config/")
    return home / place


def _settings(home: Path) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")


def spelled(host: str, entry: Entry) -> dict[str, Any]:
    """An entry as a host spells it."""
    dialect = HOSTS[host]
    if entry.url is not None and dialect.url is None:
        raise ValueError(f"{dialect.title} knows no addresses in its file")
    match host:
        case "opencode":
            kind = {"type": "local" if entry.url is None else "remote", "enabled": True}
            words = {"command": [entry.command, *entry.args], "environment": entry.env}
            return kind | _some(words if entry.url is None else {"url": entry.url, "headers": entry.headers})
        case "goose":
            kind = {"enabled": True, "name": entry.name, "timeout": 300}
            if entry.url is not None:
                return kind | _some({"type": "streamable_http", "uri": entry.url, "headers": entry.headers})
            return kind | _some({"type": "stdio", "cmd": entry.command, "args": entry.args, "envs": entry.env})
        case _:
            kind = {"type": "stdio" if entry.url is None else "http"} if dialect.typed else {}
            if entry.url is not None:
                headers = "http_headers" if host == "codex" else "headers"
                return kind | _some({dialect.url or "": entry.url, headers: entry.headers})
            return kind | _some({"command": entry.command, "args": entry.args, "env": entry.env, "cwd": entry.cwd})


def _some(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value}


def document(host: str, entry: Entry) -> str:
    """A file that holds nothing but this entry."""
    return added(host, "", entry.name, spelled(host, entry))


def add(host: str, path: Path, entry: Entry, *, replace: bool = False) -> None:
    """Write an entry into a host's file, which is made if it is not there; ValueError says why not."""
    old = path.read_bytes() if path.exists() else b""
    mark = codecs.BOM_UTF8 if old.startswith(codecs.BOM_UTF8) else b""
    text = old[len(mark) :].decode()
    _write(path, mark + added(host, text, entry.name, spelled(host, entry), replace=replace).encode())


def added(host: str, old: str, name: str, entry: Mapping[str, Any], *, replace: bool = False) -> str:
    """The text of a file with one entry more, its lines ended as those of the file are."""
    section, suffix = HOSTS[host].section, Path(HOSTS[host].user or HOSTS[host].project or "").suffix
    before = _object(parse(old, suffix) if old.strip() else {}, suffix)
    known = before.get(section)
    if known is not None and not isinstance(known, dict):
        raise ValueError(f"{section} is no object there")
    if known and name in known:
        if known[name] == entry:
            return old
        if not replace:
            raise ValueError(f"there is a server called {name!r} already, and it is another one")
    end = "\r\n" if "\r\n" in old else "\n"
    match suffix:
        case ".toml":
            new = _in_toml(old, section, name, entry, end)
        case ".yaml":
            new = _in_yaml(old, section, name, entry, end, taken=bool(known) and name in (known or {}))
        case _:
            new = _in_json(old, section, name, entry, end)
    if _reread(new, suffix, section) != before | {section: (known or {}) | {name: dict(entry)}}:
        raise ValueError(_FIRM)
    return new


_FIRM: Final = "the file is written in a way that cannot be changed without losing something"


def _object(found: Any, suffix: str) -> dict[str, Any]:
    if found is None and suffix == ".yaml":  # nothing but comments
        return {}
    if not isinstance(found, dict):
        raise ValueError("the file holds no object")
    return cast("dict[str, Any]", found)


def _reread(new: str, suffix: str, section: str) -> Any:
    """What the new text says, to whoever reads it."""
    if suffix == ".yaml" and not _has_yaml():  # then there was no file, and JSON is YAML
        return {section: json.loads("{" + new.partition("\n")[2] + "}")}
    try:
        found = parse(new, suffix)
    except ValueError:
        raise ValueError(_FIRM) from None
    if suffix == ".yaml":
        _once_each(new, section)
    return found


_UNREADABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _value(value: Any, indent: int | None = None) -> str:
    """A value as JSON, TOML and YAML all read it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNREADABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# JSON, with or without comments

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|//[^\n]*|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+', re.DOTALL)


class Member(NamedTuple):
    """One member of an object: where its value begins and ends in the text."""

    start: int
    end: int


def _members(text: str, at: int) -> dict[str, Member]:
    """The members of the object whose brace opens here."""
    found: dict[str, Member] = {}
    depth, name, begun, last = 0, "", -1, at
    for token, start, end in _tokens(text, at):
        if token in "{[":
            depth += 1
            if depth == 2 and begun == 0:
                begun = start
        if depth == 1 and token[0] == '"' and begun < 0:
            name = json.loads(token)
        elif depth == 1 and token == ":":
            begun = 0
        elif depth == 1 and begun == 0 and token not in "}]":
            begun = start
        if depth == 1 and token in ",}" and begun > 0:
            found[name], begun = Member(begun, last), -1
        if token in "}]":
            depth -= 1
            if depth == 0:
                return found
        last = end
    raise ValueError("the file ends too early")


def _tokens(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    for found in _TOKEN.finditer(text, at):
        if not found[0].startswith(("//", "/*")):
            yield found[0], found.start(), found.end()


def _in_json(old: str, section: str, name: str, entry: Mapping[str, Any], end: str) -> str:
    if not old.strip():
        return _value({section: {name: entry}}, 2) + "\n"
    top = next((start for token, start, _ in _tokens(old, 0) if token == "{"), None)
    if top is None:
        raise ValueError("the file holds no object")
    sections = _members(old, top)
    if section not in sections:
        return _inserted(old, top, bool(sections), section, {name: entry}, 1, end)
    start, stop = sections[section]
    if old[start:stop] == "null":
        return old[:start] + _indented({name: entry}, 1, end) + old[stop:]
    servers = _members(old, start)
    if name in servers:
        first, last = servers[name]
        return old[:first] + _indented(entry, 2, end) + old[last:]
    return _inserted(old, start, bool(servers), name, entry, 2, end)


def _inserted(text: str, brace: int, more: bool, name: str, value: Any, depth: int, end: str) -> str:
    line = f"{end}{'  ' * depth}{_value(name)}: {_indented(value, depth, end)}"
    after = text[brace + 1 :]
    close = "," if more else end + "  " * (depth - 1) if after.lstrip(" ").startswith("}") else ""
    return f"{text[: brace + 1]}{line}{close}{after}"


def _indented(value: Any, depth: int, end: str) -> str:
    return _value(value, 2).replace("\n", end + "  " * depth)


# TOML


def _in_toml(old: str, section: str, name: str, entry: Mapping[str, Any], end: str) -> str:
    """A table of the same name gives its place to the new one; what is said before the next table stays with that."""
    table = "".join(line + end for line in _table(section, name, entry))
    kept: list[str] = []
    remarks: list[str] = []
    inside = placed = False
    for line in re.findall(r"[^\n]*\n|[^\n]+", old):
        if (head := _head(line)) is not None:
            inside = head[:2] == (section, name)
            kept += [] if inside else remarks
            kept += [table] if inside and not placed else []
            remarks, placed = [], placed or inside
        if not inside:
            kept.append(line)
        else:
            remarks = [*remarks, line] if not line.strip() or line.lstrip().startswith("#") else []
    text = "".join([*kept, *remarks])
    if placed:
        return text
    gap = end if text and text.endswith("\n") else end * 2 if text else ""
    return f"{text}{gap}{table}"


def _table(section: str, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{section}.{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else _value(name)}]"
    for member, value in entry.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{_value(str(one))} = {_value(value[one])}" for one in value)
            yield f"{member} = {{ {inner} }}"
        else:
            yield f"{member} = {_value(value)}"


def _head(line: str) -> tuple[str, ...] | None:
    """The name of the table that begins with this line, part by part."""
    if not line.lstrip().startswith("["):
        return None
    try:
        found: Any = tomllib.loads(line)
    except ValueError:
        return None
    names: list[str] = []
    while isinstance(found, dict) and found:
        ((name, found),) = cast("dict[str, Any]", found).items()
        names.append(name)
    return tuple(names)


# YAML, of which JSON is a part


def _has_yaml() -> bool:
    try:
        import yaml  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        return False
    return True


def _in_yaml(old: str, section: str, name: str, entry: Mapping[str, Any], end: str, *, taken: bool) -> str:
    if taken:
        raise ValueError(f"there is a server called {name!r} already; change it by hand")
    member = f"{_value(name)}: {_value(entry)}"
    if not old.strip() or (found := _sections(old, section)) is None:
        gap = "" if not old or old.endswith("\n") else end
        return f"{old}{gap}{section}:{end}  {member}{end}"
    start, stop = found.start_mark.index, found.end_mark.index
    if not found.value or isinstance(found.value, str):  # nothing, in one of its spellings
        return f"{old[:start].rstrip(' ')}{end}  {member}{old[stop:]}"
    if found.flow_style:
        return f"{old[: start + 1]}{member}, {old[start + 1 :]}"
    return f"{old[:start]}{member}{end}{' ' * found.start_mark.column}{old[start:]}"


def _sections(text: str, section: str) -> Any:
    """What stands in a section, with its place in the text; None if there is no such section."""
    _, *values = _once_each(text, section)
    return values[0] if values else None


def _once_each(text: str, section: str) -> list[Any]:
    """The document, and what stands in a section; ValueError if one of them names something twice."""
    import yaml

    top: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    members: list[tuple[Any, Any]] = top.value if isinstance(top, yaml.MappingNode) else []
    found = [top, *(value for key, value in members if key.value == section)]
    for node in found:
        names = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        if twice := next((one for one in names if names.count(one) > 1), None):
            raise ValueError(f"{twice} stands there twice")
    return found


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing; a link stays one, and so does who may read it."""
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    replace(place, content, place.stat().st_mode & 0o777 if place.exists() else 0o600)
