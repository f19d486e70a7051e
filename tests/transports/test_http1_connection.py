"""Test one connection of the HTTP client: every framing, any chunks, malformed and oversized responses."""

import asyncio
import gzip
import socket
import tracemalloc
import zlib
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.protocol.limits import FetchLimits
from dovetail.transports.http_client.http1_connection import HTTP1Connection
from dovetail.transports.http_client.http_client import (
    ClientResponse,
    ConnectionBroken,
    HTTPClient,
    InvalidHTTPResponse,
    ResponseTooLarge,
)
from support.fake_service import TIMEOUT_S, run_pending_callbacks, wait_until
from transports.raw_server import ServerConnection, plain_reply, reply_once, reply_to_each, run_raw_server

BOTH_LOOPS = True
TEXT = b'{"answer": "' + b"forty-two " * 40 + b'"}'
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n"


def chunked(body: bytes, step: int = 7) -> bytes:
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def bare(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


# What is said: the status, the body, whether the connection can be used again.
FRAMINGS: dict[str, tuple[bytes, int, bytes, bool]] = {
    "length": (plain_reply(TEXT), 200, TEXT, True),
    "empty": (plain_reply(b""), 200, b"", True),
    "chunked": (CHUNKED + b"\r\n" + chunked(TEXT), 200, TEXT, True),
    "chunked, nothing": (CHUNKED + b"\r\n0\r\n\r\n", 200, b"", True),
    "extensions and trailers": (CHUNKED + b"\r\n2;a=b\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n", 200, b"hi", True),
    "until closed": (OK + b"\r\n" + TEXT, 200, TEXT, False),
    "closing": (plain_reply(TEXT, b"Connection: close\r\n"), 200, TEXT, False),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    "1.0 kept": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", True),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "no content, says length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
    "accepted": (b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", 202, b"", True),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + plain_reply(TEXT),
        200,
        TEXT,
        True,
    ),
    "gzip": (plain_reply(gzip.compress(TEXT), b"Content-Encoding: gzip\r\n"), 200, TEXT, True),
    "x-gzip": (plain_reply(gzip.compress(TEXT), b"Content-Encoding: X-GZIP\r\n"), 200, TEXT, True),
    "deflate": (plain_reply(zlib.compress(TEXT), b"Content-Encoding: deflate\r\n"), 200, TEXT, True),
    "bare deflate": (plain_reply(bare(TEXT), b"Content-Encoding: deflate\r\n"), 200, TEXT, True),
    "identity": (plain_reply(TEXT, b"Content-Encoding: identity\r\n"), 200, TEXT, True),
    "gzip, empty": (plain_reply(b"", b"Content-Encoding: gzip\r\n"), 200, b"", True),
    "gzip, chunked": (
        CHUNKED + b"Content-Encoding: gzip\r\n\r\n" + chunked(gzip.compress(TEXT)),
        200,
        TEXT,
        True,
    ),
}
GZIPPED = b"Content-Encoding: gzip\r\n"
MALFORMED = {
    "not http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "html": b"<!doctype html><html></html>",
    "http/2": b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "status": b"HTTP/1.1 two OK\r\n\r\n",
    "low status": b"HTTP/1.1 042 OK\r\nContent-Length: 2\r\n\r\nhi",
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi!",
    "length and chunks": OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "list of lengths": OK + b"Content-Length: 2, 2\r\n\r\nhi",
    "signed length": OK + b"Content-Length: +2\r\n\r\nhi",
    "endless length": OK + b"Content-Length: 99999999999999999999999\r\n\r\nhi",
    "other coding": OK + b"Transfer-Encoding: gzip\r\n\r\nhi",
    "coding twice": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "chunk size": CHUNKED + b"\r\nxy\r\nhi\r\n0\r\n\r\n",
    "chunk too long": CHUNKED + b"\r\n2\r\nhi!\r\n0\r\n\r\n",
    "bare line feeds": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
    "folded": OK + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\nhi",
    "space before colon": OK + b"Content-Length : 2\r\n\r\nhi",
    "nul": OK + b"X: a\0b\r\nContent-Length: 2\r\n\r\nhi",
    "upgrade": b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "brotli": plain_reply(b"hi", b"Content-Encoding: br\r\n"),
    "two codings": plain_reply(gzip.compress(gzip.compress(b"hi")), b"Content-Encoding: gzip, gzip\r\n"),
    "damaged": plain_reply(b"x" + gzip.compress(TEXT)[1:], GZIPPED),
    "cut": plain_reply(gzip.compress(TEXT)[:-9], GZIPPED),
    "behind": plain_reply(gzip.compress(TEXT) + b"!", GZIPPED),
}
OVERSIZED = {
    "one header": OK + b"X: " + b"x" * 70_000 + b"\r\nContent-Length: 2\r\n\r\nhi",
    "many bytes": OK + b"X: " + b"\r\nX: ".join([b"x" * 1000] * 70) + b"\r\nContent-Length: 2\r\n\r\nhi",
    "many headers": OK + b"X: y\r\n" * 101 + b"Content-Length: 2\r\n\r\nhi",
    "endless reason": b"HTTP/1.1 200 " + b"x" * 400_000,
    "endless name": OK + b"x" * 400_000,
    "endless interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
    "endless trailer": CHUNKED + b"\r\n2\r\nhi\r\n0\r\nX: " + b"x" * 400_000,
    "endless extension": CHUNKED + b"\r\n2;" + b"x" * 400_000,
}


async def fetched(url: str, method: str = "POST", **options: Any) -> tuple[int, bytes]:
    fetcher = HTTPClient(**options)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reply = await fetcher.fetch(method, url, [])
            return reply.status, await reply.read()
    finally:
        await fetcher.close()


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__({"socket": socket.socket()})
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True
        self.get_extra_info("socket").close()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def played(pieces: Iterable[bytes]) -> tuple[int, bytes, list[bool]]:
    """The reply that these pieces, and the end of the connection, make; and what `done` was told."""
    told: list[bool] = []
    connection = HTTP1Connection(
        asyncio.get_running_loop(), FetchLimits(), lambda _, usable: told.append(usable), lambda _: None
    )
    wire = Wire()
    connection.connection_made(wire)
    waiting = asyncio.create_task(connection.send(b"GET / HTTP/1.1\r\n\r\n", "http://x/"))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
        if told:
            break
    if not told:
        connection.eof_received()
    reply = await waiting
    body = await reply.read()
    wire.abort()
    connection.connection_lost(None)
    assert wire.written == [b"GET / HTTP/1.1\r\n\r\n"]
    return reply.status, body, told


@pytest.mark.parametrize("name", FRAMINGS)
async def test_every_framing(name: str) -> None:
    said, status, body, kept = FRAMINGS[name]
    async with run_raw_server(reply_to_each(said) if kept else reply_once(said)) as here:
        fetcher = HTTPClient()
        for _ in range(2):
            reply = await fetcher.fetch("POST", here.url, [])
            assert (reply.status, await reply.read()) == (status, body)
        assert here.connection_count == (1 if kept else 2)
        await fetcher.close()


@pytest.mark.parametrize("name", FRAMINGS)
async def test_byte_by_byte_over_a_socket(name: str) -> None:
    said, status, body, kept = FRAMINGS[name]

    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        for at in range(len(said)):
            visit.send(said[at : at + 1])
            await asyncio.sleep(0)
        if kept:
            await visit.wait_closed()

    async with run_raw_server(serve) as here:
        assert await fetched(here.url) == (status, body)


@given(st.sampled_from(sorted(FRAMINGS)), st.lists(st.integers(0, 700), max_size=12))
def test_a_reply_may_be_cut_anywhere(name: str, cuts: list[int]) -> None:
    said, status, body, kept = FRAMINGS[name]
    edges = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    pieces = [said[start:end] for start, end in pairwise(edges) if start < end]
    assert asyncio.run(played(pieces)) == (status, body, [kept])


async def test_headers_are_lower_case_and_repeated_ones_joined() -> None:
    async with run_raw_server(reply_to_each(plain_reply(b"", b"X-One: a\r\nx-ONE: b\r\nEmpty:\r\n"))) as here:
        fetcher = HTTPClient()
        reply = await fetcher.fetch("GET", here.url, [])
        assert reply.headers == {b"x-one": b"a, b", b"empty": b"", b"content-length": b"0"}
        assert reply.url == here.url
        await fetcher.close()


async def test_an_interim_reply_leaves_no_headers() -> None:
    async with run_raw_server(reply_to_each(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + plain_reply(b""))) as here:
        fetcher = HTTPClient()
        reply = await fetcher.fetch("GET", here.url, [])
        assert reply.headers == {b"content-length": b"0"}
        await fetcher.close()


async def test_a_head_request_has_no_body_whatever_the_length() -> None:
    async with run_raw_server(reply_to_each(OK + b"Content-Length: 99999999\r\n\r\n")) as here:
        assert await fetched(here.url, "HEAD") == (200, b"")


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_replies(name: str) -> None:
    async with run_raw_server(reply_to_each(MALFORMED[name])) as here:
        with pytest.raises(InvalidHTTPResponse):
            await fetched(here.url)
        assert len(here.requests) == 1


@pytest.mark.parametrize("name", OVERSIZED)
async def test_oversized_heads_and_trailers(name: str) -> None:
    async with run_raw_server(reply_to_each(OVERSIZED[name])) as here:
        with pytest.raises(ResponseTooLarge):
            await fetched(here.url)
        assert len(here.requests) == 1


async def test_the_status_is_known_even_if_the_body_cannot_be_read() -> None:
    async with run_raw_server(
        reply_to_each(b"HTTP/1.1 502 Bad Gateway\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nhi")
    ) as here:
        fetcher = HTTPClient()
        reply = await fetcher.fetch("GET", here.url, [])
        assert reply.status == 502
        with pytest.raises(InvalidHTTPResponse):
            await reply.read()
        await fetcher.close()


@pytest.mark.parametrize(
    "said",
    [
        plain_reply(b"x" * 1001),
        plain_reply(b"x" * 100_000),
        OK + b"Content-Length: 30000000\r\n\r\n",
        CHUNKED + b"\r\n" + chunked(b"x" * 1001),
        plain_reply(gzip.compress(b"x" * 1001), GZIPPED),
    ],
    ids=["by one byte", "by far", "by declaration", "in chunks", "when decompressed"],
)
async def test_a_body_over_its_limit(said: bytes) -> None:
    async with run_raw_server(reply_to_each(said)) as here:
        with pytest.raises(ResponseTooLarge):
            await fetched(here.url, limits=FetchLimits(max_body_bytes=1000))


@pytest.mark.parametrize(
    "said", [plain_reply(b"x" * 1000), plain_reply(gzip.compress(b"x" * 1000), GZIPPED)], ids=["plain", "compressed"]
)
async def test_a_body_at_its_limit(said: bytes) -> None:
    async with run_raw_server(reply_to_each(said)) as here:
        assert await fetched(here.url, limits=FetchLimits(max_body_bytes=1000)) == (200, b"x" * 1000)


@cache
def bomb(size: int) -> bytes:
    stream = zlib.compressobj(9, wbits=31)
    zeros = bytes(2**20)
    return b"".join([*(stream.compress(zeros) for _ in range(size >> 20)), stream.flush()])


@pytest.mark.parametrize("whole", [True, False])
async def test_a_bomb_fails_early_in_little_memory(whole: bool) -> None:
    async def consume(reply: ClientResponse) -> None:
        nonlocal got
        if whole:
            await reply.read()
        async for piece in reply.chunks():
            got += len(piece)

    got = 0
    async with run_raw_server(reply_to_each(plain_reply(bomb(2**26), GZIPPED))) as here:
        fetcher = HTTPClient()
        reply = await fetcher.fetch("GET", here.url, [])
        tracemalloc.start()
        try:
            with pytest.raises(ResponseTooLarge):
                await consume(reply)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            await fetcher.close()
        assert peak < 6 * 2**20
        assert got < 2 * 2**20


async def test_small_data_that_compresses_well_is_accepted() -> None:
    body = bytes(1_000_000)
    async with run_raw_server(reply_to_each(plain_reply(gzip.compress(body), GZIPPED))) as here:
        assert await fetched(here.url) == (200, body)


async def test_a_compressed_stream_comes_piece_by_piece() -> None:
    go = asyncio.Event()

    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        stream = zlib.compressobj(wbits=31)
        visit.send(CHUNKED + GZIPPED + b"\r\n")
        for text in (b"one", b"two"):
            piece = stream.compress(text) + stream.flush(zlib.Z_SYNC_FLUSH)
            visit.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await go.wait()
        piece = stream.flush()
        visit.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(piece), piece))

    async with run_raw_server(serve) as here:
        fetcher = HTTPClient()
        reply = await fetcher.fetch("GET", here.url, [])
        assert await anext(reply) == b"one"
        go.set()
        assert b"".join([piece async for piece in reply]) == b"two"
        await fetcher.close()


