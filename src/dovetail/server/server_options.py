"""Typed keyword arguments of `Server`, `Server.run` and `Server.asgi`."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from dovetail.protocol.http_types import ASGIApp

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.oauth.guard.guard import Guard
    from dovetail.oauth.guard.verifiers import TokenVerifier
    from dovetail.protocol.limits import ServerLimits
    from dovetail.protocol.middleware import Middleware
    from dovetail.protocol.principal import Authenticator
    from dovetail.schemas.provider_rules import SchemaProfile
    from dovetail.server.item_options import CacheHint
    from dovetail.server.large_results import LargeResults
    from dovetail.server.lifespan import Lifespan
    from dovetail.wire.content import Icon
    from dovetail.wire.lifecycle import ServerCapabilities

Transport: TypeAlias = Literal["stdio", "http", "unix", "tcp"]


class ServerOptions(TypedDict, total=False):
    """Options of `Server`, which `Server.from_openapi` and `Server.from_asgi` take too."""

    version: str
    title: str | None
    description: str | None
    website_url: str | None
    icons: "Sequence[Icon]"
    instructions: str | None
    lifespan: "Lifespan | None"
    auth: "Guard | TokenVerifier | Sequence[TokenVerifier] | Authenticator | None"
    middleware: "Sequence[Middleware]"
    limits: "ServerLimits | None"
    secret_keys: Sequence[str | bytes]
    page_size: int | None
    cache_hints: "CacheHint | Mapping[str, CacheHint] | None"
    schema_profile: "SchemaProfile | None"
    large_results: "LargeResults | None"
    protocol_versions: Sequence[str]
    capabilities: "ServerCapabilities | None"
    recording: "str | Path | None"
    debug: bool


class ASGIOptions(TypedDict, total=False):
    """Options of `Server.asgi`."""

    path: str  # URL path of the endpoint, "/mcp" by default
    public_url: str | None  # URL that clients use, if the server is behind a proxy
    allowed_hosts: Collection[str]
    allowed_origins: Collection[str]
    cors_origins: Collection[str]
    response_mode: Literal["auto", "json", "sse"]  # "auto" by default
    sessions: bool  # True by default. False serves handshake clients without sessions
    health: bool  # False by default. True serves /live and /ready
    http_sse: bool  # True by default. Serves the older HTTP+SSE transport, too
    fallback: ASGIApp | None  # application for all other paths


class HTTPServerOptions(ASGIOptions, total=False):
    """Options of `Server.run("http")`."""

    host: str  # "127.0.0.1" by default
    port: int  # 8000 by default. 0 picks a free port
    workers: int | Literal["auto"]  # 1 by default. "auto" starts one process for each core
    ssl_certfile: "str | Path | None"
    ssl_keyfile: "str | Path | None"
    allow_anonymous: bool  # False by default. True serves callers without authentication on every address
