"""Test our HTTP server behind nginx, Caddy and HAProxy: framing, connections, streams, large bodies, lost clients."""

import json
import re
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from http_server.byte_streams import streams
from http_server.mcp_calls import encode_call, read_text
from http_server.raw_connection import TIMEOUT_S, RawConnection, RunningServer, run_server
from http_server.rfc9112_cases import CASES, get
from support.proxies import EACH_PROXY, run_proxy

pytestmark = pytest.mark.interop

MB = 1_000_000
_ABSOLUTE_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//[^/?]*)?(?=[/?]|$)")
BATCH = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module", params=EACH_PROXY)
def proxy(
    request: pytest.FixtureRequest, server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with run_proxy(request.param, tmp_path_factory.mktemp(request.param), server.port) as proxy:
        yield proxy


def call(server: RunningServer, tool: str, arguments: dict[str, Any], **options: Any) -> str:
    connection = RawConnection(server.port)
    try:
        connection.send(encode_call(tool, arguments, **options))
        (response,) = connection.receive_until(1).responses
        return read_text(response)
    finally:
        connection.close()


def find_hidden_requests(proxy: RunningServer, server: RunningServer, streams: Sequence[bytes]) -> list[Any]:
    """Return the requests that the server has read differently from the proxy."""
    server.read_recorded()
    with proxy.send_all([(data,) for data in streams]):
        requests = server.read_recorded()
    hidden: list[Any] = []
    for request in requests:
        fronts = [value for name, value in request["headers"] if name == "x-front"]
        if [_normalize(front) for front in fronts] != [_normalize(f"{request['method']} {request['target']}")]:
            hidden.append((fronts, request))
    return hidden


def _normalize(line: str) -> str:
    """Return method and target in one form.

    Caddy encodes the target again and replaces an empty path with `/`. HAProxy has no path for `*`.
    """
    method, _, target = line.partition(" ")
    path = unquote(_ABSOLUTE_START.sub("", target), "latin-1").removesuffix("?")
    return f"{method} {path if path.startswith('/') else '/' + path.removeprefix('*')}"


def test_no_stream_of_the_cases_hides_a_request_from_the_proxy(proxy: RunningServer, server: RunningServer) -> None:
    for start in range(0, len(CASES), BATCH):
        assert find_hidden_requests(proxy, server, [case.data for case in CASES[start : start + BATCH]]) == []


@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(st.lists(streams, min_size=BATCH // 2, max_size=BATCH))
def test_no_generated_stream_hides_a_request(proxy: RunningServer, server: RunningServer, streams: list[bytes]) -> None:
    assert find_hidden_requests(proxy, server, streams) == []


def test_connections_are_kept(proxy: RunningServer, server: RunningServer) -> None:
    server.read_recorded()
    connection = RawConnection(proxy.port)
    for number in range(30):
        connection.send(get(b"/%d" % number))
        assert connection.receive_until(number + 1).responses[-1].status == 200
    connection.close()
    requests = server.read_recorded()
    assert [request["target"] for request in requests] == [f"/{number}" for number in range(30)]
    assert len({tuple(request["client"]) for request in requests}) < 15


def test_an_event_arrives_before_the_call_ends(proxy: RunningServer, server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), TIMEOUT_S) as client:
        client.sendall(encode_call("wait", {"key": f"events-{proxy.port}"}, stream=True))
        data = b""
        while b"notifications/progress" not in data:
            piece = client.recv(65536)
            assert piece, data
            data += piece
        assert b'"result"' not in data
        call(server, "release", {"key": f"events-{proxy.port}"})
        while b'"result"' not in data:
            piece = client.recv(65536)
            assert piece, data
            data += piece


@pytest.mark.parametrize("chunk", [0, 10_000], ids=["length", "chunked"])
def test_a_large_body_arrives(proxy: RunningServer, chunk: int) -> None:
    text = "large " * (3 * MB // 6)
    assert call(proxy, "echo", {"text": text}, chunk=chunk) == text


def test_a_body_over_the_limit_is_refused(proxy: RunningServer) -> None:
    connection = RawConnection(proxy.port)
    connection.send(encode_call("echo", {"text": "x" * 5 * MB}))
    assert connection.receive_until(1).statuses == (413,)
    connection.close()
    assert call(proxy, "echo", {"text": "next"}) == "next"


def test_a_slow_client_gets_a_large_result(proxy: RunningServer, server: RunningServer) -> None:
    data, size = encode_call("blob", {"size": 5 * MB}), 64 * 1024
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        client.settimeout(TIMEOUT_S)
        client.connect(("127.0.0.1", proxy.port))
        for at in range(0, len(data), 30):  # Another client is served between two pieces.
            client.sendall(data[at : at + 30])
            server.settle(())
        received = 0
        while received < 5 * MB:
            piece = client.recv(size)
            assert piece
            received += len(piece)
            if received % 10 == 0:
                assert call(proxy, "echo", {"text": "other"}) == "other"


def test_a_call_ends_if_the_client_disconnects(proxy: RunningServer, server: RunningServer) -> None:
    key = f"abort-{proxy.port}"
    with socket.create_connection(("127.0.0.1", proxy.port), TIMEOUT_S) as client:
        client.sendall(encode_call("wait", {"key": key}, stream=True))
        assert client.recv(1)
    deadline = time.monotonic() + TIMEOUT_S
    while call(server, "has_ended", {"key": key}) != "true":
        assert time.monotonic() < deadline, "the call continues"
        time.sleep(0.01)


def test_a_half_sent_request_does_not_reach_another_client(proxy: RunningServer, server: RunningServer) -> None:
    """A client leaves in the middle of its body. The next requests of other clients must be read correctly."""
    server.read_recorded()
    for _ in range(10):
        connection = RawConnection(proxy.port)
        connection.send(
            b"POST /half HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\nGET /hidden HTTP/1.1\r\n"
        )
        server.settle(())
        connection.close()
        assert json.loads(_get(proxy, b"/after"))["target"] == "/after"
    assert {request["target"] for request in server.read_recorded()} == {"/after"}


def _get(proxy: RunningServer, target: bytes) -> bytes:
    connection = RawConnection(proxy.port)
    try:
        connection.send(get(target))
        (response,) = connection.receive_until(1).responses
        return response.body
    finally:
        connection.close()
