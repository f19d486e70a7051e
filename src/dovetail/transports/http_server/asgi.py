"""A router in front of a fallback ASGI application, and a function that runs the lifespan of an application."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Final

from dovetail.log import log
from dovetail.protocol.interfaces.http_types import ASGIApp, ASGIMessage
from dovetail.transports.http_server.endpoint import Endpoint
from dovetail.transports.http_server.http_request import ServerRequest

_LIFESPAN_ENDED: Final = "over"  # This type of message is not part of ASGI.
_COMPLETE_MESSAGES: Final = ("lifespan.startup.complete", "lifespan.shutdown.complete")


class StartupFailed(RuntimeError):
    """Raised if an ASGI application reports that it cannot start.

    Args:
        report: The message of the application. Starlette sends a traceback, which ends with the error.
    """

    def __init__(self, report: str) -> None:
        super().__init__(f"the application could not start: {_get_last_line(report)}")
        self.report = report


@asynccontextmanager
async def run_lifespan(app: ASGIApp, state: dict[str, Any] | None = None) -> AsyncGenerator[dict[str, Any]]:
    """Run the lifespan of an ASGI application, if it has one.

    Args:
        state: The dictionary to which the application can add values. The function yields this dictionary, and the
            scope of each request must have a copy of it.

    Raises:
        StartupFailed: The application cannot start.
    """
    state = {} if state is None else state
    lifespan = _Lifespan(app, state)
    try:
        await lifespan.start()
        yield state
        await lifespan.shut_down()
    finally:
        await lifespan.cancel()


class _Lifespan:
    """The lifespan of an ASGI application, which runs in a task."""

    def __init__(self, app: ASGIApp, state: dict[str, Any]) -> None:
        self._requests: asyncio.Queue[ASGIMessage] = asyncio.Queue()
        self._replies: asyncio.Queue[ASGIMessage] = asyncio.Queue()
        self._last_reply_type: str | None = None
        self._error: Exception | None = None
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
        self._task = asyncio.get_running_loop().create_task(self._run(app, scope))

    async def start(self) -> None:
        await self._requests.put({"type": "lifespan.startup"})
        reply = await self._replies.get()
        if reply["type"] == "lifespan.startup.failed":
            await self.cancel()  # Starlette raises the error after this reply.
            raise StartupFailed(reply.get("message", "")) from self._error

    async def shut_down(self) -> None:
        if self._last_reply_type == "lifespan.startup.complete":
            await self._requests.put({"type": "lifespan.shutdown"})
            reply = await self._replies.get()
            if reply["type"] == "lifespan.shutdown.failed":
                await self.cancel()
                problem = _get_last_line(reply.get("message", ""))
                log.error("the application could not shut down: %s", problem, exc_info=self._error)

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._requests.get, self._send)
        except Exception as exc:
            self._error = exc
            if self._last_reply_type is None:
                log.debug("the application does not support lifespan events: %s", exc)
            elif self._last_reply_type in _COMPLETE_MESSAGES:
                log.error("the lifespan of the application failed: %s", type(exc).__name__, exc_info=exc)
        finally:
            self._replies.put_nowait({"type": _LIFESPAN_ENDED})

    async def _send(self, message: ASGIMessage) -> None:
        self._last_reply_type = message["type"]
        self._replies.put_nowait(message)


def _get_last_line(report: str) -> str:
    return report.strip().rpartition("\n")[2] or "it reports no reason"


class FallbackRouter:
    """Sends each request to the server or to another ASGI application. Runs the lifespan of both."""

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
