"""Test the HTTP client: connection reuse, requests sent at most once, TLS and proxies."""

import asyncio
import contextlib
import gc
import json
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from dovetail.errors import TransportError
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.http_client.http_client import (
    ConnectionBroken,
    HostUnreachable,
    HTTPClient,
    InvalidHTTPResponse,
    ResponseTooLarge,
)
from support.fake_service import run_pending_callbacks, wait_until
from transports.raw_server import (
    TIMEOUT_S,
    ConnectionHandler,
    RawServer,
    ServerConnection,
    create_tls_contexts,
    plain_reply,
    reply_once,
    reply_to_each,
    run_raw_server,
)

BOTH_LOOPS = True
HELLO = plain_reply(b"hello")
NOBODY = "http://127.0.0.1:9/"


@asynccontextmanager
async def client(**options: Any) -> AsyncGenerator[HTTPClient]:
    """A client that is closed and has left nothing behind."""
    fetcher = HTTPClient(**options)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield fetcher
    finally:
        await fetcher.close()
    await run_pending_callbacks()
    assert not [task for task in asyncio.all_tasks() if "dovetail/transports" in repr(task)]
    gc.collect()  # an open socket would warn, and a warning is an error


async def body_of(fetcher: HTTPClient, url: str, body: bytes = b"") -> bytes:
    return await (await fetcher.fetch("POST", url, [], body)).read()


# The request.


async def test_what_is_written() -> None:
    async with run_raw_server(reply_to_each(HELLO)) as here, client() as fetcher:
        await body_of(fetcher, here.url, b"{}")
        reply = await fetcher.fetch("GET", here.url + "?a=b c".replace(" ", "%20") + "#part", [(b"X-One", b"1")])
        assert await reply.read() == b"hello"
        assert await (await fetcher.fetch("DELETE", f"http://127.0.0.1:{here.port}", [])).read() == b"hello"
        host = b"host: 127.0.0.1:%d\r\naccept-encoding: gzip, deflate\r\n" % here.port
        assert here.requests == [
            (b"POST /mcp HTTP/1.1\r\n" + host + b"content-length: 2\r\n\r\n", b"{}"),
            (b"GET /mcp?a=b%20c HTTP/1.1\r\n" + host + b"X-One: 1\r\n\r\n", b""),
            (b"DELETE / HTTP/1.1\r\n" + host + b"\r\n", b""),
        ]


@pytest.mark.parametrize(
    "header",
    [
        (b"x", b"a\r\nb: c"),
        (b"x", b"a\nb"),
        (b"x", b"a\rb"),
        (b"x", b"a\0b"),
        (b"x\r\ny", b"a"),
        (b"x y", b"a"),
        (b"x:", b"a"),
        (b"", b"a"),
        (b"Host", b"a"),
        (b"content-length", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Proxy-Authorization", b"Basic abc"),
    ],
)
async def test_headers_that_could_be_read_in_two_ways_are_refused(header: tuple[bytes, bytes]) -> None:
    async with run_raw_server(reply_to_each(HELLO)) as here, client() as fetcher:
        with pytest.raises(ValueError, match="header"):
            await fetcher.fetch("GET", here.url, [header])
        assert here.connection_count == 0


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/",
        "127.0.0.1:80/mcp",
        "http://",
        "http:///mcp",
        "http://me:secret@127.0.0.1/",
        "http://me@127.0.0.1/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/a\r\nX: y",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://a..b/",
        "http://a\\b/",
        "http://[::1/",
        "http://[::zz]/",
    ],
)
async def test_urls_that_could_be_read_in_two_ways_are_refused(url: str) -> None:
    async with client() as fetcher:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - urlsplit has words of its own
            await fetcher.fetch("GET", url, [])
        assert "secret" not in str(caught.value)


async def test_a_method_is_one_word() -> None:
    async with client() as fetcher:
        with pytest.raises(ValueError, match="method"):
            await fetcher.fetch("GET / HTTP/1.1\r\nX:", NOBODY, [])


