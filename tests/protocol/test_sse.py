"""Test writing and parsing event streams by the WHATWG rules, in any chunks."""

import re
import statistics
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.protocol.sse import (
    MAX_EVENT_BYTES,
    EventTooLarge,
    ServerSentEvent,
    SSEParser,
    encode_comment,
    encode_event,
)


def parse(stream: bytes) -> list[ServerSentEvent]:
    return SSEParser().feed(stream)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (encode_event(b"{}"), b"data: {}\n\n"),
        (encode_event(b"", id="1"), b"id: 1\ndata: \n\n"),
        (encode_event(b"{}", id="7", name="message", retry=1500), b"id: 7\nevent: message\nretry: 1500\ndata: {}\n\n"),
        (encode_event(b"a\nb\r\nc\rd"), b"data: a\ndata: b\ndata: c\ndata: d\n\n"),
        (encode_event(b"a\n"), b"data: a\ndata: \n\n"),
        (encode_event("\u00f6".encode(), id="\u00f6"), "id: \u00f6\ndata: \u00f6\n\n".encode()),
        (encode_comment(), b":\n\n"),
        (encode_comment("ping"), b": ping\n\n"),
        (encode_comment("a\ndata: b\r\n"), b": a\n: data: b\n:\n\n"),
    ],
)
def test_writes(written: bytes, expected: bytes) -> None:
    assert written == expected


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b", "\n"])
def test_refuses_to_write_a_field_that_would_end_early(text: str) -> None:
    with pytest.raises(ValueError, match=r"\bid\b"):
        encode_event(b"", id=text)
    with pytest.raises(ValueError, match=r"\bevent field"):
        encode_event(b"", name=text)


def test_refuses_a_negative_wait() -> None:
    with pytest.raises(ValueError, match="retry"):
        encode_event(b"", retry=-1)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [ServerSentEvent("a")]),
        (b"data: a\r\n\r\n", [ServerSentEvent("a")]),
        (b"data: a\r\r", [ServerSentEvent("a")]),
        (b"data: a\r\n\n", [ServerSentEvent("a")]),
        (b"data: a\n\r\n", [ServerSentEvent("a")]),
        (b"data:a\n\n", [ServerSentEvent("a")]),
        (b"data:  a\n\n", [ServerSentEvent(" a")]),
        (b"data:\ta\n\n", [ServerSentEvent("\ta")]),
        (b"data: a: b\n\n", [ServerSentEvent("a: b")]),
        (b"data: a\ndata: b\n\n", [ServerSentEvent("a\nb")]),
        (b"data\ndata\n\n", [ServerSentEvent("\n")]),
        (b"data\n\n", [ServerSentEvent("")]),
        (b"data:\n\n", [ServerSentEvent("")]),
        (b"data: a\n", []),
        (b"data: a", []),
        (b"\n\n\n", []),
        (b"event: ping\n\n", []),
        (b"event: ping\n\ndata: a\n\n", [ServerSentEvent("a")]),
        (b"event: ping\ndata: a\n\ndata: b\n\n", [ServerSentEvent("a", "ping"), ServerSentEvent("b")]),
        (b"event: ping\nevent\ndata: a\n\n", [ServerSentEvent("a")]),
        (b": note\ndata: a\n:\n\n", [ServerSentEvent("a")]),
        (b":data: a\n\n", []),
        (b"id: 1\ndata: a\n\ndata: b\n\n", [ServerSentEvent("a", id="1"), ServerSentEvent("b", id="1")]),
        (b"id: 1\n\ndata: b\n\n", [ServerSentEvent("b", id="1")]),
        (b"id: 1\ndata: a\n\nid\ndata: b\n\n", [ServerSentEvent("a", id="1"), ServerSentEvent("b")]),
        (b"id: 1\0\ndata: a\n\n", [ServerSentEvent("a")]),
        (b"id: 1\ndata: a\n\nid: \0\ndata: b\n\n", [ServerSentEvent("a", id="1"), ServerSentEvent("b", id="1")]),
        (b"retry: 10\ndata: a\n\ndata: b\n\n", [ServerSentEvent("a", retry=10), ServerSentEvent("b")]),
        (b"retry: 1x\ndata: a\n\n", [ServerSentEvent("a")]),
        (b"retry: -1\ndata: a\n\n", [ServerSentEvent("a")]),
        (b"retry:\ndata: a\n\n", [ServerSentEvent("a")]),
        (b"retry: \xd9\xa1\ndata: a\n\n", [ServerSentEvent("a")]),
        (b"retry: " + b"9" * 5000 + b"\ndata: a\n\n", [ServerSentEvent("a")]),
        (b"Data: a\n\n", []),
        (b" data: a\n\n", []),
        (b"data : a\n\n", []),
        (b"unknown: x\ndata: a\n\n", [ServerSentEvent("a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [ServerSentEvent("a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"\n\xef\xbb\xbfdata: a\n\n", []),
        (b"data: \xef\xbb\xbfa\n\n", [ServerSentEvent("\ufeffa")]),
        (b"data: \xff\xc3\n\n", [ServerSentEvent("\ufffd\ufffd")]),
        (b"data: a\x0bb\xc2\x85c\xe2\x80\xa8d\n\n", [ServerSentEvent("a\x0bb\x85c\u2028d")]),
    ],
)
def test_reads_by_the_rules(stream: bytes, expected: list[ServerSentEvent]) -> None:
    assert parse(stream) == expected


