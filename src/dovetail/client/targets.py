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

from dovetail.client import client as caller
from dovetail.client import sync_client
from dovetail.client.handlers import ElicitationHandler, RootsProvider, SamplingHandler
from dovetail.client.option_checks import (
    check_durations,
    check_string_mapping,
    check_type,
    describe_value,
    suggest_match,
)
from dovetail.error_context import add_context, clip
from dovetail.errors import ScriptNotFound
from dovetail.oauth.login.login_settings import BearerAuth
from dovetail.protocol.client_transport import ClientTransport, InProcessServer
from dovetail.protocol.http_checks import LOOPBACK
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.middleware import Middleware
from dovetail.protocol.negotiation import Era
from dovetail.version import VERSION
from dovetail.wire.lifecycle import ClientCapabilities, Implementation
from dovetail.wire.logs import LoggingLevel, LoggingMessageNotificationParams

Target: TypeAlias = "str | Path | Sequence[str] | Mapping[str, Any] | Any"

log = logging.getLogger("dovetail")

_DEFAULT_OPTIONS = {"verify": True, "inherit_env": "minimal"}
_GENERIC_SCRIPT_NAMES = ("index", "main", "__main__", "cli")
_BUILD_FOLDERS = ("dist", "build", "src", "lib", "bin", "out")
_HEADER_NAME_PATTERN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ADDRESS_PATTERN = re.compile(
    r"https?:|[a-zA-Z][a-zA-Z0-9+.-]*://|(localhost|[\w-]+(\.[\w-]+)+|\[[0-9a-fA-F:]+\]):\d+(/|$)"
)
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
        protocol_version: str | Era | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        url_elicitation_handler: ElicitationHandler | None = None,
        sampling_handler: SamplingHandler | None = None,
        roots: RootsProvider | None = None,
        log_handler: Callable[[LoggingMessageNotificationParams], Any] | None = None,
        log_level: LoggingLevel | None = None,
        client_info: Implementation | None = None,
        capabilities: ClientCapabilities | None = None,
        timeout: float | Timeouts | None = None,
        limits: ClientLimits | None = None,
        cache: bool = True,
        validate_results: bool = True,
        middleware: Sequence[Middleware] = (),
        recording: str | Path | None = None,
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
        check_type("name", name, str, "a text")
        check_type("limits", limits, ClientLimits, "a ClientLimits(...)")
        check_type("recording", recording, (str, Path), "the path of a file")
        limits, timeouts = limits or ClientLimits(), _build_timeouts(timeout)
        resolved = resolve_target(
            target,
            limits=limits,
            timeouts=timeouts,
            http={"headers": headers, "auth": auth, "ca_file": ca_file, "cert": cert, "verify": verify, "proxy": proxy},
            process={"env": env, "inherit_env": inherit_env, "cwd": cwd, "stderr": stderr},
        )
        super().__init__(
            resolved.create_transport,
            name=name or resolved.name,
            key=resolved.key,
            client_info=client_info or Implementation(name="dovetail", version=VERSION),
            protocol_version=protocol_version,
            elicitation_handler=elicitation_handler,
            url_elicitation_handler=url_elicitation_handler,
            sampling_handler=sampling_handler,
            roots=roots,
            log_handler=log_handler,
            log_level=log_level,
            capabilities=capabilities,
            timeouts=timeouts,
            limits=limits,
            cache=cache,
            validate_results=validate_results,
            middleware=middleware,
        )
        recording_path = recording or os.environ.get("DOVETAIL_TRACE")
        if recording_path:
            from dovetail.recording.trace import RecordingWriter

            self.taps.append(RecordingWriter(recording_path, self.name).record)


def _build_timeouts(timeout: float | Timeouts | None) -> Timeouts:
    check_type("timeout", timeout, (int, float, Timeouts), "a number of seconds or a Timeouts(...)")
    if timeout is None or isinstance(timeout, Timeouts):
        return timeout or Timeouts()
    check_durations(timeout=timeout)
    return Timeouts(call=timeout, request=timeout, total=max(timeout, Timeouts().total))


