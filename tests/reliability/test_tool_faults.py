"""Whatever a tool raises or returns, only that call gets an error.

The tests use every kind of exception, in a coroutine before and after it waits and in a thread, over stdio and HTTP, in
both eras.
"""

import json
from collections.abc import Iterator
from typing import Any

import harness
import pytest
from faults import RAISED, RETURNED, TOLERATED
from harness import HANDSHAKE, NEWEST, Client, Sse2024Client, StartTarget, StdioClient, Target

TOOLS = ("fault", "late_fault", "sync_fault")
DOORS = ("http stateless", "http session", "stdio stateless", "stdio session", "sse")


class Door:
    """One client of some kind, and a call of its own that must survive all that happens beside it."""

    def __init__(self, target: Target, kind: str) -> None:
        self.target = target
        self.kind = kind
        revision = NEWEST if kind.endswith("stateless") else HANDSHAKE
        self.over_http = kind.startswith("http")
        self.peer: Any = (
            Client(target, revision)
            if self.over_http
            else Sse2024Client(target)
            if kind == "sse"
            else StdioClient(target, revision)
        )

    def call(self, tool: str, kind: str) -> Any:
        answer = self.peer.call(tool, {"kind": kind})
        if not self.over_http:
            return answer
        assert answer.status in (200, 400, 500, 503)
        return answer.message

    def is_healthy(self) -> bool:
        return self.peer.is_healthy()


@pytest.fixture(scope="module", params=["http", "stdio"])
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with harness.run_target(tmp_path_factory.mktemp("t15"), request.param, dev=True) as one:
        yield one
        assert one.alive
        assert "never retrieved" not in one.log
        assert "Exception in ASGI application" not in one.log
        assert "Task was destroyed" not in one.log


@pytest.fixture(scope="module")
def doors(watched: Target) -> dict[str, Door]:
    kinds = [kind for kind in DOORS if kind.startswith("stdio") != bool(watched.port)]
    if not watched.port:  # one process, one connection: both eras on it
        door = Door(watched, "stdio session")
        return {"stdio session": door}
    return {kind: Door(watched, kind) for kind in kinds}


def failed(answer: Any) -> str:
    """The text of a failure, however the era says it; fails if it is none."""
    if "error" in answer:
        return answer["error"]["message"]
    assert answer["result"].get("isError") is True, answer
    return answer["result"]["content"][0]["text"]


def each(doors: dict[str, Door]) -> Iterator[Door]:
    for kind, door in doors.items():
        if kind == "stdio session":
            for revision in (NEWEST, HANDSHAKE):
                door.peer.revision = revision
                yield door
        else:
            yield door


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kind", [*RAISED, *RETURNED])
def test_a_fault_is_an_error_of_that_call(doors: dict[str, Door], tool: str, kind: str) -> None:
    for door in each(doors):
        text = failed(door.call(tool, kind))
        assert "secret-detail" not in text
        assert "Traceback" not in text
        assert len(text) < 1000
        assert all(other.is_healthy() for other in doors.values())


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kind", TOLERATED)
def test_what_json_cannot_say_is_null_or_an_error(doors: dict[str, Door], tool: str, kind: str) -> None:
    for door in each(doors):
        answer = door.call(tool, kind)
        json.dumps(answer, allow_nan=False)
        assert door.is_healthy()


def test_others_in_the_middle_of_their_calls_are_not_disturbed(start: StartTarget) -> None:
    """Calls of several sessions are waiting while every fault there is happens beside them."""
    target = start(dev=True)
    clients = [Client(target, revision) for revision in (NEWEST, HANDSHAKE, "2025-06-18")]
    held = [client.send_call("wait", {"key": "k", "text": "mine"}) for client in clients for _ in range(3)]
    streams = [clients[1].listen()]
    culprit = Client(target, HANDSHAKE)
    culprit.call("until", {"what": "started", "key": "k", "count": len(held)})
    for kind in RAISED:
        for tool in TOOLS:
            failed(culprit.call(tool, {"kind": kind}).message)
    culprit.call("release", {"key": "k"})
    assert [connection.answer().text for connection in held] == ["mine"] * len(held)
    assert streams[0].head()[0] == 200
    assert all(client.is_healthy() for client in (*clients, culprit))
    assert culprit.process_stats()["tasks"] < 10


def test_faults_at_the_same_time(start: StartTarget) -> None:
    target = start(dev=True)
    client = Client(target)
    held = [client.send_call(tool, {"kind": kind}) for kind in RAISED for tool in TOOLS for _ in range(3)]
    for connection in held:
        failed(connection.answer().message)
    assert client.is_healthy()


@pytest.mark.parametrize("kind", ["http stateless", "http session"])
def test_the_log_says_what_happened_and_the_caller_can_refer_to_it(watched: Target, kind: str) -> None:
    if not watched.port:
        return
    text = failed(Door(watched, kind).call("fault", "Unusual"))
    reference = text.split()[-1]
    assert reference in watched.log
    assert "secret-detail" in watched.log


def test_a_debugging_server_says_more_and_still_survives(start: StartTarget) -> None:
    target = start(server={"debug": True}, dev=True)
    client = Client(target)
    for kind in [*RAISED, *RETURNED]:
        for tool in TOOLS:
            failed(client.call(tool, {"kind": kind}).message)
    assert "secret-detail" in failed(client.call("fault", {"kind": "Exception"}).message)
    assert client.is_healthy()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "bad://{kind}"}),
        ("prompts/get", {"name": "bad_prompt", "arguments": {"kind": "{kind}"}}),
        ("completion/complete", {
            "ref": {"type": "ref/prompt", "name": "bad_prompt"}, "argument": {"name": "kind", "value": "{kind}"},
        }),
    ],
    ids=["resource", "prompt", "completion"],
)  # fmt: skip
def test_resources_prompts_and_completions_too(start: StartTarget, method: str, params: Any) -> None:
    target = start(dev=True)
    clients = [Client(target, revision) for revision in (NEWEST, HANDSHAKE)]
    for kind in RAISED:
        for client in clients:
            made = json.loads(json.dumps(params).replace("{kind}", kind))
            answer = client.request(method, made).message
            assert answer["error"]["code"] == -32603, (kind, answer)
            assert "secret-detail" not in answer["error"]["message"]
    assert all(client.is_healthy() for client in clients)
