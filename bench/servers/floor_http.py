"""The HTTP floor: an ASGI function on uvicorn with uvloop and httptools. It answers with JSON or with one event."""

from typing import Any

import uvicorn
from floor import create_floor
from workload import ServerOptions, open_socket

options = ServerOptions()
floor = create_floor(options)
streaming = options.responses == "sse"
session = (b"mcp-session-id", b"floor")
sse_head = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), session],
}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer a POST with any path and headers."""
    if scope["method"] != "POST":  # a client opens a stream or ends its session
        await send({"type": "http.response.start", "status": 405, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        return
    message = await receive()
    body = message["body"]
    if message.get("more_body"):
        pieces = [body]
        while message.get("more_body"):
            message = await receive()
            pieces.append(message["body"])
        body = b"".join(pieces)
    answer = await floor.answer(body)
    if answer is None:
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
    elif streaming:
        await send(sse_head)
        await send({"type": "http.response.body", "body": b"event: message\ndata: %s\n\n" % answer})
    else:
        length = (b"content-length", b"%d" % len(answer))
        headers = [(b"content-type", b"application/json"), length, session]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


config = uvicorn.Config(
    app, loop="uvloop", http="httptools", lifespan="off", ws="none", access_log=False, log_level="warning"
)
uvicorn.Server(config).run([open_socket()])
