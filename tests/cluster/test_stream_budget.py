"""Limits of one worker: the bytes of its streams, and rates."""

import pytest

from dovetail.cluster.gcra import take_cell
from dovetail.cluster.stream_budget import StreamBudget
from dovetail.protocol.shared_state import SharedStateUnavailable, StreamLimits


def test_the_oldest_finished_streams_make_room() -> None:
    budget = StreamBudget(StreamLimits(max_total_bytes=100))
    assert budget.add("open", 30, 0.0, is_last=False) == []
    assert budget.add("a", 30, 1.0, is_last=True) == []
    assert budget.add("b", 30, 2.0, is_last=True) == []
    assert budget.add("c", 50, 3.0, is_last=True) == ["a", "b"]
    with pytest.raises(SharedStateUnavailable):
        budget.add("d", 90, 4.0, is_last=False)


def test_expired_and_deleted_streams_do_not_count() -> None:
    budget = StreamBudget(StreamLimits(max_total_bytes=100, ttl=10, open_ttl=20))
    budget.add("ended", 40, 0.0, is_last=True)
    budget.add("open", 40, 0.0, is_last=False)
    assert budget.add("a", 50, 15.0, is_last=False) == []
    budget.forget("a")
    assert budget.add("b", 60, 15.0, is_last=False) == []
    assert budget.add("c", 40, 25.0, is_last=False) == []


def test_a_stream_counts_at_most_what_is_stored_of_it() -> None:
    budget = StreamBudget(StreamLimits(max_total_bytes=100, max_bytes=50))
    for _ in range(10):
        assert budget.add("long", 20, 0.0, is_last=False) == []


def test_a_rate_recovers_one_event_at_a_time() -> None:
    full_at, waits = None, list[float]()
    for now in (0.0, 0.0, 0.0, 0.4, 1.0, 1.0):
        full_at, wait = take_cell(full_at, now, rate=1.0, burst=2.0)
        waits.append(round(wait, 3))
    assert waits == [0, 0, 1.0, 0.6, 0, 1.0]


def test_a_clock_that_was_set_back_does_not_block_a_caller() -> None:
    full_at, _ = take_cell(None, 10_000.0, rate=1.0, burst=2.0)
    _, wait = take_cell(full_at, 0.0, rate=1.0, burst=2.0)
    assert 0 < wait <= 1.0
