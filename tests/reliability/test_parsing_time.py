"""Parsing a peer's text takes linear time, whatever its content.

Each parser is timed on a text and on one eight times as long. Quadratic work would take 64 times as long. Then the
worst texts go to a server at their size limits, and other clients must not be affected.
"""

import asyncio
import base64
import contextlib
import json
import math
import time
import tracemalloc
from collections.abc import Callable

import pytest
from harness import (
    HANDSHAKE,
    Client,
    MiB,
    StdioClient,
    Target,
    encode_http_request,
    measure_cpu_unit,
    message,
    mirror_headers,
    record_measurement,
    stateless_params,
)

import dovetail
from dovetail import MCPError, Server
from dovetail.error_context import clip
from dovetail.errors import ProtocolError
from dovetail.protocol.headers import HeaderPath, check_param_headers, decode_value
from dovetail.protocol.http_checks import Refusal, collect_headers, parse_accept, parse_media_type
from dovetail.protocol.request_state import RequestStateSealer
from dovetail.protocol.sse import EventTooLarge, SSEParser
from dovetail.server.items.uri_template import URITemplate
from dovetail.transports.line_splitter import LineSplitter
from dovetail.wire.codec import decode

FACTOR = 8
EXPONENT = 1.7  # linear is 1, a square is 2; the rest is for a machine that others use as well
ENOUGH = 0.002  # seconds of work that can be told from noise

Work = Callable[[], object]


def took(work: Work, times: int) -> float:
    began = time.thread_time()
    for _ in range(times):
        work()
    return time.thread_time() - began


def exponent(make: Callable[[int], Work], size: int) -> float:
    """How the time grows from a size to eight times that."""
    small, large = make(size), make(size * FACTOR)
    times = 1
    while took(small, times) < ENOUGH and times < 100_000:
        times *= 4
    best = min(took(small, times) for _ in range(3))
    return math.log(took(large, times) / best, FACTOR)


def check(name: str, make: Callable[[int], Work], size: int) -> None:
    found = exponent(make, size)
    if found >= EXPONENT:  # or somebody else needed the machine
        found = min(exponent(make, size), exponent(make, size))
    record_measurement(f"exponent of {name}", found, "")
    assert found < EXPONENT


# Templates: the longest URI is 8 KiB

TEMPLATES = [
    "note://{name}/text", "docs://{+path}", "a://{a}-{b}-{c}-{d}", "a://x{/list*}/end", "a://{+path}/x/{y}",
    "a://h{?q,r*}", "a://h{;m*}", "a://{a}.{b}/{c}{.d*}", "a://{+p}{#frag}",
]  # fmt: skip
UNITS = [
    "a", "-", "/", "/a", "a/", "%2e", "%2f", "%", "%%", "%e2%80", "é", "..", "../", ".", "?", "?q=", "&q=1", "&r=1",
    ";m=1", "#", ":", "@", "//", "-a", "/x/", "x", "\ue000", "\\", "end/", "A",
]  # fmt: skip


@pytest.mark.parametrize("text", TEMPLATES)
def test_matching_a_template(text: str) -> None:
    """Every unit is tried once at full length; the slowest are timed as they grow."""
    template = URITemplate(text)
    head = text.partition("{")[0]

    def uri(unit: str, size: int) -> str:
        return (head + unit * size)[:size]

    def make(unit: str) -> Callable[[int], Work]:
        return lambda size: lambda: template.match(uri(unit, size))

    slowest = sorted(UNITS, key=lambda unit: took(make(unit)(8000), 3))[-3:]
    for unit in slowest:
        check(f"template {text} on {unit!a}", make(unit), 1000)


# The codec: bodies up to 4 MiB


def quiet(work: Work) -> Work:
    def run() -> None:
        with contextlib.suppress(ProtocolError, EventTooLarge, Refusal, ValueError):
            work()

    return run


