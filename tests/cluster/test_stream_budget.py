"""Limits of one worker: the bytes of its streams, and rates."""

import pytest

from dovetail.cluster.gcra import take_cell
from dovetail.cluster.stream_budget import StreamBudget
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable, StreamLimits


def store(budget: StreamBudget, stream: str, number: int, size: int, now: float, *, is_last: bool = False) -> list[str]:
    """Store an event, and return the streams that were deleted for it."""
    evicted = budget.find_evictions(stream, number, size, now)
    for name in evicted:
        budget.forget(name)
    budget.count(stream, number, size, now, is_last=is_last)
    return evicted


def test_the_oldest_finished_streams_make_room() -> None:
    budget = StreamBudget(StreamLimits(max_total_bytes=100))
    assert store(budget, "open", 1, 30, 0.0) == []
    assert store(budget, "a", 1, 30, 1.0, is_last=True) == []
    assert store(budget, "b", 1, 30, 2.0, is_last=True) == []
    assert store(budget, "c", 1, 50, 3.0, is_last=True) == ["a", "b"]
    with pytest.raises(SharedStateUnavailable):
        budget.find_evictions("d", 1, 90, 4.0)


def test_expired_and_deleted_streams_do_not_count() -> None:
    budget = StreamBudget(StreamLimits(max_total_bytes=100, ttl=10, open_ttl=20))
    store(budget, "ended", 1, 40, 0.0, is_last=True)
    store(budget, "open", 1, 40, 0.0)
    assert store(budget, "a", 1, 50, 15.0) == []
    budget.forget("a")
    budget.forget("a")
    assert store(budget, "b", 1, 60, 15.0) == []
    assert store(budget, "c", 1, 40, 25.0) == []


def test_a_stream_counts_at_most_what_is_stored_of_it() -> None:
    budget = StreamBudget(StreamLimits(max_total_bytes=100, max_bytes=50))
    for number in range(1, 11):
        assert store(budget, "long", number, 20, 0.0) == []
    assert store(budget, "other", 1, 50, 0.0) == []
    with pytest.raises(SharedStateUnavailable):
        store(budget, "another", 1, 1, 0.0)


def test_a_repeated_event_counts_once() -> None:
    budget = StreamBudget(StreamLimits(max_total_bytes=100))
    for _ in range(10):
        assert store(budget, "a", 1, 40, 0.0) == []
    for _ in range(10):  # The stream never deletes itself.
        assert store(budget, "a", 2, 50, 0.0, is_last=True) == []
        assert store(budget, "a", 1, 40, 0.0) == []
    assert store(budget, "b", 1, 10, 0.0) == []
    assert store(budget, "b", 2, 50, 0.0) == ["a"]
    assert store(budget, "b", 3, 40, 0.0) == []


def test_an_event_that_was_not_stored_does_not_count() -> None:
    budget = StreamBudget(StreamLimits(max_total_bytes=100))
    for _ in range(10):
        assert budget.find_evictions("a", 1, 90, 0.0) == []
    assert store(budget, "b", 1, 100, 0.0) == []


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
