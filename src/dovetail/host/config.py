"""Configuration files of the known hosts, read as one shape: a name, and how its server is reached.

Reading only: no file is ever written here. A bad entry spoils itself and not its file; what is not understood is kept
and told. References are resolved late, when a server is started, and their values are never kept.
"""

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from dovetail.host.entries import Entry, Problem, Settings, read_entry
from dovetail.host.secrets import Level, Secrets

__all__ = ["Entry", "Problem", "Settings", "known_files", "parse", "read_file", "read_known", "resolve"]

_SECTIONS: Final = ("mcpServers", "servers", "mcp_servers", "mcp", "extensions", "context_servers")
_NAMES: Final = {
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
}
_OF_HOSTS: Final = frozenset((".vscode", ".cursor", ".gemini", ".codex", ".zed"))  # folders within a project


def resolve(text: str, environ: Mapping[str, str]) -> str:
    """A text with `${NAME}`, `${NAME:-default}` and `${env:NAME}` replaced."""
    return Secrets(environ).resolve(text, "")


def known_files(home: Path | None = None, here: Path | None = None) -> Iterator[tuple[str, Path, Level]]:
    """The files of the known hosts that are there, each once: whose they are; the project's own first."""
    seen: set[Path] = set()
    for source, path, level in _places(home, here):
        if path.is_file() and path not in seen:
            seen.add(path)
            yield source, path, level


def _places(home: Path | None, here: Path | None) -> Iterator[tuple[str, Path, Level]]:
    home, here = home or Path.home(), here or Path.cwd()
    support = home / "Library" / "Application Support"
    roaming = Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    for source, name in (
        ("mcp.json", "mcp.json"),
        ("claude-code", ".mcp.json"),
        ("vscode", ".vscode/mcp.json"),
        ("cursor", ".cursor/mcp.json"),
        ("gemini", ".gemini/settings.json"),
        ("codex", ".codex/config.toml"),
        ("opencode", "opencode.json"),
        ("zed", ".zed/settings.json"),
    ):
        yield source, here / name, "project" if here != home else "user"  # what stands in a home is its user's
    for source, path in (
        ("claude-code", home / ".claude.json"),
        ("cursor", home / ".cursor" / "mcp.json"),
        ("gemini", home / ".gemini" / "settings.json"),
        ("codex", home / ".codex" / "config.toml"),
        ("opencode", config / "opencode" / "opencode.json"),
        ("goose", config / "goose" / "config.yaml"),
        ("windsurf", home / ".codeium" / "windsurf" / "mcp_config.json"),
        ("lmstudio", home / ".lmstudio" / "mcp.json"),
        ("zed", config / "zed" / "settings.json"),
    ):
        yield source, path, "user"
    for base in (support, roaming, config):
        yield "claude-desktop", base / "Claude" / "claude_desktop_config.json", "user"
        yield "vscode", base / "Code" / "User" / "mcp.json", "user"


def read_known(home: Path | None = None, here: Path | None = None) -> tuple[list[Entry], list[Problem]]:
    """Every server of every known file, and what could not be read."""
    entries: list[Entry] = []
    problems: list[Problem] = []
    for source, path, level in known_files(home, here):
        found, wrong = read_file(path, source, level=level, here=here)
        entries += found
        problems += wrong
    return entries, problems


def read_file(
    path: Path, source: str | None = None, *, level: Level | None = None, here: Path | None = None
) -> tuple[list[Entry], list[Problem]]:
    """The servers of one file, whatever its dialect.

    `source` is the host whose file it is, and `level` whose: a "project" may not run commands for secrets, nor call its
    own servers trusted. Where they are not said, the file's place tells; a place nobody knows is a project's.
    """
    check_level(level)
    named, guessed = source is None, _known(path)
    source, level = source or guessed[0], level or guessed[1]
    twice: list[str] = []
    try:
        document = parse(path.read_text(encoding="utf-8-sig"), path.suffix, twice)
    except (OSError, ValueError) as exc:
        return [], [Problem(source, path, f"cannot be read: {exc}", unread=True)]
    entries: list[Entry] = []
    problems = [Problem(source, path, f"{name!r} stands there twice: the last one counts") for name in twice]
    problems += [Problem(source, path, text) for text in _misplaced(document, named)]
    taken: dict[str, str] = {}
    folder = _project(path)
    for written, given in _servers(document, here or Path.cwd()):
        try:
            entry, notices = read_entry(written, given, source, path, level=level, folder=folder)
            if (other := taken.setdefault(entry.name, written)) != written:
                raise ValueError(f"would be called {entry.name}, as {other!r} is")
        except ValueError as exc:
            problems.append(Problem(source, path, f"{written}: {exc}"))
            continue
        problems += [Problem(source, path, f"{written}: {text}", severe=False) for text in notices]
        if entry.spelled():
            entries.append(entry)
    inputs = _inputs(document)
    return [entry if not inputs else entry.with_inputs(inputs) for entry in entries], problems


