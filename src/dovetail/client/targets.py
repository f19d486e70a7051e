"""Targets, which are the servers that a client can connect to, and the transports for them."""

import functools
import hashlib
import os
import re
import shlex
import ssl
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard
from urllib.parse import urlsplit

from dovetail.client import attachments
from dovetail.client.config_entry import read_entry, select_entry
from dovetail.client.option_checks import check_callable, check_string_mapping
from dovetail.error_context import add_context, check_type, clip, describe_value, find_similar, suggest_match
from dovetail.errors import ScriptNotFound
from dovetail.log import log
from dovetail.protocol.headers import FIELD_NAME
from dovetail.protocol.http_checks import is_on_this_machine
from dovetail.protocol.interfaces.client_transport import ClientTransport, InProcessServer, OpenCustomConnection
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.wire.base import JSONValue

if TYPE_CHECKING:
    from dovetail.oauth.login.login_settings import ClientAuth

_GENERIC_SCRIPT_NAMES = ("index", "main", "__main__", "cli")
_BUILD_FOLDERS = ("dist", "build", "src", "lib", "bin", "out")
_ADDRESS_PATTERN = re.compile(
    r"https?:|[a-zA-Z][a-zA-Z0-9+.-]*://|(localhost|[\w-]+(\.[\w-]+)*|\[[0-9a-fA-F:]+\]):\d+(/|$)|localhost(/|$)"
)
_INTERPRETERS = {".py": [sys.executable, "-u"], ".js": ["node"], ".mjs": ["node"], ".ts": ["npx", "tsx"]}
_SHOWN_OPTIONS = ("-c", "-m")  # interpreter options that appear in the server name
_FLAGS = ("-y", "--yes", "-u", "-i", "-it", "--rm", "-q", "--quiet", "--")  # launcher options without a value


class HTTPTarget:
    """An HTTP server at a URL, with options for the connection.

    Args:
        url: The URL of the server.
        headers: HTTP headers for every request.
        auth: A login, or a bearer token as a string.
        verify: If False, any certificate is accepted. Pass a path to use the file of a certificate authority. Pass an
            `ssl.SSLContext` to use it unchanged for this server. It is not used for an authorization server.
        cert: The client's certificate: a file, or a tuple of the certificate file and the key file.
        proxy: The URL of a proxy. By default, HTTPS_PROXY and NO_PROXY apply.
        cookies: If False, the client ignores the cookies of the server. By default, it returns them to the same origin
            until the connection ends, because balancers may need them. A Cookie header in `headers` replaces them.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: "ClientAuth | None" = None,
        verify: bool | str | Path | ssl.SSLContext = True,
        cert: str | Path | tuple[str | Path, str | Path] | None = None,
        proxy: str | None = None,
        cookies: bool = True,
    ) -> None:
        from dovetail.transports.http_client.http_client import parse_url

        try:
            parse_url(url)
        except ValueError as exc:
            # `from None` hides the original error, because its text may contain a password from the URL.
            raise ValueError(f"invalid URL: {exc}") from None
        _check_headers(headers)
        _check_certificates(verify, cert)
        check_type("proxy=", proxy, str, "a URL like http://proxy.example:3128")
        check_type("cookies=", cookies, bool, "True or False")
        self.url = url
        self.headers = dict(headers or {})
        self.auth = auth
        self.verify = verify
        self.cert = cert
        self.proxy = proxy
        self.cookies = cookies


class CommandTarget:
    """A server that the client starts as a process, with options for the process.

    Args:
        command: A list of arguments, a script, or a command line as a string.
        env: Environment variables to set.
        inherit_env: The environment variables of this process to pass on. "minimal" passes only variables that programs
            need to run. "all" passes all variables. A list of names or patterns, such as `["AWS_*"]`, adds matching
            variables to "minimal".
        cwd: The working directory.
        stderr: A function that is called with each line that the server writes to stderr.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        inherit_env: Literal["minimal", "all"] | Sequence[str] = "minimal",
        cwd: str | Path | None = None,
        stderr: Callable[[str], None] | None = None,
    ) -> None:
        _check_command(command)
        argv = _split_command(command) if isinstance(command, str) else [*command]
        if not argv:
            raise ValueError("the command is empty")
        if isinstance(command, str) and len(argv) == 1 and Path(argv[0]).suffix in _INTERPRETERS:
            argv = _build_script_command(argv[0])
        check_string_mapping("env", env)
        check_type("cwd=", cwd, (str, Path), "the path of a folder")
        _check_inherit_env(inherit_env)
        check_callable("stderr", stderr)
        self.command = argv
        self.env = dict(env or {})
        self.inherit_env = inherit_env
        self.cwd = cwd
        self.stderr = stderr


