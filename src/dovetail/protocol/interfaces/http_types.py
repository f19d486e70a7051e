"""Types for HTTP requests, HTTP responses and ASGI applications."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias

from dovetail.wire.base import Struct, field


class Headers(Mapping[str, str]):
    """Read-only HTTP headers. Names are case-insensitive."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Mapping[bytes, bytes]) -> None:
        self._raw = raw  # The keys are lower-case header names.

    def __getitem__(self, name: str) -> str:
        return self._raw[name.lower().encode()].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


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
# An ASGI 3 application. It takes the scope, `receive` and `send`.
ASGIApp: TypeAlias = Callable[
    [ASGIMessage, Callable[[], Awaitable[ASGIMessage]], Callable[[ASGIMessage], Awaitable[None]]], Awaitable[None]
]