def test_remembers_what_a_reconnecting_client_needs() -> None:
    parser = SSEParser()
    assert (parser.last_event_id, parser.retry) == (None, None)
    parser.feed(b"retry: 20\n")
    assert parser.retry == 20
    parser.feed(b"id: 5\n")
    assert parser.last_event_id is None
    parser.feed(b"\n")
    assert parser.last_event_id == "5"
    parser.feed(b"id: 6\ndata: cut off")
    assert parser.last_event_id == "5"
    assert parser.retry == 20


def test_an_event_is_dispatched_at_a_carriage_return_without_waiting_for_more() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\r\n\r") == [ServerSentEvent("a")]
    assert parser.feed(b"\ndata: b\n\n") == [ServerSentEvent("b")]


def test_an_empty_chunk_changes_nothing() -> None:
    parser = SSEParser()
    parser.feed(b"data: a\r")
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: b\n\n") == [ServerSentEvent("a\nb")]


def test_an_event_may_fill_the_limit_and_no_more() -> None:
    line = b"data: " + b"a" * 94
    assert len(SSEParser(max_event_bytes=100).feed(line + b"\n\n")[0].data) == 94
    with pytest.raises(EventTooLarge, match="99"):
        SSEParser(max_event_bytes=99).feed(line + b"\n\n")
    assert issubclass(EventTooLarge, ValueError)
    assert SSEParser().max_event_bytes == MAX_EVENT_BYTES == 4 * 1024 * 1024


@pytest.mark.parametrize("stream", [b"data: a\n", b"data\n", b"x", b": ", b"id: 1"])
def test_nothing_grows_without_bound(stream: bytes) -> None:
    parser = SSEParser(max_event_bytes=1000)
    whole = b"data: a\n\n" + stream * 2000
    chunks = [whole[start : start + 7] for start in range(0, len(whole), 7)]
    assert outcome(chunks, max_event=1000)[:2] == ([ServerSentEvent("a")], True)
    assert parser.feed(whole) == [ServerSentEvent("a")]
    with pytest.raises(EventTooLarge):
        parser.feed(b"\n\n")
    with pytest.raises(EventTooLarge):
        parser.feed(b"data: a\n\n")


def test_a_stream_of_comments_may_last_for_ever() -> None:
    parser = SSEParser(max_event_bytes=100)
    for _ in range(1000):
        assert parser.feed(b": keep-alive\r\n") == []
    assert parser.feed(b"data: a\n\n") == [ServerSentEvent("a")]


def test_the_limit_counts_each_event_for_itself() -> None:
    parser = SSEParser(max_event_bytes=20)
    assert parser.feed(b"data: 0123456789\n\n" * 50) == [ServerSentEvent("0123456789")] * 50


