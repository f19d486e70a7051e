"""HTTP requests and responses as values, and the types of ASGI applications."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias

from dovetail.wire.base import Struct, field


class HTTPRequest(Struct, frozen=True):
    """An HTTP request to send."""

    method: str  # the HTTP method, in capitals
    url: str  # the URL
    headers: dict[str, str] = field(default_factory=dict[str, str])  # the headers
    body: bytes = b""  # the body, or empty


class HTTPResponse(Struct, frozen=True):
    """An HTTP response with its complete body."""

    status_code: int  # the status code
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # header names are in lower case
    body: bytes = b""  # the body


class AsyncHTTPClient(Protocol):
    """Any HTTP client with a `request` method like that of `httpx.AsyncClient`."""

    def request(self, method: str, url: str, *, headers: Any, content: Any) -> Awaitable[Any]:
        """Send a request. The result has `status_code`, `headers` and `content`.

        Args:
            headers: The headers of the request.
            content: The body of the request, or None.
        """
        ...


SendRequest: TypeAlias = Callable[[HTTPRequest], Awaitable[HTTPResponse]]

ASGIMessage: TypeAlias = MutableMapping[str, Any]
ASGIApp: TypeAlias = Callable[
    [ASGIMessage, Callable[[], Awaitable[ASGIMessage]], Callable[[ASGIMessage], Awaitable[None]]], Awaitable[None]
]
