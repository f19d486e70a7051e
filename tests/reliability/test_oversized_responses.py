"""One response uses a bounded amount of memory, whatever a server sends.

The client runs in its own process. The figure is its peak memory minus its memory after a first call.
"""

import gzip
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from client_process import run_client
from harness import MiB, record_measurement

from support.scripted_server import (
    ERAS,
    STREAM_HEAD,
    ScriptedServer,
    create_response,
    encode_http_reply,
    encode_message,
    serve_on_socket,
    serve_over_http,
    text_result,
)

HOSTILE = 64.0  # MiB over idle
LIMIT = 32 * MiB
FULL = 8 * LIMIT / MiB  # what an honest answer just under the limit may take on its way
HOSTILE_PROGRAM = Path(__file__).with_name("hostile_server.py")


def only_once(reaction: Any) -> Any:
    return lambda message: reaction(message) if message["params"]["name"] == "go" else text_result()


async def endless_json(_: Any) -> AsyncIterator[bytes]:
    yield b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"jsonrpc":"2.0","id":1,"result":{"a":"'
    for _ in range(3000):
        yield b"x" * 65536


async def endless_event(_: Any) -> AsyncIterator[bytes]:
    yield STREAM_HEAD + b"data: "
    for _ in range(3000):
        yield b"x" * 65536


async def short_lines(_: Any) -> AsyncIterator[bytes]:
    """One event made of very many lines, each of which could cost an object."""
    yield STREAM_HEAD
    for _ in range(2000):
        yield b"data:ab\n" * 8192


async def bomb(_: Any) -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n\r\n"
    squeezer = zlib.compressobj(9, wbits=31)
    for _ in range(200):
        yield squeezer.compress(b"0" * (4 * MiB))
    yield squeezer.flush()


async def endless_headers(_: Any) -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    for number in range(200_000):
        yield b"x-%d: y\r\n" % number


WEB = {
    "endless JSON": endless_json,
    "endless event": endless_event,
    "gzip bomb": bomb,
    "endless headers": endless_headers,
}


@pytest.mark.parametrize("name", WEB)
@pytest.mark.parametrize("era", ERAS)
async def test_an_answer_without_end_over_http(name: str, era: str) -> None:
    script = ScriptedServer(era, {"tools/call": only_once(WEB[name])}, session="s")
    async with serve_over_http(script) as at:
        seen = await run_client(at, era=era)
    assert seen["outcome"] in ("InvalidResult", "Interrupted", "NotMCPServer"), seen
    assert seen["usable"]
    record_measurement(f"client, {name}, {era}", seen["mib"], "MiB")
    assert seen["mib"] < HOSTILE


async def test_an_event_of_very_many_lines() -> None:
    """Each line could cost an object; the limit is made small, because reading them takes its time."""
    script = ScriptedServer("stateless", {"tools/call": only_once(short_lines)})
    async with serve_over_http(script) as at:
        seen = await run_client(at, era="stateless", limits={"max_response_bytes": 4 * MiB})
    assert seen["outcome"] == "InvalidResult", seen
    assert seen["usable"]
    record_measurement("client, an event of short lines, limit 4 MiB", seen["mib"], "MiB")
    assert seen["mib"] < 16


@pytest.mark.parametrize(
    ("what", "era"),
    [
        ("line", "stateless"),
        ("line", "handshake"),
        ("junk", "handshake"),
        ("deep", "stateless"),
        ("members", "handshake"),
    ],
)
async def test_a_process_that_writes_too_much(what: str, era: str) -> None:
    command = [sys.executable, str(HOSTILE_PROGRAM), what]
    seen = await run_client(command, era=era, limit=2.5)
    assert seen["outcome"] in ("RequestTimeout", "InvalidResult"), seen
    assert seen["usable"]
    record_measurement(f"client, process, {what}, {era}", seen["mib"], "MiB")
    assert seen["mib"] < HOSTILE


@pytest.mark.parametrize("way", ["socket", "web", "zipped"])
async def test_an_honest_answer_just_under_the_limit(way: str) -> None:
    size = 31 * MiB
    body = "ab" * (size // 2)

    def reaction(message: Any) -> Any:
        result = text_result(body)
        if way != "zipped":
            return result
        # Random enough that it does not look like a bomb.
        return encode_http_reply(
            gzip.compress(encode_message(create_response(message, result)), 0), content_encoding="gzip"
        )

    script = ScriptedServer("stateless", {"tools/call": only_once(reaction)})
    async with (serve_on_socket if way == "socket" else serve_over_http)(script) as at:
        seen = await run_client(at, era="stateless")
    assert seen["outcome"] == str(size), seen
    assert seen["usable"]
    record_measurement(f"client, honest 31 MiB, {way}", seen["mib"], "MiB")
    record_measurement(f"client, honest 31 MiB, {way}", seen["cpu"], "s CPU")
    assert seen["mib"] < FULL


async def test_a_list_of_too_many() -> None:
    tools = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(50_000)]
    script = ScriptedServer("stateless", {"tools/list": {"tools": tools}})
    async with serve_on_socket(script) as at:
        seen = await run_client(at, era="stateless", what="list")
    assert seen["outcome"] == "InvalidResult", seen
    record_measurement("client, 50 000 tools in one answer", seen["mib"], "MiB")
    assert seen["mib"] < HOSTILE
