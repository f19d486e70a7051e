"""Types for HTTP requests, HTTP responses and ASGI applications."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias

from dovetail.wire.base import Struct, field


class HTTPRequest(Struct, frozen=True):
    """An HTTP request to send."""

    method: str  # the HTTP method, in capitals
    url: str  # the URL of the request
    headers: dict[str, str] = field(default_factory=dict[str, str])  # the headers of the request
    body: bytes = b""  # the body of the request, or b""


class HTTPResponse(Struct, frozen=True):
    """An HTTP response with its complete body."""

    status_code: int  # the status code of the response
    # The headers of the response, with names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""  # the body of the response


class AsyncHTTPClient(Protocol):
    """An HTTP client with a `request` method, such as `httpx.AsyncClient`."""

    def request(self, method: str, url: str, *, headers: Any, content: Any) -> Awaitable[Any]:
        """Send a request and return a response with `status_code`, `headers` and `content`.

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
