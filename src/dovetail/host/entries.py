"""One server of a configuration: what the known hosts write, as one shape.

Its repr shows names only: values of variables and headers, and addresses beyond the host, may be secrets.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from dovetail.errors import InvalidParams, clip
from dovetail.host.identity import identity_of
from dovetail.host.names import cleaned
from dovetail.host.quotas import quota
from dovetail.host.secrets import Level, Place, Reference, Secrets, parts
from dovetail.protocol.limits import Timeouts
from dovetail.wire.codec import convert
from dovetail.wire.shape import Struct, field, replace

OWN: Final = "x-dovetail"


class Chosen(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tools of a server are offered, by globs of their own names; all, unless something is said."""

    allow: list[str] | None = None
    deny: list[str] = field(default_factory=list[str])


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What only this host knows of a server."""

    trust: bool = False  # whether its annotations may loosen a policy
    roots: list[str] = field(default_factory=list[str])
    tools: Chosen = field(default_factory=Chosen)
    timeouts: dict[str, float] = field(default_factory=dict[str, float])
    start: Literal["lazy", "eager"] | None = None
    start_time: float | None = None  # seconds to become ready
    limits: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        Timeouts(**self.timeouts)
        quota(self.limits)
        if self.start_time is not None and self.start_time <= 0:
            raise ValueError("start_time must be more than 0")


class Problem(Struct, frozen=True):
    """A file or an entry that cannot be read, and why; one that is not severe costs nothing but a word."""

    source: str
    path: Path
    text: str
    severe: bool = True
    unread: bool = False  # whether nothing of the file could be used


class Entry(Struct, frozen=True, kw_only=True):
    """One server of one file."""

    name: str
    source: str  # which host's file it is from
    path: Path
    command: str | None = None
    args: list[str] = field(default_factory=list[str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    passed: list[str] = field(default_factory=list[str])  # variables handed on if they are set
    env_file: str | None = None
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    enabled: bool = True
    settings: Settings = field(default_factory=Settings)
    unknown: dict[str, Any] = field(default_factory=dict[str, Any])  # what nobody here understands
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    written: str = ""  # its name as the file has it
    level: Level = "user"
    folder: Path = Path()

    def spelled(self) -> str:
        """Its command or address, as the file has it: references stay what they are."""
        return self.url or (shlex.join([self.command, *self.args]) if self.command else "")

    def shown(self) -> dict[str, Any]:
        """All that somebody should see who is asked whether it may be started; of values only what they refer to."""
        facts: dict[str, Any] = {
            "command" if self.url is None else "address": self.spelled(),
            "folder": self.cwd,
            "variables": sorted({*self.env, *self.passed}),
            "file of variables": self.env_file,
            "headers": sorted(self.headers),
            "given": [str(one) for one in self.needs() if one.kind != "place"] + self.passed,
            "from": str(self.path),
        }
        return {name: value for name, value in facts.items() if value}

    @property
    def identity(self) -> str:
        """What is started or reached, as a digest; of a project's file, the file too, and what it sends along."""
        if self.level != "project":
            return identity_of(self._reached())
        sent = [f"{name}: {value}" for name, value in sorted(self.headers.items())]
        return identity_of(self._reached(), place="\n".join([str(self.path), *sent]))

    def _reached(self) -> dict[str, Any]:
        return {"url": self.url} if self.url is not None else self._process()

    def _process(self) -> dict[str, Any]:
        handed = {name: f"${{{name}}}" for name in self.passed}
        facts = {"command": self.command, "args": self.args, "env": handed | self.env, "cwd": self.cwd}
        return facts | ({"args": [*self.args, f"envFile={self.env_file}"]} if self.env_file else {})

    def needs(self) -> list[Reference]:
        """Everything it refers to, each once."""
        found = dict.fromkeys(
            one
            for _, text in self._texts()
            for one in parts(text, bare=self._place().bare)
            if isinstance(one, Reference)
        )
        return [*found]

    def asks(self) -> list[dict[str, Any]]:
        """The inputs its user must be asked for, as the file describes them."""
        return [self.inputs.get(one.name, {"id": one.name}) for one in self.needs() if one.kind == "input"]

    def with_inputs(self, inputs: Mapping[str, dict[str, Any]]) -> "Entry":
        """The same, with those of the file's inputs that it refers to."""
        used = {one.name for one in self.needs() if one.kind == "input"}
        return replace(self, inputs={name: one for name, one in inputs.items() if name in used})

    def target(self, environ: Mapping[str, str] | None = None, *, secrets: Secrets | None = None) -> dict[str, Any]:
        """As a client takes it, with its references resolved; KeyError names a variable that is not set."""
        known = secrets or Secrets(environ)
        place = self._place()
        made = {setting: known.resolve(text, setting, place) for setting, text in self._texts()}
        if self.url is not None:
            return {"url": made["url"], "headers": {name: made[f"headers.{name}"] for name in self.headers}}
        env = known.passed(self.passed) | {name: made[f"env.{name}"] for name in self.env}
        if self.env_file is not None:
            found = _variables(known.resolve(f"${{file:{made['envFile']}}}", "envFile", place))
            known.remember_all(found.values())
            env = found | env
        return {
            "command": made["command"],
            "args": [made[f"args[{number}]"] for number in range(len(self.args))],
            "env": env,
            "cwd": made["cwd"] if self.cwd else None,
        }

    def _place(self) -> Place:
        return Place(level=self.level, folder=self.folder, bare=self.source == "gemini")

    def _texts(self) -> Iterator[tuple[str, str]]:
        if self.url is not None:
            yield "url", self.url
            yield from ((f"headers.{name}", value) for name, value in self.headers.items())
            return
        yield "command", self.command or ""
        yield from ((f"args[{number}]", word) for number, word in enumerate(self.args))
        yield from ((f"env.{name}", value) for name, value in self.env.items())
        if self.cwd:
            yield "cwd", self.cwd
        if self.env_file is not None:
            yield "envFile", self.env_file

    def __repr__(self) -> str:
        where = f"url host {urlsplit(self.url).hostname!r}" if self.url else f"command {self.command!r}"
        names = f"env {sorted(self.env)}, headers {sorted(self.headers)}"
        return f"<Entry {self.name!r} of {self.source} {str(self.path)!r}: {where}, {names}>"


