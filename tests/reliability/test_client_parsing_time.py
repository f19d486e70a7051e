"""Parsing a server's bytes takes linear time, in any chunks."""

import asyncio
from collections.abc import Callable

import pytest
from harness import MiB, record_measurement
from test_parsing_time import EXPONENT, exponent

from dovetail.protocol.sse import SSEParser
from dovetail.transports.http_client.http1_connection import Decompressor
from dovetail.transports.line_client import LineClient
from dovetail.wire.raw_message import decode_body, read_messages
from dovetail.wire.tools import CallToolResult

Work = Callable[[], object]
PIECE = 4096


def answer(size: int) -> bytes:
    text = b"ab\\n\\u00e9" * (size // 9)
    return b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"' + text + b'"}]}}'


def joined(size: int) -> Work:
    data = answer(size) + b"\n"

    async def feed() -> None:
        caller = LineClient(64 * MiB)
        for start in range(0, len(data), PIECE):
            caller.data_received(data[start : start + PIECE])

    return lambda: asyncio.run(feed())


def streamed(size: int) -> Work:
    data = b"data: " + answer(size) + b"\n\n"

    def work() -> None:
        parser = SSEParser(64 * MiB)
        for start in range(0, len(data), PIECE):
            parser.feed(data[start : start + PIECE])

    return work


def streamed_in_lines(size: int) -> Work:
    data = b"data: x\n" * (size // 8)

    def work() -> None:
        parser = SSEParser(64 * MiB)
        for start in range(0, len(data), PIECE):
            parser.feed(data[start : start + PIECE])

    return work


def inflated(size: int) -> Work:
    import random
    import zlib

    from dovetail.protocol.limits import FetchLimits

    data = zlib.compress(random.Random(1).randbytes(size))

    def work() -> None:
        inflater = Decompressor(is_gzip=False, limits=FetchLimits())
        for start in range(0, len(data), PIECE):
            inflater.feed(data[start : start + PIECE])
            while inflater.read():
                pass

    return work


def decoded(size: int) -> Work:
    data = answer(size)

    def work() -> None:
        (message,) = read_messages(data)
        decode_body(message.result, CallToolResult, "it")

    return work


def mended(size: int) -> Work:
    data = answer(size).replace(b"ab", b"\xff\xfe")

    def work() -> None:
        (message,) = read_messages(data)
        decode_body(message.result, CallToolResult, "it")

    return work


def counted(item: bytes) -> Callable[[int], Work]:
    def make(size: int) -> Work:
        data = b'{"id":1,"result":[' + item * (size // len(item)) + b"1]}"

        def work() -> None:
            try:
                read_messages(data)
            except Exception:
                return

        return work

    return make


READERS: dict[str, tuple[Callable[[int], Work], int]] = {
    "line join": (joined, 256 * 1024),
    "event": (streamed, 256 * 1024),
    "event of short lines": (streamed_in_lines, 128 * 1024),
    "inflate": (inflated, 256 * 1024),
    "decode": (decoded, 256 * 1024),
    "broken text": (mended, 128 * 1024),
    "members": (counted(b"[],"), 256 * 1024),
    "strings": (counted(b'"\\"",'), 256 * 1024),
    "backslashes": (counted(b'"\\\\\\\\\\\\\\\\",'), 256 * 1024),
}


@pytest.mark.parametrize("name", READERS)
def test_time_grows_with_the_size_only(name: str) -> None:
    make, size = READERS[name]
    found = min(exponent(make, size) for _ in range(2))
    record_measurement(f"client, {name}", found, "exponent")
    assert found < EXPONENT