def _known(path: Path) -> tuple[str, Level]:
    """Which host's file this is, and whose, by its place; by its name if the place is unknown."""
    whole = path.absolute()
    for source, place, level in _places(None, None):
        if place == whole:
            return source, level
    for name, source in _NAMES.items():
        if whole.as_posix().endswith(f"/{name}"):
            return source, "project"
    return "mcp.json", "project"


def _project(path: Path) -> Path:
    folder = path.absolute().parent
    return folder.parent if folder.name in _OF_HOSTS else folder


def check_level(level: str | None) -> None:
    """ValueError for a level there is not: what is misspelled must not pass for the user's own."""
    if level not in (None, "user", "project"):
        raise ValueError(f"a level is 'user' or 'project', not {level!r}")


def parse(text: str, suffix: str, twice: list[str] | None = None) -> Any:
    """What a file of this kind says; ValueError if it cannot be read. `twice` gets the names that JSON repeats."""
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
            return json.loads(_without_comments(text), object_pairs_hook=lambda pairs: _object(pairs, twice))


def _object(pairs: list[tuple[str, Any]], twice: list[str] | None) -> dict[str, Any]:
    found = dict(pairs)
    if twice is not None and len(found) < len(pairs):
        twice += [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    return found


_COMMENT: Final = re.compile(r'("(?:[^"\\]|\\.)*+")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING: Final = re.compile(r'("(?:[^"\\]|\\.)*+")|,(?=\s*[}\]])', re.DOTALL)


def _without_comments(text: str) -> str:
    """JSON as editors write it: with comments and trailing commas."""
    plain = _COMMENT.sub(lambda found: found[1] or "", text)
    return _TRAILING.sub(lambda found: found[1] or "", plain)


def _servers(document: Any, here: Path) -> Iterator[tuple[str, Any]]:
    if not isinstance(document, dict):
        return
    projects: Any = document.get("projects")  # Claude Code keeps a user's servers for one folder there
    local: Any = projects.get(str(here)) if isinstance(projects, dict) else None
    if isinstance(local, dict) and isinstance(local.get("mcpServers"), dict):
        yield from ((str(name), one) for name, one in local["mcpServers"].items())
    for key in _SECTIONS:
        found: Any = document.get(key)
        if key == "mcp" and isinstance(found, dict) and isinstance(found.get("servers"), dict):
            found = found["servers"]
        if isinstance(found, dict):
            yield from ((str(name), one) for name, one in found.items())
            break
        if isinstance(found, list):  # Continue lists them, each with its name
            for number, one in enumerate(found):
                yield str(one.get("name") or number) if isinstance(one, dict) else str(number), one
            break


def _misplaced(document: Any, named: bool) -> Iterator[str]:
    """Why there are no servers, if a file says something else than it means, or was named and has none."""
    found: dict[str, Any] = document if isinstance(document, dict) else {}
    for key in _SECTIONS:
        if key in found:
            if named and not isinstance(found[key], dict | list):
                yield f"{key} is neither an object nor a list"
            return
    lowered = {key.lower(): key for key in _SECTIONS}
    for key in found:
        if meant := get_close_matches(str(key).lower(), lowered, 1, 0.85):
            yield f"{key}: did you mean {lowered[meant[0]]}?"
            return
    if named and not isinstance(found.get("projects"), dict):
        yield f"names no servers: they stand under {_SECTIONS[0]}"


def _inputs(document: Any) -> dict[str, dict[str, Any]]:
    """What VS Code asks its user for: by id, as the file describes it."""
    if not isinstance(document, dict):
        return {}
    nested: Any = document.get("mcp")
    given: Any = document.get("inputs") or (nested.get("inputs") if isinstance(nested, dict) else None)
    found = given if isinstance(given, list) else []
    return {one["id"]: one for one in found if isinstance(one, dict) and isinstance(one.get("id"), str)}
