"""Test that a recording answers recorded requests and reports all others."""

import json
import re
from typing import Any

import pytest

from dovetail.recording.playback import (
    Playback,
    find_revision,
    has_mask,
    matches_recording,
    read_client_results,
    read_exchanges,
)
from dovetail.recording.recording_format import Frame, RecordingHeader
from dovetail.wire.revisions import NEWEST_REVISION


def asked(id: int, method: str, token: Any = None, **params: Any) -> Frame:
    meta = {"_meta": {"progressToken": token}} if token is not None else {}
    return Frame(at=0, to="server", message={"jsonrpc": "2.0", "id": id, "method": method, "params": params | meta})


def said(id: int, **result: Any) -> Frame:
    return Frame(at=0, to="client", message={"jsonrpc": "2.0", "id": id, "result": result})


def told(method: str, **params: Any) -> Frame:
    return Frame(at=0, to="client", message={"jsonrpc": "2.0", "method": method, "params": params})


CALL: dict[str, Any] = {"name": "t", "arguments": {"a": 1}}
OPENED = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "s"},
}
PARTS = [
    RecordingHeader(recording=1),
    asked(0, "initialize"),
    said(0, **OPENED),
    asked(1, "tools/call", 7, **CALL),
    told("notifications/progress", progressToken=7, progress=1),
    said(1, n=1),
    RecordingHeader(recording=1),
    asked(1, "tools/call", **CALL),
    said(1, n=2),
]


def ask(playback: Playback, method: str, **params: Any) -> list[dict[str, Any]]:
    heard: list[bytes] = []
    message = {"jsonrpc": "2.0", "id": "x", "method": method, "params": params}
    playback.open_connection(heard.append).receive(json.dumps(message).encode())
    return [json.loads(one) for one in heard]


def test_answers_come_in_their_order_and_the_last_one_stays() -> None:
    played = Playback(PARTS)
    progress, first = ask(played, "tools/call", **CALL, _meta={"progressToken": "mine"})
    assert progress["params"] == {"progressToken": "mine", "progress": 1}
    assert first == {"jsonrpc": "2.0", "id": "x", "result": {"n": 1}}
    assert ask(played, "tools/call", **CALL)[0]["result"] == {"n": 2}
    assert ask(played, "tools/call", **CALL)[0]["result"] == {"n": 2}


def test_it_opens_as_it_did_and_promises_no_news() -> None:
    played = Playback(PARTS)
    assert played.revision == "2025-06-18"
    assert played.server_info == {"name": "s"}
    assert ask(played, "initialize")[0]["result"] == OPENED | {"capabilities": {"tools": {}}}
    assert ask(played, "server/discover")[0]["error"]["code"] == -32601
    assert ask(played, "ping")[0]["result"] == {}
    assert ask(played, "subscriptions/listen") == []


def test_what_was_not_recorded_is_named() -> None:
    played = Playback(PARTS)
    other = ask(played, "tools/call", name="t", arguments={"a": 2})[0]["error"]["message"]
    assert "arguments" in other
    unknown = ask(played, "tools/call", name="u")[0]["error"]["message"]
    assert re.search(r"\bu\b.*tools/call t\b", unknown)
    assert ask(Playback(PARTS, any_arguments=True), "tools/call", name="t", arguments={"a": 2})[-1]["result"] == {
        "n": 1
    }
    with pytest.raises(ValueError, match="recording"):
        Playback([RecordingHeader(recording=1)])


def test_without_an_opening_one_is_made_up() -> None:
    played = Playback([asked(1, "prompts/list"), said(1, prompts=[])])
    assert played.revision == NEWEST_REVISION
    assert ask(played, "server/discover")[0]["result"]["capabilities"] == {"prompts": {}}
    assert ask(played, "prompts/list", cursor=None)[0]["result"] == {"prompts": []}


def test_batches_and_text_are_taken_apart() -> None:
    both = [{"id": 1, "method": "a"}, {"id": 2, "method": "b"}]
    parts = [
        Frame(at=0, to="server", message=both),
        Frame(at=0, to="client", text="noise"),
        Frame(at=0, to="client", message=[{"id": 2, "result": {}}]),
    ]
    found = read_exchanges(parts)
    assert [(turn.method, turn.response is not None) for turn in found] == [("a", False), ("b", True)]
    assert find_revision(found) == NEWEST_REVISION


def test_answers_of_a_client_are_found_by_their_question() -> None:
    question = {"jsonrpc": "2.0", "id": 9, "method": "elicitation/create", "params": {}}
    answer = {"jsonrpc": "2.0", "id": 9, "result": {"action": "accept"}}
    parts = [Frame(at=0, to="client", message=question), Frame(at=0, to="server", message=answer)]
    assert read_client_results(parts, "elicitation/create") == [{"action": "accept"}]
    assert read_client_results(parts, "roots/list") == []


def test_two_clients_with_the_same_ids_do_not_cross() -> None:
    def sent(exchange: int, name: str) -> Frame:
        message = {"id": 1, "method": "tools/call", "params": {"name": name, "_meta": {"progressToken": 1}}}
        return Frame(at=0, to="server", message=message, exchange=exchange)

    def heard(exchange: int, **message: Any) -> Frame:
        return Frame(at=0, to="client", message=message, exchange=exchange)

    progress = {"method": "notifications/progress", "params": {"progressToken": 1}}
    parts = [sent(1, "a"), sent(2, "b"), heard(2, **progress), heard(2, id=1, result="b"), heard(1, id=1, result="a")]
    found = read_exchanges(parts)
    assert [(turn.params["name"], (turn.response or {})["result"]) for turn in found] == [("a", "a"), ("b", "b")]
    assert [len(turn.notifications) for turn in found] == [0, 1]


def test_an_answer_on_a_stream_that_was_resumed_is_found() -> None:
    ask = Frame(at=0, to="server", message={"id": 1, "method": "m"}, exchange=1)
    (found,) = read_exchanges([ask, Frame(at=0, to="client", message={"id": 1, "result": {}}, exchange=2)])
    assert found.response is not None


@pytest.mark.parametrize("odd", [{"id": [1]}, {"id": 1, "params": [1, 2]}, {"id": 1, "params": {"_meta": 3}}])
def test_odd_messages_are_turns_too(odd: dict[str, Any]) -> None:
    answer = Frame(at=0, to="client", message={"id": odd["id"], "result": {"n": 1}})
    (found,) = read_exchanges([Frame(at=0, to="server", message={"method": "m"} | odd), answer])
    assert found.response == answer.message


def test_what_was_masked_is_like_anything() -> None:
    for now in ("x", 5, None, {"a": 1}):
        assert matches_recording({"a": "***", "b": [1]}, {"a": now, "b": [1]})
    assert matches_recording("Bearer *** (a)", "Bearer x\ny (a)")
    for recorded, now in (
        ("Bearer *** (a)", "Bearer x (b)"),
        ({"a": "***"}, {}),
        ({"a": 1}, {"a": 2}),
        (["***"], []),
        ("x", "***"),
    ):
        assert not matches_recording(recorded, now)
    assert has_mask({"a": [{"b": "is ***"}]})
    assert not has_mask({"***": ["x", 1]})
