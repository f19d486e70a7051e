"""The joint between clients and transports: `Client` with its targets.

The client knows no transport and the transports know no client; they meet here.
"""

import functools
import hashlib
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from dovetail.auth.settings import Bearer
from dovetail.client import client as caller
from dovetail.client import sync
from dovetail.client.answering import ElicitHandler, RootsGiven, SampleHandler
from dovetail.client.options import expect, expect_texts, nearest, shown
from dovetail.errors import ScriptNotFound, clip
from dovetail.protocol.around import Middleware
from dovetail.protocol.channel import Channel
from dovetail.protocol.http import LOOPBACK
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.probe import Era
from dovetail.version import VERSION
from dovetail.wire.lifecycle import ClientCapabilities, Implementation
from dovetail.wire.logs import LoggingLevel, LoggingMessageParams

Target: TypeAlias = "str | Path | Sequence[str] | Mapping[str, Any] | Any"

log = logging.getLogger("dovetail")

_DEFAULTS = {"verify": True, "inherit_env": "minimal"}
_EVERYWHERE = ("index", "main", "__main__", "cli")
_BUILT = ("dist", "build", "src", "lib", "bin", "out")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ADDRESS = re.compile(r"https?:|[a-zA-Z][a-zA-Z0-9+.-]*://|(localhost|[\w-]+(\.[\w-]+)+|\[[0-9a-fA-F:]+\]):\d+(/|$)")
_INTERPRETERS = {".py": [sys.executable, "-u"], ".js": ["node"], ".mjs": ["node"], ".ts": ["npx", "tsx"]}


class Client(caller.Client):
    """The caller's side of one server.

    target: a URL; a command as a list; a script; a Server object; "unix:/path" or "tcp://host:port"; one entry of an
    mcp.json. `name` is what the server is called in errors and logs.
    """

    def __init__(
        self,
        target: Target,
        *,
        name: str | None = None,
        revision: str | None = None,
        era: Era | None = None,
        elicit: ElicitHandler | None = None,
        elicit_url: ElicitHandler | None = None,
        sample: SampleHandler | None = None,
        roots: RootsGiven | None = None,
        on_log: Callable[[LoggingMessageParams], Any] | None = None,
        log_level: LoggingLevel | None = None,
        client: Implementation | None = None,
        capabilities: ClientCapabilities | None = None,
        timeouts: Timeouts | None = None,
        limits: ClientLimits | None = None,
        cache: bool = True,
        check_results: bool = True,
        middleware: Sequence[Middleware] = (),
        trace: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        ca_file: str | Path | None = None,
        cert: str | Path | tuple[str | Path, str | Path] | None = None,
        verify: bool = True,
        proxy: str | None = None,
        env: Mapping[str, str] | None = None,
        inherit_env: Literal["minimal", "all"] | Sequence[str] = "minimal",
        cwd: str | Path | None = None,
        stderr: Any = None,
    ) -> None:
        expect("name", name, str, "a text")
        expect("timeouts", timeouts, Timeouts, "a Timeouts(...): seconds for each kind of waiting")
        expect("limits", limits, ClientLimits, "a ClientLimits(...)")
        expect("trace", trace, (str, Path), "the path of a file")
        limits, timeouts = limits or ClientLimits(), timeouts or Timeouts()
        way = _way(
            target,
            limits=limits,
            timeouts=timeouts,
            http={"headers": headers, "auth": auth, "ca_file": ca_file, "cert": cert, "verify": verify, "proxy": proxy},
            process={"env": env, "inherit_env": inherit_env, "cwd": cwd, "stderr": stderr},
        )
        super().__init__(
            way.dial,
            name=name or way.name,
            key=way.key,
            client=client or Implementation(name="dovetail", version=VERSION),
            revision=revision,
            era=era,
            elicit=elicit,
            elicit_url=elicit_url,
            sample=sample,
            roots=roots,
            on_log=on_log,
            log_level=log_level,
            capabilities=capabilities,
            timeouts=timeouts,
            limits=limits,
            cache=cache,
            check_results=check_results,
            middleware=middleware,
        )
        file = trace or os.environ.get("DOVETAIL_TRACE")
        if file:
            from dovetail.transports.tracing import Trace

            self.taps.append(Trace(file, self.name).tap)


class Way:
    """How a server is reached: what it is called, what tells it from others, and how to make a channel to it."""

    def __init__(self, name: str, key: str | None, dial: Callable[[], Channel]) -> None:
        self.name = name
        self.key = key
        self.dial = dial