async def test_a_stream_is_longer_than_any_body() -> None:
    body = b"data: x\n\n" * 1000
    async with run_raw_server(reply_to_each(CHUNKED + b"\r\n" + chunked(body, 900))) as here:
        fetcher = HTTPClient(limits=FetchLimits(max_body_bytes=100))
        reply = await fetcher.fetch("GET", here.url, [])
        assert b"".join([piece async for piece in reply.chunks()]) == body
        await fetcher.close()


async def test_a_server_is_not_read_faster_than_the_caller_reads() -> None:
    size, sent = 64 * 2**20, 0

    async def serve(visit: ServerConnection) -> None:
        nonlocal sent
        await visit.request()
        visit.send(OK + b"Content-Length: %d\r\n\r\n" % size)
        while sent < size:
            visit.send(bytes(2**16))
            sent += 2**16
            await visit.writer.drain()
        await visit.wait_closed()

    async with run_raw_server(serve) as here:
        fetcher = HTTPClient()
        reply = await fetcher.fetch("GET", here.url, [])
        # Turns enough to receive it all. What the kernel holds is not ours to know, but so much it does not.
        await run_pending_callbacks(5000)
        assert sent < size
        got = 0
        async for piece in reply:
            got += len(piece)
        assert got == size
        await fetcher.close()


