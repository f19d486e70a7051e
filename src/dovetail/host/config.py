"""Configuration files of the known hosts, read as one shape: a name, and how its server is reached.

Reading only: no file is ever written here. A bad entry spoils itself and not its file. References to variables are
resolved late, when a server is started, and their values are never kept.
"""

import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dovetail.wire.shape import Struct, field


class Entry(Struct, frozen=True, kw_only=True):
    """One server of one file."""

    name: str
    source: str  # which host's file it is from
    path: Path
    command: str | None = None
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    enabled: bool = True

    def spelled(self) -> str:
        """Its command or address, as the file has it: references stay what they are."""
        return self.url or shlex.join([self.command or "", *self.args])

    def target(self, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
        """As a client takes it, with its references resolved; KeyError names a variable that is not set."""
        known = os.environ if environ is None else environ
        if self.url is not None:
            return {
                "url": resolve(self.url, known),
                "headers": {name: resolve(value, known) for name, value in self.headers.items()},
            }
        return {
            "command": resolve(self.command or "", known),
            "args": [resolve(word, known) for word in self.args],
            "env": {name: resolve(value, known) for name, value in self.env.items()},
            "cwd": resolve(self.cwd, known) if self.cwd else None,
        }


class Problem(Struct, frozen=True):
    """A file or an entry that cannot be read, and why."""

    source: str
    path: Path
    text: str


_REFERENCE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def resolve(text: str, environ: Mapping[str, str]) -> str:
    """A text with `${NAME}`, `${NAME:-default}` and `${env:NAME}` replaced."""

    def value(found: "re.Match[str]") -> str:
        name, default = found[1], found[2]
        if name in environ:
            return environ[name]
        if default is None:
            raise KeyError(name)
        return default

    return _REFERENCE.sub(value, text)


def known_files(home: Path | None = None, here: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Where the known hosts keep their servers: the project's own files first."""
    home, here = home or Path.home(), here or Path.cwd()
    support = home / "Library" / "Application Support"
    roaming = Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    yield from (
        ("mcp.json", here / "mcp.json"),
        ("claude-code", here / ".mcp.json"),
        ("vscode", here / ".vscode" / "mcp.json"),
        ("cursor", here / ".cursor" / "mcp.json"),
        ("gemini", here / ".gemini" / "settings.json"),
        ("codex", here / ".codex" / "config.toml"),
        ("opencode", here / "opencode.json"),
        ("claude-code", home / ".claude.json"),
        ("cursor", home / ".cursor" / "mcp.json"),
        ("gemini", home / ".gemini" / "settings.json"),
        ("codex", home / ".codex" / "config.toml"),
        ("opencode", config / "opencode" / "opencode.json"),
        ("goose", config / "goose" / "config.yaml"),
    )
    for base in (support, roaming, config):
        yield "claude-desktop", base / "Claude" / "claude_desktop_config.json"
        yield "vscode", base / "Code" / "User" / "mcp.json"


def read_known(home: Path | None = None, here: Path | None = None) -> tuple[list[Entry], list[Problem]]:
    """Every server of every known file, and what could not be read."""
    entries: list[Entry] = []
    problems: list[Problem] = []
    for source, path in known_files(home, here):
        if path.is_file():
            found, wrong = read_file(path, source)
            entries += found
            problems += wrong
    return entries, problems


def read_file(path: Path, source: str = "mcp.json") -> tuple[list[Entry], list[Problem]]:
    """The servers of one file, whatever its dialect."""
    try:
        document = parse(path.read_text(encoding="utf-8"), path.suffix)
    except (OSError, ValueError) as exc:
        return [], [Problem(source, path, f"cannot be read: {exc}")]
    entries: list[Entry] = []
    problems: list[Problem] = []
    for name, entry in _servers(document).items():
        try:
            entries.append(_entry(str(name), entry, source, path))
        except ValueError as exc:
            problems.append(Problem(source, path, f"{name}: {exc}"))
    return entries, problems


def parse(text: str, suffix: str) -> Any:
    """What a file of this kind says; ValueError if it cannot be read."""
    match suffix:
        case ".toml":
            return tomllib.loads(text)
        case ".yaml" | ".yml":
            try:
                import yaml
            except ImportError:
                raise ValueError("reading YAML needs the yaml library: pip install pyyaml") from None
            try:
                return yaml.safe_load(text)
            except yaml.YAMLError as exc:
                raise ValueError(str(exc)) from None
        case _:
            return json.loads(_without_comments(text))


_COMMENT: Final = re.compile(r'("(?:[^"\\]|\\.)*+")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING: Final = re.compile(r'("(?:[^"\\]|\\.)*+")|,(?=\s*[}\]])', re.DOTALL)


def _without_comments(text: str) -> str:
    """JSON as editors write it: with comments and trailing commas."""
    plain = _COMMENT.sub(lambda found: found[1] or "", text)
    return _TRAILING.sub(lambda found: found[1] or "", plain)


def _servers(document: Any) -> dict[Any, Any]:
    if isinstance(document, dict):
        for key in ("mcpServers", "servers", "mcp_servers", "mcp", "extensions"):
            found: Any = document.get(key)
            if isinstance(found, dict):
                inner: Any = found.get("servers") if key == "mcp" and isinstance(found.get("servers"), dict) else found
                return inner
    return {}


def _entry(name: str, given: Any, source: str, path: Path) -> Entry:
    if not isinstance(given, dict):
        raise ValueError("must be an object")
    entry: dict[str, Any] = given
    command, args = entry.get("command") or entry.get("cmd"), entry.get("args") or []
    if isinstance(command, list) and command:  # opencode gives the whole command as a list
        command, args = command[0], [*command[1:], *args]
    url = entry.get("url") or entry.get("httpUrl") or entry.get("serverUrl") or entry.get("uri")
    if not isinstance(command, str) and not isinstance(url, str):
        raise ValueError("needs a command or a url")
    return Entry(
        name=name,
        source=source,
        path=path,
        command=command if isinstance(command, str) else None,
        args=[str(word) for word in args],
        env=_texts(entry.get("env") or entry.get("environment") or entry.get("envs")),
        cwd=entry.get("cwd"),
        url=url if isinstance(url, str) and not isinstance(command, str) else None,
        headers=_texts(entry.get("headers") or entry.get("http_headers")),
        enabled=not entry.get("disabled", False) and entry.get("enabled", True) is not False,
    )


def _texts(given: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}
