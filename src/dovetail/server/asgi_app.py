"""ASGI application of one server: the MCP endpoint with authentication, and an optional app for all other paths."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dovetail.protocol.exchange import Service
from dovetail.server.server_options import is_authenticator
from dovetail.transports.http_server.endpoint import Endpoint
from dovetail.transports.http_server.http_request import OtherApps
from dovetail.transports.http_server.route_call import FindRoute

if TYPE_CHECKING:
    from dovetail.protocol.interfaces.http_types import ASGIApp
    from dovetail.server.server_options import ASGIOptions


def create_endpoint(
    service: Service,
    auth: Any,
    options: "ASGIOptions",
    *,
    list_scopes: Callable[[], tuple[str, ...]],
    on_start: Callable[[], Awaitable[None]] | None = None,
    on_stop: Callable[[], Awaitable[None]] | None = None,
    other_apps: OtherApps | None = None,
    find_route: FindRoute | None = None,
) -> Endpoint:
    """Create the HTTP endpoint of a server. Only callers that `auth` accepts can use it."""
    endpoint_options: dict[str, Any] = {name: value for name, value in options.items() if name != "fallback"}
    if is_authenticator(auth):
        endpoint_options["authenticate"] = auth
    elif auth is not None:
        from dovetail.auth.asgi_guard import create_asgi_guard

        endpoint_options["guard"] = create_asgi_guard(
            auth,
            options.get("path", "/mcp"),
            options.get("public_url"),
            options.get("allowed_hosts", ()),
            list_scopes,
            service,
        )
    return Endpoint(
        service, on_start=on_start, on_stop=on_stop, other_apps=other_apps, find_route=find_route, **endpoint_options
    )


def create_asgi_app(service: Service, endpoint: Endpoint, fallback: "ASGIApp | None" = None) -> "ASGIApp":
    """Create the ASGI application for an endpoint. `fallback` handles the requests for other paths."""
    app: Any = endpoint
    if fallback is not None:
        from dovetail.transports.http_server.fallback_router import FallbackRouter

        app = FallbackRouter(endpoint, fallback)
    if service.recorder is not None:
        from dovetail.recording.trace import RecordedEndpoint

        app = RecordedEndpoint(endpoint, app, service.recorder)
    return app
