"""Test tool calls whose bytes arrive in any pieces, and calls that wait behind others on the same connection."""

from collections.abc import Iterator

import pytest

from http_server.mcp_calls import encode_call, read_text
from http_server.raw_connection import RawConnection, RunningServer, run_server
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
