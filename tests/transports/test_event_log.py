"""Test event streams against a model: replayable events, dropped events and the total size."""

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dovetail.protocol import sse
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.sse import SSEParser
from dovetail.transports.http_server.streams.event_log import EventLog, EventStream
from dovetail.transports.spool import MemoryBudget

payloads = st.binary(max_size=60).map(lambda raw: raw.hex().encode())


def finish(stream: EventStream) -> None:
    """A stream ends at a time, which is a loop's."""

    async def end() -> None:
        stream.finish()

    asyncio.run(end())


class Window(RuleBasedStateMachine):
    """One stream: numbers rise by one, the newest events that fit are kept, the rest is an error to ask for."""

    @initialize(events=st.integers(1, 5), size=st.integers(1, 400))
    def begin(self, events: int, size: int) -> None:
        self.events, self.size = events, size
        self.shelf = EventLog(ServerLimits(max_replay_events=events, max_replay_bytes=size), MemoryBudget(0))
        self.stream = EventStream("s", self.shelf)
        self.sent: list[tuple[int, bytes]] = []
        self.numbers = 0
        self.gone = 0

    @rule(data=payloads)
    def append(self, data: bytes) -> None:
        event = self.stream.append(data)
        self.numbers += 1
        self.sent.append((self.numbers, event))
        (parsed,) = SSEParser().feed(event)
        assert (parsed.id, parsed.data.encode()) == (f"s-{self.numbers}", data)
        while len(self.sent) > 1 and (
            len(self.sent) > self.events or sum(len(one) for _, one in self.sent) > self.size
        ):
            self.gone = self.sent.pop(0)[0]

    @rule()
    def number(self) -> None:
        self.numbers += 1
        assert self.stream.allocate_id() == f"s-{self.numbers}"

    @rule()
    def clear(self) -> None:
        self.stream.clear()
        if self.sent:
            self.gone = self.sent[-1][0]
            self.sent.clear()

    @precondition(lambda self: not self.stream.is_done)
    @rule()
    def finish(self) -> None:
        finish(self.stream)
        assert self.stream.ended_at is not None

    @rule(place=st.integers(-2, 30))
    def fetch(self, place: int) -> None:
        found = self.stream.read_after(place)
        if place > self.numbers or place < self.gone:
            assert found is None
        else:
            assert found == [entry for entry in self.sent if entry[0] > place]

    @invariant()
    def everything_that_was_never_fetched_is_either_kept_or_refused(self) -> None:
        assert self.stream.last_number == self.numbers
        assert self.stream.is_empty == (not self.sent)
        assert self.shelf.stored_bytes == sum(len(event) for _, event in self.sent)


Window.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestWindow = Window.TestCase


def _kept(stream: EventStream) -> list[tuple[int, bytes]]:
    """Return the events that a client can still fetch."""
    found = (stream.read_after(place) for place in range(stream.last_number + 1))
    return next((events for events in found if events is not None), [])


class Together(RuleBasedStateMachine):
    """Many streams: when they keep too much, those that ended first give way; a live one never does."""

    @initialize(total=st.integers(1, 800))
    def begin(self, total: int) -> None:
        self.total = total
        self.shelf = EventLog(ServerLimits(max_replay_total_bytes=total), MemoryBudget(0))
        self.live: list[EventStream] = []
        self.ended: list[EventStream] = []

    @rule()
    def open(self) -> None:
        self.live.append(EventStream(str(len(self.live) + len(self.ended)), self.shelf))

    @precondition(lambda self: self.live)
    @rule(data=payloads, which=st.integers(0))
    def append(self, data: bytes, which: int) -> None:
        self.live[which % len(self.live)].append(data)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0))
    def finish(self, which: int) -> None:
        stream = self.live.pop(which % len(self.live))
        held = {one: not one.is_empty for one in (*self.live, *self.ended)}
        finish(stream)
        self.ended.append(stream)
        assert all(one.is_empty != held[one] for one in self.live)
        kept = sum(sum(len(event) for _, event in one.read_after(0) or []) for one in self.ended if one.read_after(0))
        alive = sum(len(event) for one in self.live for _, event in one.read_after(0) or [])
        assert kept + alive <= self.total or not kept

    @invariant()
    def what_is_kept_is_counted(self) -> None:
        every = (*self.live, *self.ended)
        assert self.shelf.stored_bytes == sum(len(event) for one in every for _, event in _kept(one))

    @invariant()
    def those_that_ended_first_went_first(self) -> None:
        emptied = [one.is_empty for one in self.ended if one.last_number]
        assert emptied == sorted(emptied, reverse=True)


Together.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestTogether = Together.TestCase


def stream(**limits: Any) -> EventStream:
    return EventStream("s", EventLog(ServerLimits(**limits), MemoryBudget(0)))


def test_an_event_larger_than_the_window_is_kept_alone() -> None:
    one = stream(max_replay_bytes=10)
    one.append(b"small")
    large = one.append(b"x" * 1000)
    assert one.read_after(1) == [(2, large)]
    assert one.read_after(0) is None


def test_a_stream_that_keeps_nothing_is_forgotten() -> None:
    home: dict[str, EventStream] = {}
    one = home["s"] = EventStream("s", EventLog(ServerLimits(), MemoryBudget(0)), home)
    one.append(b"a")
    assert home == {"s": one}
    one.clear()
    one.clear()
    assert home == {}


def test_the_first_id_brings_everything_that_follows() -> None:
    one = stream()
    assert one.allocate_id() == "s-1"
    events = [one.append(b"a"), one.append(b"b")]
    assert one.read_after(1) == [(2, events[0]), (3, events[1])]
    assert one.read_after(3) == []
    assert one.read_after(4) is None


@pytest.mark.parametrize("primed", [True, False], ids=["primed", "bare"])
async def test_a_complete_stream_equals_an_appended_and_finished_one(primed: bool) -> None:
    whole, told = stream(), stream()
    sent = whole.store_complete(b"a", 0.0, has_priming_event=primed)
    first = sse.encode_event(b"", told.allocate_id()) if primed else b""
    assert sent == first + told.append(b"a")
    told.finish()
    assert whole.is_done
    assert whole.last_number == told.last_number
    assert [whole.read_after(place) for place in range(4)] == [told.read_after(place) for place in range(4)]
    whole.clear()
    assert whole.is_empty


async def test_a_reader_is_woken_by_an_event_the_end_and_another_reader() -> None:
    one, reader = stream(), object()
    woken: list[str] = []
    one.attach(reader, lambda: woken.append("first"))
    assert not woken
    one.append(b"a")
    assert woken == ["first"]
    one.attach(object(), lambda: woken.append("second"))
    assert woken == ["first", "first"]
    one.detach(reader)  # not the reader any more
    one.finish()
    assert woken == ["first", "first", "second"]


async def test_a_stream_ends_once() -> None:
    one = stream()
    one.append(b"a")
    one.finish()
    ended = one.ended_at
    await asyncio.sleep(0.001)
    one.finish()
    assert one.ended_at == ended
