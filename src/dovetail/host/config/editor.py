"""Add a server to the MCP configuration file of a host such as Claude Desktop or VS Code.

Only the entry is written. The rest of the file does not change, including comments and spacing. The result is parsed
before it replaces the old file. A change that would lose data is refused.
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

from dovetail.host.config.config_files import ServerConfig, parse_config
from dovetail.storage import replace_file

Scope = Literal["user", "project"]

# This matches a reference to an environment variable, such as ${NAME} or ${env:NAME}.
REFERENCE_PATTERN: Final = re.compile(r"\$\{(?:env:)?(\w+)\}")


class HostFormat(NamedTuple):
    """The configuration format of one host. docs/guide/desktop-hosts.md links to the documentation of each host."""

    title: str
    section: str
    project_file: str | None  # the path relative to the project folder
    # The path of the user's file. `~` is the home directory, and `@` is the configuration directory of the system.
    user_file: str | None
    # The "type" values for commands, Streamable HTTP and HTTP+SSE. None if the host has no "type" key.
    types: tuple[str, str, str] | None = None
    url_key: str | None = "url"  # the name of the URL key, or None if the host supports only commands
    supports_sse: bool = True  # True if the host supports HTTP+SSE URLs
    reference_format: str | None = None  # how the host writes a reference to an environment variable
    # The key that lists the names of the environment variables to pass to a command.
    passthrough_key: str | None = None


HOST_FORMATS: Final[Mapping[str, HostFormat]] = {
    "mcp.json": HostFormat("the project's own", "mcpServers", "mcp.json", None, reference_format="${%s}"),
    "claude-desktop": HostFormat(
        "Claude Desktop", "mcpServers", None, "@/Claude/claude_desktop_config.json", url_key=None
    ),
    "claude-code": HostFormat(
        "Claude Code",
        "mcpServers",
        ".mcp.json",
        "~/.claude.json",
        types=("stdio", "http", "sse"),
        reference_format="${%s}",
    ),
    "vscode": HostFormat(
        "VS Code",
        "servers",
        ".vscode/mcp.json",
        "@/Code/User/mcp.json",
        types=("stdio", "http", "sse"),
        reference_format="${env:%s}",
    ),
    "cursor": HostFormat(
        "Cursor", "mcpServers", ".cursor/mcp.json", "~/.cursor/mcp.json", reference_format="${env:%s}"
    ),
    "codex": HostFormat(
        "Codex",
        "mcp_servers",
        ".codex/config.toml",
        "~/.codex/config.toml",
        supports_sse=False,
        passthrough_key="env_vars",
    ),
    "gemini": HostFormat(
        "Gemini CLI",
        "mcpServers",
        ".gemini/settings.json",
        "~/.gemini/settings.json",
        url_key="httpUrl",
        reference_format="${%s}",
    ),
    "goose": HostFormat(
        "goose", "extensions", None, "~/.config/goose/config.yaml", supports_sse=False, passthrough_key="env_keys"
    ),
    "opencode": HostFormat(
        "opencode", "mcp", "opencode.json", "~/.config/opencode/opencode.json", reference_format="{env:%s}"
    ),
    "windsurf": HostFormat(
        "Windsurf",
        "mcpServers",
        None,
        "~/.codeium/windsurf/mcp_config.json",
        url_key="serverUrl",
        reference_format="${env:%s}",
    ),
    "zed": HostFormat(
        "Zed", "context_servers", ".zed/settings.json", "~/.config/zed/settings.json", supports_sse=False
    ),
    "cline": HostFormat(
        "Cline",
        "mcpServers",
        None,
        "@/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        types=("stdio", "streamableHttp", "sse"),
    ),
    "lmstudio": HostFormat("LM Studio", "mcpServers", None, "~/.lmstudio/mcp.json"),
    "copilot": HostFormat(
        "Copilot CLI",
        "mcpServers",
        ".github/mcp.json",
        "~/.copilot/mcp-config.json",
        types=("local", "http", "sse"),
        reference_format="${%s}",
    ),
    "kiro": HostFormat(
        "Kiro", "mcpServers", ".kiro/settings/mcp.json", "~/.kiro/settings/mcp.json", reference_format="${%s}"
    ),
}


def get_config_path(host: str, scope: Scope, home: Path | None = None, cwd: Path | None = None) -> Path:
    """Return the path of a host's configuration file. Raise ValueError if the host has no file with this scope."""
    host_format = HOST_FORMATS[host]
    name = host_format.project_file if scope == "project" else host_format.user_file
    if name is None:
        raise ValueError(f"{host_format.title} has no configuration file with the scope {scope!r}")
    if scope == "project":
        return (cwd or Path.cwd()) / name
    home = home or Path.home()
    if name.startswith("@"):
        return _get_settings_dir(home) / name[2:]
    relative_path = name.removeprefix("~/")
    if relative_path.startswith(".config/") and os.environ.get("XDG_CONFIG_HOME"):
        return Path(os.environ["XDG_CONFIG_HOME"]) / relative_path.removeprefix(".config/")
    return home / relative_path


