"""Duplicate and unusual ids. A state machine sends requests with ids of its choice and checks that no response is
lost or mixed up.

Over HTTP every request is answered in its own response, whatever its id. On a duplex connection a second request with
an id in use is refused, and the first one continues.
"""

from collections.abc import Iterator
from typing import Any

import harness
import pytest
from harness import HANDSHAKE, NEWEST, Client, Connection, StdioClient, Target, message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

IDS: list[Any] = [
    0, 1, -1, "1", "0", "", " ", "-1", "null", "id", "__proto__", "constructor", 2**31, 2**53, 2**53 + 1, 2**63, 10**39,
    "2", "\u0000", "\u202e", "é", "e\u0301", "i" * 256, "1.0", "true",
]  # fmt: skip
ids = st.sampled_from(IDS)
quiet = settings(max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))

_targets: dict[str, Target] = {}
Running = tuple[Connection, Any, str]


@pytest.fixture(scope="module", autouse=True)
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("t11")
    with harness.run_target(folder, "http") as over_http, harness.run_target(folder, "stdio") as over_pipe:
        _targets.update(http=over_http, stdio=over_pipe)
        yield
        assert over_http.alive
        assert over_pipe.alive
    _targets.clear()


class HttpIds(RuleBasedStateMachine):
    """Many requests in flight in one client, ids repeated at will."""

    revision = NEWEST
    waiting = Bundle("waiting")
    counter = 0

    @initialize()
    def open(self) -> None:
        self.client = Client(_targets["http"], self.revision)
        self.running: list[Running] = []

    @rule(target=waiting, id=ids)
    def begin(self, id: Any) -> Running:
        HttpIds.counter += 1
        key = f"{self.revision} {HttpIds.counter}"
        connection = self.client.send_call("wait", {"key": key, "text": key}, id=id)
        self.client.call("until", {"what": "started", "key": key}, id=id)
        self.running.append((connection, id, key))
        return self.running[-1]

    @rule(id=ids)
    def call(self, id: Any) -> None:
        HttpIds.counter += 1
        answer = self.client.call("echo", {"text": str(HttpIds.counter)}, id=id)
        assert answer.text == str(HttpIds.counter)
        assert answer.message["id"] == id
        assert type(answer.message["id"]) is type(id)

    @rule(one=consumes(waiting))
    def finish(self, one: Running) -> None:
        if one in self.running:  # else it was cancelled
            self._finish(one)

    @precondition(lambda self: self.revision != NEWEST)
    @rule(id=ids)
    def cancel(self, id: Any) -> None:
        """All requests of this very id end without a result; no other does."""
        assert self.client.post(message("notifications/cancelled", {"requestId": id})).status == 202
        for one in [one for one in self.running if one[1] == id and type(one[1]) is type(id)]:
            assert not one[0].answer().messages
            self.running.remove(one)

    def _finish(self, one: Running) -> None:
        connection, id, key = one
        self.running.remove(one)
        self.client.call("release", {"key": key})
        answer = connection.answer()
        assert (answer.text, answer.message["id"]) == (key, id)
        connection.close()

    def teardown(self) -> None:
        for one in list(getattr(self, "running", ())):
            self._finish(one)


class SessionIds(HttpIds):
    """The same in a handshake session, with cancel notices."""

    revision = HANDSHAKE


class DuplexIds(RuleBasedStateMachine):
    """One connection: an id in use is refused, and is free again afterwards."""

    counter = 0

    @initialize(revision=st.sampled_from([NEWEST, HANDSHAKE]))
    def open(self, revision: str) -> None:
        # Both eras may speak on one connection, so one process serves all examples.
        if "pipe" not in _targets["stdio"].extra:
            _targets["stdio"].extra["pipe"] = StdioClient(_targets["stdio"], HANDSHAKE)
        self.pipe: StdioClient = _targets["stdio"].extra["pipe"]
        self.pipe.revision = revision
        self.running: dict[tuple[type, Any], str] = {}

    @rule(id=ids)
    def begin(self, id: Any) -> None:
        DuplexIds.counter += 1
        key = f"duplex {DuplexIds.counter}"
        self.pipe.send_call("wait", {"key": key, "text": key}, id=id)
        if (type(id), id) in self.running:
            assert self.pipe.answer(id)["error"]["code"] == -32600
        else:
            self.pipe.call("until", {"what": "started", "key": key}, id="control")
            self.running[type(id), id] = key

    @rule(id=ids)
    def call(self, id: Any) -> None:
        DuplexIds.counter += 1
        answer = self.pipe.call("echo", {"text": str(DuplexIds.counter)}, id=id)
        if (type(id), id) in self.running:
            assert answer["error"]["code"] == -32600
        else:
            assert answer["result"]["content"][0]["text"] == str(DuplexIds.counter)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self._finish(data.draw(st.sampled_from(list(self.running))))

    def _finish(self, which: tuple[type, Any]) -> None:
        key = self.running.pop(which)
        self.pipe.call("release", {"key": key}, id="control")
        assert self.pipe.answer(which[1])["result"]["content"][0]["text"] == key

    @rule(id=ids)
    def cancel(self, id: Any) -> None:
        self.pipe.send(message("notifications/cancelled", {"requestId": id}))
        self.running.pop((type(id), id), None)
        self.pipe.call("echo", {"text": "x"}, id="control")

    def teardown(self) -> None:
        if not hasattr(self, "pipe"):
            return
        for which in list(self.running):
            self._finish(which)
        self.pipe.call("echo", {"text": "x"}, id="control")
        assert not self.pipe.unread_messages()  # nothing was answered twice, nothing after a cancel


class TestStateless(HttpIds.TestCase):
    settings = quiet


class TestSession(SessionIds.TestCase):
    settings = quiet


class TestDuplex(DuplexIds.TestCase):
    settings = quiet


@pytest.mark.soak
@pytest.mark.parametrize("machine", [HttpIds, SessionIds, DuplexIds])
def test_for_long(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(quiet, max_examples=500, stateful_step_count=60))
