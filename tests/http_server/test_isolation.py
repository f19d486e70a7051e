"""Test that no request on a connection can see or change another one.

The responses to a sequence of requests must be the same if the sequence arrives at once, in pieces, request by request,
or with a new connection for each request.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from http_server.raw_connection import RawConnection, RunningServer, run_server
from http_server.request_sequences import CallerRequest, cut_sequences, sequences, summarize
from support.proxies import EACH_PROXY, run_proxy

BATCH = 12  # sequences at once
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("server")) as server:
        yield server


def check_pieces(server: RunningServer, sequences: list[list[CallerRequest]], pieces: list[tuple[bytes, ...]]) -> None:
    """Compare the responses to each sequence in pieces with those to its requests on their own connections."""
    requests = {request.encode() for sequence in sequences for request in sequence}
    outcomes = server.exchange_all([(request,) for request in requests])
    alone = {
        request: [summarize(response) for response in outcome.responses]
        for request, outcome in zip(requests, outcomes, strict=True)
    }
    for sequence, outcome in zip(sequences, server.exchange_all(pieces), strict=True):
        expected = [answer for request in sequence for answer in alone[request.encode()]]
        assert [summarize(response) for response in outcome.responses] == expected
        assert outcome.is_open
        assert outcome.rest == b""


@pytest.mark.timeout(300)
@settings(max_examples=40, suppress_health_check=CHECKS)
@given(st.lists(cut_sequences(), min_size=BATCH, max_size=BATCH))
def test_requests_are_independent_however_they_arrive(
    server: RunningServer, batch: list[tuple[list[CallerRequest], tuple[bytes, ...]]]
) -> None:
    batch_sequences, random_pieces = [sequence for sequence, _ in batch], [pieces for _, pieces in batch]
    check_pieces(server, batch_sequences, [(b"".join(pieces),) for pieces in random_pieces])
    check_pieces(server, batch_sequences, [tuple(map(CallerRequest.encode, sequence)) for sequence in batch_sequences])
    check_pieces(server, batch_sequences, random_pieces)


ANONYMOUS = CallerRequest(None, "endpoint", "none")
BOB = CallerRequest("bob", "endpoint", "none")
REFUSED = CallerRequest("bob", "endpoint", "authorization")


@pytest.mark.parametrize("target", ["endpoint", "route", "fallback"])
def test_a_sequence_cut_at_every_byte(server: RunningServer, target: str) -> None:
    """The second request has a head that the server remembers. The third one repeats headers and may be refused."""
    sequence = [
        CallerRequest(caller, target, repeated)
        for caller, repeated in ((None, "none"), (None, "none"), ("bob", "authorization"), (None, "none"))
    ]
    first, second, third, fourth = (request.encode() for request in sequence)
    pieces = [(first, second, third[:at], third[at:], fourth) for at in range(len(third))]
    check_pieces(server, [sequence] * len(pieces), pieces)
    stream = first + second + third + fourth
    check_pieces(server, [sequence] * 2, [(stream,), tuple(stream[at : at + 1] for at in range(len(stream)))])


@pytest.fixture(scope="module", params=EACH_PROXY)
def proxy(
    request: pytest.FixtureRequest, server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with run_proxy(request.param, tmp_path_factory.mktemp(request.param), server.port) as proxy:
        yield proxy


@pytest.mark.interop
@pytest.mark.timeout(300)
@settings(max_examples=40, suppress_health_check=[*CHECKS, HealthCheck.function_scoped_fixture])
@given(st.lists(sequences(), min_size=BATCH, max_size=BATCH))
def test_callers_behind_a_proxy_are_independent(proxy: RunningServer, batch: list[list[CallerRequest]]) -> None:
    """The proxy sends the requests of its clients on a few connections to the server.

    A proxy may refuse a request that repeats headers. Each plain request must have the response to itself.
    """
    for sequence in batch:
        for request in [ANONYMOUS, *sequence, ANONYMOUS, BOB, REFUSED, ANONYMOUS]:
            connection = RawConnection(proxy.port)
            connection.send(request.encode())
            outcome = connection.receive_until(1)
            connection.close()
            if request.is_plain:
                (response,) = outcome.responses
                request.check_response(response)
