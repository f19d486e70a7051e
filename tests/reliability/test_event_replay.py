"""Event replay, compared with a model, on the store and over real connections.

Within the window no event is lost, duplicate, out of order or foreign. Outside of it the response is an error, never an
empty success.
"""

import json
from collections.abc import Iterator
from typing import Any

import harness
import pytest
from harness import HANDSHAKE, Client, Connection, Target
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dovetail import ServerLimits
from dovetail.transports.http_server.streams.event_log import EventLog, EventStream
from dovetail.transports.spool import MemoryBudget

quiet = settings(max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
WINDOW = 6  # events a stream keeps

_target: list[Target] = []


@pytest.fixture(scope="module", autouse=True)
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with harness.run_target(
        tmp_path_factory.mktemp("t14"), "http", limits={"max_replay_events": WINDOW, "keep_alive_interval": 5}
    ) as one:
        _target.append(one)
        yield one
        assert one.alive
        assert "Traceback" not in one.log, one.log[-3000:]
    _target.clear()


class Store(RuleBasedStateMachine):
    """One stream and a reader who comes and goes; the model is the plain list of all that was said."""

    @initialize(events=st.integers(1, 8), size=st.integers(60, 500))
    def open(self, events: int, size: int) -> None:
        self.events, self.size = events, size
        self.stream = EventStream(
            "s", EventLog(ServerLimits(max_replay_events=events, max_replay_bytes=size), MemoryBudget(0))
        )
        self.said: list[tuple[int, bytes]] = []

    @rule(data=st.binary(max_size=80))
    def say(self, data: bytes) -> None:
        event = self.stream.append(json.dumps(data.hex()).encode())
        self.said.append((self.stream.last_number, event))

    @rule()
    def prime(self) -> None:
        self.stream.allocate_id()

    @rule(place=st.integers(0, 40))
    def resume(self, place: int) -> None:
        got = self.stream.read_after(place)
        due = [entry for entry in self.said if entry[0] > place]
        kept = self._window()
        if place > self.stream.last_number:
            assert got is None  # never said
        elif all(entry in kept for entry in due):
            assert got == due
        else:
            assert got is None  # some of it is gone

    def _window(self) -> list[tuple[int, bytes]]:
        kept = self.said[-self.events :]
        while len(kept) > 1 and sum(len(event) for _, event in kept) > self.size:
            kept = kept[1:]
        return kept

    @invariant()
    def numbers_rise(self) -> None:
        if hasattr(self, "said"):
            numbers = [number for number, _ in self.said]
            assert numbers == sorted(set(numbers))


class Wire(RuleBasedStateMachine):
    """Sessions over HTTP whose connections break; everything any of them is sent is known beforehand."""

    counter = 0

    @initialize()
    def open(self) -> None:
        self.clients = [Client(_target[0], HANDSHAKE) for _ in range(2)]
        self.finished: list[tuple[int, list[tuple[str, str]]]] = []  # whose, and all (id, text) of the stream
        self.owner: dict[str, int] = {}
        self.away: list[tuple[int, str, str, str]] = []  # whose, the key, the mark, the last id seen

    def _mark(self, who: int) -> str:
        Wire.counter += 1
        self.owner[f"m{Wire.counter}"] = who
        return f"m{Wire.counter}:"

    @rule(who=st.integers(0, 1), count=st.integers(1, 9))
    def call(self, who: int, count: int) -> None:
        mark = self._mark(who)
        got = _told(harness.events(self.clients[who].call("chatter", {"count": count, "size": 0, "mark": mark}).body))
        assert [text for _, text in got] == [f"{mark}{n}:" for n in range(count)] + [f"{mark}end"]
        self.finished.append((who, got))

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def resume_finished(self, data: st.DataObject) -> None:
        who, events = data.draw(st.sampled_from(self.finished))
        place = data.draw(st.integers(0, len(events) - 1))
        with self.clients[who].listen(events[place][0]) as connection:
            answer = connection.answer()
        rest = events[place + 1 :]
        if len(rest) <= WINDOW:
            assert answer.status == 200
            assert _told(harness.events(answer.body)) == rest
        else:
            assert answer.status == 400

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def resume_as_another(self, data: st.DataObject) -> None:
        """The other session has streams of the same names; what comes, if anything, is its own."""
        who, events = data.draw(st.sampled_from(self.finished))
        if any(whose == 1 - who for whose, *_ in self.away):
            return  # the name may be that of a stream of its own that goes on
        with self.clients[1 - who].listen(data.draw(st.sampled_from(events))[0]) as connection:
            answer = connection.answer()
        marks = {text.partition(":")[0] for _, text in _told(harness.events(answer.body))}
        assert all(self.owner[mark] == 1 - who for mark in marks)
        assert answer.status in (200, 400)

    @rule(who=st.integers(0, 1))
    def leave(self, who: int) -> None:
        """A call that lets its connection go; the rest is to be fetched."""
        mark = self._mark(who)
        answer = self.clients[who].call("leave", {"key": mark, "mark": mark})
        events = harness.events(answer.body)
        assert [text for _, text in _told(events)] == [f"{mark}first"]
        self.clients[who].call("until", {"what": "started", "key": mark})
        self.away.append((who, mark, mark, events[-1]["id"]))

    @precondition(lambda self: self.away)
    @rule(data=st.data(), before=st.booleans(), breaks=st.integers(0, 2))
    def fetch(self, data: st.DataObject, before: bool, breaks: int) -> None:
        """Come back, before or after the rest is said, with connections that break off meanwhile."""
        one = data.draw(st.sampled_from(self.away))
        self.away.remove(one)
        who, key, mark, last = one
        client = self.clients[who]
        for _ in range(breaks):
            with client.listen(last) as broken:
                assert broken.head()[0] == 200
                broken.abort()
        if before:
            client.call("release", {"key": key})
        with client.listen(last) as connection:
            if not before:
                client.call("release", {"key": key})
            got = _told(harness.events(connection.answer().body))
        assert [text for _, text in got] == [f"{mark}second", f"{mark}end"]
        with client.listen(got[0][0]) as connection:  # and once more from the middle
            assert [text for _, text in _told(harness.events(connection.answer().body))] == [f"{mark}end"]

    @rule(who=st.integers(0, 1), read=st.integers(1, 700))
    def cut(self, who: int, read: int) -> None:
        """The connection dies somewhere in the answer; from the last event that arrived whole, the rest comes."""
        mark = self._mark(who)
        texts = [f"{mark}{n}:" for n in range(5)] + [f"{mark}end"]
        client = self.clients[who]
        with client.send_call("chatter", {"count": 5, "size": 0, "mark": mark}) as connection:
            seen = _until(connection, read)
            connection.abort()
        if not seen or not (got := [one for one in seen if one.get("id")]):
            return
        with client.listen(got[-1]["id"]) as connection:
            rest = _told(harness.events(connection.answer().body))
        assert [text for _, text in _told(seen)] + [text for _, text in rest] == texts

    def teardown(self) -> None:
        for who, key, _, _ in getattr(self, "away", ()):
            self.clients[who].call("release", {"key": key})
        for client in getattr(self, "clients", ()):
            client.end()
            client.close()


def _until(connection: Connection, size: int) -> list[dict[str, str]]:
    """Whole events in the first bytes of an answer."""
    data = b""
    while len(data) < size and (piece := connection.socket.recv(size - len(data))):
        data += piece
        if data.endswith(b"0\r\n\r\n"):
            break
    _, _, body = data.partition(b"\r\n\r\n")
    plain = b""
    while b"\r\n" in body:
        length, _, body = body.partition(b"\r\n")
        if not length or len(body) < int(length, 16):
            break
        plain += body[: int(length, 16)]
        body = body[int(length, 16) + 2 :]
    return harness.events(plain[: plain.rfind(b"\n\n") + 2] if b"\n\n" in plain else b"")


def _told(events: list[dict[str, str]]) -> list[tuple[str, str]]:
    """The id and the text of everything that was said, results too."""
    found: list[tuple[str, str]] = []
    for event in events:
        if event.get("data"):
            message: Any = json.loads(event["data"])
            text = message["params"]["data"] if "params" in message else message["result"]["content"][0]["text"]
            found.append((event["id"], text))
    return found


class TestStore(Store.TestCase):
    settings = settings(quiet, max_examples=60)


class TestWire(Wire.TestCase):
    settings = quiet


@pytest.mark.soak
@pytest.mark.parametrize("machine", [Store, Wire])
def test_for_long(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(quiet, max_examples=400, stateful_step_count=50))
