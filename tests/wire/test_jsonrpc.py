"""Test the envelope: every JSON value is one of four kinds of message or is refused, and built messages have their
kind.
"""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidRequest, MethodNotFound, ResourceNotFound, ServerBusy
from dovetail.wire import jsonrpc
from dovetail.wire.codec import decode, encode
from dovetail.wire.jsonrpc import MAX_ID_BYTES, MAX_METHOD_CHARS, MessageKind, classify, read_id

KINDS = get_args(MessageKind)

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
ids = st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20)
names = st.text(min_size=1, max_size=MAX_METHOD_CHARS)
objects = st.dictionaries(st.text(max_size=8), anything, max_size=3)
# Objects that are nearly messages: the members are right or wrong, present or absent, in every combination.
errors = st.fixed_dictionaries(
    {}, optional={"code": st.integers() | anything, "message": st.text() | anything, "data": anything}
)
near = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | anything,
        "id": ids | anything | st.text(min_size=MAX_ID_BYTES, max_size=MAX_ID_BYTES + 8),
        "method": names | anything | st.text(min_size=MAX_METHOD_CHARS, max_size=MAX_METHOD_CHARS + 8),
        "params": objects | anything,
        "result": anything,
        "error": errors | anything,
    },
)


@given(near | anything)
def test_any_value_has_a_kind_or_is_refused(message: Any) -> None:
    try:
        found = classify(message)
    except InvalidRequest as exc:
        refusal = exc
    else:
        refusal = None
    if refusal is not None:
        assert refusal.code == -32600
        assert len(refusal.message) < 200
        return
    assert found in KINDS
    assert message["jsonrpc"] == "2.0"
    assert ("method" in message) == (found in ("request", "notice"))
    assert ("id" in message) == (found in ("request", "result")) or found == "error"
    assert (found == "result") == ("result" in message)
    assert (found == "error") == ("error" in message)
    if found in ("request", "result"):
        assert type(message["id"]) in (int, str)


@given(near | anything)
def test_a_readable_id_is_one_that_can_be_sent_back(message: Any) -> None:
    found = read_id(message)
    if found is None:
        return
    assert message["id"] is found
    assert type(found) in (int, str)
    assert type(found) is int or len(found.encode()) <= MAX_ID_BYTES


@given(ids, names, st.none() | objects)
def test_requests_and_notices_are_of_their_kind(id: int | str, method: str, params: dict[str, Any] | None) -> None:
    request, notice = (
        decode(jsonrpc.encode_request(id, method, params)),
        decode(jsonrpc.encode_notification(method, params)),
    )
    assert classify(request) == "request"
    assert classify(notice) == "notice"
    expected = {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})
    assert notice == expected
    assert request == expected | {"id": id}


@given(ids, objects)
def test_a_result_carries_the_encoded_body_unchanged(id: int | str, body: dict[str, Any]) -> None:
    message = decode(jsonrpc.encode_result(id, encode(body)))
    assert classify(message) == "result"
    assert message == {"jsonrpc": "2.0", "id": id, "result": body}


@given(st.none() | ids, st.integers(-40000, 40000), st.text(max_size=20), st.none() | anything)
def test_a_failure_is_an_error_with_or_without_an_id(id: int | str | None, code: int, message: str, data: Any) -> None:
    found = decode(jsonrpc.encode_error(id, code, message, data))
    assert classify(found) == "error"
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    assert found == {"jsonrpc": "2.0", "error": error} | ({} if id is None else {"id": id})


@given(ids, names, objects)
def test_every_message_is_one_line(id: int | str, method: str, params: dict[str, Any]) -> None:
    built = [
        jsonrpc.encode_request(id, method, params),
        jsonrpc.encode_notification(method, params),
        jsonrpc.encode_result(id, encode(params)),
        jsonrpc.encode_error(id, 1, method, params),
    ]
    assert not [one for one in built if b"\n" in one or b"\r" in one]


