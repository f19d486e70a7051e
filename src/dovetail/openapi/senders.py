"""Functions that send an HTTPRequest with dovetail's HTTP client, the user's client, or to an ASGI app in this
process.
"""

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from dovetail.errors import MCPError, TransportError
from dovetail.log import log
from dovetail.protocol.interfaces.http_types import ASGIApp, HTTPRequest, HTTPResponse, SendRequest
from dovetail.protocol.limits import FetchLimits


def create_sender(client: Any, max_response_bytes: int) -> SendRequest:
    """Return a function that sends requests with the user's client. If `client` is None, use dovetail's HTTP client."""
    if client is None:
        return _create_http_sender(max_response_bytes)
    if callable(getattr(client, "request", None)):
        _check_async(client)
        return _create_client_sender(client)
    if callable(client):
        return cast("SendRequest", client)
    raise TypeError(
        f"client= must be an httpx.AsyncClient, or an async function that takes an HTTPRequest, not {client!r}"
    )


def get_base_url(client: Any) -> str | None:
    """Return the base URL of an httpx client, or None."""
    base_url = str(getattr(client, "base_url", None) or "")
    return base_url if base_url.startswith(("http://", "https://")) else None


def _check_async(client: Any) -> None:
    """Raise TypeError for a sync client. It would block the event loop."""
    is_async = inspect.iscoroutinefunction(client.request) or not hasattr(client, "close") or hasattr(client, "aclose")
    if not is_async:
        raise TypeError(f"client= must be an async client such as httpx.AsyncClient, not {type(client).__name__}")


def _create_http_sender(max_response_bytes: int) -> SendRequest:
    from dovetail.transports.http_client.http_client import HTTPClient

    return HTTPClient(limits=FetchLimits(max_body_bytes=max_response_bytes)).send


def _create_client_sender(client: Any) -> SendRequest:
    async def send(request: HTTPRequest) -> HTTPResponse:
        response = await client.request(request.method, request.url, headers=request.headers, content=request.body)
        return HTTPResponse(response.status_code, dict(response.headers), response.content)

    return send


def create_app_sender(application: Any, max_response_bytes: int, state: Mapping[str, object]) -> SendRequest:
    """Return a function that sends requests to an ASGI application in this process. Each request has a copy of
    `state`.
    """

    async def send(request: HTTPRequest) -> HTTPResponse:
        return await call_app(application, request, max_bytes=max_response_bytes, state=state)

    return send


def get_openapi_document(application: Any) -> Mapping[str, Any]:
    """Return the OpenAPI document of an ASGI application."""
    if callable(getattr(application, "openapi", None)):  # FastAPI has this method.
        return application.openapi()
    schema = getattr(application, "openapi_schema", None)  # Applications of Litestar have this attribute.
    if schema is not None:
        return schema.to_schema()
    raise TypeError("the ASGI application has no OpenAPI document. Pass one as document=")


class _ResponseTooLarge(TransportError):
    """Raised if a response is larger than the limit."""


async def call_app(app: ASGIApp, request: HTTPRequest, *, max_bytes: int, state: Mapping[str, object]) -> HTTPResponse:
    """Call an ASGI application and return its response.

    If the application raises an exception before its response is complete, this function raises the exception. A later
    exception is logged.
    """
    method, body = request.method, request.body
    parts = urlsplit(request.url)
    headers = {**request.headers, "host": parts.netloc, **({"content-length": str(len(body))} if body else {})}
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": parts.scheme,
        "path": unquote(parts.path) or "/",
        "raw_path": (parts.path or "/").encode("ascii"),
        "query_string": parts.query.encode("ascii"),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 0),
        "server": (parts.hostname or "", parts.port or 80),
        "state": dict(state),
    }
    request_messages = [{"type": "http.request", "body": body, "more_body": False}]
    response_start: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> Any:
        if not request_messages:
            # The application waits for a disconnect, but the client stays connected until the response is complete.
            await asyncio.Event().wait()
        return request_messages.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            response_start.update(message)
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))
            if sum(map(len, pieces)) > max_bytes:
                raise _ResponseTooLarge(f"the response is larger than {max_bytes} bytes")
            response_start["whole"] = not message.get("more_body", False)

    try:
        await app(scope, receive, send)
    except _ResponseTooLarge:
        raise
    except Exception as exc:
        if not response_start.get("whole") or int(response_start["status"]) >= 500:
            # An MCPError would show its message to the model, so raise another type of exception.
            if isinstance(exc, MCPError):
                raise RuntimeError(f"the ASGI application failed: {type(exc).__name__}: {exc}") from exc
            raise
        log.error("the ASGI application failed after its response to %s %s", method, parts.path, exc_info=exc)
    if not response_start:
        raise TransportError("the ASGI application did not send a response")
    response_headers = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in response_start.get("headers", ())
    }
    return HTTPResponse(int(response_start["status"]), response_headers, b"".join(pieces))
