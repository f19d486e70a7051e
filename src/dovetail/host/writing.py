"""One server more in the configuration of a known host: where its file is, how an entry is spelled, the file changed.

Only the entry is written; everything else in the file, comments and spacing too, stays as it is. What was written is
read again before it takes the place of the old file, and a change that would lose anything is refused.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

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
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    _write(path, added(host, old, entry.name, spelled(host, entry), replace=replace))


def added(host: str, old: str, name: str, entry: Mapping[str, Any], *, replace: bool = False) -> str:
    """The text of a file with one entry more."""
    section, suffix = HOSTS[host].section, Path(HOSTS[host].user or HOSTS[host].project or "").suffix
    before = parse(old, suffix) if old.strip() else {}
    if not isinstance(before, dict):
        raise ValueError("the file holds no object")
    known = before.get(section)
    if known is not None and not isinstance(known, dict):
        raise ValueError(f"{section} is no object there")
    if known and name in known:
        if known[name] == entry:
            return old
        if not replace:
            raise ValueError(f"there is a server called {name!r} already, and it is another one")
    match suffix:
        case ".toml":
            new = _in_toml(old, section, name, entry)
        case ".yaml":
            new = _in_yaml(old, section, name, entry, taken=bool(known) and name in (known or {}))
        case _:
            new = _in_json(old, section, name, entry)
    if old.strip() and parse(new, suffix) != before | {section: (known or {}) | {name: dict(entry)}}:
        raise ValueError("the file is written in a way that cannot be changed without losing something")
    return new


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


def _in_json(old: str, section: str, name: str, entry: Mapping[str, Any]) -> str:
    if not old.strip():
        return json.dumps({section: {name: entry}}, indent=2, ensure_ascii=False) + "\n"
    top = next((start for token, start, _ in _tokens(old, 0) if token == "{"), None)
    if top is None:
        raise ValueError("the file holds no object")
    sections = _members(old, top)
    if section not in sections:
        return _inserted(old, top, bool(sections), section, {name: entry}, 1)
    inner = sections[section].start
    servers = _members(old, inner)
    if name in servers:
        start, end = servers[name]
        return old[:start] + _indented(entry, 2) + old[end:]
    return _inserted(old, inner, bool(servers), name, entry, 2)


def _inserted(text: str, brace: int, more: bool, name: str, value: Any, depth: int) -> str:
    line = f"\n{'  ' * depth}{json.dumps(name)}: {_indented(value, depth)}"
    after = text[brace + 1 :]
    end = "," if more else "\n" + "  " * (depth - 1) if after.lstrip(" ").startswith("}") else ""
    return f"{text[: brace + 1]}{line}{end}{after}"


def _indented(value: Any, depth: int) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + "  " * depth)


# TOML


def _in_toml(old: str, section: str, name: str, entry: Mapping[str, Any]) -> str:
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
    lines = [f"[{section}.{key}]"]
    for member, value in entry.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{json.dumps(str(one))} = {json.dumps(value[one])}" for one in value)
            lines.append(f"{member} = {{ {inner} }}")
        else:
            lines.append(f"{member} = {json.dumps(value)}")
    kept = _without_table(old, f"{section}.{key}").rstrip()
    return "\n".join([*([kept, ""] if kept else []), *lines, ""])


def _without_table(text: str, table: str) -> str:
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            head = line.strip("[] \n")
            inside = head == table or head.startswith(table + ".")
        if not inside:
            kept.append(line)
    return "".join(kept)


# YAML, of which JSON is a part


def _in_yaml(old: str, section: str, name: str, entry: Mapping[str, Any], *, taken: bool) -> str:
    if taken:
        raise ValueError(f"there is a server called {name!r} already; change it by hand")
    line = f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}\n"
    found = re.search(rf"^{section}:[ \t]*\n(?P<indent>[ ]+)?", old, re.MULTILINE)
    if found is None:
        return f"{old.rstrip()}\n{section}:\n  {line}".lstrip("\n")
    end = found.start("indent") if found["indent"] else found.end()
    return f"{old[:end]}{found['indent'] or '  '}{line}{old[end:]}"


def _write(path: Path, text: str) -> None:
    """All of it or nothing; a link stays one, and so does who may read it."""
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    replace(place, text.encode(), place.stat().st_mode & 0o777 if place.exists() else 0o600)