async def test_large_bodies_are_read_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    touched = 0
    original = HTTP1Connection.on_body

    def on_body(self: HTTP1Connection, piece: bytes) -> None:
        nonlocal touched
        touched += len(piece)
        original(self, piece)

    monkeypatch.setattr(HTTP1Connection, "on_body", on_body)
    for size in (2**20, 2**23):
        touched = 0
        async with run_raw_server(reply_to_each(plain_reply(bytes(size)))) as here:
            assert await fetched(here.url) == (200, bytes(size))
        assert touched == size


@pytest.mark.parametrize("body", [TEXT, b""])
async def test_a_reply_that_breaks_off_anywhere_is_an_error(body: bytes) -> None:
    said = CHUNKED + b"\r\n" + chunked(body, 100)
    for end in range(len(said)):
        async with run_raw_server(reply_once(said[:end])) as here:
            with pytest.raises(ConnectionBroken) as caught:
                await fetched(here.url)
            assert caught.value.sent
            assert caught.value.has_head == (end >= len(CHUNKED) + 2)
            assert len(here.requests) == here.connection_count == 1


async def test_pieces_before_the_break_are_delivered() -> None:
    async with run_raw_server(reply_once(OK + b"Content-Length: 10\r\n\r\nhello")) as here:
        fetcher = HTTPClient()
        reply = await fetcher.fetch("GET", here.url, [])
        assert await anext(reply) == b"hello"
        for _ in range(2):
            with pytest.raises(ConnectionBroken):
                await anext(reply)
        await fetcher.close()