BODIES: dict[str, Callable[[int], bytes]] = {
    "text": lambda n: b'"' + b"a" * n + b'"',
    "quotes": lambda n: b'"' * n,
    "escaped quotes": lambda n: b'["' + b'\\"' * (n // 2) + b'"]',
    "backslashes": lambda n: b'["' + b"\\\\" * (n // 2) + b'"]',
    "open backslashes": lambda n: b'["' + b"\\" * n,
    "escapes": lambda n: b'["' + b"\\u0041" * (n // 6) + b'"]',
    "surrogates": lambda n: b'["' + b"\\ud83d" * (n // 6) + b'"]',
    "arrays": lambda n: b"[" * n,
    "closed arrays": lambda n: b"[" * (n // 2) + b"]" * (n // 2),
    "empty arrays": lambda n: b"[" + b"[]," * (n // 3) + b"[]]",
    "objects": lambda n: b'{"a":' * (n // 5),
    "brackets in a text": lambda n: b'["' + b"[{" * (n // 2) + b'"]',
    "commas": lambda n: b"," * n,
    "commas in a text": lambda n: b'["' + b"," * n + b'"]',
    "commas in an open text": lambda n: b'["' + b"," * n,
    "many texts with commas": lambda n: b"[" + b'",",' * (n // 4) + b"1]",
    "members": lambda n: b"[" + b"1," * (n // 2) + b"1]",
    "names": lambda n: b"{" + b",".join(b'"%d":1' % k for k in range(n // 8)) + b"}",
    "the same name": lambda n: b"{" + b'"a":1,' * (n // 6) + b'"a":1}',
    "escaped names": lambda n: b"{" + b",".join(b'"\\u0061%d":1' % k for k in range(n // 16)) + b"}",
    "digits": lambda n: b"9" * n,
    "digits in a text": lambda n: b'["' + b"9" * n + b'"]',
    "numbers": lambda n: b"[" + (b"9" * 39 + b",") * (n // 40) + b"1]",
    "fractions": lambda n: b"[0." + b"3" * n + b"]",
    "exponents": lambda n: b"[1e" + b"9" * n + b"]",
    "spaces": lambda n: b" " * n + b"1",
    "not utf-8": lambda n: b'["' + b"\xc3\xa9" * (n // 2) + b'\xff"]',
    "colons in a text": lambda n: b'["' + b":" * n + b'"]',
}


@pytest.mark.parametrize("name", BODIES)
def test_reading_a_message(name: str) -> None:
    def make(size: int) -> Work:
        body = BODIES[name](size)
        return quiet(lambda: decode(body))

    check(f"message of {name}", make, 60_000)


# Lines and event streams, cut as a network may cut them


@pytest.mark.parametrize("piece", [1, 2, 7, 4096])
def test_cutting_lines(piece: int) -> None:
    def make(size: int) -> Work:
        def run() -> None:
            framer = LineSplitter(64 * MiB)
            for _ in range(0, size, piece):
                framer.feed(b"x" * piece)
            framer.feed(b"\n")

        return run

    check(f"a line in pieces of {piece}", make, 40_000 if piece < 100 else 128 * 1024)


def test_many_short_lines() -> None:
    def make(size: int) -> Work:
        data = b"{}\n\n\r\n" * (size // 6)
        return lambda: LineSplitter(MiB).feed(data)

    check("short lines", make, 60_000)


def test_a_line_in_pieces_takes_little_more_memory_than_its_size() -> None:
    size = 256 * 1024
    tracemalloc.start()
    try:
        framer = LineSplitter(4 * MiB)
        for number in range(size // 2):
            framer.feed(b"%02d" % (number % 100))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    record_measurement("bytes held per byte of a line in pieces", held / size, "")
    assert held < 4 * size


STREAMS: dict[str, bytes] = {
    "one line": b"x", "line ends": b"\n", "carriage returns": b"\r", "both": b"\r\n", "comments": b":\n",
    "data": b"data:\n",
    "blocks": b"data:x\n\n", "ids": b"id:1\n", "digits": b"retry:9999999999999999\n", "names": b"event:abc\n",
    "colons": b"::::",
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("piece", [1, 1000])
def test_reading_an_event_stream(name: str, piece: int) -> None:
    def make(size: int) -> Work:
        data = STREAMS[name] * (size // len(STREAMS[name]))
        pieces = [data[at : at + piece] for at in range(0, len(data), piece)]

        def run() -> None:
            parser = SSEParser(64 * MiB)
            for one in pieces:
                parser.feed(one)

        return run

    check(f"event stream of {name} in pieces of {piece}", make, 3000 if piece == 1 else 60_000)


# Heads: a header is at most 8 KiB, all of them 32 KiB

HEADERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "accept": (lambda value: parse_accept(value), b"text/plain;q=0.1,"),
    "accept spaces": (lambda value: parse_accept(value), b" "),
    "accept parameters": (lambda value: parse_accept(value), b"*/*;q=0.0  ;"),
    "accept weights": (lambda value: parse_accept(value), b"*/*;   q=0.00000 ,"),
    "media type": (lambda value: parse_media_type(value), b" ;"),
    "mirror": (lambda value: decode_value(value), b"a "),
    "mirror in base64": (lambda value: decode_value(b"=?base64?" + value + b"?="), b"YWFh"),
    "mirror not in base64": (lambda value: decode_value(b"=?base64?" + value + b"?="), b"=?"),
    "integer": (
        lambda value: check_param_headers(
            [HeaderPath(b"mcp-param-x", ("x",), "integer")], {"x": 1}, {b"mcp-param-x": value}
        ),
        b"1",
    ),
    "state": (lambda value: RequestStateSealer(["a" * 32]).open(value.decode(), b"", 0.0), b"YWFh"),
    "words for a log": (lambda value: clip(value.decode("latin-1")), b"\x1b"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_reading_a_header(name: str) -> None:
    read, unit = HEADERS[name]
    count = iter(range(10**9))

    def make(size: int) -> Work:
        body = unit * (size // len(unit))
        return quiet(lambda: read(body + b"%09d" % next(count)))  # another each time: some verdicts are remembered

    check(f"header {name}", make, 1000)


def test_collecting_headers() -> None:
    """Joining what is given many times is not worth a better way: at the limit of a head it takes no time."""
    pairs = [(b"x", b"")] * (32 * 1024 // 5)
    assert took(lambda: collect_headers(pairs), 1) < 5 * measure_cpu_unit()
    names = [(b"%d" % number, b"") for number in range(32 * 1024 // 5)]
    assert took(lambda: collect_headers([*names, *names]), 1) < 5 * measure_cpu_unit()


# Cursors: at most 4 KiB, looked up among everything that is listed


def test_looking_up_a_cursor() -> None:
    client_cursor = base64.urlsafe_b64encode(json.dumps(["tools/list", "x"]).encode()).decode()

    def make(size: int) -> Work:
        app = Server("many", page_size=10)
        for number in range(size):
            app.add_tool(lambda: None, name=f"tool{number}")

        async def ask() -> None:
            async with dovetail.Client(app) as client:
                for _ in range(10):
                    with contextlib.suppress(MCPError):
                        await client.request("tools/list", {"cursor": client_cursor})

        return lambda: asyncio.run(ask())

    check("cursor among tools", make, 50)


# At the limits, in a server


def at_limit(body: bytes) -> bytes:
    """A call whose one argument is this, so that it stands where a peer's own text stands."""
    head = json.dumps(message("tools/call", stateless_params({"name": "take"}), 1)).encode()
    return head[:-2] + b', "arguments": ' + body + b"}}"


def test_the_worst_messages_block_no_other_client(served: Target) -> None:
    """One body of nearly 4 MiB of each kind: how long the server works on it, and for how long before another call."""
    hostile, other = Client(served), Client(served)
    headers = hostile.headers | mirror_headers(message("tools/call", {"name": "take"}, 1))
    worst_cpu = worst_wait = 0.0
    worst_name = ""
    other.is_healthy()
    for name, make in BODIES.items():
        data = encode_http_request("POST", "/mcp", headers, at_limit(make(4 * MiB - 4096)))
        before = served.cpu
        hostile.connection().send(data)
        assert other.is_healthy()
        worst_wait = max(worst_wait, served.cpu - before)
        answer = hostile.connection().answer()
        assert answer.status in (200, 400, 413), name
        used = served.cpu - before
        if used > worst_cpu:
            worst_cpu, worst_name = used, name
    record_measurement(f"CPU for the worst message of 4 MiB ({worst_name})", worst_cpu * 1000, "ms")
    record_measurement("CPU before the call of another client beside it", worst_wait * 1000, "ms")
    assert worst_cpu < 1.0
    assert worst_wait < 1.0


def test_the_worst_uris_block_no_other_client(served: Target) -> None:
    client = Client(served, HANDSHAKE)
    worst = 0.0
    for unit in UNITS:
        for head in ("note://", "docs://", "note://a/"):
            uri = (head + unit * 8192)[:8192]
            before = served.cpu
            assert "error" in client.request("resources/read", {"uri": uri}).message or unit == "a"
            worst = max(worst, served.cpu - before)
    record_measurement("CPU for the slowest URI of 8 KiB", worst * 1000, "ms")
    assert worst < 1.0


def test_a_line_byte_by_byte(piped: Target) -> None:
    """Slowly dripping bytes cost what bytes cost."""
    pipe = StdioClient(piped)
    made = json.dumps(pipe.prepare("tools/call", {"name": "take", "arguments": {"text": "x" * 20_000}}, 9)).encode()
    before = piped.cpu
    for at in range(len(made)):
        pipe.raw(made[at : at + 1])
    pipe.raw(b"\n")
    assert pipe.answer(9)["result"]["structuredContent"] == {"result": 20_000}
    assert piped.cpu - before < 5.0


def test_a_long_line_that_never_ends(piped: Target) -> None:
    pipe = StdioClient(piped)
    before = piped.cpu
    for _ in range(24):
        pipe.raw(b"x" * MiB)
    pipe.raw(b"\n")
    assert pipe.is_healthy()
    record_measurement("CPU for a line of 24 MiB", (piped.cpu - before) * 1000, "ms")
    assert piped.cpu - before < 2.0
    assert pipe.unread_messages()[0]["error"]["code"] == -32600
