"""Read the MCP configuration files of hosts such as Claude Desktop and VS Code into one form.

This module never writes a file. An invalid entry does not affect the other entries. Unknown keys are kept and reported.
References to secrets are resolved when a server starts, and their values are not stored.
"""

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from dovetail.host.config.secret_lookup import ConfigLevel
from dovetail.host.config.server_entry import ConfigProblem, ServerConfig, parse_entry, select_inputs
from dovetail.wire.base import replace

__all__ = [
    "ConfigProblem",
    "ServerConfig",
    "discover_configs",
    "find_config_files",
    "load_config",
    "parse_config",
]

_SERVER_SECTIONS: Final = ("mcpServers", "servers", "mcp_servers", "mcp", "extensions", "context_servers")
_HOST_BY_FILE_NAME: Final = {
    "claude_desktop_config.json": "claude-desktop",
    ".claude.json": "claude-code",
    ".mcp.json": "claude-code",
    ".vscode/mcp.json": "vscode",
    ".cursor/mcp.json": "cursor",
    ".gemini/settings.json": "gemini",
    "config.toml": "codex",
    "opencode.json": "opencode",
    "opencode.jsonc": "opencode",
    "goose/config.yaml": "goose",
    "windsurf/mcp_config.json": "windsurf",
    "zed/settings.json": "zed",
    ".lmstudio/mcp.json": "lmstudio",
    "cline_mcp_settings.json": "cline",
    "roo-cline/settings/mcp_settings.json": "roo",
    ".roo/mcp.json": "roo",
    ".copilot/mcp-config.json": "copilot",
    ".github/mcp.json": "copilot",
    ".kiro/settings/mcp.json": "kiro",
    "amazonq/mcp.json": "amazon-q",
    ".continue/config.yaml": "continue",
}
# Hosts store their project settings in folders with these names.
_HOST_FOLDERS: Final = frozenset((".vscode", ".cursor", ".gemini", ".codex", ".zed", ".github", ".roo", ".amazonq"))


def find_config_files(home: Path | None = None, cwd: Path | None = None) -> Iterator[tuple[str, Path, ConfigLevel]]:
    """Yield the configuration files of all supported hosts, with their host and level. Project files come first."""
    seen_paths: set[Path] = set()
    for source, path, level in _iter_candidate_files(home, cwd):
        if path.is_file() and path not in seen_paths:
            seen_paths.add(path)
            yield source, path, level


def _iter_candidate_files(home: Path | None, cwd: Path | None) -> Iterator[tuple[str, Path, ConfigLevel]]:
    home, cwd = home or Path.home(), cwd or Path.cwd()
    macos_dir = home / "Library" / "Application Support"
    windows_dir = _get_user_dir("APPDATA", home / "AppData" / "Roaming")
    xdg_dir = _get_user_dir("XDG_CONFIG_HOME", home / ".config")
    for source, name in (
        ("mcp.json", "mcp.json"),
        ("claude-code", ".mcp.json"),
        ("vscode", ".vscode/mcp.json"),
        ("cursor", ".cursor/mcp.json"),
        ("gemini", ".gemini/settings.json"),
        ("codex", ".codex/config.toml"),
        ("opencode", "opencode.json"),
        ("zed", ".zed/settings.json"),
        ("copilot", ".github/mcp.json"),
        ("kiro", ".kiro/settings/mcp.json"),
        ("roo", ".roo/mcp.json"),
        ("amazon-q", ".amazonq/mcp.json"),
    ):
        # A file in the home directory belongs to the user, not to a project.
        yield source, cwd / name, "project" if cwd != home else "user"
    for source, path in (
        ("claude-code", home / ".claude.json"),
        ("cursor", home / ".cursor" / "mcp.json"),
        ("gemini", home / ".gemini" / "settings.json"),
        ("codex", home / ".codex" / "config.toml"),
        ("opencode", xdg_dir / "opencode" / "opencode.json"),
        ("goose", xdg_dir / "goose" / "config.yaml"),
        ("windsurf", home / ".codeium" / "windsurf" / "mcp_config.json"),
        ("lmstudio", home / ".lmstudio" / "mcp.json"),
        ("zed", xdg_dir / "zed" / "settings.json"),
        ("copilot", home / ".copilot" / "mcp-config.json"),
        ("kiro", home / ".kiro" / "settings" / "mcp.json"),
        ("amazon-q", home / ".aws" / "amazonq" / "mcp.json"),
        ("continue", home / ".continue" / "config.yaml"),
    ):
        yield source, path, "user"
    for base in (macos_dir, windows_dir, xdg_dir):
        yield "claude-desktop", base / "Claude" / "claude_desktop_config.json", "user"
        user_dir = base / "Code" / "User"
        yield "vscode", user_dir / "mcp.json", "user"
        extensions_dir = user_dir / "globalStorage"
        yield "cline", extensions_dir / "saoudrizwan.claude-dev" / "settings" / "cline_mcp_settings.json", "user"
        yield "roo", extensions_dir / "rooveterinaryinc.roo-cline" / "settings" / "mcp_settings.json", "user"


