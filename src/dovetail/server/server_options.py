"""Typed keyword arguments of `Server`, `Server.run` and `Server.asgi`, and functions that check them."""

import inspect
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from dovetail.error_context import suggest_match

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.cluster import Cluster
    from dovetail.oauth.guard.guard import Guard
    from dovetail.oauth.guard.verifiers import TokenVerifier
    from dovetail.protocol.interfaces.extension import Extension
    from dovetail.protocol.interfaces.http_types import ASGIApp
    from dovetail.protocol.interfaces.shared_state import SharedState
    from dovetail.protocol.interfaces.state_store import StateStore
    from dovetail.protocol.limits import ServerLimits
    from dovetail.protocol.middleware import Middleware
    from dovetail.protocol.principal import Authenticator
    from dovetail.schemas.provider_rules import SchemaProfile
    from dovetail.server.dispatch.lifespan import Lifespan
    from dovetail.server.items.item_options import CacheHint
    from dovetail.server.large_results import LargeResultSettings
    from dovetail.tasks.task_options import TaskOptions
    from dovetail.wire.content import Icon
    from dovetail.wire.lifecycle import ServerCapabilities

# Whether servers that are created in this context list items for which a caller lacks scopes. `dovetail run` sets this
# variable for the commands that inspect a server.
LISTS_RESTRICTED: Final[ContextVar[bool]] = ContextVar("lists_restricted", default=False)

# The transports of `run` and `serve`.
Transport: TypeAlias = Literal["stdio", "http", "unix", "tcp"]
ServerAuth: TypeAlias = "Guard | TokenVerifier | Sequence[TokenVerifier] | Authenticator"


class ServerOptions(TypedDict, total=False):
    """The options of `Server`, `Server.from_openapi` and `Server.from_asgi`."""

    version: str
    title: str | None
    description: str | None
    website_url: str | None
    icons: "Sequence[Icon]"
    instructions: str | None
    lifespan: "Lifespan | None"
    auth: "ServerAuth | None"
    middleware: "Sequence[Middleware]"
    limits: "ServerLimits | None"
    secret_keys: Sequence[str | bytes]
    page_size: int | None
    cache_hints: "CacheHint | Mapping[str, CacheHint] | None"
    schema_profile: "SchemaProfile | None"
    wrap_results: bool
    large_results: "LargeResultSettings | None"
    protocol_versions: Sequence[str]
    capabilities: "ServerCapabilities | None"
    extensions: "Sequence[Extension]"
    tasks: "TaskOptions | None"
    cluster: "Cluster | SharedState | str | None"
    state: "StateStore | str | Path | None"
    recording: "str | Path | None"
    search: bool
    resource_tools: bool
    prompt_tools: bool
    debug: bool


class ASGIOptions(TypedDict, total=False):
    """Options of `Server.asgi`."""

    path: str  # The URL path of the endpoint. Defaults to "/mcp".
    public_url: str | None  # The URL that clients use, if the server is behind a proxy.
    # Host names that clients may use, or "*" for any name. A name with a port matches only this port.
    # By default, clients may use the names of this machine and the host of `public_url`.
    allowed_hosts: Collection[str]
    # Web origins that may send requests. The origin of the server itself is always allowed.
    allowed_origins: Collection[str]
    cors_origins: Collection[str]  # Web origins whose scripts may read the responses.
    response_mode: Literal["auto", "json", "sse"]  # Format of responses. "auto" is the default.
    # True by default. If False, clients of protocol versions before 2026-07 are served without sessions.
    sessions: bool
    health: bool  # False by default. If True, the server also serves /live and /ready for health checks.
    http_sse: bool  # True by default. If False, the older HTTP+SSE transport is turned off.
    fallback: "ASGIApp | None"  # An ASGI application that handles all other paths.


