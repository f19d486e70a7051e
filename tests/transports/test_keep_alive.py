"""Test how long idle connections stay open: what our server announces, and what our client makes of it."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail.auth.safe_fetch import ServerFetcher
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http1.http_listener import HTTPServer, bind_socket
from dovetail.transports.http_client import http_client
from dovetail.transports.http_client.dialer import dial
from dovetail.transports.http_client.http_client import HTTPClient
from dovetail.transports.http_server.endpoint import Endpoint
from support.fake_service import (
    FakeService,
    mirror_headers,
    run_pending_callbacks,
    stateless_request,
    wait_until,
)
from transports.raw_server import ServerConnection, plain_reply, reply_to_each, run_raw_server

BOTH_LOOPS = True
TIMEOUT_S = 10.0
GET = b"GET %b HTTP/%b\r\nhost: localhost\r\n%b\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = [(b"content-length", b"0"), (b"keep-alive", b"timeout=9")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})


@asynccontextmanager
async def serve(app: Any = application, **limits: Any) -> AsyncIterator[tuple[HTTPServer, int]]:
    listener = bind_socket("127.0.0.1", 0)
    server = HTTPServer(app, ServerLimits(**limits))
    await server.start(listener)
    try:
        yield server, listener.getsockname()[1]
    finally:
        await server.abort()


def exchange(port: int, request: bytes) -> dict[str, str]:
    """Send a request on a new connection, and return the headers of the response."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
        return exchange_on(client, request)


def exchange_on(client: socket.socket, request: bytes = b"") -> dict[str, str]:
    client.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65536)
        assert piece, "the server closed the connection"
        data += piece
    lines = data.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")[1:]
    assert len({line.partition(": ")[0] for line in lines}) == len(lines)
    return dict(line.split(": ", 1) for line in lines)


# The server


@pytest.mark.parametrize(
    ("idle_timeout", "expected"),
    [(75, ("keep-alive", "timeout=75")), (620.9, ("keep-alive", "timeout=620")), (0.9, (None, None))],
)
async def test_the_server_announces_its_idle_timeout(idle_timeout: float, expected: Any) -> None:
    async with serve(idle_timeout=idle_timeout) as (_, port):
        headers = await asyncio.to_thread(exchange, port, GET % (b"/", b"1.1", b""))
        assert (headers.get("connection"), headers.get("keep-alive")) == expected


@pytest.mark.parametrize("path", ["/mcp", "/missing"])
async def test_responses_of_the_endpoint_announce_it(path: str) -> None:
    async with serve(Endpoint(FakeService())) as (_, port):
        headers = await asyncio.to_thread(exchange, port, encode_post(path, stateless_request()))
        assert (headers["connection"], headers["keep-alive"]) == ("keep-alive", "timeout=75")


def encode_post(path: str, message: Any) -> bytes:
    body = json.dumps(message).encode()
    fields = {"host": "localhost", "content-type": "application/json", "content-length": len(body)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**fields, **mirror_headers(message)}.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


@pytest.mark.parametrize(
    "request_bytes",
    [
        GET % (b"/", b"1.1", b"connection: close\r\n"),
        GET % (b"/", b"1.0", b"connection: keep-alive\r\n"),
        GET % (b"/#fragment", b"1.1", b""),
    ],
    ids=["close", "1.0", "invalid"],
)
async def test_a_response_that_closes_the_connection_announces_nothing(request_bytes: bytes) -> None:
    async with serve() as (_, port):
        headers = await asyncio.to_thread(exchange, port, request_bytes)
        assert (headers["connection"], headers.get("keep-alive")) == ("close", None)


@pytest.mark.parametrize("is_busy_with_data", [True, False])
async def test_a_request_that_arrives_at_the_end_of_the_idle_time_is_answered(is_busy_with_data: bool) -> None:
    """The request arrives while the event loop is busy, so the idle time has passed when the loop continues."""
    loop, data_socket = asyncio.get_running_loop(), socket.socketpair()
    async with serve(idle_timeout=0.5) as (_, port):
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client, data_socket[0], data_socket[1]:
            await asyncio.to_thread(exchange_on, client, GET % (b"/", b"1.1", b""))

            def be_busy() -> None:
                loop.remove_reader(data_socket[0])
                client.sendall(GET % (b"/", b"1.1", b""))
                time.sleep(0.6)

            if is_busy_with_data:
                loop.add_reader(data_socket[0], be_busy)
                data_socket[1].send(b"x")
            else:
                be_busy()
            await asyncio.to_thread(exchange_on, client)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_the_idle_timeout_must_be_a_positive_number(value: float) -> None:
    with pytest.raises(ValueError, match="idle_timeout"):
        ServerLimits(idle_timeout=value)


# The client

PROMISE = b"connection: keep-alive\r\nkeep-alive: %b\r\n"


