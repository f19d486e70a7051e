"""Test results that request input: recognized, stored, resumed and sent back unchanged."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import CallToolResult, Client, RequestAwaitingInput
from dovetail.client.input_rounds import build_resume_params, decode_result
from dovetail.errors import InvalidResult
from dovetail.wire.methods import METHODS
from support.scripted_server import ScriptedServer, serve_on_socket

CALL, LIST = METHODS["tools/call"], METHODS["tools/list"]
QUESTION = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": {"type": "object"}}}

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=5), values, max_size=3)


def decoded(params: dict[str, Any] | None = None, rounds: int = 0, **result: Any) -> Any:
    return decode_result(json.dumps(result).encode(), CALL, params or {"name": "go"}, rounds)


def test_an_answer_is_an_answer() -> None:
    for kind in ({}, {"resultType": "complete"}):
        assert isinstance(decoded(content=[], **kind), CallToolResult)


def test_questions_are_pending() -> None:
    found = decoded(resultType="input_required", inputRequests={"a": QUESTION}, requestState="s")
    assert isinstance(found, RequestAwaitingInput)
    assert (found.method, found.params, found.request_state, found.round) == ("tools/call", {"name": "go"}, "s", 1)
    assert found.input_requests["a"].method == "elicitation/create"


def test_a_state_alone_is_pending_too() -> None:
    found = decoded(resultType="input_required", requestState="later")
    assert found.input_requests == {}
    assert build_resume_params(found, {}) == {"name": "go", "requestState": "later"}


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "task", "content": []},
        {"resultType": "input_required", "inputRequests": {"a": 5}},
        {"resultType": "input_required"},
        {"resultType": "input_required", "inputRequests": {}},
        {"resultType": "input_required", "content": []},
        {"resultType": "complete", "content": 5},
        {"content": 5},
    ],
)
def test_what_is_neither_is_an_error(result: dict[str, Any]) -> None:
    with pytest.raises(InvalidResult):
        decoded(**result)


def test_a_method_that_cannot_ask_does_not() -> None:
    with pytest.raises(InvalidResult):
        decode_result(b'{"tools":[],"resultType":"input_required"}', LIST, {})


@given(arguments, st.dictionaries(st.text(max_size=5), values, min_size=1, max_size=3), st.none() | st.text())
def test_a_pending_question_survives_being_stored_and_goes_back_as_it_came(
    given: dict[str, Any], answers: dict[str, Any], state: str | None
) -> None:
    params = {"name": "go", "arguments": given}
    asked = dict.fromkeys(answers, QUESTION)
    first = decoded(params, resultType="input_required", inputRequests=asked, requestState=state)
    pending = RequestAwaitingInput.load(first.dump())
    assert pending == first
    again = build_resume_params(pending, answers)
    assert again["inputResponses"] == answers
    assert again.get("requestState") == state
    assert {name: again[name] for name in params} == params
    # What was answered in one round is not part of the next.
    second = decoded(again, pending.round, resultType="input_required", inputRequests=asked)
    assert (second.params, second.round, second.request_state) == (params, 2, None)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"method":"x"}', "5"])
def test_what_was_not_stored_here_is_refused(data: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"JSON|missing|Expected|truncated"):
        RequestAwaitingInput.load(data)


@pytest.mark.parametrize("method", ["tools/list", "example.com/other", ""])
async def test_a_pending_of_something_that_cannot_wait_is_refused(method: str) -> None:
    script = ScriptedServer()
    async with serve_on_socket(script) as at, Client(at) as one:
        pending = RequestAwaitingInput(method=method, params={}, input_requests={})
        with pytest.raises(ValueError, match=repr(method)):
            await one.resume(pending, {})
        # If the server is slow, the client also tries a handshake.
        received = {message["method"] for message in script.received}
        assert received <= {"server/discover", "initialize", "notifications/initialized"}