class ResolvedTarget:
    """How a server is reached: what it is called, what tells it from others, and how to make a channel to it."""

    def __init__(self, name: str, key: str | None, create_transport: Callable[[], ClientTransport]) -> None:
        self.name = name
        self.key = key
        self.create_transport = create_transport


def resolve_target(
    target: Target, *, limits: ClientLimits, timeouts: Timeouts, http: dict[str, Any], process: dict[str, Any]
) -> ResolvedTarget:
    if isinstance(target, ResolvedTarget):
        return target
    if isinstance(target, Mapping):
        return _resolve_entry(target, limits, timeouts, http, process)
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        _reject_options("a command", process)
        return _resolve_url(target, limits, timeouts, http)
    _reject_options("a URL", http)
    if isinstance(target, str) and target.startswith(("unix:", "tcp:")):
        _reject_options("a command", process)
        return _resolve_socket(target, limits, timeouts)
    if isinstance(target, str | Path):
        return _resolve_command(_build_script_command(target), limits, process)
    if isinstance(target, Sequence) and target and all(isinstance(argument, str) for argument in target):
        return _resolve_command(target, limits, process)
    _reject_options("a command", process)
    if isinstance(target, InProcessServer) and not isinstance(target, type):
        return _resolve_server(target)
    raise TypeError(
        "a client's target is a URL, a command as a list of words, a script, a Server, 'unix:/path', "
        f"'tcp://host:port' or an entry of an mcp.json, not {target!r}"
    )


