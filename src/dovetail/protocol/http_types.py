"""HTTP requests and responses as values, and the types of ASGI applications."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias

from dovetail.wire.base import Struct


class HTTPRequest(Struct, frozen=True):
    """A request to be sent."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes = b""


class HTTPResponse(Struct, frozen=True):
    """What came back."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes


class AsyncHTTPClient(Protocol):
    """A client with the method `request` of `httpx.AsyncClient`."""

    def request(self, method: str, url: str, *, headers: Any, content: Any) -> Awaitable[Any]:
        """Send a request. The result has `status_code`, `headers` and `content`."""
        ...


SendRequest: TypeAlias = Callable[[HTTPRequest], Awaitable[HTTPResponse]]

ASGIMessage: TypeAlias = MutableMapping[str, Any]
ASGIApp: TypeAlias = Callable[
    [ASGIMessage, Callable[[], Awaitable[ASGIMessage]], Callable[[ASGIMessage], Awaitable[None]]], Awaitable[None]
]
