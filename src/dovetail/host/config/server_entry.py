"""A server entry of a configuration file, in the same form for all supported hosts.

The repr of an entry shows only names, because variables, headers and the path of a URL may contain secrets.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints
from urllib.parse import urlsplit

from dovetail.client.config_entry import read_entry
from dovetail.error_context import clip, suggest_match
from dovetail.errors import InvalidParams
from dovetail.host.config.secret_lookup import (
    ConfigLevel,
    Reference,
    ReferenceContext,
    SecretResolver,
    get_secret_lookup,
    split_references,
)
from dovetail.host.policy.quotas import parse_limits
from dovetail.host.qualified_names import make_server_name
from dovetail.host.server_settings import ServerSettings, compute_project_server_id, compute_server_id
from dovetail.protocol.limits import Timeouts
from dovetail.wire.base import Struct, field, replace
from dovetail.wire.codec import convert

SETTINGS_KEY: Final = "x-dovetail"


class ConfigProblem(Struct, frozen=True):
    """A problem in a configuration file."""

    source: str  # the host that the file belongs to, such as "cursor"
    path: Path  # the path of the file
    message: str  # what is wrong with the file or the entry
    is_error: bool = True  # True if the server cannot be used
    is_unreadable: bool = False  # True if no server in the file can be used


_SETTING_TYPES: Final[dict[str, Any]] = {
    **get_type_hints(ServerSettings),
    "roots": list[str],
    "timeouts": dict[str, float],
    "limits": dict[str, Any],
}


class ServerConfig(Struct, frozen=True, kw_only=True):
    """One server in a configuration file."""

    name: str  # the name of the server
    source: str  # the host that the file belongs to, such as "cursor"
    path: Path  # the path of the file
    command: str | None = None  # the program to start, or None for a remote server
    args: list[str] = field(default_factory=list[str])  # the arguments of the command
    env: dict[str, str] = field(default_factory=dict[str, str])  # environment variables for the command
    # Names of environment variables to pass on to the server, if they are set.
    env_passthrough: list[str] = field(default_factory=list[str])
    env_file: str | None = None  # path of a file with more environment variables
    cwd: str | None = None  # the working directory of the command
    url: str | None = None  # the URL of a remote server
    headers: dict[str, str] = field(default_factory=dict[str, str])  # HTTP headers for the URL
    # The transport of the URL. Other hosts need it in their files, but a dovetail client detects it.
    transport: Literal["http", "sse"] = "http"
    enabled: bool = True  # False if the server is turned off
    settings: ServerSettings = field(default_factory=ServerSettings)  # settings such as timeouts and trust
    # The keys of the entry that dovetail does not support.
    unknown_keys: dict[str, Any] = field(default_factory=dict[str, Any])
    # The inputs that the file defines. The keys are input IDs.
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    original_name: str = ""  # the server name in the file
    level: ConfigLevel = "user"  # "user" or "project"
    project_dir: Path = Path()  # the folder of the project
    settings_keys: frozenset[str] = frozenset()  # the names of the settings that the file contains

    @property
    def display_target(self) -> str:
        """Return the command or URL from the configuration file, without replacing references."""
        return self.url or (shlex.join([self.command, *self.args]) if self.command else "")

    @property
    def identity(self) -> str:
        """Return a digest of the command or URL.

        For a project file, the digest includes the file path, the headers and the variables.
        """
        if self.level != "project":
            return compute_server_id(self._identity_target())
        header_lines = [f"{name}: {value}" for name, value in sorted(self.headers.items())]
        return compute_project_server_id(self._identity_target(), "\n".join([str(self.path), *header_lines]))

    def _identity_target(self) -> dict[str, Any]:
        return {"url": self.url} if self.url is not None else self._process_target()

    def _process_target(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "args": self.args,
            "env": _list_variables(self),
            "envFile": self.env_file,
            "cwd": self.cwd,
        }

    @property
    def references(self) -> list[Reference]:
        """Return the references in this entry, without duplicates."""
        references = dict.fromkeys(
            part
            for _, text in self._iter_texts()
            for part in split_references(text, allow_bare=self._reference_context().allows_bare)
            if isinstance(part, Reference)
        )
        return [*references]

    @property
    def required_inputs(self) -> list[dict[str, Any]]:
        """Return the inputs that the user must provide. Their descriptions come from the configuration file."""
        return [
            self.inputs.get(reference.name, {"id": reference.name})
            for reference in self.references
            if reference.kind == "input"
        ]

    def to_target(
        self, env: Mapping[str, str] | None = None, *, secrets: SecretResolver | None = None
    ) -> dict[str, Any]:
        """Return a target for `Client`, with references replaced by their values.

        Raise SecretNotFound if a reference has no value.

        Args:
            env: Environment variables for references. Defaults to those of this process.
            secrets: The resolver for the references. It masks their values in later output.
        """
        lookup = get_secret_lookup(secrets or SecretResolver(env))
        context = self._reference_context()
        resolved = {setting: lookup.resolve(text, setting, context) for setting, text in self._iter_texts()}
        if self.url is not None:
            return {"url": resolved["url"], "headers": {name: resolved[f"headers.{name}"] for name in self.headers}}
        variables = lookup.copy_variables(self.env_passthrough)
        variables |= {name: resolved[f"env.{name}"] for name in self.env}
        if self.env_file is not None:
            text = lookup.resolve(f"${{file:{resolved['envFile']}}}", "envFile", context)
            file_variables = _parse_env_file(text)
            lookup.remember(file_variables.values())
            variables = file_variables | variables
        return {
            "command": resolved["command"],
            "args": [resolved[f"args[{number}]"] for number in range(len(self.args))],
            "env": variables,
            "cwd": resolved["cwd"] if self.cwd else None,
        }

    def _reference_context(self) -> ReferenceContext:
        return ReferenceContext(level=self.level, project_dir=self.project_dir, allows_bare=self.source == "gemini")

    def _iter_texts(self) -> Iterator[tuple[str, str]]:
        if self.url is not None:
            yield "url", self.url
            yield from ((f"headers.{name}", value) for name, value in self.headers.items())
            return
        yield "command", self.command or ""
        yield from ((f"args[{number}]", arg) for number, arg in enumerate(self.args))
        yield from ((f"env.{name}", value) for name, value in self.env.items())
        if self.cwd:
            yield "cwd", self.cwd
        if self.env_file is not None:
            yield "envFile", self.env_file

    def __repr__(self) -> str:
        location = f"url host {urlsplit(self.url).hostname!r}" if self.url else f"command {self.command!r}"
        names = f"env {sorted(self.env)}, headers {sorted(self.headers)}"
        return f"<ServerConfig {self.name!r} of {self.source} {str(self.path)!r}: {location}, {names}>"


def _list_variables(config: ServerConfig) -> dict[str, str]:
    return {name: f"${{{name}}}" for name in config.env_passthrough} | config.env


def apply_settings(config: ServerConfig, defaults: ServerSettings) -> ServerSettings:
    """Return the settings of a server. Settings that are missing in its configuration file come from `defaults`."""
    return replace(defaults, **{name: getattr(config.settings, name) for name in config.settings_keys})


def describe_config(config: ServerConfig) -> dict[str, Any]:
    """Return the settings of a server, for the user to review before the server starts.

    The values of variables and headers are included, because a variable such as NODE_OPTIONS can run other code. The
    value behind a reference is not included.
    """
    references = [str(reference) for reference in config.references if reference.kind != "place"]
    details: dict[str, Any] = {
        "command" if config.url is None else "address": config.display_target,
        "folder": config.cwd,
        "variables": dict(sorted(_list_variables(config).items())),
        "file of variables": config.env_file,
        "headers": dict(sorted(config.headers.items())),
        "given": references + config.env_passthrough,
        "from": str(config.path),
    }
    return {name: value for name, value in details.items() if value}


def select_inputs(config: ServerConfig, inputs: Mapping[str, dict[str, Any]]) -> ServerConfig:
    """Return a copy of the entry with only the inputs that it uses."""
    used_names = {reference.name for reference in config.references if reference.kind == "input"}
    return replace(config, inputs={name: definition for name, definition in inputs.items() if name in used_names})


def _parse_env_file(text: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.strip() and not name.startswith("#"):
            text_value = value.strip()
            variables[name.strip()] = (
                text_value[1:-1]
                if len(text_value) > 1 and text_value[0] == text_value[-1] and text_value[0] in "\"'"
                else text_value
            )
    return variables


# `parse_entry` reads these keys of an entry.

_KNOWN_KEYS: Final = frozenset(
    ("command", "cmd", "args", "env", "environment", "envs", "env_vars", "env_keys", "envFile", "cwd", "url", "httpUrl",
     "serverUrl", "uri", "headers", "http_headers", "env_http_headers", "bearer_token_env_var", "enabled", "disabled",
     "includeTools", "excludeTools", "enabled_tools", "disabled_tools", "disabledTools", "available_tools", "tools",
     "timeout",
     "startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec", "request_timeout_ms", SETTINGS_KEY)
)  # fmt: skip
# dovetail ignores these keys, which other hosts use. The values are notices for the user.
_KEY_NOTICES: Final = {
    "trust": f'of another host is ignored. Set "{SETTINGS_KEY}": {{"trusted": true}} instead',
    "oauth": "is ignored. Log in here if the server requires it",
}
# dovetail does not use these keys. Some keys, such as "alwaysAllow", store the user's decisions in another host.
_IGNORED_KEYS: Final = frozenset(
    ("type", "transport", "transportType", "name", "display_name", "description", "title", "icon", "version", "gallery",
     "dev", "bundled", "watchPaths", "source", "autoApprove", "alwaysAllow", "required", "settings", "provider",
     "scopes", "auth", "requestOptions", *_KEY_NOTICES)
)  # fmt: skip
_MILLISECOND_HOSTS: Final = frozenset(("claude-code", "gemini", "opencode", "copilot", "kiro", "amazon-q"))
_BUILT_IN_TYPES: Final = frozenset(("builtin", "platform", "frontend", "inline_python"))


def parse_entry(
    original_name: str, raw_entry: Any, source: str, path: Path, *, level: ConfigLevel, project_dir: Path
) -> tuple[ServerConfig, list[str]]:
    """Parse an entry and return it with notices for the user. Raise ValueError if it is invalid."""
    if not isinstance(raw_entry, dict):
        raise ValueError("the entry must be an object")
    entry: dict[str, Any] = raw_entry
    command, args, raw_env, url = read_entry(entry)
    if not isinstance(args, list):
        raise ValueError("args must be a list")
    env = _to_string_mapping("env", raw_env)
    if (skip_notice := _find_skip_notice(entry, source, has_target=bool(command or url))) is not None:
        return ServerConfig(name=make_server_name(original_name), source=source, path=path), [skip_notice]
    if not isinstance(command, str) and not isinstance(url, str):
        raise ValueError('the entry must have a "command" or a "url"')
    settings, settings_keys, notices = _parse_settings(entry, source, level)
    notices += [f"{name} {text}" for name, text in _KEY_NOTICES.items() if entry.get(name)]
    env_passthrough = _parse_env_passthrough(entry.get("env_vars"), notices)
    unknown_keys = {
        name: value for name, value in entry.items() if name not in _KNOWN_KEYS and name not in _IGNORED_KEYS
    }
    if unknown_keys:
        notices.append(f"unknown keys: {', '.join(sorted(unknown_keys))}")
    if (name := make_server_name(original_name)) != original_name:
        notices.append(f"is named {name} here")
    config = ServerConfig(
        name=name,
        source=source,
        path=path,
        command=command if isinstance(command, str) else None,
        args=[str(arg) for arg in args],
        env=env | {key: f"${{{key}}}" for key in _filter_strings(entry.get("env_keys")) if key not in env},
        env_passthrough=env_passthrough,
        env_file=_check_string("envFile", entry.get("envFile")),
        cwd=_check_string("cwd", entry.get("cwd")),
        url=url if isinstance(url, str) else None,
        headers=_parse_headers(entry),
        transport=_parse_transport(entry, source),
        enabled=not entry.get("disabled", False) and entry.get("enabled", True) is not False,
        settings=settings,
        unknown_keys=unknown_keys,
        original_name=original_name,
        level=level,
        project_dir=project_dir,
        settings_keys=settings_keys,
    )
    return config, notices


def _find_skip_notice(entry: dict[str, Any], source: str, *, has_target: bool) -> str | None:
    """Return the reason to skip an entry that is not a server but a part of the other host. Otherwise return None."""
    is_extension = entry.get("source") == "extension" or (source == "zed" and "settings" in entry)
    if entry.get("type") in _BUILT_IN_TYPES or (is_extension and not has_target):
        return f"is {'an extension of' if is_extension else 'built into'} {source} and is skipped"
    return None


def _parse_headers(entry: dict[str, Any]) -> dict[str, str]:
    """Return the HTTP headers of an entry.

    Codex reads some headers from environment variables, and Continue nests headers.
    """
    nested: Any = entry.get("requestOptions")
    inner = nested.get("headers") if isinstance(nested, dict) else None
    raw_headers = entry.get("headers") or entry.get("http_headers") or inner
    headers = _to_string_mapping("headers", raw_headers)
    headers |= {
        name: f"${{{value}}}" for name, value in _to_string_mapping("headers", entry.get("env_http_headers")).items()
    }
    if token := entry.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    for name, value in headers.items():
        if any(char < " " or char == "\x7f" for char in name + value):
            raise ValueError(f"headers: {clip(name)} contains a control character")
    return headers


def _parse_transport(entry: dict[str, Any], source: str) -> Literal["http", "sse"]:
    if entry.get("type") == "sse" or entry.get("transport") == "sse":
        return "sse"
    # Gemini CLI has a separate key for Streamable HTTP.
    is_gemini_sse = source == "gemini" and not entry.get("httpUrl") and entry.get("type") is None
    return "sse" if is_gemini_sse and entry.get("url") else "http"


def _parse_settings(
    entry: dict[str, Any], source: str, level: ConfigLevel
) -> tuple[ServerSettings, frozenset[str], list[str]]:
    notices: list[str] = []
    raw_table: Any = entry.get(SETTINGS_KEY) or {}
    if not isinstance(raw_table, dict):
        raise ValueError(f"{SETTINGS_KEY} must be an object")
    table: dict[str, Any] = dict(raw_table)
    if level == "project" and table.pop("trusted", None):
        notices.append("a project file cannot mark its own server as trusted")
    try:
        settings = {name: _parse_setting(name, value) for name, value in table.items()}
        settings |= _parse_tool_filters(entry, settings)
        timeouts: dict[str, float] = settings.get("timeouts") or _parse_timeouts(entry, source)
        if "start_timeout" in settings:
            timeouts = {"initialize": settings["start_timeout"], **timeouts}
        elif "initialize" in timeouts:
            settings["start_timeout"] = timeouts["initialize"]
        if timeouts:
            settings["timeouts"] = Timeouts(**timeouts)
        return ServerSettings(**settings), frozenset(settings), notices
    except (TypeError, ValueError) as exc:
        raise ValueError(f"{SETTINGS_KEY}: {exc}") from None


def _parse_setting(name: str, value: Any) -> Any:
    if name not in _SETTING_TYPES:
        hint = suggest_match(name, _SETTING_TYPES) or f". Known keys: {', '.join(_SETTING_TYPES)}"
        raise ValueError(f"unknown key {name!r}{hint}")
    try:
        parsed = convert(value, _SETTING_TYPES[name], label=name)
    except InvalidParams as exc:
        raise ValueError(exc.message) from None
    return parse_limits(parsed) if name == "limits" else parsed


def _parse_tool_filters(entry: dict[str, Any], own_settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the globs of the tools to offer and of the tools to leave out.

    `include_tools` under x-dovetail replaces the filter of the other host. A tool stays excluded if either filter
    excludes it.
    """
    filters: dict[str, list[str]] = {}
    # Copilot CLI lists tools under "tools". The value "*" means all tools.
    included = [entry[name] for name in ("includeTools", "enabled_tools", "tools") if entry.get(name) is not None]
    # In Goose, an empty list allows all tools.
    included += [entry["available_tools"]] if entry.get("available_tools") else []
    if included and "include_tools" not in own_settings:
        filters["include_tools"] = _parse_setting("include_tools", ["*"] if included[0] == "*" else included[0])
    if excluded := entry.get("excludeTools") or entry.get("disabled_tools") or entry.get("disabledTools"):
        own_excluded: Sequence[str] = own_settings.get("exclude_tools", ())
        filters["exclude_tools"] = [*own_excluded, *_parse_setting("exclude_tools", excluded)]
    return filters


