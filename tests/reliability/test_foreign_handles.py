"""Every handle of a server, used by another principal, from another session, guessed and altered.

None is accepted, and none can be distinguished from a handle that never existed.
"""

import base64
from collections.abc import Iterator
from typing import Any

import harness
import pytest
from harness import HANDSHAKE, NEWEST, Answer, Client, Connection, Target, encode_http_request, message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

relaxed = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def shared_by_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A target that tells principals apart."""
    with harness.run_target(tmp_path_factory.mktemp("t13"), "http", principals=True, server={"page_size": 2}) as one:
        yield one
        assert one.alive
        assert "Traceback" not in one.log


def alike(one: Answer, other: Answer) -> None:
    assert (one.status, one.body) == (other.status, other.body)


# Session ids


def tried(target: Target, session: str, principal: str | None, method: str) -> Answer:
    client = Client(target, principal=principal)
    headers = client.headers | {"mcp-session-id": session, "mcp-protocol-version": HANDSHAKE}
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}' if method == "POST" else None
    with client.send_only(encode_http_request(method, "/mcp", headers, body)) as connection:
        status, got = connection.head()
        return Answer(status, {}, connection.file.read(int(got["content-length"])) if "content-length" in got else b"")


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("principal", ["bob", None])
def test_the_session_of_another_principal(shared_by_two: Target, method: str, principal: str | None) -> None:
    alice = Client(shared_by_two, HANDSHAKE, principal="alice")
    assert alice.session is not None
    refused = tried(shared_by_two, alice.session, principal, method)
    assert refused.status == 404
    alike(refused, tried(shared_by_two, "A" * len(alice.session), principal, method))
    assert alice.is_healthy()


def test_an_anonymous_session_is_not_a_principals(shared_by_two: Target) -> None:
    nobody = Client(shared_by_two, HANDSHAKE)
    assert nobody.session is not None
    assert tried(shared_by_two, nobody.session, "alice", "POST").status == 404


def test_an_ended_session(shared_by_two: Target) -> None:
    alice = Client(shared_by_two, HANDSHAKE, principal="alice")
    assert alice.session is not None
    assert alice.end().status == 204
    for method in ("POST", "GET", "DELETE"):
        assert tried(shared_by_two, alice.session, "alice", method).status == 404


@relaxed
@given(data=st.data())
def test_guessed_and_altered_sessions(shared_by_two: Target, data: st.DataObject) -> None:
    alice = _kept(shared_by_two, "alice")
    assert alice.session is not None
    place = data.draw(st.integers(0, len(alice.session) - 1))
    letter = data.draw(st.sampled_from("Ab0_- .é"))
    altered = [
        alice.session[:place] + letter + alice.session[place + 1 :], alice.session[:place], alice.session + letter,
        alice.session.lower(), alice.session.upper(), alice.session[::-1], f"{alice.session},{alice.session}",
    ]  # fmt: skip
    session = data.draw(st.sampled_from(altered))
    if session.strip() != alice.session:
        assert tried(shared_by_two, session, "alice", "POST").status in (400, 404)


def test_sessions_cannot_be_guessed(shared_by_two: Target) -> None:
    """At least 128 bits, none in common: over many ids every place takes many values."""
    client = Client(shared_by_two)
    about = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    sessions: list[str] = []
    headers = dict(client.headers)
    for _ in range(300):
        made = message("initialize", about, 1)
        sessions.append(client.post(made, **headers).headers["mcp-session-id"])
    assert len(set(sessions)) == len(sessions)
    assert all(len(one) == len(sessions[0]) and one.isascii() and one.isprintable() for one in sessions)
    values = [len({one[place] for one in sessions}) for place in range(len(sessions[0]))]
    assert sum(count >= 40 for count in values) * 6 >= 128


def test_the_old_stream_of_another_principal(shared_by_two: Target) -> None:
    alice, bob = Client(shared_by_two, principal="alice"), Client(shared_by_two, principal="bob")
    reading = Connection(shared_by_two.port)
    reading.send(encode_http_request("GET", "/sse", alice.headers | {"accept": "text/event-stream"}))
    assert reading.head()[0] == 200
    address = next(reading.stream())["data"]
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    assert bob.exchange(encode_http_request("POST", address, bob.headers, ping)).status == 404
    assert bob.exchange(encode_http_request("POST", "/messages?session_id=x", bob.headers, ping)).status == 404
    assert alice.exchange(encode_http_request("POST", address, alice.headers, ping)).status == 202
    reading.close()


# Event ids


def streamed(client: Client, mark: str) -> list[dict[str, str]]:
    """The events of a call that says something, with their ids."""
    answer = client.call("chatter", {"count": 3, "mark": mark})
    return [event for event in harness.events(answer.body) if event.get("id")]


def resumed(client: Client, last: str) -> Answer:
    with client.listen(last) as connection:
        return connection.answer()


@pytest.mark.parametrize("other", ["alice", "bob"])
def test_an_event_of_another_session(shared_by_two: Target, other: str) -> None:
    """The official SDK replayed five of five foreign messages."""
    alice, second = (
        Client(shared_by_two, HANDSHAKE, principal="alice"),
        Client(shared_by_two, HANDSHAKE, principal=other),
    )
    for place in streamed(alice, "secret-of-alice-"):
        answer = resumed(second, place["id"])
        assert b"secret-of-alice" not in answer.body
        assert answer.status == 400
    own = streamed(second, "own-")
    got = resumed(second, own[0]["id"])
    assert b"own-end" in got.body
    assert b"secret-of-alice" not in got.body


@relaxed
@given(last=st.from_regex(r"[0-9]{0,3}-?-?[0-9]{1,4}|[ -~]{1,20}", fullmatch=True))
def test_guessed_events(shared_by_two: Target, last: str) -> None:
    alice, bob = _kept(shared_by_two, "alice"), _kept(shared_by_two, "bob")
    if "streamed" not in shared_by_two.extra:
        shared_by_two.extra["streamed"] = [streamed(alice, "secret-of-alice-") for _ in range(20)]
    if last.strip().startswith("0-"):
        return  # the stream that never ends; nothing of it was ever sent
    answer = resumed(bob, last)
    assert b"secret-of-alice" not in answer.body
    assert answer.status in (200, 400)


# requestState

ABLE = {"elicitation": {"form": {}}}
ANSWER = {"q1": {"action": "accept", "content": {"value": "yes"}}}


def asked(client: Client, question: str = "Sure?") -> str:
    result = client.call("ask", {"question": question}).message["result"]
    assert result["resultType"] == "input_required"
    return result["requestState"]


def answered(client: Client, state: Any, question: str = "Sure?", tool: str = "ask") -> Any:
    params = {"name": tool, "arguments": {"question": question}, "requestState": state, "inputResponses": ANSWER}
    return client.request("tools/call", params).message


def test_the_state_of_another(shared_by_two: Target) -> None:
    alice, bob, nobody = (Client(shared_by_two, principal=one, capabilities=ABLE) for one in ("alice", "bob", None))
    state = asked(alice)
    refusals = [answered(bob, state), answered(nobody, state), answered(alice, state, question="Really?")]
    refusals += [answered(alice, asked(bob)), answered(alice, state[:-4]), answered(alice, "")]
    texts = {(one["error"]["code"], one["error"]["message"]) for one in refusals}
    assert len(texts) == 1, texts
    assert texts.pop()[0] == -32602
    assert answered(alice, state)["result"]["content"][0]["text"].startswith("answer")


@relaxed
@given(data=st.data())
def test_an_altered_state(shared_by_two: Target, data: st.DataObject) -> None:
    alice = _kept(shared_by_two, "alice", NEWEST)
    if "state" not in shared_by_two.extra:
        shared_by_two.extra["state"] = asked(alice)
    raw = bytearray(base64.urlsafe_b64decode(shared_by_two.extra["state"]))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    assert answered(alice, base64.urlsafe_b64encode(raw).decode())["error"]["code"] == -32602


# Cursors, questions, cancels


def test_a_cursor_of_another_list_and_guessed_ones(shared_by_two: Target) -> None:
    client = Client(shared_by_two)
    cursor = client.request("tools/list").message["result"]["nextCursor"]
    for method in ("prompts/list", "resources/list", "resources/templates/list"):
        assert client.request(method, {"cursor": cursor}).message["error"]["code"] == -32602
    for guess in ("", "1", cursor[:-1], cursor + "=", cursor.swapcase(), "../..", "MQ==", "é"):
        assert client.request("tools/list", {"cursor": guess}).message["error"]["code"] == -32602


@pytest.mark.parametrize("who", ["bob", "alice"])
def test_the_question_put_to_another(shared_by_two: Target, who: str) -> None:
    """A handshake server asks alice; an answer from another session is nobody's."""
    able = {"elicitation": {}}
    alice = Client(shared_by_two, HANDSHAKE, principal="alice", capabilities=able)
    other = Client(shared_by_two, HANDSHAKE, principal=who, capabilities=able)
    held = alice.send_call("ask", {"question": "Sure?"})
    assert held.head()[0] == 200
    said = held.stream()
    question = next(event for event in said if event.get("data") and "elicitation/create" in event["data"])
    id = harness.json.loads(question["data"])["id"]
    forged = {"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {"value": "forged"}}}
    assert other.post(forged).status == 202
    genuine = {"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {"value": "genuine"}}}
    assert alice.post(genuine).status == 202
    result = harness.json.loads(next(said)["data"])
    assert result["result"]["content"][0]["text"] == "answer genuine"
    held.close()


def test_the_call_of_another_cannot_be_cancelled(shared_by_two: Target) -> None:
    alice = Client(shared_by_two, HANDSHAKE, principal="alice")
    held = alice.send_call("wait", {"key": "a", "text": "mine"}, id=7)
    alice.call("until", {"what": "started", "key": "a"})
    for other in (
        Client(shared_by_two, HANDSHAKE, principal="bob"),
        Client(shared_by_two, HANDSHAKE, principal="alice"),
        Client(shared_by_two, NEWEST, principal="alice"),
    ):
        notice = message("notifications/cancelled", {"requestId": 7})
        headers = {"mcp-protocol-version": NEWEST, "mcp-method": notice["method"]} if other.session is None else {}
        other.post(notice, **headers)
    alice.call("release", {"key": "a"})
    assert held.answer().text == "mine"


def test_the_subscription_of_another_cannot_be_ended(shared_by_two: Target) -> None:
    alice, bob = Client(shared_by_two, principal="alice"), Client(shared_by_two, principal="bob")
    held = alice.send_only(alice.prepare("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="l"))
    assert held.head()[0] == 200
    said = held.stream()
    next(said)
    notice = message("notifications/cancelled", harness.stateless_params({"requestId": "l"}))
    bob.post(notice, **{"mcp-protocol-version": NEWEST, "mcp-method": notice["method"]})
    bob.call("change")
    assert "list_changed" in next(said)["data"]
    held.close()


def _kept(target: Target, principal: str, revision: str = HANDSHAKE) -> Client:
    """One client per principal for all examples of a property."""
    name = f"{principal} {revision}"
    if name not in target.extra:
        target.extra[name] = Client(target, revision, principal=principal, capabilities=ABLE)
    return target.extra[name]