async def test_a_reset_does_not_end_a_body_without_length() -> None:
    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        visit.send(OK + b"\r\nhello")
        await visit.writer.drain()
        linger = b"\1\0\0\0\0\0\0\0"
        visit.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await heard.wait()
        visit.writer.transport.abort()

    heard = asyncio.Event()
    async with run_raw_server(serve) as here:
        fetcher = HTTPClient()
        reply = await fetcher.fetch("GET", here.url, [])
        assert await anext(reply) == b"hello"
        heard.set()
        with pytest.raises(ConnectionBroken):
            await reply.read()
        await fetcher.close()


async def test_closing_an_unfinished_reply_cancels_the_request() -> None:
    async def serve(visit: ServerConnection) -> None:
        await visit.request()
        visit.send(OK + b"Content-Length: 10\r\n\r\nhello")
        await visit.wait_closed()

    async with run_raw_server(serve) as here:
        fetcher = HTTPClient()
        reply = await fetcher.fetch("GET", here.url, [])
        reply.close()
        reply.close()
        await wait_until(lambda: here.closed_count == 1)
        with pytest.raises(ConnectionBroken):
            await reply.read()
        await fetcher.close()


async def test_closing_a_complete_reply_keeps_the_connection() -> None:
    async with run_raw_server(reply_to_each(plain_reply(TEXT))) as here:
        fetcher = HTTPClient()
        for _ in range(3):
            reply = await fetcher.fetch("GET", here.url, [])
            await reply.read()
            reply.close()
        assert here.connection_count == 1
        await fetcher.close()