def test_events_before_an_oversized_one_are_delivered_first() -> None:
    parser = SSEParser(max_event_bytes=10)
    assert parser.feed(b"data: a\n\ndata: 0123456789") == [ServerSentEvent("a")]
    with pytest.raises(EventTooLarge):
        parser.feed(b"")


def outcome(chunks: list[bytes], max_event: int) -> tuple[list[ServerSentEvent], bool, str | None, int | None]:
    parser, events = SSEParser(max_event), list[ServerSentEvent]()
    try:
        for chunk in [*chunks, b""]:
            events += parser.feed(chunk)
    except EventTooLarge:
        return events, True, parser.last_event_id, parser.retry
    return events, False, parser.last_event_id, parser.retry


TOKENS = [b"\r", b"\n", b"\r\n", b":", b" ", b"data", b"id", b"event", b"retry", b"1", b"\0", b"\xef\xbb\xbf", b"\xc3"]
STREAMS = st.lists(st.sampled_from(TOKENS) | st.binary(max_size=3), max_size=40).map(b"".join)


@given(STREAMS, st.lists(st.integers(0, 200), max_size=10), st.integers(1, 60))
def test_chunking_never_matters(stream: bytes, cuts: list[int], max_event: int) -> None:
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    whole = outcome([stream], max_event)
    assert outcome(chunks, max_event) == whole
    assert outcome([stream[index : index + 1] for index in range(len(stream))], max_event) == whole


def reference(stream: bytes) -> list[ServerSentEvent]:
    """The WHATWG algorithm on a whole stream, the way it is told there."""
    lines = re.split(r"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace"))[:-1]
    events, data, kind, identity, retry = list[ServerSentEvent](), "", "", "", None
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                events.append(ServerSentEvent(data.removesuffix("\n"), kind or "message", identity or None, retry))
            data, kind, retry = "", "", None
        elif name == "data":
            data += value + "\n"
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            identity = value
        elif name == "retry" and re.fullmatch("[0-9]{1,15}", value):
            retry = int(value)
    return events


@given(STREAMS)
def test_reads_what_the_rules_read(stream: bytes) -> None:
    assert parse(stream) == reference(stream)


LINES = st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=8)
EVENTS = st.tuples(
    st.text(st.characters(codec="utf-8") | st.sampled_from("\r\n"), max_size=20),
    LINES.filter(bool),
    LINES,
    st.none() | st.integers(0, 10**15 - 1),
)


@given(st.lists(EVENTS, max_size=5), LINES)
def test_what_is_written_is_read(written: list[tuple[str, str, str, int | None]], note: str) -> None:
    stream = b"".join(
        encode_comment(note) + encode_event(data.encode(), id=id, name=name, retry=retry)
        for data, id, name, retry in written
    )
    expected = [
        ServerSentEvent(re.sub("\r\n|\r", "\n", data), name or "message", id, retry)
        for data, id, name, retry in written
    ]
    assert parse(stream) == expected


def seconds(chunks: list[bytes]) -> float:
    rounds: list[float] = []
    for _ in range(5):
        parser = SSEParser()
        start = time.thread_time()
        for chunk in chunks:
            parser.feed(chunk)
        rounds.append(time.thread_time() - start)
    return statistics.median(rounds)


@pytest.mark.parametrize(
    ("unit", "chunk"),
    [(b"a", 1), (b"a", 1000), (b"data\n", 5), (b"data\n", 10**6), (b"\r", 1), (b":\n", 10**6), (b"id\r\n", 3)],
)
def test_eight_times_the_stream_takes_about_eight_times_the_time(unit: bytes, chunk: int) -> None:
    def chunks(size: int) -> list[bytes]:
        stream = unit * (size // len(unit))
        return [stream[start : start + chunk] for start in range(0, len(stream), chunk)]

    small, large = chunks(20_000), chunks(160_000)
    # A quadratic parser would take sixty-four times as long; a busy machine does not take four times as long.
    assert min(seconds(large) / seconds(small) for _ in range(3)) < 32
