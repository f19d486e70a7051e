"""Test that any bytes a client receives become a message, a ParseError or an InvalidResult."""

import contextlib
import json
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidResult, ParseError
from dovetail.transports.line_splitter import LineSplitter
from dovetail.wire.base import UNSET
from dovetail.wire.raw_message import (
    MAX_MEMBERS,
    RawMessage,
    decode_body,
    decode_text,
    drop_repeated_members,
    find_answered_ids,
    may_ask_for_input,
    read_messages,
    set_members,
    to_plain,
)
from dovetail.wire.tools import CallToolResult, ListToolsResult

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def one(data: bytes | str) -> RawMessage:
    (found,) = read_messages(data)
    return found


def test_the_envelope_is_read_and_the_body_left() -> None:
    found = one(b'{"jsonrpc":"2.0","id":7,"result":{"a":1},"extra":true}')
    assert (found.id, found.method, found.is_response) == (7, None, True)
    assert to_plain(found.result) == {"a": 1}
    failed = one(b'{"id":"x","error":{"code":-1}}')
    assert failed.is_response
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == (-1, "")
    asked = one(b'{"id":1,"method":"ping"}')
    assert not asked.is_response
    assert asked.params is UNSET
    assert not one(b"{}").is_response


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"5", b'"x"', b"{", b'{"id":1.5}', b'{"id":true}', b'{"id":{}}', b'{"method":1}', b"[1]", b"hello",
     b'{"id":1,"error":"no"}', b"[" * 1_000_000, b'{"result":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"],
)  # fmt: skip
def test_an_invalid_message(data: bytes) -> None:
    with pytest.raises(ParseError):
        read_messages(data)


@pytest.mark.parametrize("levels", [100_000, 150_000, 200_000, 250_000, 1_000_000])
@pytest.mark.parametrize("decode_result", [to_plain, lambda raw: set_members(raw, {}), drop_repeated_members])
def test_a_deep_result_is_rejected_or_decoded(levels: int, decode_result: Callable[[Any], Any]) -> None:
    # Since Python 3.14, the free memory of the stack limits the depth, so each function has another limit.
    data = b'{"id":1,"result":{"structuredContent":' + b"[" * levels + b"]" * levels + b"}}"
    with contextlib.suppress(ParseError, InvalidResult):
        (message,) = read_messages(data)
        decode_result(message.result)


def test_a_batch_is_several() -> None:
    assert [found.id for found in read_messages(b' [{"id":1,"result":1},{"id":2,"result":{}}]')] == [1, 2]
    assert read_messages(b"[]") == []


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        found = read_messages(data)
    except ParseError:
        return
    for message in found:
        for raw in (message.result, message.params):
            if raw is not UNSET:
                try:
                    to_plain(raw)
                except InvalidResult:
                    continue


@given(result=values, cuts=st.lists(st.integers(0, 400), max_size=6), tail=values)
def test_any_cut_of_the_bytes_gives_the_same_messages(result: Any, cuts: list[int], tail: Any) -> None:
    sent: list[Any] = [{"jsonrpc": "2.0", "id": number, "result": value} for number, value in enumerate((result, tail))]
    data = b"".join(json.dumps(message).encode() + b"\n" for message in sent)
    framer, lines = LineSplitter(10_000), list[Any]()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        lines += framer.feed(data[start:end])
    found = [one(line) for line in lines]
    assert [(message.id, to_plain(message.result)) for message in found] == [(0, result), (1, tail)]


@given(
    text=st.text("abcdef ,:{}[]", min_size=1, max_size=30),
    at=st.integers(0, 29),
    byte=st.sampled_from([0x80, 0xFF, 0xC3, 0xED]),
)
def test_an_invalid_byte_replaces_only_itself(text: str, at: int, byte: int) -> None:
    inner = text.encode()
    place = at % (len(inner) + 1)
    broken = inner[:place] + bytes([byte]) + inner[place:]
    message = one(b'{"id":1,"result":{"content":[{"type":"text","text":"' + broken + b'"}]}}')
    (block,) = decode_body(message.result, CallToolResult, "it").content
    assert block.text == broken.decode("utf-8", "replace")  # pyright: ignore[reportAttributeAccessIssue]
    assert one(b'{"id":1,"method":"' + broken + b'"}').method is not None


