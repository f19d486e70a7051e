"""The HTTP floor: a raw ASGI function on uvicorn with uvloop and httptools, answering JSON or one event."""

from typing import Any

import uvicorn
from floor import create_floor
from workload import ServerOptions, open_socket

order = ServerOptions()
floor = create_floor(order)
streaming = order.responses == "sse"
session = (b"mcp-session-id", b"floor")
head = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), session],
}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer a POST, whatever its path and headers."""
    if scope["method"] != "POST":  # a client wants to listen, or takes its leave
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
        await send(head)
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
