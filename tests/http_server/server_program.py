"""A server over HTTP that shows how it read each request: `server_program.py dovetail|uvicorn <options as JSON>`.

Requests outside /mcp are answered with the method, target, headers and body that arrived, as JSON. `GET /recorded`
returns the requests since the last `GET /recorded`. uvicorn serves the same application, to compare both servers.

The tool `inspect` and the route /route show how dovetail read a request, and its caller. Each connection checks that it
has a legal state after everything it handles.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

recorded: list[dict[str, Any]] = []


async def record_requests(scope: Any, receive: Any, send: Any) -> None:
    """Answer each request with what it contained."""
    if scope["type"] != "http":
        raise NotImplementedError  # no lifespan
    body, has_more = b"", True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    query = scope["query_string"]
    target = (scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")
    request = {
        "method": scope["method"],
        "target": target,
        "version": scope["http_version"],
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
        "body": body.decode("latin-1"),
        "client": scope["client"],
    }
    answer: Any = request
    if target == "/recorded":
        answer = recorded.copy()
        recorded.clear()
    elif target != "/ping":
        recorded.append(request)
        del recorded[:-1000]
    data = json.dumps(answer).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(data)),
        (b"x-method", scope["method"].encode("latin-1")),
        (b"x-target", quote(target, safe="").encode()),
    ]
    if scope["method"] == "HEAD":  # The response has no body.
        headers.append((b"x-body", quote(body, safe="").encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data})


def run_uvicorn() -> None:
    import socket

    import uvicorn

    # asyncio turns off Nagle's algorithm only for a socket with an explicit protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    config = uvicorn.Config(
        record_requests, http="httptools", ws="none", lifespan="off", log_level="critical", timeout_keep_alive=600
    )
    sys.stderr.write(f"uvicorn is at http://127.0.0.1:{listener.getsockname()[1]}/\n")
    sys.stderr.flush()
    uvicorn.Server(config).run([listener])


async def authenticate(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the name in a token such as `Bearer ada`. Callers without a token are anonymous."""
    token = headers.get(b"authorization")
    return None if token is None else token.decode("latin-1").removeprefix("Bearer ")


def run_dovetail(*, limits: Any = None, log: str | None = None, **options: Any) -> None:
    from dovetail import Context, RouteRequest, Server, ServerLimits
    from http_server.checked_connection import check_connections

    check_connections()
    app = Server("recorder", limits=ServerLimits(**(limits or {})), auth=authenticate)
    events: dict[str, asyncio.Event] = {}
    ended: set[str] = set()

    def get_event(key: str) -> asyncio.Event:
        return events.setdefault(key, asyncio.Event())

    @app.tool
    async def echo(text: str) -> str:
        """Return the text."""
        return text

    @app.tool
    async def inspect(text: str, ctx: Context) -> str:
        """Return the caller, the headers and the text."""
        caller = None if ctx.principal is None else str(ctx.principal)
        return json.dumps({"caller": caller, "headers": dict(ctx.headers), "text": text})

    @app.route("/route", methods=["GET", "POST"])
    async def show_request(request: RouteRequest) -> dict[str, Any]:
        """Return the caller and the whole request."""
        return {
            "caller": None if request.principal is None else str(request.principal),
            "target": f"{request.path}?{request.query_string}",
            "headers": dict(request.headers),
            "body": request.body.decode("latin-1"),
        }

    @app.tool
    async def blob(size: int) -> str:
        """Return a large text."""
        return "x" * size

    @app.tool
    async def work(name: str, seconds: float) -> str:
        """Write the name into the log, and return it after a while."""
        assert log is not None
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{name}\n".encode())
        os.close(descriptor)
        await asyncio.sleep(seconds)
        return name

    @app.tool
    async def wait(key: str, ctx: Context) -> str:
        """Report progress, and wait until `release`."""
        await ctx.progress(1, 2)
        try:
            await get_event(key).wait()
        finally:
            ended.add(key)
        return key

    @app.tool
    async def release(key: str) -> str:
        """End a `wait`."""
        get_event(key).set()
        return key

    @app.tool
    async def has_ended(key: str) -> bool:
        """Return whether a `wait` has ended or was cancelled."""
        return key in ended

    app.run("http", port=0, fallback=record_requests, **options)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    {"uvicorn": run_uvicorn, "dovetail": run_dovetail}[sys.argv[1]](**json.loads(sys.argv[2]))
