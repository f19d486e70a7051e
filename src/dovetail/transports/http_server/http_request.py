"""One HTTP request of the endpoint, with what the checks have found out about it."""

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
    """What the parts of the endpoint hand to one another."""

    scope: Scope
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    cors_headers: Headers  # to be sent with whatever is answered
    client_address: str | None  # the client's, where it says anything: on loopback everyone looks the same
    principal: Principal | None = None  # who the caller proved to be
    metadata_url: str | None = None  # where the server says who guards it
    guard_scopes: Callable[[Iterable[str], Iterable[str]], Sequence[str]] | None = None  # see headers_for
    message: Any = None  # of a POST, once it is read
    size: int = 0
    response_mode: ResponseMode = "auto"

    @property
    def method(self) -> str:
        """GET, POST, DELETE, OPTIONS, or what else was sent."""
        return self.scope["method"]

    @property
    def valid_for(self) -> float | None:
        """Seconds until the caller's credentials end, and so a stream it opens. None if that is not known."""
        return get_remaining_seconds(self.principal, time.time())

    def build_error_headers(self, exc: ProtocolError, *, is_stateless: bool = False) -> Headers:
        """What an error response says beside its status: when to come back, or with which scopes.

        The scopes are all that this request takes, those of the guard among them. Handshake clients replace the scopes
        they have by those of the challenge, so for them it repeats those of their token.
        spec: authorization#runtime-insufficient-scope-errors
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


class EndpointGuard(Protocol):
    """Who decides which callers an endpoint serves."""

    def has_document(self, path: str, scope: Scope) -> bool:
        """Whether something is told to everyone who asks at this path."""
        ...

    def get_document(self, path: str, request: EndpointRequest) -> bytes | None:
        """What is told to everyone who asks at this path, as JSON; None where nothing is."""
        ...

    async def authenticate(self, path: str, request: EndpointRequest) -> Principal:
        """Return who is calling. Raise an AuthError if that is unknown or not allowed."""
        ...
