"""A router in front of a fallback ASGI application, and a function that runs the lifespan of an application."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Final

from dovetail.protocol.http_types import ASGIApp, ASGIMessage
from dovetail.transports.http_server.endpoint import Endpoint
from dovetail.transports.http_server.http_request import ServerRequest

_LIFESPAN_ENDED: Final = "over"  # This type of message is not part of ASGI.


@asynccontextmanager
async def run_lifespan(app: ASGIApp) -> AsyncGenerator[None]:
    """Run the lifespan of an ASGI application, if it has one."""
    requests: asyncio.Queue[ASGIMessage] = asyncio.Queue()
    replies: asyncio.Queue[ASGIMessage] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    task = loop.create_task(_run_quietly(app(scope, requests.get, replies.put), replies))
    try:
        await requests.put({"type": "lifespan.startup"})
        reply = await replies.get()
        if reply["type"] == "lifespan.startup.failed":
            raise RuntimeError(f"the application could not start: {reply.get('message', '')}")
        yield
        if reply["type"] != _LIFESPAN_ENDED:
            await requests.put({"type": "lifespan.shutdown"})
            await replies.get()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _run_quietly(coroutine: Any, replies: asyncio.Queue[ASGIMessage]) -> None:
    try:
        await coroutine
    except Exception:  # The application does not support lifespan events.
        pass
    finally:
        replies.put_nowait({"type": _LIFESPAN_ENDED})


class FallbackRouter:
    """Sends each request to the server or to another ASGI application. Runs the lifespan of both."""

    def __init__(self, endpoint: Endpoint, fallback: ASGIApp) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self.close = endpoint.close
        self.begin_drain = endpoint.begin_drain
        self.end_streams = endpoint.end_streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(scope, receive, send)
        elif scope["type"] == "http" and self._endpoint.handles_path(scope):
            await self._endpoint(scope, receive, send)
        else:
            await self._fallback(scope, receive, send)

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

        async with run_lifespan(self._fallback):
            await self._endpoint(scope, receive, hold_shutdown)
        for message in shutdown_messages:
            await send(message)
