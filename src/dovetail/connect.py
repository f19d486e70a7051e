"""The joint between clients and transports: `Client` with its targets.

The client knows no transport and the transports know no client; they meet here.
"""

import functools
import hashlib
import os
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
from dovetail.protocol.around import Middleware
from dovetail.protocol.channel import Channel
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.probe import Era
from dovetail.version import VERSION
from dovetail.wire.lifecycle import ClientCapabilities, Implementation
from dovetail.wire.logs import LoggingLevel, LoggingMessageParams

Target: TypeAlias = "str | Path | Sequence[str] | Mapping[str, Any] | Any"

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
        limits, timeouts = limits or ClientLimits(), timeouts or Timeouts()
        way = _way(
            target,
            limits=limits,
            timeouts=timeouts,
            http={"headers": headers, "auth": auth, "ca_file": ca_file, "cert": cert, "verify": verify, "proxy": proxy},
            process={"env": env, "inherit": inherit_env, "cwd": cwd, "stderr": stderr},
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
    if callable(getattr(target, "link", None)):
        return _in_memory(target)
    if isinstance(target, Mapping):
        return _entry(target, limits, timeouts, http, process)
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        return _http(target, limits, timeouts, http)
    _refuse(http, {"verify": True}, "is only for a URL")
    if isinstance(target, str) and target.startswith(("unix:", "tcp:")):
        return _socket(target, limits, timeouts)
    if isinstance(target, str | Path):
        return _command(_script(target), limits, process)
    if isinstance(target, Sequence) and target and all(isinstance(word, str) for word in target):
        return _command(target, limits, process)
    raise TypeError(
        "a client's target is a URL, a command as a list of words, a script, a Server, 'unix:/path', "
        f"'tcp://host:port' or an entry of an mcp.json, not {target!r}"
    )


def _refuse(options: dict[str, Any], defaults: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value is not None and value != defaults.get(name):
            raise TypeError(f"{name}= {why}")


def _in_memory(server: Any) -> Way:
    from dovetail.transports.memory import Memory

    return Way(str(getattr(server, "name", "server")), None, lambda: Memory(server.link, server.start))


def _http(url: str, limits: ClientLimits, timeouts: Timeouts, options: dict[str, Any]) -> Way:
    from dovetail.transports.post import Post

    host = urlsplit(url).hostname
    if not host:
        raise ValueError(f"{url!r} is no URL of a server")
    options = _authorized(url, timeouts, options)
    return Way(host, url, lambda: Post(url, limits, timeouts, **options))


def _authorized(url: str, timeouts: Timeouts, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a channel, with whoever knows its credentials; a login outlives the channels it is used on."""
    auth = options["auth"]
    rest = {name: value for name, value in options.items() if name != "auth"}
    if auth is None:
        return rest
    if isinstance(auth, Bearer):
        return rest | {"headers": {**(rest["headers"] or {}), "Authorization": f"Bearer {auth.token}"}}
    from dovetail.login.driver import driver_for
    from dovetail.transports.door import fetcher

    plain = {name: value for name, value in rest.items() if name != "headers"}
    make = functools.partial(fetcher, **plain, connect_time=timeouts.connect)
    return rest | {"authorizer": driver_for(url, auth, make)}


def _socket(target: str, limits: ClientLimits, timeouts: Timeouts) -> Way:
    from dovetail.transports.callers import SocketCaller

    scheme, _, rest = target.partition(":")
    if scheme == "unix":
        path = rest.removeprefix("//")
        return Way(path, target, lambda: SocketCaller(limits.answer, path=path, leaving=timeouts.close))
    parts = urlsplit(target)
    if parts.port is None:
        raise ValueError(f"{target!r} must be tcp://host:port")
    host, port = parts.hostname or "127.0.0.1", parts.port
    return Way(target, target, lambda: SocketCaller(limits.answer, host=host, port=port, leaving=timeouts.close))


def _command(command: Sequence[str], limits: ClientLimits, options: dict[str, Any]) -> Way:
    from dovetail.transports.callers import CommandCaller

    words = [*command]
    shown = shlex.join(words)
    key = hashlib.sha256("\0".join([*words, str(options["cwd"])]).encode()).hexdigest()
    return Way(
        shown if len(shown) <= 60 else shown[:59] + "…", key, lambda: CommandCaller(limits.answer, words, **options)
    )


def _script(target: str | Path) -> list[str]:
    path = Path(target)
    interpreter = _INTERPRETERS.get(path.suffix)
    if interpreter is None:
        raise ValueError(
            f"{str(target)!r} is neither a URL nor a script; give a command as a list of words: "
            f"{shlex.split(str(target))!r}"
        )
    if not path.is_file():
        raise FileNotFoundError(f"there is no script {str(target)!r}")
    return [*interpreter, str(path)]


def _entry(
    entry: Mapping[str, Any], limits: ClientLimits, timeouts: Timeouts, http: dict[str, Any], process: dict[str, Any]
) -> Way:
    """One server of an mcp.json, or a whole one that holds only one."""
    servers = entry.get("mcpServers") or entry.get("servers")
    if isinstance(servers, Mapping):
        if len(servers) != 1:
            raise ValueError(f"the configuration names {len(servers)} servers; give one of its entries")
        return _entry(next(iter(servers.values())), limits, timeouts, http, process)
    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    if isinstance(url, str):
        headers = {**(entry.get("headers") or {}), **(http["headers"] or {})}
        return _http(url, limits, timeouts, http | {"headers": headers or None})
    if isinstance(entry.get("command"), str):
        env = {**(entry.get("env") or {}), **(process["env"] or {})}
        options = process | {"env": env or None, "cwd": process["cwd"] or entry.get("cwd")}
        return _command([entry["command"], *(entry.get("args") or ())], limits, options)
    raise ValueError("an entry of an mcp.json needs a command or a url")


class SyncClient(sync.SyncClient):
    """The caller's side of one server, for code that does not await; target and options are those of `Client`."""

    def __init__(self, target: Target, **options: Any) -> None:
        super().__init__(Client(target, **options))
