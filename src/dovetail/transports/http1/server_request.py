"""The interface between an HTTP server and the application that handles its requests."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
# `HTTP1Request` recognizes these two tuples, and has their bytes ready.
JSON_HEADERS: Final = ((b"content-type", b"application/json"),)
# Proxies must not cache or buffer a stream. spec: streamable-http#receiving-messages
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class ServerRequest(Protocol):
    """An HTTP request as a server received it, with the functions that read its body and send the response.

    `HTTP1Request` is a request to our HTTP server. `ASGIRequest` is a request to any other server.
    """

    body: bytes | None  # the body, if it has arrived. Otherwise `receive` returns it

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def raw_path(self) -> bytes: ...
    @property
    def root_path(self) -> str: ...
    @property
    def http_version(self) -> str: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def unique_headers(self) -> Mapping[bytes, bytes] | None: ...  # None if a name is repeated or was not checked
    @property
    def server_host(self) -> str | None: ...
    @property
    def client_host(self) -> str | None: ...
    @property
    def scope(self) -> Scope: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...  # the running event loop, or None if it is not known

    def receive(self) -> Awaitable[dict[str, Any]]:
        """Receive an ASGI message."""
        ...

    def send(self, message: dict[str, Any], /) -> Awaitable[None]:
        """Send an ASGI message."""
        ...

    async def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a complete response. The header Content-Length is added."""
        ...


@runtime_checkable
class RequestHandler(Protocol):
    """An application that handles a `ServerRequest` without ASGI messages."""

    handles_server_requests: bool  # This attribute is True. ASGI applications may also have a method `handle`.

    def handle(self, http: ServerRequest, /) -> Awaitable[None]:
        """Handle a request."""
        ...