def _get_user_dir(variable: str, default: Path) -> Path:
    """Return the directory that an environment variable contains.

    Ignore a relative path, because it could be inside the project.
    """
    directory = Path(os.environ.get(variable, ""))
    return directory if directory.is_absolute() else default


def discover_configs(
    home: Path | None = None, cwd: Path | None = None
) -> tuple[list[ServerConfig], list[ConfigProblem]]:
    """Return the servers in the configuration files of all supported hosts, and the problems in the files.

    Args:
        home: The home directory. Defaults to that of the user.
        cwd: The directory of the project. Defaults to the current directory.
    """
    entries: list[ServerConfig] = []
    problems: list[ConfigProblem] = []
    for source, path, level in find_config_files(home, cwd):
        file_entries, file_problems = load_config(path, source, level=level, cwd=cwd)
        entries += file_entries
        problems += file_problems
    return entries, problems


def load_config(
    path: Path, source: str | None = None, *, level: ConfigLevel | None = None, cwd: Path | None = None
) -> tuple[list[ServerConfig], list[ConfigProblem]]:
    """Return the servers in one configuration file, and the problems in the file.

    Args:
        path: The path of the configuration file.
        source: The host whose format the file has. By default, the location of the file determines the host.
        level: "user" or "project". A project file cannot run commands for secrets or trust its servers. By default,
            the location of the file determines the level, or "project" is used.
        cwd: The directory of the project. Defaults to the current directory.
    """
    check_level(level)
    is_explicit, location = source is None, _identify_file(path)
    source, level = source or location[0], level or location[1]
    duplicates: list[str] = []
    try:
        document = parse_config(path.read_text(encoding="utf-8-sig"), path.suffix, duplicates)
    except (OSError, ValueError) as exc:
        return [], [ConfigProblem(source, path, f"cannot be read: {exc}", is_unreadable=True)]
    entries: list[ServerConfig] = []
    problems = [
        ConfigProblem(source, path, f"{name!r} is defined twice. The last definition is used") for name in duplicates
    ]
    problems += [ConfigProblem(source, path, text) for text in _find_section_problems(document, is_explicit)]
    original_names: dict[str, str] = {}
    project_dir, is_allowed = _find_project_dir(path), _read_server_filter(document)
    for original_name, raw_entry in _iter_servers(document, cwd or Path.cwd()):
        try:
            entry, notices = parse_entry(original_name, raw_entry, source, path, level=level, project_dir=project_dir)
            if (first_name := original_names.setdefault(entry.name, original_name)) != original_name:
                raise ValueError(
                    f"this server and {first_name!r} would both have the name {entry.name}. Rename one of the servers"
                )
        except ValueError as exc:
            problems.append(ConfigProblem(source, path, f"{original_name}: {exc}"))
            continue
        problems += [ConfigProblem(source, path, f"{original_name}: {text}", is_error=False) for text in notices]
        if entry.display_target:
            entries.append(entry if is_allowed(original_name) else replace(entry, enabled=False))
    inputs = _read_inputs(document)
    return [entry if not inputs else select_inputs(entry, inputs) for entry in entries], problems


def _identify_file(path: Path) -> tuple[str, ConfigLevel]:
    """Guess the host and level of a file from its location. If the location is unknown, use the file name."""
    absolute_path = path.absolute()
    for source, known_path, level in _iter_candidate_files(None, None):
        if known_path == absolute_path:
            return source, level
    for name, source in _HOST_BY_FILE_NAME.items():
        if absolute_path.as_posix().endswith(f"/{name}"):
            return source, "project"
    return "mcp.json", "project"


def _find_project_dir(path: Path) -> Path:
    folder = path.absolute().parent
    if folder.parts[-2:] == (".kiro", "settings"):
        return folder.parent.parent
    return folder.parent if folder.name in _HOST_FOLDERS else folder


def check_level(level: str | None) -> None:
    """Raise ValueError if the level is unknown, for example because it is misspelled."""
    if level not in (None, "user", "project"):
        raise ValueError(f"level must be 'user' or 'project', not {level!r}")


