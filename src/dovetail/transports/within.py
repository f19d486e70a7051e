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

_LIFESPAN_ENDED: Final = "over"  # not of ASGI: the application has left its lifespan, and nothing more comes of it


class _ResponseTooLarge(TransportError):
    """More than is taken."""


async def call_app(
    app: App, method: str, url: str, headers: dict[str, str], body: bytes, *, max_bytes: int
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what the application answers; TransportError if it says nothing or too much.

    What the application raises is its own, and goes to whoever called; once it has answered well, only to the log.
    """
    parts = urlsplit(url)
    default_headers = {"host": parts.netloc, **({"content-length": str(len(body))} if body else {})}
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
        "headers": [
            (name.lower().encode(), value.encode("latin-1")) for name, value in (headers | default_headers).items()
        ],
        "client": ("127.0.0.1", 0),
        "server": (parts.hostname or "", parts.port or 80),
        "state": {},
    }
    request_messages = [{"type": "http.request", "body": body, "more_body": False}]
    response_start: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> Any:
        if not request_messages:
            await asyncio.Event().wait()  # the caller stays until the answer is there
        return request_messages.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            response_start.update(message)
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))
            if sum(map(len, pieces)) > max_bytes:
                raise _ResponseTooLarge(f"the reply is larger than {max_bytes} bytes")
            response_start["whole"] = not message.get("more_body", False)

    try:
        await app(scope, receive, send)
    except _ResponseTooLarge:
        raise
    except Exception as exc:
        if not response_start.get("whole") or int(response_start["status"]) >= 500:
            if isinstance(exc, MCPError):  # which would be read as a word to the model
                raise RuntimeError(f"the application failed: {type(exc).__name__}: {exc}") from exc
            raise
        log.error("the application failed after it had answered %s %s", method, parts.path, exc_info=exc)
    if not response_start:
        raise TransportError("the application did not answer")
    response_headers = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in response_start.get("headers", ())
    }
    return int(response_start["status"]), response_headers, b"".join(pieces)


@asynccontextmanager
async def run_lifespan(app: App) -> AsyncGenerator[None]:
    """The application's own lifespan; one that knows none is left alone."""
    requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
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


async def _run_quietly(coroutine: Any, replies: asyncio.Queue[dict[str, Any]]) -> None:
    try:
        await coroutine
    except Exception:  # it knows no lifespan
        pass
    finally:
        replies.put_nowait({"type": _LIFESPAN_ENDED})