async def test_hosts_and_paths_of_the_world() -> None:
    async with run_raw_server(reply_to_each(HELLO)) as here, client(proxy=f"http://127.0.0.1:{here.port}") as fetcher:
        for url, line in {
            "http://bücher.example/é?q=ü": b"GET http://xn--bcher-kva.example/%C3%A9?q=%C3%BC HTTP/1.1",
            "http://EXAMPLE.com:80/a/../b": b"GET http://example.com/a/../b HTTP/1.1",
            "http://[fe80::1%25eth0]:8080/": b"GET http://[fe80::1]:8080/ HTTP/1.1",
        }.items():
            await (await fetcher.fetch("GET", url, [])).read()
            assert here.requests[-1][0].startswith(line + b"\r\n")


# Connections that are kept.


async def test_a_connection_is_used_again() -> None:
    async with run_raw_server(reply_to_each(HELLO)) as here, client() as fetcher:
        for _ in range(5):
            assert await body_of(fetcher, here.url) == b"hello"
        assert (here.connection_count, len(here.requests)) == (1, 5)


async def test_a_connection_is_free_after_the_response_even_if_it_was_not_read() -> None:
    async with run_raw_server(reply_to_each(HELLO)) as here, client() as fetcher:
        replies = [await fetcher.fetch("GET", here.url, []) for _ in range(3)]
        assert [await reply.read() for reply in replies] == [b"hello"] * 3
        assert here.connection_count == 1


async def test_the_connection_used_last_is_used_first() -> None:
    async def serve(visit: ServerConnection) -> None:
        while await visit.request():
            visit.send(plain_reply(b"%d" % visit.number))

    async with run_raw_server(serve) as here, client() as fetcher:
        pair = await asyncio.gather(*(fetcher.fetch("GET", here.url, []) for _ in range(2)))
        await pair[0].read()
        last = await pair[1].read()
        assert here.connection_count == 2
        seen = {await body_of(fetcher, here.url) for _ in range(3)}
        assert len(seen) == 1
        assert last in (b"1", b"2")


async def test_two_hundred_at_once() -> None:
    everyone = asyncio.Event()

    async def serve(visit: ServerConnection) -> None:
        while request := await visit.request():
            if len(here.requests) == 200:
                everyone.set()
            await everyone.wait()
            visit.send(plain_reply(request[1]))

    async with run_raw_server(serve) as here, client() as fetcher:
        bodies = [b"%d" % number for number in range(200)]
        assert await asyncio.gather(*(body_of(fetcher, here.url, body) for body in bodies)) == bodies
        assert here.connection_count == 200


async def test_a_quiet_connection_is_closed() -> None:
    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        visit.send(HELLO)
        await visit.wait_closed()

    async with run_raw_server(serve) as here, client(idle_timeout=0.05) as fetcher:
        for _ in range(2):
            await asyncio.gather(*(body_of(fetcher, here.url) for _ in range(3)))
            await wait_until(lambda: here.closed_count == here.connection_count)
        assert here.connection_count == 6


async def test_connections_that_fell_quiet_one_after_the_other_are_all_closed() -> None:
    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        if visit.number == 2:
            await later.wait()
        visit.send(HELLO)
        await visit.wait_closed()

    later = asyncio.Event()
    async with run_raw_server(serve) as here, client(idle_timeout=0.2) as fetcher:
        tasks = [asyncio.create_task(body_of(fetcher, here.url)) for _ in range(2)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.1)
        later.set()
        await asyncio.gather(*tasks)
        await wait_until(lambda: here.closed_count == 2)


async def test_a_connection_quiet_too_long_is_not_used_even_before_it_is_closed() -> None:
    async with run_raw_server(reply_to_each(HELLO)) as here, client(idle_timeout=0.0) as fetcher:
        for _ in range(3):
            assert await body_of(fetcher, here.url) == b"hello"
        assert here.connection_count == 3


async def test_a_connection_the_server_closed_is_not_used() -> None:
    async with run_raw_server(reply_once(HELLO)) as here, client() as fetcher:
        for _ in range(3):
            assert await body_of(fetcher, here.url) == b"hello"
            await run_pending_callbacks()
        assert (here.connection_count, len(here.requests)) == (3, 3)


