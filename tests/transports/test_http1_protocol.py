"""Test limits, deadlines and failures of our HTTP server that depend on how the bytes of a connection arrive."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http1 import http1_protocol
from dovetail.transports.http1.connection_group import ConnectionGroup
from dovetail.transports.http1.http_listener import HTTPServer, bind_socket
from dovetail.transports.http1.tls_context import create_tls_context
from support.certificates import write_certificate

GET = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = b"POST /early HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
MAX_BLOCK_BYTES = 2000
MAX_HEADER_BYTES = 500


async def run_loop() -> None:
    """Let client and server handle what they have received. Both run in this event loop."""
    for _ in range(20):
        await asyncio.sleep(0)


class Application:
    """An ASGI application. Its behaviour depends on the path of the request."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.disconnected = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path == "/wait":
            self.started.set()
            await receive()
            if (await receive())["type"] == "http.disconnect":
                self.disconnected.set()
            return
        if path == "/pause":
            self.started.set()
            await self.release.wait()
        if path != "/early":
            while (await receive()).get("more_body"):
                pass
        body = path.encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})
        if path == "/fail":
            raise ValueError("failed after the response")
        if path == "/fail-later":
            await self.release.wait()
            raise ValueError("failed long after the response")


class Connection:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        """Send data, and let the server read it."""
        self._writer.write(data)
        with suppress(ConnectionError):
            await self._writer.drain()
        await run_loop()

    async def write(self, data: bytes) -> None:
        """Send data. Wait only until the operating system has most of it."""
        self._writer.write(data)
        with suppress(ConnectionError):
            await self._writer.drain()

    def end_writing(self) -> None:
        """Tell the server that no more data follows."""
        self._writer.write_eof()

    async def fill(self, data: bytes, max_bytes: int) -> bool:
        """Send data again and again. Return whether the server stops reading before it has received `max_bytes`."""
        transport = self._writer.transport
        for _ in range(max_bytes // len(data)):
            self._writer.write(data)
            await run_loop()
            if unsent_bytes := transport.get_write_buffer_size():
                await run_loop()
                if transport.get_write_buffer_size() == unsent_bytes:
                    return True
        return False

    async def read_response(self) -> tuple[int, bytes]:
        """Return the status and the body of the next response."""
        async with asyncio.timeout(10):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            return int(head.split()[1]), await self._reader.readexactly(length)

    async def read_line(self) -> bytes:
        """Return the next line that the server sends."""
        async with asyncio.timeout(10):
            return await self._reader.readline()

    async def read_end(self) -> bytes:
        """Return what the server sends before it closes the connection."""
        async with asyncio.timeout(10):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class Peer:
    """A connection that does nothing."""

    deadline, is_done, is_waiting = 0.0, False, True

    def handle_data(self, data: bytes) -> None:
        pass

    def defer_data(self, data: bytes) -> None:
        pass

    def take_turn(self) -> None:
        pass

    handle_timeout = flush = shut_down = abort = take_turn


@asynccontextmanager
async def serve(app: Any, tls: ssl.SSLContext | None = None, **limits: Any) -> AsyncIterator[tuple[HTTPServer, int]]:
    listener = bind_socket("127.0.0.1", 0)
    server = HTTPServer(app, ServerLimits(**limits), tls)
    await server.start(listener)
    try:
        yield server, listener.getsockname()[1]
    finally:
        await server.abort()


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Connection]:
    connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield connection
    finally:
        connection.close()


# Limits


@pytest.mark.parametrize(
    "parts",
    [
        # Parts of a body must not raise the limit for trailers and chunk extensions.
        pytest.param([CHUNKED, b"1\r\ny\r\n" * 3000, b"0\r\n", b"x: y\r\n" * MAX_BLOCK_BYTES], id="many chunks"),
        pytest.param([CHUNKED + b"1f40\r\n" + b"y" * 8000, b"\r\n1;" + b"e" * 2 * MAX_BLOCK_BYTES], id="a large chunk"),
        pytest.param([CHUNKED + b"0\r\n", b"x: " + b"y" * MAX_HEADER_BYTES + b"\r\n\r\n"], id="one trailer"),
    ],
)
async def test_trailers_and_chunk_extensions_are_limited(parts: list[bytes]) -> None:
    limits = {"max_header_block_bytes": MAX_BLOCK_BYTES, "max_header_bytes": MAX_HEADER_BYTES}
    async with serve(Application(), **limits) as (_, port), connect(port) as connection:
        for part in parts:
            await connection.send(part)
        assert await connection.read_response() == (200, b"/early")
        assert await connection.read_end() == b""


