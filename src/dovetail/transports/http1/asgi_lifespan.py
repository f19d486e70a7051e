"""The lifespan of an ASGI application."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from dovetail.log import log
from dovetail.protocol.interfaces.http_types import ASGIApp, ASGIMessage

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