def _variables(text: str) -> dict[str, str]:
    """The lines of a file of variables: NAME=VALUE, quotes taken off."""
    found: dict[str, str] = {}
    for one in text.splitlines():
        name, mark, value = one.strip().removeprefix("export ").partition("=")
        if mark and name.strip() and not name.startswith("#"):
            bare = value.strip()
            found[name.strip()] = bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'" else bare
    return found


# What hosts write.

_OURS: Final = frozenset(
    ("command", "cmd", "args", "env", "environment", "envs", "env_vars", "env_keys", "envFile", "cwd", "url", "httpUrl",
     "serverUrl", "uri", "headers", "http_headers", "env_http_headers", "bearer_token_env_var", "enabled", "disabled",
     "includeTools", "excludeTools", "enabled_tools", "disabled_tools", "available_tools", "timeout",
     "startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec", "request_timeout_ms", OWN)
)  # fmt: skip
# What has to be said or done here once more.
_TOLD: Final = {
    "trust": f'is not taken from another host; here it is "{OWN}": {{"trust": true}}',
    "oauth": "is not taken over; log in here, if the server asks for it",
}
# What says nothing to us, or what another host's user agreed to there and not here.
_THEIRS: Final = frozenset(
    ("type", "transport", "transportType", "name", "display_name", "description", "title", "icon", "version", "gallery",
     "dev", "bundled", "source", "autoApprove", "alwaysAllow", "required", "settings", "provider", "scopes", "auth",
     "requestOptions", *_TOLD)
)  # fmt: skip
_MILLISECONDS: Final = frozenset(("claude-code", "gemini", "opencode"))
_NOT_REACHED: Final = frozenset(("builtin", "platform", "frontend", "inline_python"))


def read_entry(
    written: str, given: Any, source: str, path: Path, *, level: Level, folder: Path
) -> tuple[Entry, list[str]]:
    """An entry of a file, and what is to be told about it; ValueError if it is none."""
    if not isinstance(given, dict):
        raise ValueError("must be an object")
    entry: dict[str, Any] = given
    if entry.get("type") in _NOT_REACHED:
        return Entry(name=cleaned(written), source=source, path=path), [f"is built into {source}, and left out"]
    command, args, env = _command(entry)
    url = entry.get("url") or entry.get("httpUrl") or entry.get("serverUrl") or entry.get("uri")
    if not isinstance(command, str) and not isinstance(url, str):
        raise ValueError("needs a command or a url")
    settings, notices = _settings(entry, source, level)
    notices += [f"{name} {text}" for name, text in _TOLD.items() if entry.get(name)]
    passed = _passed(entry.get("env_vars"), notices)
    unknown = {name: value for name, value in entry.items() if name not in _OURS and name not in _THEIRS}
    if unknown:
        notices.append(f"not understood: {', '.join(sorted(unknown))}")
    if (name := cleaned(written)) != written:
        notices.append(f"is called {name} here")
    made = Entry(
        name=name,
        source=source,
        path=path,
        command=command if isinstance(command, str) else None,
        args=args,
        env=env | {key: f"${{{key}}}" for key in _names(entry.get("env_keys")) if key not in env},
        passed=passed,
        env_file=_text("envFile", entry.get("envFile")),
        cwd=_text("cwd", entry.get("cwd")),
        url=url if isinstance(url, str) and not isinstance(command, str) else None,
        headers=_headers(entry),
        enabled=not entry.get("disabled", False) and entry.get("enabled", True) is not False,
        settings=settings,
        unknown=unknown,
        written=written,
        level=level,
        folder=folder,
    )
    return made, notices