def test_a_refusal_is_what_the_exception_says() -> None:
    assert json.loads(jsonrpc.encode_protocol_error(7, MethodNotFound("x/y"))) == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {"code": -32601, "message": "Method not found: x/y"},
    }
    assert json.loads(jsonrpc.encode_protocol_error("a", ResourceNotFound("a:b")))["error"] == {
        "code": -32602,
        "message": "Resource not found",
        "data": {"uri": "a:b"},
    }
    assert json.loads(jsonrpc.encode_protocol_error(None, ServerBusy("later", 2.5))) == {
        "jsonrpc": "2.0",
        "error": {"code": 429, "message": "later", "data": {"retryAfterMs": 2500}},
    }


BASE = {"jsonrpc": "2.0"}
ERROR = {"code": -1, "message": "no"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({**BASE, "id": 1, "method": "m"}, "request"),
        ({**BASE, "id": 0, "method": "m", "params": {}}, "request"),
        ({**BASE, "id": "", "method": "m", "params": None}, "request"),
        ({**BASE, "id": "x" * MAX_ID_BYTES, "method": "m" * MAX_METHOD_CHARS}, "request"),
        ({**BASE, "id": -1, "method": "m", "unknown": [1]}, "request"),
        ({**BASE, "method": "m"}, "notice"),
        ({**BASE, "id": 1, "result": {}}, "result"),
        ({**BASE, "id": 1, "result": None}, "result"),
        ({**BASE, "id": 1, "error": ERROR}, "error"),
        ({**BASE, "id": None, "error": ERROR}, "error"),
        ({**BASE, "error": {**ERROR, "data": [1]}}, "error"),
    ],
)
def test_messages(message: dict[str, Any], expected: str) -> None:
    assert classify(message) == expected


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        "2.0",
        {},
        {"id": 1, "method": "m"},
        {"jsonrpc": "1.0", "id": 1, "method": "m"},
        {"jsonrpc": 2.0, "id": 1, "method": "m"},
        {**BASE, "id": None, "method": "m"},
        {**BASE, "id": True, "method": "m"},
        {**BASE, "id": 1.0, "method": "m"},
        {**BASE, "id": [], "method": "m"},
        {**BASE, "id": "é" * (MAX_ID_BYTES // 2 + 1), "method": "m"},
        {**BASE, "id": 1, "method": ""},
        {**BASE, "id": 1, "method": 5},
        {**BASE, "id": 1, "method": None},
        {**BASE, "id": 1, "method": "m" * (MAX_METHOD_CHARS + 1)},
        {**BASE, "id": 1, "method": "m", "params": []},
        {**BASE, "id": 1, "method": "m", "params": "p"},
        {**BASE, "id": 1, "method": "m", "result": {}},
        {**BASE, "id": 1, "method": "m", "error": ERROR},
        {**BASE, "id": 1},
        {**BASE, "id": 1, "result": {}, "error": ERROR},
        {**BASE, "result": {}},
        {**BASE, "id": None, "result": {}},
        {**BASE, "id": 1, "error": None},
        {**BASE, "id": 1, "error": {"code": "1", "message": "no"}},
        {**BASE, "id": 1, "error": {"code": True, "message": "no"}},
        {**BASE, "id": 1, "error": {"code": 1}},
        {**BASE, "id": [], "error": ERROR},
    ],
)
def test_an_invalid_message(message: Any) -> None:
    with pytest.raises(InvalidRequest):
        classify(message)


def test_a_refused_message_is_answered_under_its_id_where_that_is_one() -> None:
    assert read_id({"id": 3, "method": 5}) == 3
    assert read_id({"id": "three"}) == "three"
    assert read_id({"id": "x" * (MAX_ID_BYTES + 1)}) is None
    assert [read_id(one) for one in ({}, {"id": True}, {"id": None}, {"id": 1.5}, [], "id", None)] == [None] * 7
