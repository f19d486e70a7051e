"""Test that messages are found in any chunks, and are passed on unchanged."""

import json
from itertools import pairwise
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as some

from dovetail.testing.fault_proxy import HTTPMessageSplitter, LineMessageSplitter

BODY = json.dumps({"id": 1, "result": {"text": "a\r\n\r\nb"}}).encode()
EVENTS = b'id: 1\ndata: {"a": 1}\n\n: still here\n\nevent: message\ndata: {"b":\ndata: 2}\n\n'


def with_length(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


def in_chunks(body: bytes, kind: bytes, cuts: list[int]) -> bytes:
    places = [0, *sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]
    pieces = [body[start:end] for start, end in pairwise(places) if start < end]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % (kind, framed)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({one % (len(data) + 1) for one in cuts}), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def passed(spotter: Any, pieces: list[bytes]) -> tuple[bytes, list[bytes]]:
    found = [piece for data in pieces for piece in spotter.feed(data)]
    return b"".join(one.data for one in found), [one.message for one in found if one.message is not None]


class Reader:
    """What an HTTP parser makes of replies: their bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def on_message_begin(self) -> None:
        self.bodies.append(b"")

    def on_body(self, data: bytes) -> None:
        self.bodies[-1] += data


def bodies(data: bytes) -> list[bytes]:
    reader = Reader()
    httptools.HttpResponseParser(reader).feed_data(data)
    return reader.bodies


@given(some.lists(some.integers(0, 10_000), max_size=8))
def test_lines(cuts: list[int]) -> None:
    data = b'{"id":1}\n\n{"id":2}\nrest'
    spotter = LineMessageSplitter()
    assert passed(spotter, cut(data, cuts)) == (data[:-4], [b'{"id":1}', b"", b'{"id":2}'])
    assert spotter.buffer == b"rest"


@given(some.lists(some.integers(0, 10_000), max_size=8), some.lists(some.integers(0, 10_000), max_size=8))
def test_replies(cuts: list[int], chunks: list[int]) -> None:
    data = b"".join(
        (
            with_length(BODY),
            with_length(b"", "202 Accepted"),
            in_chunks(EVENTS, b"text/event-stream", chunks),
            in_chunks(BODY, b"application/json", chunks),
            b"HTTP/1.1 204 No Content\r\n\r\n",
            with_length(BODY),
        )
    )
    through, messages = passed(HTTPMessageSplitter(), cut(data, cuts))
    assert messages == [BODY, b'{"a": 1}', b'{"b":\n2}', BODY, BODY]
    assert bodies(through) == bodies(data)


def test_every_event_leaves_as_soon_as_it_is_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    spotter = HTTPMessageSplitter()
    assert passed(spotter, [head]) == (head, [])
    assert passed(spotter, [b"9\r\ndata: 1\n\n\r\n"])[1] == [b"1"]
    assert passed(spotter, [b"8\r\ndata: 2\n\r\n"])[1] == []
    assert passed(spotter, [b"1\r\n\n\r\n"])[1] == [b"2"]


def test_a_request_without_a_body_and_one_with() -> None:
    data = b"GET /mcp HTTP/1.1\r\nhost: a\r\n\r\nPOST /mcp HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
    assert passed(HTTPMessageSplitter(), [data]) == (data, [b"{}"])


@pytest.mark.parametrize("rest", [b"", b"anything", b"\r\n\r\n"])
def test_a_reply_that_ends_with_its_connection_passes_as_it_is(rest: bytes) -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\n" + rest
    assert passed(HTTPMessageSplitter(), [data]) == (data, [])
