"""Request: one HTTP request in hand, with what has been found out about it so far."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from dovetail.wire.shape import Struct

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Responses = Literal["auto", "json", "sse"]


class Request(Struct):
    """What the parts of the endpoint hand to one another."""

    scope: Scope
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    cors: Headers  # to be sent with whatever is answered
    address: str | None  # the client's, where it says anything: on loopback everyone looks the same
    principal: str | None = None  # who the caller proved to be
    message: Any = None  # of a POST, once it is read
    size: int = 0
    mode: Responses = "auto"

    @property
    def method(self) -> str:
        """GET, POST, DELETE, OPTIONS, or what else was sent."""
        return self.scope["method"]
