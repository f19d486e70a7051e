"""Byte streams of HTTP/1.1 and their outcomes, section by section of RFC 9112, over raw sockets."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from http_server.raw_connection import Outcome, RawConnection, RunningServer, run_server
from http_server.rfc9112_cases import CASES, GET_NEXT, HOST, NEXT, Case, get, post
from support.certificates import write_certificate

LONG = 2000  # Longer streams are cut at fewer places.
MAX_REPEATED_PIECES = 2  # Many streams begin alike. Each first piece is sent with the rests of this many streams.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("server")) as server:
        yield server


def check(case: Case, outcome: Outcome) -> None:
    """Check that the outcome is the one of the case."""
    responses = [response for response in outcome.responses if response.status != 100]
    count = len(case.requests)
    assert [response.status for response in responses[:count]] == [200] * count
    assert tuple(response.request for response in responses[:count]) == case.requests
    assert [response.status for response in responses[count:]] == [
        response.status for response in responses[count:] if response.status in case.rejection
    ]
    assert len(responses[count:]) == bool(case.rejection)
    assert outcome.is_open != case.closes
    assert outcome.rest == b""
    if case.closes:
        assert responses[-1].headers["connection"] == "close"
    if case.header is not None or case.missing_header is not None:
        headers = [[name, value.strip(" \t")] for name, value in json.loads(responses[0].body)["headers"]]
        assert case.header is None or list(case.header) in headers
        assert case.missing_header not in [name for name, _ in headers]


def test_no_case_has_the_name_of_another() -> None:
    assert [name for name, count in Counter(case.id for case in CASES).items() if count > 1] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_stream_has_its_outcome(server: RunningServer, case: Case) -> None:
    connection = RawConnection(server.port)
    try:
        connection.send(case.data)
        server.settle([connection])
        check(case, connection.outcome())
        if case.is_incomplete:
            connection.end_sending()
            server.settle([connection])
            outcome = connection.outcome()
            assert not outcome.is_open
            assert not [status for status in outcome.statuses[len(case.requests) :] if status < 400]
        elif not case.closes:  # The server and the client agree on where the next request begins.
            connection.send(NEXT)
            server.settle([connection])
            assert connection.outcome().requests == (*case.requests, GET_NEXT)
    finally:
        connection.close()


def find_cuts() -> Iterator[tuple[Case, list[int]]]:
    """Yield each case and the places to cut it. The first pieces are all that occur in any case."""
    counts: Counter[bytes] = Counter()
    for case in CASES:
        size = len(case.data)
        cuts = range(1, size) if size < LONG else [1, 5, 20, size // 2, size - 5, size - 2, size - 1]
        counts.update(case.data[:cut] for cut in cuts)
        yield case, [cut for cut in cuts if counts[case.data[:cut]] <= MAX_REPEATED_PIECES]


@pytest.mark.parametrize(("case", "cuts"), [pytest.param(case, cuts, id=case.id) for case, cuts in find_cuts() if cuts])
def test_a_stream_in_two_pieces_has_the_same_outcome(server: RunningServer, case: Case, cuts: list[int]) -> None:
    for outcome in server.exchange_all([(case.data[:cut], case.data[cut:]) for cut in cuts]):
        check(case, outcome)


def test_streams_byte_by_byte_have_the_same_outcome(server: RunningServer) -> None:
    cases = [case for case in CASES if len(case.data) < 300]
    streams = [[case.data[at : at + 1] for at in range(len(case.data))] for case in cases]
    for case, outcome in zip(cases, server.exchange_all(streams), strict=True):
        check(case, outcome)


def test_streams_over_tls_have_the_same_outcome(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    with run_server(tmp_path, ssl_certfile=str(certificate), ssl_keyfile=str(key)) as server:
        outcomes = server.exchange_all([(case.data,) for case in CASES])
        for case, outcome in zip(CASES, outcomes, strict=True):
            check(case, outcome)


def test_a_client_that_expects_continue_gets_it(server: RunningServer) -> None:
    connection = RawConnection(server.port)
    connection.send(post(b"expect: 100-continue\r\ncontent-length: 5\r\n"))
    server.settle([connection])
    assert connection.outcome().statuses == (100,)
    connection.send(b"hello")
    server.settle([connection])
    outcome = connection.outcome()
    assert outcome.statuses == (100, 200)
    assert outcome.requests[0].body == b"hello"
    connection.close()


def test_a_client_of_an_old_version_gets_no_continue(server: RunningServer) -> None:
    data = post(b"expect: 100-continue\r\ncontent-length: 5\r\n", b"hello", version=b"HTTP/1.0")
    assert server.exchange(data).statuses == (200,)


def test_an_unknown_expectation_is_refused_or_ignored(server: RunningServer) -> None:
    outcome = server.exchange(post(b"expect: something\r\ncontent-length: 5\r\n", b"hello"))
    assert outcome.statuses in ((200,), (417,))


def test_no_answer_to_head_has_a_body(server: RunningServer) -> None:
    data = get(b"/mcp", HOST, method=b"HEAD") + NEXT
    connection = RawConnection(server.port)
    connection.send(data)
    server.settle([connection])
    head, _, rest = bytes(connection._received).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert rest.startswith(b"HTTP/1.1 200 ")
    connection.close()