def _parse_env_passthrough(raw_variables: Any, notices: list[str]) -> list[str]:
    names: list[str] = []
    for variable in raw_variables if isinstance(raw_variables, list) else []:
        name = variable.get("name") if isinstance(variable, dict) else variable
        if isinstance(name, str):
            names.append(name)
        else:
            notices.append(f"env_vars: {clip(str(variable))} is not a variable name")
    return names


def _parse_timeouts(entry: dict[str, Any], source: str) -> dict[str, float]:
    """Return the timeouts of an entry in seconds. Some hosts store milliseconds."""
    timeouts: dict[str, float] = {}
    for name, key, scale in (
        ("timeout", "call", 0.001 if source in _MILLISECOND_HOSTS else 1.0),
        ("request_timeout_ms", "call", 0.001),
        ("tool_timeout_sec", "call", 1.0),
        ("startup_timeout_sec", "initialize", 1.0),
        ("startup_timeout_ms", "initialize", 0.001),
    ):
        value = entry.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            timeouts[key] = value * scale
    return timeouts


def _filter_strings(values: Any) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _check_string(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string")
    return value


def _to_string_mapping(name: str, members: Any) -> dict[str, str]:
    if members is None:
        return {}
    if not isinstance(members, dict):
        raise ValueError(f"{name} must be an object")
    return {str(key): _to_string(value) for key, value in members.items() if value is not None}


def _to_string(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