def _get_settings_dir(home: Path) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")


def format_entry(host: str, entry: ServerConfig) -> dict[str, Any]:
    """Return a server entry in the format of a host."""
    host_format = HOST_FORMATS[host]
    if entry.url is not None and host_format.url_key is None:
        raise ValueError(f"{host_format.title} does not support servers with a URL")
    passthrough = {host_format.passthrough_key or "": entry.env_passthrough}
    match host:
        case "opencode":
            type_fields = {"type": "local" if entry.url is None else "remote", "enabled": True}
            command_fields = {"command": [entry.command, *entry.args], "environment": entry.env}
            return type_fields | _drop_empty(
                command_fields if entry.url is None else {"url": entry.url, "headers": entry.headers}
            )
        case "goose":
            type_fields = {"enabled": True, "name": entry.name, "timeout": 300}
            if entry.url is not None:
                return type_fields | _drop_empty(
                    {"type": "streamable_http", "uri": entry.url, "headers": entry.headers}
                )
            return type_fields | _drop_empty(
                {"type": "stdio", "cmd": entry.command, "args": entry.args, "envs": entry.env, **passthrough}
            )
        case _:
            if entry.url is None:
                fields = {"command": entry.command, "args": entry.args, "env": entry.env, **passthrough}
                # Copilot CLI offers only the tools that an entry lists.
                fields |= {"cwd": entry.cwd} if host != "copilot" else {"cwd": entry.cwd, "tools": ["*"]}
            elif host == "codex":
                fields = {"url": entry.url, **_split_codex_headers(entry.headers)}
            else:
                # Gemini CLI uses the key "url" only for HTTP+SSE servers.
                url_key = "url" if host == "gemini" and entry.transport == "sse" else host_format.url_key or ""
                fields = {url_key: entry.url, "headers": entry.headers, "tools": ["*"] if host == "copilot" else None}
            return _get_type_fields(host_format, entry) | _drop_empty(fields)


def _get_type_fields(host_format: HostFormat, entry: ServerConfig) -> dict[str, str]:
    if host_format.types is None:
        return {}
    command_type, http_type, sse_type = host_format.types
    if entry.url is None:
        return {"type": command_type}
    return {"type": sse_type if entry.transport == "sse" else http_type}


def _split_codex_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    """Convert headers to the keys that Codex uses for fixed values, variables and bearer tokens."""
    values: dict[str, str] = {}
    variables: dict[str, str] = {}
    token_fields: dict[str, str] = {}
    for name, value in headers.items():
        if match := REFERENCE_PATTERN.fullmatch(value):
            variables[name] = match[1]
        elif name.lower() == "authorization" and (match := REFERENCE_PATTERN.fullmatch(value.removeprefix("Bearer "))):
            token_fields["bearer_token_env_var"] = match[1]
        elif REFERENCE_PATTERN.search(value):
            raise ValueError(
                f"Codex cannot use a variable inside the header {name}. The variable must be the whole value, or the "
                "whole token after 'Bearer'"
            )
        else:
            values[name] = value
    return {"http_headers": values, "env_http_headers": variables, **token_fields}