@pytest.mark.parametrize("size", [MAX_HEADER_BYTES + 1, MAX_BLOCK_BYTES + 1])
async def test_the_head_of_a_pipelined_request_is_limited(size: int) -> None:
    """The first bytes of the second head arrive together with the first request."""
    limits = {"max_header_block_bytes": MAX_BLOCK_BYTES, "max_header_bytes": MAX_HEADER_BYTES}
    async with serve(Application(), **limits) as (_, port), connect(port) as connection:
        await connection.send(GET % b"/a" + b"GET /b HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * size)
        await connection.send(b"\r\n\r\n")
        assert await connection.read_response() == (200, b"/a")
        assert (await connection.read_response())[0] == 431
        assert await connection.read_end() == b""


async def test_the_time_for_headers_counts_after_an_early_response() -> None:
    async with serve(Application(), header_timeout=0.1) as (_, port), connect(port) as connection:
        await connection.send(CHUNKED + b"1\r\ny\r\n")
        assert await connection.read_response() == (200, b"/early")
        await connection.send(b"0\r\n\r\nGET /b HTTP/1.1\r\n")
        assert (await connection.read_response())[0] == 408


async def test_an_idle_connection_is_closed_although_a_line_end_came_before_its_request() -> None:
    request = b"POST /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx"
    async with serve(Application(), idle_timeout=0.05) as (_, port), connect(port) as connection:
        for data in (request, request, b"\r\n", request):
            await connection.send(data)
        assert [await connection.read_response() for _ in range(3)] == [(200, b"/a")] * 3
        assert await connection.read_end() == b""


# Failures


async def test_an_application_that_fails_after_its_response_harms_no_response() -> None:
    app = Application()
    async with serve(app) as (_, port), connect(port) as connection:
        await connection.send(GET % b"/fail" + GET % b"/a")
        assert await connection.read_response() == (200, b"/fail")
        assert await connection.read_response() == (200, b"/a")
        await connection.send(GET % b"/fail-later" + GET % b"/wait")
        assert await connection.read_response() == (200, b"/fail-later")
        async with asyncio.timeout(10):
            await app.started.wait()
        app.release.set()
        await connection.send(b"")
        assert not app.disconnected.is_set()


async def test_a_client_that_disconnects_is_noticed_while_requests_are_waiting() -> None:
    app = Application()
    async with serve(app) as (_, port), connect(port) as connection:
        await connection.send(GET % b"/wait" + GET % b"/a")
        async with asyncio.timeout(10):
            await app.started.wait()
        connection.close()
        async with asyncio.timeout(10):
            await app.disconnected.wait()


async def test_a_server_does_not_read_all_that_a_client_sends_during_a_request() -> None:
    app = Application()
    async with serve(app) as (_, port), connect(port) as connection:
        await connection.send(GET % b"/wait" + GET % b"/a")
        async with asyncio.timeout(10):
            await app.started.wait()
        assert await connection.fill(GET % b"/a" * 1000, max_bytes=50_000_000)


async def test_a_stopped_server_serves_no_client_that_ends_its_tls_handshake(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)

    async def drain() -> None:
        pass

    async with serve(Application(), create_tls_context(certificate, key)) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await run_loop()
        await server.stop(drain)
        context = ssl.create_default_context(cafile=certificate)
        context.check_hostname = False

        async def request() -> bytes:
            await writer.start_tls(context)
            writer.write(GET % b"/a")
            return await reader.readexactly(1)

        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(request(), 10)
        writer.close()


# Turns


@pytest.mark.parametrize("loop_type", ["asyncio", "uvloop"])
def test_a_client_that_sends_many_requests_at_once_does_not_delay_others(loop_type: str) -> None:
    paths: list[str] = []
    started = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            paths.append(scope["path"])
            if scope["path"] == "/flood":
                started.set()
            await Application()(scope, receive, send)

    async def send_requests() -> None:
        async with serve(app) as (_, port), connect(port) as flood, connect(port) as other:
            await other.send(GET % b"/first")
            assert await other.read_response() == (200, b"/first")
            await flood.write(GET % b"/flood" * 2000)
            await started.wait()
            await other.write(GET % b"/other")
            assert await other.read_response() == (200, b"/other")
            for _ in range(2000):
                assert await flood.read_response() == (200, b"/flood")
        assert paths.index("/other") < 500

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop_type == "uvloop" else None) as runner:
        runner.run(send_requests())


@pytest.mark.parametrize("loop_type", ["asyncio", "uvloop"])
@pytest.mark.parametrize("is_pipelined", [True, False])
def test_a_request_does_not_see_the_context_variables_of_another(loop_type: str, is_pipelined: bool) -> None:
    caller: ContextVar[str] = ContextVar("caller", default="none")
    callers: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            callers.append(caller.get())
            caller.set(scope["path"])
            await asyncio.sleep(0)
            await Application()(scope, receive, send)

    async def send_requests() -> None:
        body = b"x" * 300_000
        large = b"POST /large HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        requests = [large, *[GET % b"/small"] * 40]
        async with serve(app) as (_, port), connect(port) as first, connect(port) as second:
            for connection in (first, second):
                if is_pipelined:
                    await connection.write(b"".join(requests))
                    continue
                for request in requests:
                    await connection.write(request)
                    assert (await connection.read_response())[0] == 200
            for connection in (first, second) if is_pipelined else ():
                for _ in requests:
                    assert (await connection.read_response())[0] == 200
        assert callers == ["none"] * 2 * len(requests)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop_type == "uvloop" else None) as runner:
        runner.run(send_requests())