def _way(
    target: Target, *, limits: ClientLimits, timeouts: Timeouts, http: dict[str, Any], process: dict[str, Any]
) -> Way:
    if isinstance(target, Way):
        return target
    if isinstance(target, Mapping):
        return _entry(target, limits, timeouts, http, process)
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        _only_for("a command", process)
        return _http(target, limits, timeouts, http)
    _only_for("a URL", http)
    if isinstance(target, str) and target.startswith(("unix:", "tcp:")):
        _only_for("a command", process)
        return _socket(target, limits, timeouts)
    if isinstance(target, str | Path):
        return _command(_script(target), limits, process)
    if isinstance(target, Sequence) and target and all(isinstance(word, str) for word in target):
        return _command(target, limits, process)
    _only_for("a command", process)
    if callable(getattr(target, "link", None)) and not isinstance(target, type):
        return _in_memory(target)
    raise TypeError(
        "a client's target is a URL, a command as a list of words, a script, a Server, 'unix:/path', "
        f"'tcp://host:port' or an entry of an mcp.json, not {target!r}"
    )


def _only_for(what: str, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None and value != _DEFAULTS.get(name):
            raise TypeError(f"{name}= is only for {what}")


def _in_memory(server: Any) -> Way:
    from dovetail.transports.memory import Memory

    return Way(str(getattr(server, "name", "server")), None, lambda: Memory(server.link, server.start, server.stop))


def _http(url: str, limits: ClientLimits, timeouts: Timeouts, options: dict[str, Any]) -> Way:
    from dovetail.transports.fetch import parse_url
    from dovetail.transports.post import Post

    try:
        parse_url(url)
    except ValueError as exc:
        raise ValueError(f"no client can be made for this URL: {exc}") from None
    _check_http(options)
    options = _authorized(url, timeouts, options)
    parts = urlsplit(url)
    name = _cut(parts.netloc + parts.path.rstrip("/"))
    return Way(name, url, lambda: Post(url, limits, timeouts, **options))


def _check_http(options: dict[str, Any]) -> None:
    from dovetail.transports.door import check_files
    from dovetail.transports.fetch import OWN_HEADERS

    expect_texts("headers", options["headers"])
    for name, value in (options["headers"] or {}).items():
        if not _HEADER.fullmatch(name) or not value.isprintable():
            raise ValueError(f"headers= holds {clip(name)!r}, which cannot be sent: a header is one line of text")
        if name.lower().encode() in OWN_HEADERS:
            raise ValueError(f"headers= holds {name!r}, which the client writes itself")
    for option in ("ca_file", "cert"):
        given = options[option]
        for file in given if isinstance(given, tuple) else (given,):
            expect(option, file, (str, Path), "the path of a file")
    check_files(options["ca_file"], options["cert"])
    expect("verify", options["verify"], bool, "True or False; a certificate authority of your own is ca_file=")
    expect("proxy", options["proxy"], str, "a URL like http://proxy.example:3128")


def _authorized(url: str, timeouts: Timeouts, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a channel, with whoever knows its credentials; a login outlives the channels it is used on."""
    auth = options["auth"]
    rest = {name: value for name, value in options.items() if name != "auth"}
    if auth is None:
        return rest
    if any(name.lower() == "authorization" for name in rest["headers"] or ()):
        raise ValueError("headers= and auth= both say who is calling: leave Authorization out of headers=, or auth=")
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        log.warning("the credentials for %s travel in the clear, where others can read and use them", parts.netloc)
    if isinstance(auth, Bearer):
        return rest | {"headers": {**(rest["headers"] or {}), "Authorization": f"Bearer {auth.token}"}}
    from dovetail.login.driver import driver_for
    from dovetail.transports.door import fetcher

    plain = {name: value for name, value in rest.items() if name != "headers"}
    own = functools.partial(fetcher, **plain, connect_time=timeouts.connect)
    if plain["verify"] and plain["cert"] is None:
        return rest | {"authorizer": driver_for(url, auth, own)}
    # What is said of the server's certificate, or shown to it, is not for whomever it names.
    make = functools.partial(fetcher, **plain | {"verify": True, "cert": None}, connect_time=timeouts.connect)
    return rest | {"authorizer": driver_for(url, auth, make, own)}


def _socket(target: str, limits: ClientLimits, timeouts: Timeouts) -> Way:
    from dovetail.transports.callers import SocketCaller

    make = functools.partial(SocketCaller, limits.answer, reaching=timeouts.connect, leaving=timeouts.close)
    scheme, _, rest = target.partition(":")
    if scheme == "unix":
        path = rest.removeprefix("//")
        return Way(path, target, lambda: make(path=path))
    parts = urlsplit(target)
    if parts.port is None:
        raise ValueError(f"{target!r} must be tcp://host:port")
    host, port = parts.hostname or "127.0.0.1", parts.port
    return Way(target, target, lambda: make(host=host, port=port))


def _command(command: Sequence[str], limits: ClientLimits, options: dict[str, Any]) -> Way:
    from dovetail.transports.callers import CommandCaller

    words = [*command]
    _check_process(options)
    options = {"inherit" if name == "inherit_env" else name: value for name, value in options.items()}
    key = hashlib.sha256("\0".join([*words, str(options["cwd"])]).encode()).hexdigest()
    return Way(_short(words), key, lambda: CommandCaller(limits.answer, words, **options))


def _check_process(options: dict[str, Any]) -> None:
    expect_texts("env", options["env"])
    expect("cwd", options["cwd"], (str, Path), "the path of a folder")
    inherit, stderr = options["inherit_env"], options["stderr"]
    if inherit not in ("minimal", "all") and (
        isinstance(inherit, str | bytes)
        or not isinstance(inherit, Sequence)
        or not all(isinstance(name, str) for name in inherit)
    ):
        raise TypeError(f"inherit_env= must be 'minimal', 'all' or a list of names, not {shown(inherit)}")
    if stderr not in (None, "inherit") and not callable(stderr) and not hasattr(stderr, "write"):
        raise TypeError(f"stderr= must be a function, a text stream or 'inherit', not {shown(stderr)}")


def _short(words: Sequence[str]) -> str:
    """A command as a reader recognises it: without the folders, and without what only runs a script."""
    shown = [Path(word).name if number == 0 or _is_path(word) else word for number, word in enumerate(words)]
    for number, word in enumerate(shown[1:], 1):
        if Path(word).suffix in _INTERPRETERS:
            return _cut(shlex.join([_script_name(words[number]), *shown[number + 1 :]]))
        if not word.startswith("-") or word == "-c":
            break
    return _cut(shlex.join(shown))


def _script_name(word: str) -> str:
    """Its file, and if every package has one of that name, whose it is."""
    path = Path(word)
    if path.stem not in _EVERYWHERE:
        return path.name
    owner = next((one for one in reversed(path.parent.parts) if one not in _BUILT), "")
    return f"{owner}/{path.name}" if owner.strip("/\\.") else path.name


def _is_path(word: str) -> bool:
    return word.startswith(("/", "./", "../", "~/", ".\\")) or os.path.isabs(word)


def _cut(name: str) -> str:
    line = " ".join(name.split())
    return line if len(line) <= 60 else line[:59] + "…"


def _script(target: str | Path) -> list[str]:
    path, text = Path(target), str(target).strip()
    if not text or path.is_dir():
        raise ValueError(f"{clip(text)!r} is a folder, not a server" if text else "the target is empty")
    if path.suffix == ".json":
        raise ValueError(
            f"{clip(text)!r} may list several servers: read it, and give one of its entries, "
            f"json.load(open({clip(text)!r}))['mcpServers'][name]"
        )
    interpreter = _INTERPRETERS.get(path.suffix)
    if _ADDRESS.match(text):
        raise ValueError(f"{clip(text)!r} is no URL; a server on the web is at http:// or https://: {_as_url(text)!r}")
    if interpreter is None:
        raise ValueError(f"{clip(text)!r} is neither a URL nor a script; give a command as a list: {_as_list(text)!r}")
    if not path.is_file():
        beside = [one.name for one in path.parent.glob("*" + path.suffix)] if path.parent.is_dir() else []
        raise ScriptNotFound(f"there is no script {text!r}").at(
            hint=f"it was looked for in {path.parent.absolute()}{nearest(path.name, beside)}"
        )
    return [*interpreter, str(path)]


def _as_url(text: str) -> str:
    scheme, colon, rest = text.partition(":/")
    return f"{'https' if scheme == 'https' else 'http'}://{rest.lstrip('/')}" if colon else f"http://{text}"


def _as_list(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote without its sister
        return text.split()


def _entry(
    entry: Mapping[str, Any], limits: ClientLimits, timeouts: Timeouts, http: dict[str, Any], process: dict[str, Any]
) -> Way:
    """One server of an mcp.json, or a whole one that holds only one."""
    servers = entry.get("mcpServers") or entry.get("servers")
    if isinstance(servers, Mapping):
        if len(servers) != 1:
            raise ValueError(f"the configuration names {len(servers)} servers; give one of its entries")
        ((name, only),) = servers.items()
        if not isinstance(only, Mapping):
            raise ValueError(f"the entry {clip(str(name))!r} of the mcp.json is {shown(only)}, not an object")
        way = _entry(only, limits, timeouts, http, process)
        return Way(str(name), way.key, way.dial)
    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    if isinstance(url, str):
        _only_for("a command", process)
        expect_texts("headers", entry.get("headers"))
        expect_texts("headers", http["headers"])
        headers = {**(entry.get("headers") or {}), **(http["headers"] or {})}
        return _http(url, limits, timeouts, http | {"headers": headers or None})
    if isinstance(entry.get("command"), str):
        _only_for("a URL", http)
        expect_texts("env", entry.get("env"))
        expect_texts("env", process["env"])
        expect("args", entry.get("args"), list, "a list of texts")
        env = {**(entry.get("env") or {}), **(process["env"] or {})}
        options = process | {"env": env or None, "cwd": process["cwd"] or entry.get("cwd")}
        return _command([entry["command"], *map(str, entry.get("args") or ())], limits, options)
    has = ", ".join(clip(str(key)) for key in entry) or "nothing"
    raise ValueError(f"an entry of an mcp.json needs a command or a url; this one has {has}")


class SyncClient(sync.SyncClient):
    """The caller's side of one server, for code that does not await; all else is as with `Client`."""

    def __init__(self, target: Target, **options: Any) -> None:
        super().__init__(Client(target, **options))
