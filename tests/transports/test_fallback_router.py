"""Test a server in front of another application: both start and stop together."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from dovetail import Server
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http1.asgi_lifespan import StartupFailed
from dovetail.transports.http1.http_listener import HTTPServer, bind_socket
from support.fake_service import TIMEOUT_S


async def run_lifespan_events(app: Any, **scope: Any) -> list[Any]:
    """Start and stop an application as an ASGI server does, and return its messages."""
    requests = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    replies: list[Any] = []

    async def receive() -> Any:
        return requests.pop(0)

    async def send(message: Any) -> None:
        replies.append(message)

    async with asyncio.timeout(TIMEOUT_S):
        await app({"type": "lifespan", **scope}, receive, send)
    return replies


@asynccontextmanager
async def serve(app: Any) -> AsyncIterator[int]:
    """Serve an application with our HTTP server, and yield the port."""
    listener = bind_socket("127.0.0.1", 0)
    server = HTTPServer(app, ServerLimits())

    async def drain() -> None:
        return

    try:
        await server.start(listener)
        yield listener.getsockname()[1]
        await server.stop(drain)
    finally:
        listener.close()


async def fetch(port: int, path: str) -> bytes:
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        response = await reader.read()
        writer.close()
    return response.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("fails", [False, True])
async def test_shutdown_complete_is_sent_last(fails: bool) -> None:
    """An ASGI server may end the process after this message, so the fallback must have ended before."""
    happened: list[str] = []

    async def other(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.sleep(0)
        happened.append("the other has ended")
        if fails:
            raise RuntimeError("badly")
        await send({"type": "lifespan.shutdown.complete"})

    async def send(message: Any) -> None:
        happened.append(message["type"])

    coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return coming.pop(0)

    async with asyncio.timeout(TIMEOUT_S):
        await Server("x").asgi(fallback=other)({"type": "lifespan"}, receive, send)
    assert happened == ["lifespan.startup.complete", "the other has ended", "lifespan.shutdown.complete"]


async def test_a_fallback_without_lifespan_events_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("only http here")

    replies = await run_lifespan_events(Server("x").asgi(fallback=other))
    assert [reply["type"] for reply in replies] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert not caplog.records


@asynccontextmanager
async def fail_to_start(app: Starlette) -> AsyncIterator[None]:
    raise LookupError("cannot reach the database")
    yield


async def test_a_fallback_that_cannot_start_stops_the_server() -> None:
    started: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        started.append("server")
        yield

    app = Server("x", lifespan=lifespan).asgi(fallback=Starlette(lifespan=fail_to_start))
    with pytest.raises(StartupFailed, match=r"LookupError: cannot reach the database$") as caught:
        async with serve(app):
            pass
    assert isinstance(caught.value.__cause__, LookupError)
    assert started == []


async def test_an_asgi_server_learns_that_the_fallback_cannot_start() -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    replies = await run_lifespan_events(Server("x").asgi(fallback=other))
    assert replies == [{"type": "lifespan.startup.failed", "message": "no database"}]


@asynccontextmanager
async def fail_to_stop(app: Starlette) -> AsyncIterator[None]:
    yield
    raise LookupError("could not flush 17 rows")


async def test_a_failed_shutdown_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(Server("x").asgi(fallback=Starlette(lifespan=fail_to_stop))):
        pass
    (record,) = [record for record in caplog.records if record.name == "dovetail"]
    assert record.levelno == logging.ERROR
    assert record.args == ("LookupError: could not flush 17 rows",)
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


@pytest.mark.parametrize("waits", [False, True])
async def test_an_exception_after_the_startup_is_logged(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        if waits:
            await receive()
        raise LookupError("badly")

    async with serve(Server("x").asgi(fallback=other)):
        pass
    (record,) = [record for record in caplog.records if record.name == "dovetail"]
    assert (record.levelno, record.args) == (logging.ERROR, ("LookupError",))


async def show_state(request: Request) -> PlainTextResponse:
    pool, request.state.pool = request.state.pool, "changed"
    return PlainTextResponse(pool)


@asynccontextmanager
async def open_pool(app: Starlette) -> AsyncIterator[dict[str, str]]:
    yield {"pool": "the pool"}


@pytest.mark.parametrize("is_fallback", [True, False])
async def test_each_request_gets_a_copy_of_the_state(is_fallback: bool) -> None:
    web = Starlette(routes=[Route("/state", show_state)], lifespan=open_pool)
    async with serve(Server("x").asgi(fallback=web) if is_fallback else web) as port:
        assert [await fetch(port, "/state") for _ in range(2)] == 2 * [b"the pool"]


async def test_the_fallback_uses_the_state_of_the_asgi_server() -> None:
    states: list[Any] = []

    async def other(scope: Any, receive: Any, send: Any) -> None:
        states.append(scope["state"])
        if scope["type"] == "lifespan":
            scope["state"]["pool"] = "the pool"

    state: dict[str, Any] = {"of the server": 1}
    app: Any = Server("x").asgi(fallback=other)
    await run_lifespan_events(app, state=state)
    assert state == {"of the server": 1, "pool": "the pool"}
    scope = {"type": "http", "method": "GET", "path": "/other", "headers": [], "state": {**state, "added": 2}}
    await app(scope, None, None)
    assert states == [state, {"of the server": 1, "pool": "the pool", "added": 2}]