async def test_a_complete_request_is_not_slow_because_it_waits_for_others() -> None:
    app = Application()
    last = b"POST /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx"
    async with serve(app, header_timeout=0.05, body_timeout=0.05) as (_, port), connect(port) as connection:
        await connection.send(GET % b"/pause" + GET % b"/a" * 19 + last[:-1])
        await connection.send(last[-1:])
        async with asyncio.timeout(10):
            await app.started.wait()
        await asyncio.sleep(0.3)  # Several timeouts pass.
        app.release.set()
        assert [(await connection.read_response())[0] for _ in range(21)] == [200] * 21


async def test_a_client_that_waits_for_status_100_is_not_slow() -> None:
    app = Application()
    head = b"POST /a HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"
    async with serve(app, body_timeout=0.4) as (_, port), connect(port) as connection:
        await connection.send(GET % b"/pause" + head)
        async with asyncio.timeout(10):
            await app.started.wait()
        await asyncio.sleep(1.0)  # Two timeouts pass.
        app.release.set()
        assert (await connection.read_response())[0] == 200
        assert await connection.read_line() == b"HTTP/1.1 100 Continue\r\n"
        await connection.send(b"x")
        assert await connection.read_line() == b"\r\n"
        assert (await connection.read_response())[0] == 200


@pytest.mark.parametrize(
    ("flood", "count"),
    [
        pytest.param(CHUNKED.replace(b"/early", b"/a") + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n", 1, id="small chunks"),
        pytest.param(GET % b"/a" * 3000, 3000, id="requests"),
    ],
)
async def test_the_event_loop_does_other_work_during_a_flood(
    flood: bytes, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1_protocol, "_MAX_TURN_S", 0.0)  # Each turn handles as little as possible.
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with serve(Application()) as (_, port), connect(port) as connection:
        counter = asyncio.create_task(count_turns())
        await connection.write(flood)
        assert [(await connection.read_response())[0] for _ in range(count)] == [200] * count
        counter.cancel()
    assert turns > 100


async def test_requests_are_answered_although_the_client_sends_nothing_more() -> None:
    async with serve(Application()) as (_, port), connect(port) as connection:
        await connection.write(GET % b"/a" * 1000)
        connection.end_writing()
        assert [await connection.read_response() for _ in range(1000)] == [(200, b"/a")] * 1000
        assert await connection.read_end() == b""


async def test_large_requests_behind_each_other_are_answered() -> None:
    body = b"x" * 100_000
    request = b"POST /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with serve(Application()) as (_, port), connect(port) as connection:
        await connection.write(request * 20)
        assert [await connection.read_response() for _ in range(20)] == [(200, b"/a")] * 20


async def test_a_stopping_server_answers_the_requests_of_all_clients() -> None:
    async def drain() -> None:
        pass

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            time.sleep(0.003)  # noqa: ASYNC251  A batch of these requests takes several iterations of the event loop.
            await Application()(scope, receive, send)

    async with serve(app) as (server, port), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(port)) for _ in range(20)]
        for client in clients:
            await client.write(GET % b"/a" * 2)
        assert await clients[0].read_response() == (200, b"/a")  # The server has read all requests.
        stop = asyncio.create_task(server.stop(drain))
        assert [await client.read_response() for client in clients] == [(200, b"/a")] * 20
        await stop


async def test_new_data_does_not_delay_other_turns_for_ever() -> None:
    class BusyPeer(Peer):
        """A connection that always has new data, and needs a whole iteration of the event loop for it."""

        def take_turn(self) -> None:
            time.sleep(0.02)
            group.add_turn(self, is_first=True)

    class WaitingPeer(Peer):
        def take_turn(self) -> None:
            had_turn.set_result(None)

    group = ConnectionGroup(cast("Any", None), ServerLimits(), None)
    had_turn = asyncio.get_running_loop().create_future()
    group.add_turn(BusyPeer(), is_first=True)
    group.add_turn(WaitingPeer())
    async with asyncio.timeout(10):
        await had_turn


# Batches


async def test_reads_of_many_clients_are_a_batch_with_every_event_loop() -> None:
    """After many reads of one client, the reads of two clients in one iteration are still handled together."""

    class BatchPeer(Peer):
        def __init__(self) -> None:
            self.was_in_batch: list[bool] = []

        def handle_data(self, data: bytes) -> None:
            self.was_in_batch.append(group.is_in_batch)

    async def handle(request: Any) -> None:
        pass

    group = ConnectionGroup(handle, ServerLimits(), None)
    peers = [BatchPeer() for _ in range(2)]
    for _ in range(100):
        group.receive(peers[0], b"x")
        await asyncio.sleep(0)
    for peer in peers:
        peer.was_in_batch.clear()
    for _ in range(10):
        for peer in peers:
            group.receive(peer, b"x")
        await asyncio.sleep(0)
    assert all(peer.was_in_batch[1:] == [True] * 9 for peer in peers)