def parse_config(text: str, suffix: str, duplicates: list[str] | None = None) -> Any:
    """Parse a configuration file. Add repeated JSON keys to `duplicates`. Raise ValueError if the file is invalid."""
    match suffix:
        case ".toml":
            return tomllib.loads(text)
        case ".yaml" | ".yml":
            try:
                import yaml
            except ImportError:
                raise ValueError("reading YAML files requires the yaml library: pip install pyyaml") from None
            try:
                return yaml.safe_load(text)
            except yaml.YAMLError as exc:
                raise ValueError(str(exc)) from None
        case _:
            return json.loads(_strip_comments(text), object_pairs_hook=lambda pairs: _build_object(pairs, duplicates))


def _build_object(pairs: list[tuple[str, Any]], duplicates: list[str] | None) -> dict[str, Any]:
    members = dict(pairs)
    if duplicates is not None and len(members) < len(pairs):
        duplicates += [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    return members


_STRING_OR_COMMENT: Final = re.compile(r'("(?:[^"\\]|\\.)*+")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_TRAILING_COMMA: Final = re.compile(r'("(?:[^"\\]|\\.)*+")|,(?=\s*[}\]])', re.DOTALL)


def _strip_comments(text: str) -> str:
    """Remove comments and trailing commas from JSON. Some hosts allow them in their files."""
    plain = _STRING_OR_COMMENT.sub(lambda match: match[1] or "", text)
    return _STRING_OR_TRAILING_COMMA.sub(lambda match: match[1] or "", plain)


def _iter_servers(document: Any, cwd: Path) -> Iterator[tuple[str, Any]]:
    if not isinstance(document, dict):
        return
    projects: Any = document.get("projects")  # Claude Code stores the servers of each project under this key.
    project: Any = projects.get(str(cwd)) if isinstance(projects, dict) else None
    if isinstance(project, dict) and isinstance(project.get("mcpServers"), dict):
        yield from ((str(name), entry) for name, entry in project["mcpServers"].items())
    for key in _SERVER_SECTIONS:
        section: Any = _get_section(document, key)
        if isinstance(section, dict):
            yield from ((str(name), entry) for name, entry in section.items())
            break
        if isinstance(section, list):  # In the files of Continue, this section is a list of entries with names.
            for number, entry in enumerate(section):
                yield str(entry.get("name") or number) if isinstance(entry, dict) else str(number), entry
            break


def _get_section(document: dict[str, Any], key: str) -> Any:
    """Return the section with the servers.

    Under "mcp", VS Code has the servers one level deeper, and Gemini CLI has none.
    """
    section: Any = document.get(key)
    if key != "mcp" or not isinstance(section, dict):
        return section
    if isinstance(section.get("servers"), dict):
        return section["servers"]
    has_settings = any(isinstance(section.get(name), list | str) for name in ("allowed", "excluded", "serverCommand"))
    return None if has_settings else section


def _read_server_filter(document: Any) -> Callable[[str], bool]:
    settings: Any = document.get("mcp") if isinstance(document, dict) else None
    allowed, excluded = (
        (value if isinstance(value := settings.get(key), list) else None) if isinstance(settings, dict) else None
        for key in ("allowed", "excluded")
    )
    return lambda name: (allowed is None or name in allowed) and name not in (excluded or ())


def _find_section_problems(document: Any, is_explicit: bool) -> Iterator[str]:
    """Yield likely reasons why a file contains no servers, such as a misspelled key."""
    sections: dict[str, Any] = document if isinstance(document, dict) else {}
    for key in _SERVER_SECTIONS:
        if _get_section(sections, key) is not None or (key in sections and key != "mcp"):
            if is_explicit and not isinstance(sections[key], dict | list):
                yield f"{key} must be an object or a list"
            return
    section_by_lowercase = {key.lower(): key for key in _SERVER_SECTIONS}
    for key in (name for name in sections if name != "mcp"):
        if matches := get_close_matches(str(key).lower(), section_by_lowercase, 1, 0.85):
            yield f"{key}: did you mean {section_by_lowercase[matches[0]]}?"
            return
    if is_explicit and not isinstance(sections.get("projects"), dict):
        yield f"has no servers. Add them under {_SERVER_SECTIONS[0]}"


def _read_inputs(document: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(document, dict):
        return {}
    nested: Any = document.get("mcp")
    raw_inputs: Any = document.get("inputs") or (nested.get("inputs") if isinstance(nested, dict) else None)
    inputs = raw_inputs if isinstance(raw_inputs, list) else []
    return {item["id"]: item for item in inputs if isinstance(item, dict) and isinstance(item.get("id"), str)}
