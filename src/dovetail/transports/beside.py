"""Beside: one server's paths in front of another ASGI application, for those that cannot mount."""

from typing import Any

from dovetail.transports.asgi import Endpoint
from dovetail.transports.within import lifespan


class Beside:
    """What the server serves goes to it, everything else to the other application; both are started and stopped."""

    def __init__(self, endpoint: Endpoint, other: Any) -> None:
        self._endpoint = endpoint
        self._other = other
        self.close = endpoint.close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            async with lifespan(self._other):
                await self._endpoint(scope, receive, send)
        elif scope["type"] == "http" and self._endpoint.serves(scope):
            await self._endpoint(scope, receive, send)
        else:
            await self._other(scope, receive, send)