class CustomTarget:
    """A server that the client reaches over a custom transport.

    Args:
        open_connection: An async function `(receive, lose)` that opens a connection and returns an object with
            `send(data)` and an async `close()`. Your transport must call `receive` with each message from the server,
            and `lose` with a reason when the connection ends. After a lost connection, the client calls
            `open_connection` again.
        name: The name of the server in error messages and logs.
    """

    def __init__(self, open_connection: OpenCustomConnection, *, name: str = "custom") -> None:
        check_callable("open_connection", open_connection)
        check_type("name=", name, str, "a text")
        self.open_connection = open_connection
        self.name = name


# Anything that a client can connect to.
Target: TypeAlias = (
    str
    | Path
    | Sequence[str]
    | Mapping[str, JSONValue]
    | InProcessServer
    | ClientTransport
    | HTTPTarget
    | CommandTarget
    | CustomTarget
)


def explain_unknown_option(name: str, client_options: Collection[str]) -> str:
    """Return the error message for an unknown option of a client. If a target has this option, say so."""
    from inspect import signature

    names_by_target = {target: [*signature(target).parameters] for target in (HTTPTarget, CommandTarget)}
    target_names = [option for options in names_by_target.values() for option in options]
    (match,) = find_similar(name, [*client_options, *target_names])[:1] or [""]
    for target, options in names_by_target.items():
        if match in options and match not in client_options:
            usage = f"{target.__name__}({options[0]}, {match}=...)"
            return f"unknown option {name!r}. Pass {usage} as the target"
    return f"unknown option {name!r}" + (f". Did you mean {match!r}?" if match else "")


class ResolvedTarget:
    """A server to connect to. It has a name, a unique key, and a function that creates a transport."""

    def __init__(self, name: str, key: str | None, create_transport: Callable[[], ClientTransport]) -> None:
        self.name = name
        self.key = key
        self.create_transport = create_transport