def _command(entry: dict[str, Any]) -> tuple[Any, list[str], dict[str, str]]:
    command, args = entry.get("command") or entry.get("cmd"), entry.get("args") or []
    env = _texts("env", entry.get("env") or entry.get("environment") or entry.get("envs"))
    if isinstance(command, dict):  # as Zed wrote it
        inner: dict[str, Any] = command
        command, args = inner.get("path"), inner.get("args") or []
        env = _texts("env", inner.get("env")) | env
    if not isinstance(args, list):
        raise ValueError("args must be a list")
    if isinstance(command, list) and command:  # opencode gives the whole command as a list
        command, args = command[0], [*command[1:], *args]
    return command, [str(word) for word in args], env


def _headers(entry: dict[str, Any]) -> dict[str, str]:
    """Headers, those too that Codex takes from variables and Continue nests."""
    nested: Any = entry.get("requestOptions")
    inner = nested.get("headers") if isinstance(nested, dict) else None
    given = entry.get("headers") or entry.get("http_headers") or inner
    found = _texts("headers", given)
    found |= {name: f"${{{value}}}" for name, value in _texts("headers", entry.get("env_http_headers")).items()}
    if token := entry.get("bearer_token_env_var"):
        found["Authorization"] = f"Bearer ${{{token}}}"
    return found


def _settings(entry: dict[str, Any], source: str, level: Level) -> tuple[Settings, list[str]]:
    notices: list[str] = []
    given: Any = entry.get(OWN) or {}
    if not isinstance(given, dict):
        raise ValueError(f"{OWN} must be an object")
    own: dict[str, Any] = dict(given)
    own["tools"] = _tools(entry, own.get("tools"))
    own.setdefault("timeouts", _timeouts(entry, source))
    if level == "project" and own.pop("trust", None):
        notices.append("a project's file cannot call its own server trusted")
    try:
        return convert(own, Settings, what=OWN), notices
    except InvalidParams as exc:  # what the types, the times and the limits refuse
        raise ValueError(exc.message.removeprefix("Invalid ")) from None


def _tools(entry: dict[str, Any], own: Any) -> Any:
    """What is offered: as our own settings say, or else as another host's do; what either leaves out is left out."""
    if own is not None and not isinstance(own, dict):
        return own  # which is refused where the types are
    said: dict[str, Any] = {"deny": [], **(own or {})}
    denied = entry.get("excludeTools") or entry.get("disabled_tools") or []
    said["deny"] = [*said["deny"], *denied] if isinstance(said["deny"], list) and isinstance(denied, list) else denied
    named = [entry[name] for name in ("includeTools", "enabled_tools") if entry.get(name) is not None]
    named += [entry["available_tools"]] if entry.get("available_tools") else []  # goose writes [] and means all
    return ({"allow": named[0]} if named else {}) | said


def _passed(given: Any, notices: list[str]) -> list[str]:
    """The variables Codex hands on, each as its name or as an object that has one."""
    found: list[str] = []
    for one in given if isinstance(given, list) else []:
        name = one.get("name") if isinstance(one, dict) else one
        if isinstance(name, str):
            found.append(name)
        else:
            notices.append(f"env_vars: {clip(str(one))} names no variable")
    return found


def _timeouts(entry: dict[str, Any], source: str) -> dict[str, float]:
    """In seconds; Claude Code, Gemini and opencode count milliseconds."""
    found: dict[str, float] = {}
    for name, key, scale in (
        ("timeout", "call", 0.001 if source in _MILLISECONDS else 1.0),
        ("request_timeout_ms", "call", 0.001),
        ("tool_timeout_sec", "call", 1.0),
        ("startup_timeout_sec", "initialize", 1.0),
        ("startup_timeout_ms", "initialize", 0.001),
    ):
        value = entry.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            found[key] = value * scale
    return found


def _names(given: Any) -> list[str]:
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []


def _text(name: str, given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise ValueError(f"{name} must be a text")
    return given


def _texts(name: str, given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ValueError(f"{name} must be an object")
    return {str(key): _plain(value) for key, value in given.items() if value is not None}


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
