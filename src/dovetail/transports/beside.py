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
            await self._live(scope, receive, send)
        elif scope["type"] == "http" and self._endpoint.serves(scope):
            await self._endpoint(scope, receive, send)
        else:
            await self._other(scope, receive, send)

    async def _live(self, scope: Any, receive: Any, send: Any) -> None:
        """That all is stopped is said when the other is too: nobody waits for what is done after that."""
        last: list[Any] = []

        async def hold(message: Any) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                last.append(message)
            else:
                await send(message)

        async with lifespan(self._other):
            await self._endpoint(scope, receive, hold)
        for message in last:
            await send(message)
