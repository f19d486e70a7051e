"""The configuration files of known hosts: their paths, and the format of a server entry."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from dovetail.host.config.config_files import ServerConfig

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
    reference_format: str | None = None  # the format of a reference to an environment variable
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
    """Convert headers to Codex keys. Codex has separate keys for fixed values, variables and bearer tokens."""
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
