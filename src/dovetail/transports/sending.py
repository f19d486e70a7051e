"""Ways to send a WebRequest: with our HTTP client, with one of the user's, or to an application of this process."""

import inspect
from collections.abc import Mapping
from typing import Any, cast

from dovetail.protocol.limits import FetchLimits
from dovetail.protocol.web import SendRequest, WebReply, WebRequest
from dovetail.transports import within as inside


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
        "client= takes an async function of a WebRequest, or a client with a `request` method such as httpx's"
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
    from dovetail.transports.fetch import HTTPClient

    http_client = HTTPClient(limits=FetchLimits(max_body_bytes=max_response_bytes))

    async def send(request: WebRequest) -> WebReply:
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in request.headers.items()]
        response = await http_client.fetch(request.method, request.url, headers, request.body)
        body = await response.read()
        response_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers.items()}
        return WebReply(response.status, response_headers, body)

    return send


def _create_client_sender(client: Any) -> SendRequest:
    async def send(request: WebRequest) -> WebReply:
        response = await client.request(request.method, request.url, headers=request.headers, content=request.body)
        return WebReply(response.status_code, dict(response.headers), response.content)

    return send


def create_app_sender(application: Any, max_response_bytes: int) -> SendRequest:
    """Requests to an ASGI application of this process."""

    async def send(request: WebRequest) -> WebReply:
        response = await inside.call_app(
            application, request.method, request.url, request.headers, request.body, max_bytes=max_response_bytes
        )
        return WebReply(*response)

    return send


def get_openapi_document(application: Any) -> Mapping[str, Any]:
    """The OpenAPI document an application has of itself."""
    if callable(getattr(application, "openapi", None)):  # FastAPI
        return application.openapi()
    schema = getattr(application, "openapi_schema", None)  # Litestar
    if schema is not None:
        return schema.to_schema()
    raise TypeError("the application has no OpenAPI document of its own: pass one")