def _reject_options(target_kind: str, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None and value != _DEFAULT_OPTIONS.get(name):
            raise TypeError(f"{name}= is only for {target_kind}")


def _resolve_server(server: InProcessServer) -> ResolvedTarget:
    from dovetail.transports.memory import MemoryClient

    return ResolvedTarget(server.name, None, lambda: MemoryClient(server.open_connection, server.start, server.stop))


def _resolve_url(url: str, limits: ClientLimits, timeouts: Timeouts, options: dict[str, Any]) -> ResolvedTarget:
    from dovetail.transports.http_client.http_client import parse_url
    from dovetail.transports.http_client.streamable_http import StreamableHTTPClient

    try:
        parse_url(url)
    except ValueError as exc:
        raise ValueError(f"no client can be made for this URL: {exc}") from None
    _check_http_options(options)
    options = _add_authorizer(url, timeouts, options)
    parts = urlsplit(url)
    name = _truncate(parts.netloc + parts.path.rstrip("/"))
    return ResolvedTarget(name, url, lambda: StreamableHTTPClient(url, limits, timeouts, **options))


def _check_http_options(options: dict[str, Any]) -> None:
    from dovetail.transports.http_client.http_client import RESERVED_HEADERS
    from dovetail.transports.http_client.remote_server import check_certificate_files

    check_string_mapping("headers", options["headers"])
    for name, value in (options["headers"] or {}).items():
        if not _HEADER_NAME_PATTERN.fullmatch(name) or not value.isprintable():
            raise ValueError(f"headers= holds {clip(name)!r}, which cannot be sent: a header is one line of text")
        if name.lower().encode() in RESERVED_HEADERS:
            raise ValueError(f"headers= holds {name!r}, which the client writes itself")
    for option in ("ca_file", "cert"):
        paths = options[option]
        for path in paths if isinstance(paths, tuple) else (paths,):
            check_type(option, path, (str, Path), "the path of a file")
    check_certificate_files(options["ca_file"], options["cert"])
    check_type("verify", options["verify"], bool, "True or False; a certificate authority of your own is ca_file=")
    check_type("proxy", options["proxy"], str, "a URL like http://proxy.example:3128")


def _add_authorizer(url: str, timeouts: Timeouts, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a channel, with whoever knows its credentials; a login outlives the channels it is used on."""
    auth = options["auth"]
    other_options = {name: value for name, value in options.items() if name != "auth"}
    if auth is None:
        return other_options
    if any(name.lower() == "authorization" for name in other_options["headers"] or ()):
        raise ValueError("headers= and auth= both say who is calling: leave Authorization out of headers=, or auth=")
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        log.warning("the credentials for %s travel in the clear, where others can read and use them", parts.netloc)
    if isinstance(auth, BearerAuth):
        return other_options | {
            "headers": {**(other_options["headers"] or {}), "Authorization": f"Bearer {auth.token}"}
        }
    from dovetail.auth.authorizer import create_authorizer
    from dovetail.transports.http_client.remote_server import create_http_client

    client_options = {name: value for name, value in other_options.items() if name != "headers"}
    create_client = functools.partial(create_http_client, **client_options, connect_timeout=timeouts.connect)
    if client_options["verify"] and client_options["cert"] is None:
        return other_options | {"authorizer": create_authorizer(url, auth, create_client)}
    # What is said of the server's certificate, or shown to it, is not for whomever it names.
    create_verifying_client = functools.partial(
        create_http_client, **client_options | {"verify": True, "cert": None}, connect_timeout=timeouts.connect
    )
    return other_options | {"authorizer": create_authorizer(url, auth, create_verifying_client, create_client)}


def _resolve_socket(target: str, limits: ClientLimits, timeouts: Timeouts) -> ResolvedTarget:
    from dovetail.transports.socket_client import SocketClient

    create_client = functools.partial(
        SocketClient, limits.max_response_bytes, connect_timeout=timeouts.connect, close_timeout=timeouts.close
    )
    scheme, _, rest = target.partition(":")
    if scheme == "unix":
        path = rest.removeprefix("//")
        return ResolvedTarget(path, target, lambda: create_client(path=path))
    parts = urlsplit(target)
    if parts.port is None:
        raise ValueError(f"{target!r} must be tcp://host:port")
    host, port = parts.hostname or "127.0.0.1", parts.port
    return ResolvedTarget(target, target, lambda: create_client(host=host, port=port))


def _resolve_command(command: Sequence[str], limits: ClientLimits, options: dict[str, Any]) -> ResolvedTarget:
    from dovetail.transports.stdio_client import StdioClient

    argv = [*command]
    _check_process_options(options)
    options = {"inherit" if name == "inherit_env" else name: value for name, value in options.items()}
    key = hashlib.sha256("\0".join([*argv, str(options["cwd"])]).encode()).hexdigest()
    return ResolvedTarget(_shorten_command(argv), key, lambda: StdioClient(limits.max_response_bytes, argv, **options))


def _check_process_options(options: dict[str, Any]) -> None:
    check_string_mapping("env", options["env"])
    check_type("cwd", options["cwd"], (str, Path), "the path of a folder")
    inherit, stderr = options["inherit_env"], options["stderr"]
    if inherit not in ("minimal", "all") and (
        isinstance(inherit, str | bytes)
        or not isinstance(inherit, Sequence)
        or not all(isinstance(name, str) for name in inherit)
    ):
        raise TypeError(f"inherit_env= must be 'minimal', 'all' or a list of names, not {describe_value(inherit)}")
    if stderr not in (None, "inherit") and not callable(stderr) and not hasattr(stderr, "write"):
        raise TypeError(f"stderr= must be a function, a text stream or 'inherit', not {describe_value(stderr)}")


def _shorten_command(argv: Sequence[str]) -> str:
    """A command as a reader recognises it: without the folders, and without what only runs a script."""
    parts = [Path(part).name if index == 0 or _is_path(part) else part for index, part in enumerate(argv)]
    for index, part in enumerate(parts[1:], 1):
        if Path(part).suffix in _INTERPRETERS:
            return _truncate(shlex.join([_get_script_name(argv[index]), *parts[index + 1 :]]))
        if not part.startswith("-") or part == "-c":
            break
    return _truncate(shlex.join(parts))


def _get_script_name(argument: str) -> str:
    """Its file, and if every package has one of that name, whose it is."""
    path = Path(argument)
    if path.stem not in _GENERIC_SCRIPT_NAMES:
        return path.name
    owner = next((part for part in reversed(path.parent.parts) if part not in _BUILD_FOLDERS), "")
    return f"{owner}/{path.name}" if owner.strip("/\\.") else path.name


def _is_path(argument: str) -> bool:
    return argument.startswith(("/", "./", "../", "~/", ".\\")) or os.path.isabs(argument)


def _truncate(name: str) -> str:
    text = " ".join(name.split())
    return text if len(text) <= 60 else text[:59] + "…"


def _build_script_command(target: str | Path) -> list[str]:
    path, text = Path(target), str(target).strip()
    if not text or path.is_dir():
        raise ValueError(f"{clip(text)!r} is a folder, not a server" if text else "the target is empty")
    if path.suffix == ".json":
        raise ValueError(
            f"{clip(text)!r} may list several servers: read it, and give one of its entries, "
            f"json.load(open({clip(text)!r}))['mcpServers'][name]"
        )
    interpreter = _INTERPRETERS.get(path.suffix)
    if _ADDRESS_PATTERN.match(text):
        raise ValueError(
            f"{clip(text)!r} is no URL; a server on the web is at http:// or https://: {_guess_url(text)!r}"
        )
    if interpreter is None:
        raise ValueError(
            f"{clip(text)!r} is neither a URL nor a script; give a command as a list: {_split_command(text)!r}"
        )
    if not path.is_file():
        siblings = [sibling.name for sibling in path.parent.glob("*" + path.suffix)] if path.parent.is_dir() else []
        raise add_context(
            ScriptNotFound(f"there is no script {text!r}"),
            hint=f"it was looked for in {path.parent.absolute()}{suggest_match(path.name, siblings)}",
        )
    return [*interpreter, str(path)]


def _guess_url(text: str) -> str:
    scheme, colon, rest = text.partition(":/")
    return f"{'https' if scheme == 'https' else 'http'}://{rest.lstrip('/')}" if colon else f"http://{text}"


def _split_command(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote without its sister
        return text.split()


def _resolve_entry(
    entry: Mapping[str, Any], limits: ClientLimits, timeouts: Timeouts, http: dict[str, Any], process: dict[str, Any]
) -> ResolvedTarget:
    """One server of an mcp.json, or a whole one that holds only one."""
    servers = entry.get("mcpServers") or entry.get("servers")
    if isinstance(servers, Mapping):
        if len(servers) != 1:
            raise ValueError(f"the configuration names {len(servers)} servers; give one of its entries")
        ((name, server_entry),) = servers.items()
        if not isinstance(server_entry, Mapping):
            raise ValueError(
                f"the entry {clip(str(name))!r} of the mcp.json is {describe_value(server_entry)}, not an object"
            )
        resolved = _resolve_entry(server_entry, limits, timeouts, http, process)
        return ResolvedTarget(str(name), resolved.key, resolved.create_transport)
    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    if isinstance(url, str):
        _reject_options("a command", process)
        check_string_mapping("headers", entry.get("headers"))
        check_string_mapping("headers", http["headers"])
        headers = {**(entry.get("headers") or {}), **(http["headers"] or {})}
        return _resolve_url(url, limits, timeouts, http | {"headers": headers or None})
    if isinstance(entry.get("command"), str):
        _reject_options("a URL", http)
        check_string_mapping("env", entry.get("env"))
        check_string_mapping("env", process["env"])
        check_type("args", entry.get("args"), list, "a list of texts")
        env = {**(entry.get("env") or {}), **(process["env"] or {})}
        options = process | {"env": env or None, "cwd": process["cwd"] or entry.get("cwd")}
        return _resolve_command([entry["command"], *map(str, entry.get("args") or ())], limits, options)
    keys = ", ".join(clip(str(key)) for key in entry) or "nothing"
    raise ValueError(f"an entry of an mcp.json needs a command or a url; this one has {keys}")


class SyncClient(sync_client.SyncClient):
    """The caller's side of one server, for code that does not await; all else is as with `Client`."""

    def __init__(self, target: Target, **options: Any) -> None:
        super().__init__(Client(target, **options))
