"""An HTTP request to an endpoint, with the results of the checks."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from dovetail.errors import InsufficientScope, ProtocolError
from dovetail.protocol.http_checks import build_retry_header, build_scope_challenge
from dovetail.protocol.principal import SCOPE_PATTERN, Principal, get_remaining_seconds
from dovetail.transports.http1.server_request import JSON_HEADERS, Headers, Receive, Scope, Send, ServerRequest
from dovetail.wire.base import Struct

ResponseMode = Literal["auto", "json", "sse"]


class ASGIRequest:
    """A request that an ASGI server received."""

    loop = None
    unique_headers = None  # An ASGI server does not check for repeated headers.

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: bytes = scope.get("raw_path") or b""
        self.root_path: str = scope.get("root_path") or ""
        self.headers: Headers = scope["headers"]
        self.body: bytes | None = None
        server, client = scope.get("server"), scope.get("client")
        self.server_host: str | None = server[0] if server else None
        self.client_host: str | None = client[0] if client else None
        self.receive: Receive = receive
        self.send: Send = send

    @property
    def http_version(self) -> str:
        """The version of HTTP, such as "1.1"."""
        return self.scope.get("http_version", "1.1")

    async def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a complete response."""
        # A 204 response has no Content-Length. RFC 9110, section 8.6
        length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
        await self.send({"type": "http.response.body", "body": body})


def build_json_headers(headers: Headers) -> Sequence[tuple[bytes, bytes]]:
    """Return the headers of a JSON response."""
    return [*JSON_HEADERS, *headers] if headers else JSON_HEADERS


class EndpointRequest(Struct):
    """An HTTP request to an endpoint."""

    http: ServerRequest
    method: str  # the HTTP method, such as "GET"
    headers: Mapping[bytes, bytes]
    cors_headers: Headers  # the CORS headers for the response
    # The address that limits apply to. None for clients on this machine, because they all have the same address.
    # An IPv6 address is the network of the client. `http.client_host` is the complete address.
    client_address: str | None
    principal: Principal | None = None  # the authenticated caller
    metadata_url: str | None = None  # the URL of the protected resource metadata
    # `build_error_headers` calls this function to choose the scopes for the WWW-Authenticate header.
    guard_scopes: Callable[[Iterable[str], Iterable[str]], Sequence[str]] | None = None
    message: Any = None  # the decoded message of a POST
    size: int = 0
    response_mode: ResponseMode = "auto"

    @property
    def scope(self) -> Scope:
        """The request as an ASGI scope."""
        return self.http.scope

    @property
    def receive(self) -> Receive:
        """The function that receives the next ASGI message."""
        return self.http.receive

    @property
    def send(self) -> Send:
        """The function that sends an ASGI message."""
        return self.http.send

    def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes = b"") -> Awaitable[None]:
        """Send a complete response."""
        return self.http.respond(status, headers, body)

    def respond_json(self, status: int, body: bytes, headers: Headers) -> Awaitable[None]:
        """Send a complete JSON response."""
        return self.http.respond(status, build_json_headers(headers), body)

    @property
    def valid_for(self) -> float | None:
        """Return the seconds until the caller's credentials expire. Return None if the expiry is unknown.

        The streams of the caller end at that time.
        """
        return get_remaining_seconds(self.principal, time.time())

    def build_error_headers(self, exc: ProtocolError, *, is_stateless: bool = False) -> Headers:
        """Return the headers of an error response, such as the retry delay or the required scopes.

        The scopes are all that this request needs, including those of the guard. In versions with a handshake, a client
        replaces its scopes with those of the challenge, so the challenge repeats the scopes of its token. spec:
        authorization#runtime-insufficient-scope-errors
        """
        if not isinstance(exc, InsufficientScope):
            return build_retry_header(exc)
        token_scopes = () if is_stateless or self.principal is None else sorted(self.principal.scopes)
        scopes = (
            dict.fromkeys((*exc.scopes, *token_scopes))
            if self.guard_scopes is None
            else self.guard_scopes(exc.scopes, token_scopes)
        )
        authorization = self.headers.get(b"authorization", b"")
        return [
            (
                b"www-authenticate",
                build_scope_challenge(filter(SCOPE_PATTERN.fullmatch, scopes), self.metadata_url, authorization),
            )
        ]


class OtherApps(Protocol):
    """The ASGI applications that an endpoint serves at other paths."""

    def find(self, scope: Scope) -> Any | None:
        """Return the application for the path of a request, or None."""
        ...

    def find_path(self, scope: Scope) -> str | None:
        """Return the MCP path of a request, even if no application has this path.

        Return None for a path that no application can have.
        """
        ...

    async def close(self) -> None:
        """Close all applications."""
        ...


class EndpointGuard(Protocol):
    """Decides which callers may use an endpoint."""

    def has_document(self, path: str, scope: Scope) -> bool:
        """Return whether the guard has a public document at this path."""
        ...

    def get_document(self, path: str, request: EndpointRequest) -> bytes | None:
        """Return the public document at this path as JSON, or None."""
        ...

    def at_path(self, path: str) -> "EndpointGuard":
        """Return a guard with the same settings for another endpoint of this server."""
        ...

    async def authenticate(self, path: str, request: EndpointRequest) -> Principal:
        """Return the caller. Raise an AuthError if the caller is unknown or not allowed."""
        ...
