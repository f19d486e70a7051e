import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from dovetail.protocol.redaction import MASK
from dovetail.recording.recording_format import (
    EXCHANGE_HEADER,
    FORMAT_VERSION,
    Event,
    Frame,
    RecordingHeader,
    create_frame,
    encode_line,
    read_frames,
    read_parts,
)

JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**53), 2**53) | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, some.floats(0, 1e6), some.sampled_from(["server", "client"]))
def test_a_frame_is_one_line_that_reads_back(message: Any, at: float, to: Any) -> None:
    made = Frame(at=at, to=to, message=message)
    text = encode_line(made)
    assert text.count(b"\n") == 1
    assert [*read_frames([text])] == [made]


def test_recordings_may_follow_one_another() -> None:
    parts = [RecordingHeader(recording=FORMAT_VERSION, server="a"), Frame(at=0.5, to="server", message={"id": 1})] * 2
    assert [*read_frames(b"".join(map(encode_line, parts)).splitlines())] == parts


def test_a_line_of_something_else_is_named() -> None:
    lines = [encode_line(RecordingHeader(recording=FORMAT_VERSION)), b"\n", b'{"at":"noon","to":"server"}']
    with pytest.raises(ValueError, match=r"line 3.*\$\.at"):
        list(read_frames(lines))


def test_an_invalid_message_is_kept_as_text() -> None:
    made = create_frame(1.0, "client", b"starting\xff with Bearer abcdefgh12345678")
    assert made.text == f"starting\ufffd with Bearer {MASK}"
    assert "message" not in json.loads(encode_line(made))


def test_null_is_a_message() -> None:
    made = create_frame(0, "client", b"null")
    assert json.loads(encode_line(made)) == {"at": 0, "to": "client", "message": None}
    assert [*read_frames([encode_line(made)])] == [made]


def test_a_format_of_others_is_refused() -> None:
    with pytest.raises(ValueError, match="99"):
        list(read_frames([b'{"recording":99}']))


def test_the_number_of_an_exchange_is_not_a_header() -> None:
    made = create_frame(0, "server", b"{}", [(b"mcp-name", b"add"), (EXCHANGE_HEADER, b"7")])
    assert made.headers == {"mcp-name": "add"}
    assert made.exchange == 7
    assert [*read_frames([encode_line(made)])] == [made]


def test_events_are_for_those_who_ask() -> None:
    happened = Event(event="call", at=1.0, server="s", data={"ms": 3})
    parts = [RecordingHeader(recording=FORMAT_VERSION), happened, Frame(at=2.0, to="server", message={}, server="s")]
    lines = b"".join(map(encode_line, parts)).splitlines()
    assert [*read_parts(lines)] == parts
    assert [*read_frames(lines)] == [parts[0], parts[2]]
    with pytest.raises(ValueError, match="line 1"):
        list(read_parts([b'{"event":5}']))


@pytest.mark.parametrize("number", [1, 2])
def test_recordings_of_every_format_can_be_read(number: int) -> None:
    path = Path(__file__).parents[1] / "base" / "stored_files" / "recordings" / f"format_{number}.jsonl"
    header, request, response, text, decision, reload = read_parts(path.read_bytes().splitlines())
    assert header == RecordingHeader(recording=number, started_at="2025-11-25T12:00:00.000Z", server="weather")
    assert request == Frame(
        at=0.5,
        to="server",
        message={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        headers={"authorization": "***"},
        exchange=1,
    )
    assert isinstance(response, Frame)
    assert (response.to, response.status) == ("client", 200)
    assert isinstance(text, Frame)
    assert text.text == "not JSON"
    assert decision == Event(event="decision", at=1.0, server="weather", data={"tool": "forecast", "ms": 3})
    assert reload == Event(event="reload", at=2.0)


def test_the_newest_format_is_written() -> None:
    assert encode_line(RecordingHeader(recording=FORMAT_VERSION, started_at="now")).startswith(
        b'{"recording":2,"started_at":'
    )
