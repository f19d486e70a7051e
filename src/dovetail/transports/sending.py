"""Ways to send a WebRequest: with our HTTP client, with one of the user's, or to an application of this process."""

import inspect
from collections.abc import Mapping
from typing import Any, cast

from dovetail.protocol.limits import FetchLimits
from dovetail.protocol.web import Send, WebReply, WebRequest
from dovetail.transports import within as inside


def sender(client: Any, most: int) -> Send:
    """What a user gave as a client, as a function; ours if nothing was given."""
    if client is None:
        return _own(most)
    if callable(getattr(client, "request", None)):
        _check_awaited(client)
        return _of_client(client)
    if callable(client):
        return cast("Send", client)
    raise TypeError(
        "client= takes an async function of a WebRequest, or a client with a `request` method such as httpx's"
    )


def base_of(client: Any) -> str | None:
    """Where a client of the user's sends what has no address of its own, if it says so as httpx's do."""
    found = str(getattr(client, "base_url", None) or "")
    return found if found.startswith(("http://", "https://")) else None


def _check_awaited(client: Any) -> None:
    """Refuse a client whose requests nobody can await: it would hold up everyone, and then fail."""
    waits = inspect.iscoroutinefunction(client.request) or not hasattr(client, "close") or hasattr(client, "aclose")
    if not waits:
        raise TypeError(f"client= needs an asynchronous client such as httpx.AsyncClient, not {type(client).__name__}")


def _own(most: int) -> Send:
    from dovetail.transports.fetch import Fetcher

    fetcher = Fetcher(limits=FetchLimits(body=most))

    async def send(request: WebRequest) -> WebReply:
        lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in request.headers.items()]
        reply = await fetcher.fetch(request.method, request.url, lines, request.body)
        body = await reply.read()
        told = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers.items()}
        return WebReply(reply.status, told, body)

    return send


def _of_client(client: Any) -> Send:
    async def send(request: WebRequest) -> WebReply:
        reply = await client.request(request.method, request.url, headers=request.headers, content=request.body)
        return WebReply(reply.status_code, dict(reply.headers), reply.content)

    return send


def within(application: Any, most: int) -> Send:
    """Requests to an ASGI application of this process."""

    async def send(request: WebRequest) -> WebReply:
        found = await inside.call(application, request.method, request.url, request.headers, request.body, most=most)
        return WebReply(*found)

    return send


def described(application: Any) -> Mapping[str, Any]:
    """The OpenAPI document an application has of itself."""
    if callable(getattr(application, "openapi", None)):  # FastAPI
        return application.openapi()
    schema = getattr(application, "openapi_schema", None)  # Litestar
    if schema is not None:
        return schema.to_schema()
    raise TypeError("the application has no OpenAPI document of its own: pass one")