def resolve_target(
    target: Target | ResolvedTarget,
    *,
    limits: ClientLimits,
    timeouts: Timeouts,
    headers: Mapping[str, str] | None = None,
    auth: "ClientAuth | None" = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> ResolvedTarget:
    """Return the name, the key and the transport of a target. `headers` and `env` are added to the target's own.

    Raise TypeError or ValueError if the target is invalid, or if an option does not apply to it. Raise ScriptNotFound
    if the target is a script that does not exist.
    """
    http_options, process_options = {"headers": headers, "auth": auth}, {"env": env, "cwd": cwd}
    name = None
    if isinstance(target, Mapping):
        name, target = _parse_entry(target)
    elif isinstance(target, str) and _classify(target) == "url":
        target = HTTPTarget(target)
    elif _is_command(target):
        target = _create_command_target(target)
    if isinstance(target, HTTPTarget):
        _reject_options("a command", process_options)
        resolved = _resolve_http(_add_http_options(target, headers, auth), limits, timeouts)
    elif isinstance(target, CommandTarget):
        _reject_options("a URL", http_options)
        resolved = _resolve_command(_add_process_options(target, env, cwd), limits)
    else:
        _reject_options("a URL", http_options)
        _reject_options("a command", process_options)
        resolved = _resolve_object(target, limits, timeouts)
    return resolved if name is None else ResolvedTarget(name, resolved.key, resolved.create_transport)


def _resolve_object(target: Target | ResolvedTarget, limits: ClientLimits, timeouts: Timeouts) -> ResolvedTarget:
    if isinstance(target, ResolvedTarget):
        return target
    if isinstance(target, CustomTarget):
        return _resolve_custom(target)
    if isinstance(target, str) and _classify(target) == "socket":
        return _resolve_socket(target, limits, timeouts)
    if isinstance(target, InProcessServer) and not isinstance(target, type):
        return _resolve_server(target)
    if isinstance(target, ClientTransport) and not isinstance(target, type):
        return ResolvedTarget(type(target).__name__, None, lambda: target)
    raise TypeError(
        "the target must be a URL, a command as a list, a script, a Server, 'unix:/path', 'tcp://host:port', an entry "
        f"of an mcp.json, an HTTPTarget, a CommandTarget or a CustomTarget, not {target!r}"
    )


def _classify(target: str) -> Literal["url", "socket", "command"]:
    if target.startswith(("http://", "https://")):
        return "url"
    return "socket" if target.startswith(("unix:", "tcp:")) else "command"


def _is_command(target: object) -> TypeGuard[str | Path | Sequence[str]]:
    if isinstance(target, str):
        return _classify(target) == "command"
    if isinstance(target, Path):
        return True
    return isinstance(target, Sequence) and bool(target) and all(isinstance(argument, str) for argument in target)


def _create_command_target(target: str | Path | Sequence[str]) -> CommandTarget:
    return CommandTarget(_build_script_command(target) if isinstance(target, str | Path) else target)


def set_stderr_handler(target: Target, handler: Callable[[str], None]) -> Target:
    """Return a copy of the target that passes each stderr line to `handler`. Keep a handler that is already set.

    A target without a process is returned unchanged.
    """
    command: object = target
    if isinstance(target, Mapping):
        _, command = _parse_entry(target)
    elif _is_command(target):
        command = _create_command_target(target)
    if not isinstance(command, CommandTarget):
        return target
    return _copy_command(command, stderr=command.stderr or handler)


def _copy_command(target: CommandTarget, **changes: Any) -> CommandTarget:
    options = {name: getattr(target, name) for name in ("env", "inherit_env", "cwd", "stderr")}
    return CommandTarget(target.command, **options | changes)


def _add_http_options(target: HTTPTarget, headers: Mapping[str, str] | None, auth: "ClientAuth | None") -> HTTPTarget:
    if headers is None and auth is None:
        return target
    check_string_mapping("headers", headers)
    added_headers = headers or {}
    added_names = {name.lower() for name in added_headers}
    kept_headers = {name: value for name, value in target.headers.items() if name.lower() not in added_names}
    return HTTPTarget(
        target.url,
        headers={**kept_headers, **added_headers},
        auth=target.auth if auth is None else auth,
        verify=target.verify,
        cert=target.cert,
        proxy=target.proxy,
        cookies=target.cookies,
    )


def _add_process_options(target: CommandTarget, env: Mapping[str, str] | None, cwd: str | Path | None) -> CommandTarget:
    if env is None and cwd is None:
        return target
    check_string_mapping("env", env)
    return _copy_command(target, env={**target.env, **(env or {})}, cwd=cwd or target.cwd)


def _reject_options(target_kind: str, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise TypeError(f"{name}= is only allowed for {target_kind}")


def _resolve_server(server: InProcessServer) -> ResolvedTarget:
    from dovetail.transports.memory import MemoryClient

    return ResolvedTarget(server.name, None, lambda: MemoryClient(server.open_connection, server.start, server.stop))


def _resolve_custom(target: CustomTarget) -> ResolvedTarget:
    from dovetail.transports.custom_client import CustomClient

    return ResolvedTarget(target.name, None, lambda: CustomClient(target.open_connection))


def _resolve_http(target: HTTPTarget, limits: ClientLimits, timeouts: Timeouts) -> ResolvedTarget:
    from dovetail.transports.http_client.streamable_http import StreamableHTTPClient

    options = _build_http_options(target, timeouts)
    parts = urlsplit(target.url)
    name = _truncate(parts.netloc + parts.path.rstrip("/"))
    create_transport = functools.partial(
        StreamableHTTPClient, target.url, limits, timeouts, cookies=target.cookies, **options
    )
    return ResolvedTarget(name, target.url, create_transport)


def _check_headers(headers: Mapping[str, str] | None) -> None:
    from dovetail.transports.http_client.http_client import RESERVED_HEADERS

    check_string_mapping("headers", headers)
    for name, value in (headers or {}).items():
        if not re.fullmatch(FIELD_NAME, name) or not value.isprintable():
            raise ValueError(
                f"headers= contains {clip(name)!r}, which cannot be sent. A header must be a single line of text"
            )
        if name.lower().encode() in RESERVED_HEADERS:
            raise ValueError(f"headers= contains {name!r}, but only the client can set this header")


def _check_certificates(verify: object, cert: object) -> None:
    from dovetail.transports.http_client.remote_server import check_certificate_files

    if not isinstance(verify, bool | str | Path | ssl.SSLContext):
        description = "True, False, the path of a CA file or an ssl.SSLContext"
        raise TypeError(f"verify= must be {description}, not {describe_value(verify)}")
    paths: tuple[object, ...] = cert if isinstance(cert, tuple) else () if cert is None else (cert,)
    if not all(isinstance(path, str | Path) for path in paths) or (isinstance(cert, tuple) and len(paths) != 2):
        raise TypeError(
            "cert= must be the path of a file, or a tuple of the paths of the certificate and the key, not "
            f"{describe_value(cert)}"
        )
    if isinstance(verify, ssl.SSLContext) and cert is not None:
        raise ValueError(
            "cert= cannot be combined with an ssl.SSLContext. Call load_cert_chain() of the context instead"
        )
    check_certificate_files(verify, cert)


def _build_http_options(target: HTTPTarget, timeouts: Timeouts) -> dict[str, Any]:
    options: dict[str, Any] = {"verify": target.verify, "cert": target.cert, "proxy": target.proxy}
    headers, auth = target.headers, target.auth
    has_authorization = any(name.lower() == "authorization" for name in headers)
    if auth is not None and has_authorization:
        raise ValueError("headers= contains Authorization, but auth= is also set. Pass only one of them")
    parts = urlsplit(target.url)
    if (
        (auth is not None or has_authorization)
        and parts.scheme == "http"
        and not is_on_this_machine(parts.hostname or "")
    ):
        log.warning("the credentials for %s are sent unencrypted. Use https", parts.netloc)
    if auth is None:
        return options | {"headers": headers or None}
    token = attachments.get_bearer_token(auth)
    if token is not None:
        return options | {"headers": {**headers, "Authorization": f"Bearer {token}"}}
    from dovetail.transports.http_client.remote_server import create_http_client

    create_client = functools.partial(create_http_client, **options, connect_timeout=timeouts.connect)
    # The certificate and `verify` are only for this server, not for other hosts such as an authorization server.
    other_verify = target.verify if isinstance(target.verify, str | Path) else True
    other_options = options | {"verify": other_verify, "cert": None}
    if other_options == options:
        authorizer = attachments.create_authorizer(target.url, auth, create_client)
    else:
        create_other_client = functools.partial(create_http_client, **other_options, connect_timeout=timeouts.connect)
        authorizer = attachments.create_authorizer(target.url, auth, create_other_client, create_client)
    return options | {"headers": headers or None, "authorizer": authorizer}


def _resolve_socket(target: str, limits: ClientLimits, timeouts: Timeouts) -> ResolvedTarget:
    from dovetail.transports.socket_client import SocketClient

    create_client = functools.partial(
        SocketClient, limits.max_response_bytes, connect_timeout=timeouts.connect, close_timeout=timeouts.close
    )
    scheme, _, rest = target.partition(":")
    if scheme == "unix":
        path = rest.removeprefix("//")
        if not path:
            raise ValueError(f"invalid target {target!r}. It must be unix:/path")
        return ResolvedTarget(path, target, lambda: create_client(path=path))
    try:
        parts = urlsplit(target)
        host, port = parts.hostname or "127.0.0.1", parts.port
    except ValueError:
        host, port = "", None
    if port is None:
        raise ValueError(f"invalid target {target!r}. It must be tcp://host:port")
    return ResolvedTarget(target, target, lambda: create_client(host=host, port=port))


def _resolve_command(target: CommandTarget, limits: ClientLimits) -> ResolvedTarget:
    from dovetail.transports.stdio_client import StdioClient

    argv = target.command
    options: dict[str, Any] = {
        "env": target.env or None,
        "inherit": target.inherit_env,
        "cwd": target.cwd,
        "stderr": target.stderr,
    }
    key = hashlib.sha256("\0".join([*argv, str(target.cwd)]).encode()).hexdigest()
    return ResolvedTarget(_shorten_command(argv), key, lambda: StdioClient(limits.max_response_bytes, argv, **options))


def _check_command(command: object) -> None:
    if not isinstance(command, str) and not (
        isinstance(command, Sequence) and all(isinstance(argument, str) for argument in command)
    ):
        raise TypeError(f"command must be a string or a list of strings, not {describe_value(command)}")


def _check_inherit_env(inherit: object) -> None:
    if inherit not in ("minimal", "all") and (
        isinstance(inherit, str | bytes)
        or not isinstance(inherit, Sequence)
        or not all(isinstance(name, str) for name in inherit)
    ):
        raise TypeError(f"inherit_env= must be 'minimal', 'all' or a list of names, not {describe_value(inherit)}")


def _shorten_command(argv: Sequence[str]) -> str:
    """Return a short form of a command for messages: the program or script, and its arguments.

    Leave out folders, the interpreter of a script, and everything that may be a secret.
    """
    program, *rest = argv
    words = [word for previous, word in zip(argv, rest, strict=False) if not _may_be_secret(word, previous)]
    if words and Path(words[0]).suffix in _INTERPRETERS:
        name, *words = _get_script_name(words[0]), *words[1:]
    else:
        name = Path(program).name or program
    short_words = [Path(word).name or word if _is_path(word) else word for word in words]
    return _truncate(shlex.join([name, *short_words]))


def _may_be_secret(argument: str, previous: str) -> bool:
    """Return whether an argument may contain a secret.

    Options, their values, variables and URLs may contain secrets.
    """
    if argument in _SHOWN_OPTIONS or Path(argument).suffix in _INTERPRETERS:
        return False
    if argument.startswith("-") or "=" in argument or "://" in argument:
        return True
    return previous.startswith("-") and "=" not in previous and previous not in (*_SHOWN_OPTIONS, *_FLAGS)


def _get_script_name(argument: str) -> str:
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
        raise ValueError(f"the target {clip(text)!r} is a folder, not a server" if text else "the target is empty")
    if path.suffix == ".json":
        raise ValueError(
            f"the file {clip(text)!r} may contain several servers. Load it and pass one of its entries: "
            f"json.load(open({clip(text)!r}))['mcpServers'][name]"
        )
    if (url := guess_url(text)) is not None:
        raise ValueError(f"invalid URL {clip(text)!r}. Did you mean {url!r}?")
    file_name, _, object_name = text.rpartition(":")
    if Path(file_name).suffix == ".py" and object_name.isidentifier():
        raise ValueError(
            f"{clip(text)!r} names an object in a script. Pass the script {clip(file_name)!r}, the imported object, "
            f"or the command {['dovetail', 'run', clip(text)]!r}"
        )
    interpreter = _INTERPRETERS.get(path.suffix)
    if interpreter is None:
        raise ValueError(f"{clip(text)!r} is not a URL or a script. Pass a command as a list: {_split_command(text)!r}")
    if not path.is_file():
        siblings = [sibling.name for sibling in path.parent.glob("*" + path.suffix)] if path.parent.is_dir() else []
        raise add_context(
            ScriptNotFound(f"script {text!r} not found"),
            hint=f"check the path. The client looked in {path.parent.absolute()}{suggest_match(path.name, siblings)}",
        )
    return [*interpreter, str(path)]


def guess_url(text: str) -> str | None:
    """Return the URL that a text without a valid scheme probably means. Return None if the text is not an address."""
    if not _ADDRESS_PATTERN.match(text):
        return None
    scheme, colon, rest = text.partition(":")
    if not colon or rest[:1].isdigit() or not scheme.isalnum():  # The colon precedes a port, or is part of an address.
        scheme, rest = "http", text
    address = rest.lstrip("/")
    host, _, path = address.partition("/")
    is_secure = (scheme.lower().endswith("s") and scheme.lower() != "ws") or host.endswith(":443")
    return f"{'https' if is_secure else 'http'}://{host}/{path or 'mcp'}"


def _split_command(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        # shlex raises ValueError if a quotation mark is missing.
        return text.split()


def _parse_entry(config: Mapping[str, Any]) -> tuple[str | None, HTTPTarget | CommandTarget]:
    name, entry = select_entry(config)
    command, args, env, url = read_entry(entry)
    if isinstance(command, str):
        check_type("args=", args, list, "a list of strings")
        return name, CommandTarget([command, *map(str, args)], env=env, cwd=entry.get("cwd"))
    if isinstance(url, str):
        return name, HTTPTarget(url, headers=entry.get("headers"))
    keys = ", ".join(clip(str(key)) for key in entry) or "nothing"
    raise ValueError(f"an mcp.json entry must have a command or a url, but this one has {keys}")
