"""An HTTP request to the endpoint, with the results of its checks."""

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
    """An HTTP request with the data that all parts of the endpoint use."""

    scope: Scope
    method: str  # the HTTP method, for example GET
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    cors_headers: Headers  # CORS headers of every response
    client_address: str | None  # None on loopback, where all clients have the same address
    principal: Principal | None = None  # the authenticated caller
    metadata_url: str | None = None  # the URL of the protected resource metadata
    # Chooses the scopes of a challenge, see build_error_headers.
    guard_scopes: Callable[[Iterable[str], Iterable[str]], Sequence[str]] | None = None
    message: Any = None  # the decoded message of a POST
    size: int = 0
    response_mode: ResponseMode = "auto"

    @property
    def valid_for(self) -> float | None:
        """Seconds until the caller's credentials expire, or None if unknown. The caller's streams end at the same
        time.
        """
        return get_remaining_seconds(self.principal, time.time())

    def build_error_headers(self, exc: ProtocolError, *, is_stateless: bool = False) -> Headers:
        """Return the headers of an error response: the retry delay, or the scopes that the request needs.

        The scopes are all that this request needs, including those of the guard. A handshake client replaces its scopes
        with those of the challenge, so its challenge repeats the scopes of its token. spec:
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
    """The applications that an endpoint serves on other paths."""

    def find(self, scope: Scope) -> Any | None:
        """Return the application of a path, or None."""
        ...

    def find_path(self, scope: Scope) -> str | None:
        """Return the MCP path that a request refers to, even if no application exists there. Return None for a path
        that no application can have.
        """
        ...

    async def close(self) -> None:
        """Close all applications."""
        ...


class EndpointGuard(Protocol):
    """Decides which callers an endpoint serves."""

    def has_document(self, path: str, scope: Scope) -> bool:
        """Return whether there is a public document at this path."""
        ...

    def get_document(self, path: str, request: EndpointRequest) -> bytes | None:
        """Return the public document at this path as JSON, or None."""
        ...

    def at_path(self, path: str) -> "EndpointGuard":
        """Return the guard of another MCP path of the same server."""
        ...

    async def authenticate(self, path: str, request: EndpointRequest) -> Principal:
        """Return the caller. Raise an AuthError if the caller is unknown or not allowed."""
        ...