@pytest.mark.parametrize("extra", [b"H", b"!", HELLO, b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n"])
@pytest.mark.parametrize("late", [True, False])
async def test_a_connection_that_says_something_unasked_is_not_used(extra: bytes, late: bool) -> None:
    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        visit.send(HELLO if late else HELLO + extra)
        if late:
            await read.wait()
            visit.send(extra)
        await visit.wait_closed()

    read = asyncio.Event()
    async with run_raw_server(serve) as here, client(idle_timeout=60) as fetcher:
        assert await body_of(fetcher, here.url) == b"hello"
        read.set()
        await wait_until(lambda: here.closed_count == 1)
        assert await body_of(fetcher, here.url) == b"hello"
        assert here.connection_count == 2


class Threaded:
    """A server in a thread of its own, which goes on while the loop of the test stands still."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/"
        self.requests = 0
        self.close, self.closed = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        for _ in range(2):
            connection, _ = self.listener.accept()
            with connection:
                if connection.recv(65536):
                    self.requests += 1
                connection.sendall(HELLO)
                self.close.wait(TIMEOUT_S)
            self.closed.set()
        self.listener.close()


async def test_a_connection_that_closed_while_the_loop_was_busy_is_not_used() -> None:
    server = Threaded()
    async with client() as fetcher:
        assert await body_of(fetcher, server.url) == b"hello"
        server.close.set()
        server.closed.wait(TIMEOUT_S)  # the loop stands still, and cannot hear of it
        assert await body_of(fetcher, server.url) == b"hello"
    server.thread.join(TIMEOUT_S)
    assert server.requests == 2


async def test_another_loop_is_refused() -> None:
    async with run_raw_server(reply_to_each(HELLO)) as here, client() as fetcher:
        await body_of(fetcher, here.url)
        with pytest.raises(RuntimeError, match="loop"):
            await asyncio.to_thread(lambda: asyncio.run(body_of(fetcher, here.url)))


# At most once.


async def die_at_once(visit: ServerConnection) -> None:
    pass


async def die_in_the_head(visit: ServerConnection) -> None:
    await visit.reader.readexactly(3)


async def die_after_the_request(visit: ServerConnection) -> None:
    await visit.request()


async def die_by_reset(visit: ServerConnection) -> None:
    await visit.request()
    visit.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    visit.writer.transport.abort()


@pytest.mark.parametrize("serve", [die_at_once, die_in_the_head, die_after_the_request, die_by_reset])
async def test_a_request_is_not_sent_again(serve: ConnectionHandler) -> None:
    async with run_raw_server(serve) as here, client() as fetcher:
        with pytest.raises(ConnectionBroken) as caught:
            await body_of(fetcher, here.url, b"pay")
        assert not caught.value.has_head
        assert here.connection_count <= 1
        assert len(here.requests) <= 1
        # Whoever was told that nothing was sent may send again.
        assert caught.value.sent or not here.requests


@pytest.mark.parametrize("end", [0, 1, 20, len(HELLO) - 1])
async def test_a_request_on_a_used_connection_is_not_sent_again(end: int) -> None:
    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        visit.send(HELLO)
        await visit.request()
        visit.send(HELLO[:end])

    async with run_raw_server(serve) as here, client() as fetcher:
        assert await body_of(fetcher, here.url, b"look") == b"hello"
        with pytest.raises(ConnectionBroken) as caught:
            await body_of(fetcher, here.url, b"pay")
        assert caught.value.sent
        assert [body for _, body in here.requests] == [b"look", b"pay"]
        assert here.connection_count == 1


async def test_an_answer_before_the_request_is_complete() -> None:
    async def serve(visit: ServerConnection) -> None:
        await visit.reader.readuntil(b"\r\n\r\n")
        visit.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await visit.wait_closed()

    async with run_raw_server(serve) as here, client() as fetcher:
        for _ in range(2):
            reply = await fetcher.fetch("POST", here.url, [], bytes(2**25))
            assert reply.status == 413
            assert await reply.read() == b""
        # What was not written whole is not a connection for another request.
        assert here.connection_count == 2


# Giving up.


async def hold(visit: ServerConnection) -> None:
    await visit.request()
    await visit.wait_closed()


async def hold_in_the_body(visit: ServerConnection) -> None:
    await visit.request()
    visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    await visit.wait_closed()


@pytest.mark.parametrize("serve", [hold, hold_in_the_body])
async def test_cancelling_closes_the_connection(serve: ConnectionHandler) -> None:
    async with run_raw_server(serve) as here, client() as fetcher:
        task = asyncio.create_task(body_of(fetcher, here.url))
        await wait_until(lambda: here.requests)
        await run_pending_callbacks()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: here.closed_count == 1)


async def test_cancelling_just_after_the_response_affects_no_other_request() -> None:
    async with run_raw_server(reply_to_each(HELLO)) as here, client() as fetcher:
        for turns in range(30):
            task = asyncio.create_task(body_of(fetcher, here.url))
            await run_pending_callbacks(turns)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await body_of(fetcher, here.url) == b"hello"


async def test_cancelling_while_connecting(tmp_path: Path) -> None:
    async def mute(visit: ServerConnection) -> None:
        await visit.wait_closed()

    async with run_raw_server(mute) as here, client() as fetcher:
        task = asyncio.create_task(body_of(fetcher, here.url.replace("http:", "https:")))
        await wait_until(lambda: here.connection_count == 1)
        await run_pending_callbacks()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: here.closed_count == 1)


async def test_closing_the_client_ends_requests_in_flight() -> None:
    async with run_raw_server(hold) as here, client() as fetcher:
        task = asyncio.create_task(body_of(fetcher, here.url))
        await wait_until(lambda: here.requests)
        await fetcher.close()
        with pytest.raises(ConnectionBroken) as caught:
            await task
        assert caught.value.sent
        await wait_until(lambda: here.closed_count == 1)
        with pytest.raises(HostUnreachable, match="closed"):
            await body_of(fetcher, here.url)
        assert here.connection_count == 1


# Few connections.


async def test_no_more_connections_than_the_limit() -> None:
    now = most = 0

    async def serve(visit: ServerConnection) -> None:
        nonlocal now, most
        while await visit.request():
            now += 1
            most = max(most, now)
            await run_pending_callbacks(3)
            now -= 1
            visit.send(HELLO)

    async with run_raw_server(serve) as here, client(limits=FetchLimits(max_connections=3)) as fetcher:
        assert await asyncio.gather(*(body_of(fetcher, here.url) for _ in range(30))) == [b"hello"] * 30
        assert most <= 3
        assert here.connection_count == 3


async def test_a_cancelled_waiter_passes_the_turn_on() -> None:
    async with run_raw_server(hold_then_answer()) as here, client(limits=FetchLimits(max_connections=1)) as fetcher:
        first = asyncio.create_task(body_of(fetcher, here.url))
        await wait_until(lambda: here.requests)
        gives_up, waits = (asyncio.create_task(body_of(fetcher, here.url)) for _ in range(2))
        await run_pending_callbacks()
        first.cancel()
        await run_pending_callbacks(1)
        gives_up.cancel()
        assert await waits == b"hello"
        await asyncio.gather(first, gives_up, return_exceptions=True)


def hold_then_answer() -> ConnectionHandler:
    async def serve(visit: ServerConnection) -> None:
        while await visit.request():
            if visit.number > 1:
                visit.send(HELLO)

    return serve


async def test_a_waiter_cancelled_at_its_turn_passes_the_turn_on() -> None:
    async def serve(visit: ServerConnection) -> None:
        while await visit.request():
            await waiting.wait()
            visit.send(HELLO)

    async def first() -> None:
        await body_of(fetcher, here.url)
        tasks[1].cancel()  # woken by the same reply as this task, and behind it in the line

    waiting, one = asyncio.Event(), FetchLimits(max_connections=1)
    async with run_raw_server(serve) as here, client(limits=one, idle_timeout=60) as fetcher:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(first())]
        await wait_until(lambda: here.requests)
        tasks += [asyncio.create_task(body_of(fetcher, here.url)) for _ in range(2)]
        await run_pending_callbacks()
        waiting.set()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(ends[1], asyncio.CancelledError)
        assert ends[2] == b"hello"


async def test_a_waiter_continues_when_another_cannot_connect() -> None:
    async def mute(visit: ServerConnection) -> None:
        await visit.wait_closed()

    one = FetchLimits(max_connections=1)
    async with (
        run_raw_server(mute) as dumb,
        run_raw_server(reply_to_each(HELLO)) as here,
        client(limits=one, connect_timeout=0.5) as fetcher,
    ):
        fails = asyncio.create_task(body_of(fetcher, dumb.url.replace("http:", "https:")))
        await wait_until(lambda: dumb.connection_count)
        assert await body_of(fetcher, here.url) == b"hello"
        with pytest.raises(HostUnreachable):
            await fails


async def test_a_quiet_connection_makes_room_for_another_host() -> None:
    one = FetchLimits(max_connections=1)
    async with (
        run_raw_server(reply_to_each(HELLO)) as here,
        run_raw_server(reply_to_each(HELLO)) as there,
        client(limits=one) as fetcher,
    ):
        for url in (here.url, there.url, here.url):
            assert await body_of(fetcher, url) == b"hello"


async def test_a_failed_connection_gives_its_place_on() -> None:
    async with run_raw_server(reply_to_each(HELLO)) as here, client(limits=FetchLimits(max_connections=1)) as fetcher:
        for _ in range(3):
            with pytest.raises(HostUnreachable):
                await body_of(fetcher, NOBODY)
        assert await body_of(fetcher, here.url) == b"hello"


async def test_closing_the_client_ends_those_who_wait_for_a_connection() -> None:
    async with run_raw_server(hold) as here, client(limits=FetchLimits(max_connections=1)) as fetcher:
        tasks = [asyncio.create_task(body_of(fetcher, here.url)) for _ in range(3)]
        await wait_until(lambda: here.requests)
        await fetcher.close()
        faults = await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(type(fault).__name__ for fault in faults) == [
            "ConnectionBroken",
            "HostUnreachable",
            "HostUnreachable",
        ]


# No connection.


async def test_a_waiter_cancelled_while_the_client_closes_is_cancelled() -> None:
    async with run_raw_server(hold) as here, client(limits=FetchLimits(max_connections=1)) as fetcher:
        loop = asyncio.get_running_loop()
        first = loop.create_task(body_of(fetcher, here.url))
        await wait_until(lambda: here.requests)
        second = loop.create_task(body_of(fetcher, here.url))
        await asyncio.sleep(0)
        second.cancel()
        await fetcher.close()
        with pytest.raises(asyncio.CancelledError):
            await second
        with pytest.raises(ConnectionBroken):
            await first


async def test_refused() -> None:
    async with client() as fetcher:
        with pytest.raises(HostUnreachable) as caught:
            await body_of(fetcher, NOBODY)
        assert "127.0.0.1:9" in caught.value.reason


async def test_an_unknown_name() -> None:
    async with client() as fetcher:
        with pytest.raises(HostUnreachable, match=r"no-such-name\.invalid"):
            await body_of(fetcher, "http://no-such-name.invalid/")


async def test_no_answer_in_time() -> None:
    async def mute(visit: ServerConnection) -> None:
        await visit.wait_closed()

    async with run_raw_server(mute) as here, client(connect_timeout=0.05) as fetcher:
        with pytest.raises(HostUnreachable, match=r"0\.05 s"):
            await body_of(fetcher, here.url.replace("http:", "https:"))
        await wait_until(lambda: here.closed_count == here.connection_count)


def test_every_error_is_of_the_transport() -> None:
    assert all(
        issubclass(one, TransportError)
        for one in (HostUnreachable, ConnectionBroken, ResponseTooLarge, InvalidHTTPResponse)
    )


async def test_ipv6() -> None:
    try:
        probe = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("platform: no IPv6 here")
    probe.close()
    async with run_raw_server(reply_to_each(HELLO), host="::1") as here, client() as fetcher:
        assert await body_of(fetcher, here.url) == b"hello"
        assert b"\r\nhost: [::1]:%d\r\n" % here.port in here.requests[0][0]


# TLS.


async def test_tls(tmp_path: Path) -> None:
    server, trusting = create_tls_contexts(tmp_path)
    body = bytes(range(256)) * 8192
    async with run_raw_server(reply_to_each(plain_reply(body)), tls=server) as here, client(tls=trusting) as fetcher:
        for _ in range(3):
            assert await body_of(fetcher, here.url, body) == body
        assert here.connection_count == 1


async def test_a_certificate_for_another_name(tmp_path: Path) -> None:
    server, trusting = create_tls_contexts(tmp_path, host="elsewhere.example")
    async with run_raw_server(reply_to_each(HELLO), tls=server) as here, client(tls=trusting) as fetcher:
        with pytest.raises(HostUnreachable, match="certificate"):
            await body_of(fetcher, here.url)
        assert not here.requests


async def test_an_untrusted_certificate(tmp_path: Path) -> None:
    server, _ = create_tls_contexts(tmp_path)
    async with run_raw_server(reply_to_each(HELLO), tls=server) as here, client() as fetcher:
        with pytest.raises(HostUnreachable, match="certificate"):
            await body_of(fetcher, here.url)
        assert not here.requests


async def test_tls_with_a_server_that_speaks_none() -> None:
    async def serve(visit: ServerConnection) -> None:
        await visit.reader.read(1)
        visit.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await visit.wait_closed()

    async with run_raw_server(serve) as here, client() as fetcher:
        with pytest.raises(HostUnreachable, match="TLS"):
            await body_of(fetcher, here.url.replace("http:", "https:"))


async def test_cancelling_a_stream_over_tls(tmp_path: Path) -> None:
    server, trusting = create_tls_contexts(tmp_path)
    async with run_raw_server(hold_in_the_body, tls=server) as here, client(tls=trusting) as fetcher:
        reply = await fetcher.fetch("GET", here.url, [])
        task = asyncio.create_task(reply.read())
        await run_pending_callbacks()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: here.closed_count == 1)


# Proxies.


def tunnelling(target: RawServer, status: bytes = b"200 Connection established") -> ConnectionHandler:
    """A proxy that opens a tunnel to this place, whatever host is asked for."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError:
            pass
        writer.close()

    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        visit.send(b"HTTP/1.1 %b\r\n\r\n" % status)
        if status.startswith(b"200"):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            try:
                await asyncio.gather(pump(visit.reader, writer), pump(reader, visit.writer))
            finally:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    return serve


def through(proxy: RawServer, user: str = "", **options: Any) -> AbstractAsyncContextManager[HTTPClient]:
    return client(proxy=f"http://{user}127.0.0.1:{proxy.port}", **options)


async def test_a_proxy_for_http() -> None:
    async with run_raw_server(reply_to_each(HELLO)) as proxy:
        async with through(proxy, user="me:secret@") as fetcher:
            for _ in range(2):
                assert await body_of(fetcher, "http://target.example:8000/mcp?a=b") == b"hello"
        assert proxy.connection_count == 1
        assert proxy.requests[0][0] == (
            b"POST http://target.example:8000/mcp?a=b HTTP/1.1\r\nhost: target.example:8000\r\n"
            b"accept-encoding: gzip, deflate\r\nproxy-authorization: Basic bWU6c2VjcmV0\r\ncontent-length: 0\r\n\r\n"
        )


async def test_a_tunnel_for_https(tmp_path: Path) -> None:
    server, trusting = create_tls_contexts(tmp_path, host="target.example")
    async with run_raw_server(reply_to_each(HELLO), tls=server) as here, run_raw_server(tunnelling(here)) as proxy:
        async with through(proxy, user="me:secret@", tls=trusting) as fetcher:
            for _ in range(3):
                assert await body_of(fetcher, "https://target.example/mcp") == b"hello"
        assert (here.connection_count, len(here.requests)) == (1, 3)
        assert len(proxy.requests) == 1
        assert proxy.requests[0][0] == (
            b"CONNECT target.example:443 HTTP/1.1\r\nhost: target.example:443\r\n"
            b"proxy-authorization: Basic bWU6c2VjcmV0\r\n\r\n"
        )
        # The proxy's credentials are not the target's.
        assert all(b"bWU6c2VjcmV0" not in head and head.startswith(b"POST /mcp ") for head, _ in here.requests)


async def test_the_target_behind_a_tunnel_is_verified(tmp_path: Path) -> None:
    server, trusting = create_tls_contexts(tmp_path, host="elsewhere.example")
    async with run_raw_server(reply_to_each(HELLO), tls=server) as here, run_raw_server(tunnelling(here)) as proxy:
        async with through(proxy, tls=trusting) as fetcher:
            with pytest.raises(HostUnreachable, match="certificate"):
                await body_of(fetcher, "https://target.example/mcp")
        assert not here.requests


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (b"407 Proxy Authentication Required", "407"),
        (b"502 Bad Gateway\r\nContent-Length: 5", "502"),
        (b"nonsense", ""),
    ],
)
async def test_a_proxy_that_refuses_a_tunnel(status: bytes, said: str) -> None:
    async with run_raw_server(tunnelling(RawServer("", 0), status)) as proxy, through(proxy) as fetcher:
        with pytest.raises(HostUnreachable, match=f"proxy 127.0.0.1:{proxy.port}.*{said}"):
            await body_of(fetcher, "https://target.example/mcp")


