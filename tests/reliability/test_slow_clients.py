"""Peers that send slowly or not at all, or never read the response.

The timeouts are small. Each peer is dropped, memory stays bounded and is released, and other clients are served all the
time.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator

import harness
import psutil
import pytest
from harness import (
    ACCEPT_JSON_AND_SSE,
    HANDSHAKE,
    Client,
    Connection,
    MiB,
    Sse2024Client,
    StartTarget,
    StdioClient,
    Target,
    encode_http_request,
    message,
    record_measurement,
    wait_for,
)

TIMES = {"header_timeout": 0.5, "body_timeout": 0.6, "write_timeout": 0.8, "keep_alive_interval": 0.2}
MOST = 64 * MiB
MANY = 300


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with harness.run_target(tmp_path_factory.mktemp("t06"), "http", limits=TIMES) as one:
        Client(one).is_healthy()
        yield one
        assert one.alive
        assert "Traceback" not in one.log, one.log[-3000:]


def head(target: Target, length: int) -> bytes:
    headers = {"host": f"127.0.0.1:{target.port}", "content-type": "application/json", "accept": ACCEPT_JSON_AND_SSE}
    return encode_http_request("POST", "/mcp", headers | {"content-length": str(length)})


def chunked(target: Target) -> bytes:
    return head(target, 5).replace(b"content-length: 5", b"transfer-encoding: chunked")


SLOW = {
    "nothing": lambda _: b"",
    "half a request line": lambda _: b"POST /mc",
    "half a head": lambda _: b"POST /mcp HTTP/1.1\r\nhost: local",
    "a head without its end": lambda target: head(target, 5)[:-2],
    "a head and no body": lambda target: head(target, 100),
    "half a body": lambda target: head(target, 100) + b'{"jsonrpc":',
    "a chunk without its end": lambda target: chunked(target) + b"5\r\n{",
    "the rest of a refused body": lambda target: head(target, 100).replace(b"127.0.0.1", b"evil.test") + b"{",
}  # fmt: skip


@pytest.mark.parametrize("kind", SLOW)
def test_what_is_withheld_is_not_waited_for(hasty: Target, kind: str) -> None:
    with Connection(hasty.port) as connection:
        connection.send(SLOW[kind](hasty))
        status = connection.head()[0]
        assert status in (408, 421)
        assert connection.wait_closed()


@pytest.mark.parametrize("start_of", ["head", "body"])
def test_dripping_does_not_help(hasty: Target, start_of: str) -> None:
    """One byte at a time, each well within any pause: the whole has its time, not each byte."""
    data = head(hasty, 10_000) + b"x" * 10_000
    sent = 3 if start_of == "head" else len(head(hasty, 10_000)) + 3
    with Connection(hasty.port) as connection:
        connection.send(data[:sent])
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            drip(connection, data[sent:])
        assert time.monotonic() - began < 5


def drip(connection: Connection, data: bytes) -> None:
    for place in range(500):
        connection.send(data[place : place + 1])
        time.sleep(0.02)


def test_many_half_open_requests_are_all_dropped(hasty: Target) -> None:
    client = Client(hasty)
    client.is_healthy()
    idle, descriptors = hasty.rss, hasty.descriptors
    held = [Connection(hasty.port) for _ in range(MANY)]
    for number, connection in enumerate(held):
        connection.send(head(hasty, 100)[: 10 + number % 100] if number % 2 else head(hasty, 100))
    assert client.is_healthy()
    assert hasty.rss - idle < MOST
    assert all(connection.wait_closed() for connection in held)
    wait_for(lambda: hasty.descriptors <= descriptors + 1, "the descriptors")


def test_stalled_bodies_do_not_pile_up_in_memory(hasty: Target) -> None:
    """The peers: 300 bodies stalled at 1 MB held 382 MiB, and none was dropped."""
    client = Client(hasty)
    client.is_healthy()
    idle = hasty.rss
    hasty.reset_peak()
    piece = b" " * (MiB - 1000)
    held: list[Connection] = []
    for _ in range(100):
        connection = Connection(hasty.port)
        connection.send(head(hasty, MiB) + piece)
        held.append(connection)
    assert client.is_healthy()
    record_measurement("100 bodies stalled at 1 MB", (hasty.peak - idle) / MiB, "MiB")
    assert hasty.peak - idle < MOST, f"{(hasty.peak - idle) / MiB:.0f} MiB"
    assert all(connection.wait_closed() for connection in held)


@pytest.mark.parametrize("revision", [harness.NEWEST, HANDSHAKE])
@pytest.mark.parametrize("tool", ["blob", "chatter"])
def test_clients_that_never_read_are_dropped(hasty: Target, revision: str, tool: str) -> None:
    """The peers: 40 clients that did not read 5 MB held 461 MiB for as long as they liked."""
    client = Client(hasty, revision)
    client.is_healthy()
    idle, descriptors = hasty.rss, hasty.descriptors
    hasty.reset_peak()
    arguments = {"size": 5_000_000} if tool == "blob" else {"count": 500, "size": 10_000}
    data = client.prepare("tools/call", {"name": tool, "arguments": arguments}, **{harness.LOG_LEVEL: "error"})
    held = [client.send_only(data, receive_buffer=4096) for _ in range(40)]
    wait_for(lambda: client.is_healthy() and hasty.descriptors <= descriptors + 2, "all dropped")
    record_measurement(f"40 that never read 5 MB ({tool}, {revision})", (hasty.peak - idle) / MiB, "MiB")
    assert hasty.peak - idle < MOST, f"{(hasty.peak - idle) / MiB:.0f} MiB"
    for connection in held:
        connection.close()
    wait_for(lambda: client.process_stats()["tasks"] <= 4, "their tasks have ended")


def test_a_get_stream_that_is_not_read_is_dropped(hasty: Target) -> None:
    client = Client(hasty, HANDSHAKE)
    assert "result" in client.request("resources/subscribe", {"uri": "note://fixed"}).message
    stream = Connection(hasty.port, receive_buffer=4096)
    stream.send(encode_http_request("GET", "/mcp", client.headers))
    assert stream.head()[0] == 200
    descriptors = hasty.descriptors
    idle = hasty.rss

    def told() -> bool:
        client.call("touch", {"uri": "note://fixed", "times": 2000})
        return hasty.descriptors < descriptors

    wait_for(told, "the stream is dropped")
    assert hasty.rss - idle < MOST
    stream.close()


def test_the_old_transport_does_not_store_unread_messages(hasty: Target) -> None:
    """Every POST is answered on a stream that is not read: what waits there has a limit."""
    old = Sse2024Client(hasty)
    idle = hasty.rss
    hasty.reset_peak()
    statuses: set[int] = set()
    for number in range(100):
        made = message("tools/call", {"name": "blob", "arguments": {"size": 5_000_000}}, f"n{number}")
        try:
            statuses.add(old.send(made).status)
        except ConnectionError:
            break
        if 404 in statuses:
            break
    record_measurement("old stream, 100 unread results of 5 MB", (hasty.peak - idle) / MiB, "MiB")
    assert hasty.peak - idle < MOST, f"{(hasty.peak - idle) / MiB:.0f} MiB"
    assert Client(hasty).is_healthy()
    wait_for(lambda: old.send(message("ping", None, "last")).status == 404, "the stream is dropped")
    old.close()


def test_a_client_on_stdio_that_never_reads(start: StartTarget) -> None:
    """The server stops taking more work from it instead of collecting answers, and lets go in the end."""
    target = start("stdio", limits=TIMES)
    pipe = StdioClient(target)
    pipe.is_healthy()
    idle = most = target.rss
    stdin = target.process.stdin
    assert stdin is not None
    os.set_blocking(stdin.fileno(), False)
    data = json.dumps(pipe.prepare("tools/call", {"name": "blob", "arguments": {"size": MiB}})).encode() + b"\n"
    ended = time.monotonic() + 20
    while target.alive and time.monotonic() < ended:
        with contextlib.suppress(psutil.NoSuchProcess):
            most = max(most, target.rss)
        try:
            os.write(stdin.fileno(), data)
        except BlockingIOError:
            time.sleep(0.02)
        except BrokenPipeError:
            break
    assert target.exit_code() == 0
    assert most - idle < MOST
