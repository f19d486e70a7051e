"""Ways to send a HTTPRequest: with our HTTP client, with one of the user's, or to an application of this process."""

import asyncio
import inspect
import logging
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from dovetail.errors import MCPError, TransportError
from dovetail.protocol.http_types import ASGIApp, HTTPRequest, HTTPResponse, SendRequest
from dovetail.protocol.limits import FetchLimits


def create_sender(client: Any, max_response_bytes: int) -> SendRequest:
    """What a user gave as a client, as a function; ours if nothing was given."""
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
    """Where a client of the user's sends what has no address of its own, if it says so as httpx's do."""
    base_url = str(getattr(client, "base_url", None) or "")
    return base_url if base_url.startswith(("http://", "https://")) else None


def _check_async(client: Any) -> None:
    """Refuse a client whose requests nobody can await: it would hold up everyone, and then fail."""
    is_async = inspect.iscoroutinefunction(client.request) or not hasattr(client, "close") or hasattr(client, "aclose")
    if not is_async:
        raise TypeError(f"client= needs an asynchronous client such as httpx.AsyncClient, not {type(client).__name__}")


def _create_http_sender(max_response_bytes: int) -> SendRequest:
    from dovetail.transports.http_client.http_client import HTTPClient

    http_client = HTTPClient(limits=FetchLimits(max_body_bytes=max_response_bytes))

    async def send(request: HTTPRequest) -> HTTPResponse:
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in request.headers.items()]
        response = await http_client.fetch(request.method, request.url, headers, request.body)
        body = await response.read()
        response_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers.items()}
        return HTTPResponse(response.status, response_headers, body)

    return send


def _create_client_sender(client: Any) -> SendRequest:
    async def send(request: HTTPRequest) -> HTTPResponse:
        response = await client.request(request.method, request.url, headers=request.headers, content=request.body)
        return HTTPResponse(response.status_code, dict(response.headers), response.content)

    return send


def create_app_sender(application: Any, max_response_bytes: int) -> SendRequest:
    """Requests to an ASGI application of this process."""

    async def send(request: HTTPRequest) -> HTTPResponse:
        response = await call_app(
            application, request.method, request.url, request.headers, request.body, max_bytes=max_response_bytes
        )
        return HTTPResponse(*response)

    return send


def get_openapi_document(application: Any) -> Mapping[str, Any]:
    """The OpenAPI document an application has of itself."""
    if callable(getattr(application, "openapi", None)):  # FastAPI
        return application.openapi()
    schema = getattr(application, "openapi_schema", None)  # Litestar
    if schema is not None:
        return schema.to_schema()
    raise TypeError("the application has no OpenAPI document of its own: pass one")


log = logging.getLogger("dovetail")


class _ResponseTooLarge(TransportError):
    """More than is taken."""


async def call_app(
    app: ASGIApp, method: str, url: str, headers: dict[str, str], body: bytes, *, max_bytes: int
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what the application answers; TransportError if it says nothing or too much.

    What the application raises is its own, and goes to whoever called; once it has answered well, only to the log.
    """
    parts = urlsplit(url)
    default_headers = {"host": parts.netloc, **({"content-length": str(len(body))} if body else {})}
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
        "headers": [
            (name.lower().encode(), value.encode("latin-1")) for name, value in (headers | default_headers).items()
        ],
        "client": ("127.0.0.1", 0),
        "server": (parts.hostname or "", parts.port or 80),
        "state": {},
    }
    request_messages = [{"type": "http.request", "body": body, "more_body": False}]
    response_start: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> Any:
        if not request_messages:
            await asyncio.Event().wait()  # the caller stays until the answer is there
        return request_messages.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            response_start.update(message)
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))
            if sum(map(len, pieces)) > max_bytes:
                raise _ResponseTooLarge(f"the reply is larger than {max_bytes} bytes")
            response_start["whole"] = not message.get("more_body", False)

    try:
        await app(scope, receive, send)
    except _ResponseTooLarge:
        raise
    except Exception as exc:
        if not response_start.get("whole") or int(response_start["status"]) >= 500:
            if isinstance(exc, MCPError):  # which would be read as a word to the model
                raise RuntimeError(f"the application failed: {type(exc).__name__}: {exc}") from exc
            raise
        log.error("the application failed after it had answered %s %s", method, parts.path, exc_info=exc)
    if not response_start:
        raise TransportError("the application did not answer")
    response_headers = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in response_start.get("headers", ())
    }
    return int(response_start["status"]), response_headers, b"".join(pieces)