def _drop_empty(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value}


def format_document(host: str, entry: ServerConfig) -> str:
    """Return the text of a configuration file that contains only this entry."""
    return insert_entry(host, "", entry.name, format_entry(host, entry))


def add_entry(host: str, path: Path, entry: ServerConfig, *, replace: bool = False) -> None:
    """Add an entry to a host's configuration file.

    Create the file if needed. Raise ValueError if this is impossible.
    """
    old = path.read_bytes() if path.exists() else b""
    bom = codecs.BOM_UTF8 if old.startswith(codecs.BOM_UTF8) else b""
    text = old[len(bom) :].decode()
    _write_file(path, bom + insert_entry(host, text, entry.name, format_entry(host, entry), replace=replace).encode())


def insert_entry(host: str, old: str, name: str, entry: Mapping[str, Any], *, replace: bool = False) -> str:
    """Return the text of a configuration file with a new entry. Keep the line endings of the old text."""
    section, suffix = (
        HOST_FORMATS[host].section,
        Path(HOST_FORMATS[host].user_file or HOST_FORMATS[host].project_file or "").suffix,
    )
    original = _check_object(parse_config(old, suffix) if old.strip() else {}, suffix)
    servers = original.get(section)
    if servers is not None and not isinstance(servers, dict):
        raise ValueError(f"the value of {section} must be an object")
    if servers and name in servers:
        if servers[name] == entry:
            return old
        if not replace:
            raise ValueError(f"a different server named {name!r} already exists")
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


_UNCHANGEABLE_MESSAGE: Final = "the file has a form that cannot be edited without losing data"


def _check_object(parsed: Any, suffix: str) -> dict[str, Any]:
    if parsed is None and suffix == ".yaml":  # A YAML file with only comments parses as None.
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
    """The positions in the text where the value of a JSON member starts and ends."""

    start: int
    end: int


def _find_members(text: str, brace: int) -> dict[str, MemberSpan]:
    members: dict[str, MemberSpan] = {}
    depth, name, value_start, last_end = 0, "", -1, brace
    for token, start, end in _iter_tokens(text, brace):
        if token in "{[":
            depth += 1
            if depth == 2 and value_start == 0:
                value_start = start
        if depth == 1 and token[0] == '"' and value_start < 0:
            name = json.loads(token)
        elif depth == 1 and token == ":":
            value_start = 0
        elif depth == 1 and value_start == 0 and token not in "}]":
            value_start = start
        if depth == 1 and token in ",}" and value_start > 0:
            members[name], value_start = MemberSpan(value_start, last_end), -1
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
    start, stop = sections[section]
    if old[start:stop] == "null":
        return old[:start] + _format_indented({name: entry}, 1, line_end) + old[stop:]
    servers = _find_members(old, start)
    if name in servers:
        first, last = servers[name]
        return old[:first] + _format_indented(entry, 2, line_end) + old[last:]
    return _insert_member(old, start, bool(servers), name, entry, 2, line_end)


def _insert_member(text: str, brace: int, has_members: bool, name: str, value: Any, depth: int, line_end: str) -> str:
    member_line = f"{line_end}{'  ' * depth}{_format_value(name)}: {_format_indented(value, depth, line_end)}"
    remainder = text[brace + 1 :]
    separator = "," if has_members else line_end + "  " * (depth - 1) if remainder.lstrip(" ").startswith("}") else ""
    return f"{text[: brace + 1]}{member_line}{separator}{remainder}"


def _format_indented(value: Any, depth: int, line_end: str) -> str:
    return _format_value(value, 2).replace("\n", line_end + "  " * depth)


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