class HTTPServerOptions(ASGIOptions, total=False):
    """Options of `Server.run("http")`."""

    host: str  # The address to listen on. Defaults to "127.0.0.1".
    port: int  # The port to listen on. Defaults to 8000. 0 picks a free port.
    # The number of worker processes. Defaults to 1. "auto" starts one process per CPU core.
    workers: int | Literal["auto"]
    ssl_certfile: "str | Path | None"  # The PEM file of the certificate, for HTTPS.
    ssl_keyfile: "str | Path | None"  # The PEM file of the private key, for HTTPS.
    allow_anonymous: bool  # False by default. If True, callers need no authentication.


_OPTIONS_BY_TRANSPORT: Final[dict[str, Collection[str]]] = {
    "stdio": (),
    "http": HTTPServerOptions.__annotations__,
    "unix": ("path", "allow_anonymous"),
    "tcp": ("host", "port", "allow_anonymous"),
}
_HOST_NAME: Final = re.compile(r"[\w-]+(\.[\w-]+)*\.?")
_REQUIRED_OPTIONS: Final = {"unix": ("path", '"/run/server.sock"'), "tcp": ("port", "9000")}


def is_authenticator(auth: Any) -> bool:
    """Return whether `auth` is an async function that identifies callers by their headers."""
    return inspect.iscoroutinefunction(auth)


def check_run_options(method: Literal["run", "serve"], transport: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an unknown transport. Raise TypeError for an option that belongs to another transport."""
    if transport not in _OPTIONS_BY_TRANSPORT:
        is_http = "http" in str(transport) or transport == "sse"
        hint = '. "http" serves Streamable HTTP and HTTP+SSE' if is_http else ""
        raise ValueError(f"transport must be 'stdio', 'http', 'unix' or 'tcp', not {transport!r}{hint}")
    allowed = set(_OPTIONS_BY_TRANSPORT[transport])
    if method == "serve" and "workers" in options:
        raise TypeError("serve() has no option `workers`, because it runs in your process. Use run() instead")
    for name in options:
        other = next((key for key in ("http", "tcp", "unix") if name in _OPTIONS_BY_TRANSPORT[key]), None)
        if name not in allowed and other is not None:
            raise TypeError(
                f'the transport {transport!r} has no option `{name}`. Use it with app.{method}("{other}", {name}=...)'
            )
    if "log_level" in options:
        raise TypeError(f"{method}() has no option `log_level`. Call logging.basicConfig(level=...) before {method}()")
    check_option_names(transport, options, allowed)
    required, example = _REQUIRED_OPTIONS.get(transport, ("", ""))
    if required and required not in options:
        raise TypeError(
            f'the transport "{transport}" requires `{required}`: app.{method}("{transport}", {required}={example})'
        )
    check_address(options.get("host", "127.0.0.1"), options.get("port", 0))


def check_address(host: Any, port: Any) -> None:
    """Raise ValueError if a host or a port is not valid. Host names are not looked up."""
    if isinstance(host, str) and host.startswith("["):
        raise ValueError(f"host must be an address without brackets: {host.strip('[]')!r}, not {host!r}")
    if isinstance(host, str) and not _HOST_NAME.fullmatch(host) and not _is_ip_address(host):
        hint = ". Use port= for the port" if host.count(":") == 1 and "/" not in host else ""
        raise ValueError(f"{host!r} is not a host name or an IP address{hint}")
    if not isinstance(port, int) or not 0 <= port < 65536:
        raise ValueError(f"port must be an integer from 0 to 65535, not {port!r}")


def _is_ip_address(host: str) -> bool:
    from ipaddress import ip_address  # This import is here because few servers need the module.

    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def check_option_names(owner: str, options: Iterable[str], allowed: Collection[str]) -> None:
    """Raise TypeError for an unknown option, and suggest an option with a similar name."""
    for name in options:
        if name not in allowed:
            raise TypeError(f"{owner} has no option `{name}`{suggest_match(name, allowed)}")
