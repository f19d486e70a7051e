"""A router that sends the requests for other paths than the MCP path to another ASGI application."""

from collections.abc import Awaitable
from typing import Any

from dovetail.protocol.interfaces.http_types import ASGIApp
from dovetail.transports.http1.asgi_lifespan import StartupFailed, run_lifespan
from dovetail.transports.http1.server_request import ServerRequest
from dovetail.transports.http_server.endpoint import Endpoint


class FallbackRouter:
    """Sends each request to the server or to another ASGI application. Runs the lifespan of both."""

    handles_server_requests = True

    def __init__(self, endpoint: Endpoint, fallback: ASGIApp) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self._state: dict[str, Any] = {}  # the values that the lifespan of the fallback has added
        self.close = endpoint.close
        self.begin_drain = endpoint.begin_drain
        self.end_streams = endpoint.end_streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(scope, receive, send)
        elif scope["type"] == "http" and self._endpoint.handles_path(scope):
            await self._endpoint(scope, receive, send)
        else:
            # Not every server supports the state of a lifespan.
            state = {**self._state, **scope.get("state", {})}
            await self._fallback({**scope, "state": state}, receive, send)

    def handle(self, http: ServerRequest) -> Awaitable[None]:
        """Handle an HTTP request of our HTTP server."""
        if http.path == self._endpoint.path:
            return self._endpoint.handle(http)
        return self(http.scope, http.receive, http.send)

    async def _handle_lifespan(self, scope: Any, receive: Any, send: Any) -> None:
        shutdown_messages: list[Any] = []

        async def hold_shutdown(message: Any) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                shutdown_messages.append(message)
            else:
                await send(message)

        try:
            async with run_lifespan(self._fallback, scope.get("state")) as self._state:
                await self._endpoint(scope, receive, hold_shutdown)
        except StartupFailed as exc:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": exc.report})
            error = exc.__cause__
        else:
            error = None
            for message in shutdown_messages:
                await send(message)
        if error is not None:  # The server can show the traceback of the application.
            raise error
