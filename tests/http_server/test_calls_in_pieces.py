"""Test tool calls whose bytes arrive in any pieces, and calls that wait behind others on the same connection."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from http_server.mcp_calls import encode_call, read_text
from http_server.raw_connection import RawConnection, Response, RunningServer, run_server
from http_server.rfc9112_cases import get


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("server")) as server:
        yield server


STREAMS = {
    "length": [encode_call("echo", {"text": "a"}, headers=b"connection: keep-alive\r\n")],
    "chunked": [encode_call("echo", {"text": "a"}, chunk=50)],
    "upgrade": [encode_call("echo", {"text": "a"}, headers=b"connection: upgrade\r\nupgrade: h2c\r\n")],
    "pipelined": [encode_call("echo", {"text": text}, chunk=90 * (text == "b")) for text in "abc"],
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_call_in_two_pieces_has_its_result(server: RunningServer, kind: str) -> None:
    data, expected = b"".join(STREAMS[kind]), ["a", "b", "c"][: len(STREAMS[kind])]
    for outcome in server.exchange_all([(data[:cut], data[cut:]) for cut in range(len(data))]):
        assert [read_text(response) for response in outcome.responses] == expected
        assert outcome.is_open


def test_calls_byte_by_byte_have_their_results(server: RunningServer) -> None:
    streams = [b"".join(calls) for calls in STREAMS.values()]
    outcomes = server.exchange_all([[data[at : at + 1] for at in range(len(data))] for data in streams])
    for calls, outcome in zip(STREAMS.values(), outcomes, strict=True):
        assert [read_text(response) for response in outcome.responses] == ["a", "b", "c"][: len(calls)]


def test_responses_have_the_order_of_the_calls(server: RunningServer) -> None:
    connection = RawConnection(server.port)
    connection.send(encode_call("wait", {"key": "order"}) + encode_call("echo", {"text": "second"}) + get())
    server.settle([connection])
    assert connection.outcome().responses == ()
    assert server.exchange(encode_call("release", {"key": "order"})).statuses == (200,)
    first, second, third = connection.receive_until(3).responses
    assert (read_text(first), read_text(second), third.status) == ("order", "second", 200)
    connection.close()


def test_a_body_that_arrives_behind_a_waiting_call_is_read(server: RunningServer) -> None:
    """The second request is incomplete while the first one waits. The server must read on after the first response."""
    waiting, echo = encode_call("wait", {"key": "behind"}), encode_call("echo", {"text": "x" * 300_000})
    connection = RawConnection(server.port)
    connection.send(waiting + echo[:1000])
    server.settle([connection])
    assert server.exchange(encode_call("release", {"key": "behind"})).statuses == (200,)
    connection.receive_until(1)
    connection.send(echo[1000:])
    assert read_text(connection.receive_until(2).responses[1]) == "x" * 300_000
    connection.close()


def encode_post(body: bytes, *, headers: bytes = b"", target: bytes = b"/any") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n%b" % (target, headers, len(body), body)


FIRST = encode_post(b"first", headers=b"x-a: 1\r\n")
# The server recognizes a head that it has read before. Each of these requests follows two requests with the same head.
FOLLOWERS: dict[str, tuple[bytes, ...]] = {
    "same": (FIRST,),
    "other body": (encode_post(b"other", headers=b"x-a: 1\r\n"),),
    "blank lines in the body": (encode_post(b"\r\n\r\nx", headers=b"x-a: 1\r\n"),),
    "longer body": (encode_post(b"longer", headers=b"x-a: 1\r\n"),),
    "other value": (encode_post(b"first", headers=b"x-a: 2\r\n"),),
    "other name": (encode_post(b"first", headers=b"x-b: 1\r\n"),),
    "other target": (encode_post(b"first", headers=b"x-a: 1\r\n", target=b"/new"),),
    "repeated header": (encode_post(b"first", headers=b"x-a: 1\r\nx-a: 2\r\n"),),
    "end of the connection": (encode_post(b"first", headers=b"connection: close\r\n"),),
    "expectation": (encode_post(b"first", headers=b"x-a: 1\r\nexpect: 100-continue\r\n"),),
    "two pieces": (FIRST[:-2], FIRST[-2:]),
    "head and body": (FIRST[:-5], FIRST[-5:]),
    "two requests": (FIRST + FIRST,),
    "one and a half": (FIRST + FIRST[:-7], FIRST[-7:]),
    "invalid request": (FIRST + b"\0",),
    "invalid length": (FIRST.replace(b"5\r\n\r\n", b"+5\r\n\r\n"),),
    "bare line end": (FIRST.replace(b"x-a: 1\r\n", b"x-a: 1\n\n"),),
}


@pytest.mark.parametrize("kind", FOLLOWERS)
def test_a_request_after_the_same_head_is_read_like_the_first(server: RunningServer, kind: str) -> None:
    alone = server.exchange(*FOLLOWERS[kind])
    after = server.exchange(FIRST, FIRST, *FOLLOWERS[kind])
    assert [summarize(response) for response in after.responses[2:]] == [summarize(one) for one in alone.responses]
    assert (after.is_open, after.rest) == (alone.is_open, alone.rest)


def summarize(response: Response) -> tuple[int, Any]:
    """Return the status, and the request as the application received it, without the address of the client."""
    if response.request is None:
        return response.status, response.body
    return 200, json.loads(response.body) | {"client": None}