async def test_what_a_proxy_says_before_tls_is_not_taken_for_the_target() -> None:
    async with run_raw_server(reply_to_each(b"HTTP/1.1 200 OK\r\n\r\n" + HELLO)) as proxy, through(proxy) as fetcher:
        with pytest.raises(HostUnreachable, match=f"proxy 127.0.0.1:{proxy.port}"):
            await body_of(fetcher, "https://target.example/mcp")


async def test_no_proxy_there() -> None:
    async with client(proxy="http://me:secret@127.0.0.1:9") as fetcher:
        for scheme in ("http", "https"):
            with pytest.raises(HostUnreachable, match=r"target\.example:.*127\.0\.0\.1:9") as caught:
                await body_of(fetcher, f"{scheme}://target.example/")
            assert "secret" not in str(caught.value)


async def test_a_proxy_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    async with (
        run_raw_server(reply_to_each(HELLO)) as proxy,
        run_raw_server(reply_to_each(plain_reply(b"direct"))) as here,
    ):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with client() as fetcher:
            assert await body_of(fetcher, "http://target.example/") == b"hello"
            assert await body_of(fetcher, here.url) == b"direct"
        async with client(trust_env=False, connect_timeout=5) as fetcher:
            with pytest.raises(HostUnreachable):
                await body_of(fetcher, "http://target.invalid/")
        monkeypatch.setenv("HTTP_PROXY", "socks5://me:secret@127.0.0.1:1")
        async with client() as fetcher:
            with pytest.raises(HostUnreachable, match="socks5") as caught:
                await body_of(fetcher, "http://target.example/")
            assert "secret" not in str(caught.value)


def test_a_proxy_we_cannot_speak_to_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="socks5"):
        HTTPClient(proxy="socks5://127.0.0.1:1")


# A server of the world.


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event["body"], event.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(scope["path"]).encode(), "more_body": True})
    await send({"type": "http.response.body", "body": body})


async def test_uvicorn() -> None:
    server = uvicorn.Server(uvicorn.Config(echo, port=0, log_config=None, lifespan="off", ws="none"))
    serving = asyncio.create_task(server.serve())
    await wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with client() as fetcher:
        for size in (0, 1, 100_000, 1_000_000):
            assert await body_of(fetcher, f"http://127.0.0.1:{port}/mcp", b"x" * size) == b'"/mcp"' + b"x" * size
        assert len(server.server_state.connections) == 1
    server.should_exit = True
    await serving
