"""Beside: one server's paths in front of another ASGI application, for those that cannot mount."""

from typing import Any

from dovetail.transports.asgi import Endpoint
from dovetail.transports.within import run_lifespan


class FallbackRouter:
    """What the server serves goes to it, everything else to the other application; both are started and stopped."""

    def __init__(self, endpoint: Endpoint, fallback: Any) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self.close = endpoint.close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._handle_lifespan(scope, receive, send)
        elif scope["type"] == "http" and self._endpoint.handles_path(scope):
            await self._endpoint(scope, receive, send)
        else:
            await self._fallback(scope, receive, send)

    async def _handle_lifespan(self, scope: Any, receive: Any, send: Any) -> None:
        """That all is stopped is said when the other is too: nobody waits for what is done after that."""
        shutdown_messages: list[Any] = []

        async def hold_shutdown(message: Any) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                shutdown_messages.append(message)
            else:
                await send(message)

        async with run_lifespan(self._fallback):
            await self._endpoint(scope, receive, hold_shutdown)
        for message in shutdown_messages:
            await send(message)
