"""Within: an ASGI application called in its own process, without a network in between, and its lifespan."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from dovetail.errors import MCPError, TransportError

log = logging.getLogger("dovetail")

App = Callable[[Any, Any, Any], Any]

_OVER: Final = "over"  # not of ASGI: the application has left its lifespan, and nothing more comes of it


class _TooLarge(TransportError):
    """More than is taken."""


async def call(
    app: App, method: str, url: str, headers: dict[str, str], body: bytes, *, most: int
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what the application answers; TransportError if it says nothing or too much.

    What the application raises is its own, and goes to whoever called; once it has answered well, only to the log.
    """
    parts = urlsplit(url)
    own = {"host": parts.netloc, **({"content-length": str(len(body))} if body else {})}
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": parts.scheme,
        "path": unquote(parts.path) or "/",
        "raw_path": (parts.path or "/").encode("ascii"),
        "query_string": parts.query.encode("ascii"),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers | own).items()],
        "client": ("127.0.0.1", 0),
        "server": (parts.hostname or "", parts.port or 80),
        "state": {},
    }
    given = [{"type": "http.request", "body": body, "more_body": False}]
    started: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> Any:
        if not given:
            await asyncio.Event().wait()  # the caller stays until the answer is there
        return given.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))
            if sum(map(len, pieces)) > most:
                raise _TooLarge(f"the reply is larger than {most} bytes")
            started["whole"] = not message.get("more_body", False)

    try:
        await app(scope, receive, send)
    except _TooLarge:
        raise
    except Exception as exc:
        if not started.get("whole") or int(started["status"]) >= 500:
            if isinstance(exc, MCPError):  # which would be read as a word to the model
                raise RuntimeError(f"the application failed: {type(exc).__name__}: {exc}") from exc
            raise
        log.error("the application failed after it had answered %s %s", method, parts.path, exc_info=exc)
    if not started:
        raise TransportError("the application did not answer")
    told = {name.decode("latin-1"): value.decode("latin-1") for name, value in started.get("headers", ())}
    return int(started["status"]), told, b"".join(pieces)


@asynccontextmanager
async def lifespan(app: App) -> AsyncGenerator[None]:
    """The application's own lifespan; one that knows none is left alone."""
    asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    task = loop.create_task(_silently(app(scope, asked.get, told.put), told))
    try:
        await asked.put({"type": "lifespan.startup"})
        answer = await told.get()
        if answer["type"] == "lifespan.startup.failed":
            raise RuntimeError(f"the application could not start: {answer.get('message', '')}")
        yield
        if answer["type"] != _OVER:
            await asked.put({"type": "lifespan.shutdown"})
            await told.get()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _silently(work: Any, told: asyncio.Queue[dict[str, Any]]) -> None:
    try:
        await work
    except Exception:  # it knows no lifespan
        pass
    finally:
        told.put_nowait({"type": _OVER})