class Clock:
    """The clock of the client. Tests set it forward."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(http_client, "_get_time", clock)
    return clock


@asynccontextmanager
async def open_client(**options: Any) -> AsyncIterator[HTTPClient]:
    client = HTTPClient(**options)
    try:
        yield client
    finally:
        await client.close()


async def fetch(client: HTTPClient, url: str) -> None:
    await (await client.fetch("POST", url, [], b"{}")).read()
    await run_pending_callbacks()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (PROMISE % b"timeout=75", 73),
        (PROMISE % b"timeout=75, max=1000", 73),
        (PROMISE % b"max=5,Timeout = 20", 18),
        (PROMISE % b"timeout=600", 300),
        (PROMISE % b"timeout=99999999999999999999", 300),
        (PROMISE % b"timeout=5", 3),
        (PROMISE % b"timeout=3", 1.5),
        (PROMISE % b"timeout=1", 0.5),
        (PROMISE % b"timeout=0", 0),
        (PROMISE % b"timeout=", 4),
        (PROMISE % b"timeout=-5", 4),
        (PROMISE % b"timeout=x", 4),
        (PROMISE % b"xtimeout=75", 4),
        (PROMISE % b"75", 4),
        (b"keep-alive: timeout=75\r\n", 4),
        (b"", 4),
    ],
)
async def test_a_connection_is_used_for_as_long_as_the_server_promises(
    headers: bytes, seconds: float, clock: Clock
) -> None:
    async with run_raw_server(reply_to_each(plain_reply(b"", headers))) as server, open_client() as client:
        await fetch(client, server.url)
        for pause, connection_count in ((seconds - 0.01, 1), (seconds + 0.01, 2)):
            clock.time += pause
            if pause > 0:
                await fetch(client, server.url)
                assert server.connection_count == connection_count


@pytest.mark.parametrize("unpromised", [b"", b"keep-alive: timeout=75\r\n"])
async def test_the_last_promise_counts(unpromised: bytes, clock: Clock) -> None:
    headers = [PROMISE % b"timeout=75", unpromised, PROMISE % b"timeout=75", PROMISE % b"timeout=10"]

    async def serve(visit: ServerConnection) -> None:
        for header in headers:
            await visit.request()
            visit.send(plain_reply(b"", header))
        await visit.wait_closed()

    async with run_raw_server(serve) as server, open_client() as client:
        for pause, connection_count in ((0, 1), (72, 1), (3, 1), (72, 1), (9, 2), (72, 2), (5, 3)):
            clock.time += pause
            await fetch(client, server.url)
            assert server.connection_count == connection_count


async def test_each_connection_is_closed_at_its_own_time() -> None:
    async def serve(visit: ServerConnection) -> None:
        head, _ = await visit.request() or (b"", b"")
        visit.send(plain_reply(b"", PROMISE % (b"timeout=0" if b"/short" in head else b"timeout=75")))
        await visit.wait_closed()

    async with run_raw_server(serve) as server, open_client() as client:
        await asyncio.gather(fetch(client, server.url), fetch(client, server.url), fetch(client, server.url + "/short"))
        await wait_until(lambda: server.closed_count == 1)
        await run_pending_callbacks()
        assert (server.connection_count, server.closed_count) == (3, 1)


async def test_few_connections_are_kept_for_long(clock: Clock) -> None:
    everyone = asyncio.Barrier(12)

    async def serve(visit: ServerConnection) -> None:
        while await visit.request():
            await everyone.wait()
            visit.send(plain_reply(b"", PROMISE % b"timeout=75"))

    async with run_raw_server(serve) as server, open_client() as client:
        for connection_count in (12, 16):
            await asyncio.gather(*(fetch(client, server.url) for _ in range(12)))
            assert server.connection_count == connection_count
            clock.time += 5


async def test_the_fetcher_of_a_guard_does_not_trust_keep_alive(clock: Clock) -> None:
    fetcher = ServerFetcher()
    async with run_raw_server(reply_to_each(plain_reply(b"", PROMISE % b"timeout=75"))) as server:
        for _ in range(2):
            assert (await fetcher.fetch(HTTPRequest("GET", server.url))).status_code == 200
            await run_pending_callbacks()
            clock.time += 2
        assert server.connection_count == 2
        await fetcher.close()


async def test_client_and_server_keep_a_connection_through_a_pause(clock: Clock) -> None:
    client_addresses: set[Any] = set()

    async def remember_client(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            client_addresses.add(tuple(scope["client"]))
        await application(scope, receive, send)

    async with serve(remember_client) as (_, port), open_client() as client:
        for pause, connection_count in ((30, 1), (72, 1), (74, 1), (0, 2)):
            await fetch(client, f"http://127.0.0.1:{port}/")
            clock.time += pause
            assert len(client_addresses) == connection_count


async def test_the_system_probes_idle_connections() -> None:
    async with run_raw_server(reply_to_each(b"")) as server:
        with await dial("127.0.0.1", server.port) as connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