@pytest.mark.parametrize("item", [b"[],", b"1,", b'"",', b'"\\\\",', b'"\\"\\\\\\",",'])
def test_too_many_members_are_refused_before_they_are_built(item: bytes) -> None:
    data = b'{"id":1,"result":[' + item * MAX_MEMBERS + b"1]}"
    tracemalloc.start()
    try:
        with pytest.raises(ParseError, match=str(MAX_MEMBERS)):
            read_messages(data)
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()
    fewer = b'{"id":1,"result":[' + item * (MAX_MEMBERS - 2) + b"1]}"
    assert one(fewer).id == 1


@pytest.mark.parametrize("text", [",", '",', "\\,", '\\",,'])
def test_commas_within_texts_are_no_members(text: str) -> None:
    long = text * (MAX_MEMBERS + 10)
    assert to_plain(one(json.dumps({"id": 1, "result": long}).encode()).result) == long


def test_quotes_without_end_are_no_reason_to_look_for_ever() -> None:
    with pytest.raises(ParseError):
        read_messages(b'{"id":1,"result":["' + b"," * MAX_MEMBERS + b'"' * 5 * MAX_MEMBERS)


def test_a_body_of_the_wrong_shape_is_named() -> None:
    with pytest.raises(InvalidResult, match=r"the list.*\$\.tools"):
        decode_body(msgspec.Raw(b'{"tools":[{"name":1}]}'), ListToolsResult, "the list")
    with pytest.raises(InvalidResult):
        decode_body(msgspec.Raw(b'{"a":'), ListToolsResult, "x")
    with pytest.raises(InvalidResult):
        to_plain(b"{")
    with pytest.raises(InvalidResult):
        decode_body(msgspec.Raw(b"[" * 100_000 + b"]" * 100_000), ListToolsResult, "x")
    assert to_plain(UNSET) == {}


def test_json_within_a_text() -> None:
    assert decode_text('{"a": 1}') == {"a": 1}
    with pytest.raises(InvalidResult):
        decode_text("no")


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        (b'{"jsonrpc":"2.0","id":3,"error":{"code":"no","message":"x"}}', [3]),
        (b'{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":null}}', [3]),
        (b'{"jsonrpc":"2.0","id":3,"error":"no"}', [3]),
        (b'{"jsonrpc":"2.0","id":3.0,"result":{}}', [3]),
        (b'{"jsonrpc":"2.0","id":"3","result":{}}', [3]),
        (b'{"jsonrpc":"2.0","id":3}', [3]),
        (b'[{"id":1,"error":"no"},{"id":2,"result":{}},{"method":"x"}]', [1, 2]),
        (b'{"jsonrpc":"2.0","id":3,"result":{"a":', [3]),
        (b'{"jsonrpc":"2.0", "id": "3", "result":{"a":NaN}}', [3]),
        (b'{"result":{"a":NaN,"id":5},"jsonrpc":"2.0","id":3}', [3]),
        (b'{"result":{"a":NaN,"id":5}}', []),
        (b'{"level":"info","id":3}', []),
        (b'{"level":"info","id":3', []),
        (b'{"jsonrpc":"2.0","id":3,"method":"x","params":{"result":NaN}}', []),
        (b'{"jsonrpc":"2.0","id":3,"method":"x"}', []),
        (b'{"jsonrpc":"2.0","id":3.5,"result":{}}', []),
        (b'{"jsonrpc":"2.0","id":true,"result":{}}', []),
        (b'{"jsonrpc":"2.0","id":1e300,"result":{}}', []),
        (b'{"jsonrpc":"2.0","id":"abc","result":{}}', []),
        (b"hello", []),
    ],
)  # fmt: skip
def test_whose_answer_a_broken_response_was_meant_to_be(data: bytes, ids: list[int]) -> None:
    assert find_answered_ids(data) == ids


@given(st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
def test_looking_for_the_id_of_anything_ends_well(data: bytes) -> None:
    assert all(type(id) is int for id in find_answered_ids(data))


@pytest.mark.parametrize(
    ("text", "may_ask"),
    [
        (r'{"resultType":"input_required"}', True),
        (r'{"resultType":"input\u005Frequired"}', True),
        (r'{"resultType":"\u0069nput_require\u0064"}', True),
        (r'{"result\u0054ype":"input_required"}', True),
        (r'{"content":[{"type":"text","text":"caf\u00e9 \u0000\u001b[1m \u0022 input_required"}]}', False),
        (r'{"content":[]}', False),
    ],
)
def test_only_letters_that_are_escaped_may_hide_that_a_result_asks_for_input(text: str, *, may_ask: bool) -> None:
    assert may_ask_for_input(text.encode()) is may_ask
