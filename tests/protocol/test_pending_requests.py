"""Test pending requests against a rule-based model: requests, responses, cancellations and the end."""

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from dovetail.errors import RemoteError
from dovetail.protocol.handshake import PendingRequests
from dovetail.wire import jsonrpc

anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.dictionaries(st.text(max_size=3), st.integers())
)


def answer(id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


class Conversation(RuleBasedStateMachine):
    """Whatever the other side sends, in whatever order, each question is settled at most once, by its own answer."""

    asked: Bundle[int] = Bundle("asked")
    settled: Bundle[int] = Bundle("settled")

    @initialize()
    def begin(self) -> None:
        self.peer: PendingRequests[str] = PendingRequests()
        self.waiting: dict[Any, str] = {}
        self.used: set[Any] = set()
        self.count = 0

    @rule(target=asked, method=st.text(min_size=1, max_size=9), params=st.dictionaries(st.text(max_size=3), anything))
    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self.count += 1
        token = f"token {self.count}"
        id, data = self.peer.create_request(token, method, params)
        message = json.loads(data)
        assert jsonrpc.classify(message) == "request"
        assert message == {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        assert id not in self.used
        self.used.add(id)
        self.waiting[id] = token
        return id

    @rule(target=settled, id=consumes(asked), result=anything)
    def answered_with_a_result(self, id: int, result: Any) -> int:
        expected = self.waiting.pop(id, None)
        assert self.peer.match_response(answer(id, result)) == (None if expected is None else (expected, result))
        return id

    @rule(target=settled, id=consumes(asked), code=st.integers(), text=st.text(max_size=9), given=st.none() | anything)
    def answered_with_an_error(self, id: int, code: int, text: str, given: Any) -> int:
        expected = self.waiting.pop(id, None)
        error = {"code": code, "message": text} | ({} if given is None else {"data": given})
        found = self.peer.match_response({"jsonrpc": "2.0", "id": id, "error": error})
        if expected is None:
            assert found is None
        else:
            assert found is not None
            token, exc = found
            assert token == expected
            assert isinstance(exc, RemoteError)
            assert (exc.code, exc.message, exc.data) == (code, text, given)
        return id

    @rule(target=settled, id=consumes(asked))
    def forget(self, id: int) -> int:
        assert self.peer.discard(id) == (self.waiting.pop(id, None) is not None)
        return id

    @rule(id=settled)
    def too_late_or_twice(self, id: int) -> None:
        assert self.peer.match_response(answer(id, {})) is None
        assert not self.peer.discard(id)

    @rule(id=st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.integers(-5, 0) | st.integers(10**6))
    def answers_nobody_asked_for(self, id: Any) -> None:
        assert self.peer.match_response(answer(id, {})) is None

    @rule(id=asked)
    def answers_under_another_spelling_of_the_id(self, id: int) -> None:
        assert self.peer.match_response(answer(str(id), {})) is None
        assert self.peer.match_response(answer(float(id), {})) is None

    @rule()
    def drain(self) -> None:
        assert self.peer.drain() == list(self.waiting.values())
        self.waiting.clear()

    def teardown(self) -> None:
        """Nothing is kept that nobody waits for."""
        assert self.peer.drain() == list(self.waiting.values())


Conversation.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestConversation = Conversation.TestCase


def test_ids_go_on_after_the_end() -> None:
    peer: PendingRequests[str] = PendingRequests()
    first, _ = peer.create_request("a", "ping", {})
    assert peer.drain() == ["a"]
    second, _ = peer.create_request("b", "ping", {})
    assert first != second
    assert peer.match_response(answer(first, 1)) is None
    assert peer.match_response(answer(second, 2)) == ("b", 2)


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}])
def test_an_empty_result_is_an_answer(result: Any) -> None:
    peer: PendingRequests[str] = PendingRequests()
    id, _ = peer.create_request("a", "ping", {})
    assert peer.match_response(answer(id, result)) == ("a", result)
