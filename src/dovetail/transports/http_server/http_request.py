"""An HTTP request to an endpoint, with the results of the checks."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from dovetail.errors import InsufficientScope, ProtocolError
from dovetail.protocol.http_checks import build_retry_header, build_scope_challenge
from dovetail.protocol.principal import SCOPE_PATTERN, Principal, get_remaining_seconds
from dovetail.wire.base import Struct

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
ResponseMode = Literal["auto", "json", "sse"]


class EndpointRequest(Struct):
    """An HTTP request to an endpoint."""

    scope: Scope
    method: str  # the HTTP method, such as "GET"
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    cors_headers: Headers  # the CORS headers for the response
    # The address of the client. None for clients on this machine, because they all have the same address.
    client_address: str | None
    principal: Principal | None = None  # the authenticated caller
    metadata_url: str | None = None  # the URL of the protected resource metadata
    # `build_error_headers` calls this function to choose the scopes for the WWW-Authenticate header.
    guard_scopes: Callable[[Iterable[str], Iterable[str]], Sequence[str]] | None = None
    message: Any = None  # the decoded message of a POST
    size: int = 0
    response_mode: ResponseMode = "auto"

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
