"""Test that a rate limiter allows a burst, then an even rate, for each key, in bounded memory."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.protocol.rate_limiter import RateLimiter, WindowLimiter, group_address


def test_a_burst_is_allowed_and_then_an_even_rate() -> None:
    limiter = RateLimiter(2, 10.0)
    assert [limiter.take("a", 100.0) for _ in range(3)] == [0.0, 0.0, pytest.approx(5.0)]
    assert limiter.take("b", 100.0) == 0.0
    assert limiter.take("a", 104.0) == pytest.approx(1.0)
    assert [limiter.take("a", 105.0) for _ in range(2)] == [0.0, pytest.approx(5.0)]


def test_the_wait_is_known_without_counting() -> None:
    limiter = RateLimiter(1, 10.0)
    assert [limiter.compute_wait("a", 0.0) for _ in range(3)] == [0.0] * 3
    limiter.take("a", 0.0)
    assert [limiter.compute_wait("a", now) for now in (0.0, 4.0, 10.0)] == [
        10.0,
        pytest.approx(6.0),
        0.0,
    ]


def test_a_rejected_event_does_not_count() -> None:
    limiter = RateLimiter(1, 10.0)
    assert [bool(limiter.take("a", now)) for now in (0.0, 5.0, 9.0, 10.0)] == [False, True, True, False]


def test_borrowers_wait_one_after_the_other() -> None:
    limiter = RateLimiter(1, 10.0)
    assert [limiter.take("a", 0.0, borrow=True) for _ in range(3)] == [0.0, 10.0, 20.0]


def test_an_event_can_be_taken_back() -> None:
    limiter = RateLimiter(1, 10.0)
    limiter.take("a", 0.0)
    limiter.undo("a")
    limiter.undo("a")
    limiter.undo("b")
    assert [bool(limiter.take("a", 0.0)) for _ in range(2)] == [False, True]


def test_a_limit_of_none_allows_nothing() -> None:
    limiter = RateLimiter(0, 10.0)
    assert limiter.compute_wait("a", 0.0) == limiter.take("a", 1e9) == 10.0


def test_a_clock_that_is_set_back_blocks_no_caller() -> None:
    limiter = RateLimiter(2, 10.0)
    limiter.take("a", 1e9)
    assert limiter.take("a", 0.0) == 0.0
    assert limiter.take("a", 5.0) == 0.0


def test_a_blocked_key_recovers_after_the_clock_was_set_back() -> None:
    limiter = RateLimiter(1, 10.0)
    limiter.take("a", 1e9)
    assert limiter.compute_wait("a", 0.0) == 10.0
    assert limiter.compute_wait("a", 10.0) == 0.0


def test_full_buckets_are_dropped_after_the_clock_was_set_back() -> None:
    limiter = RateLimiter(1, 10.0)
    for number in range(10_001):
        limiter.take(number, 1e9)
    for _ in range(2):
        limiter.take("blocked", 0.0, borrow=True)
    for number in range(9_999):
        limiter.take(("full", number), 0.0)
        limiter.undo(("full", number))
    limiter.take("new", 10.0)
    assert limiter.compute_wait("blocked", 10.0) == pytest.approx(10.0)


def test_a_rate_below_one_per_window_allows_one_event() -> None:
    limiter = RateLimiter(0.5, 10.0)
    assert limiter.compute_wait("a", 0.0) == limiter.take("a", 0.0) == 0.0
    assert limiter.take("a", 19.0) == pytest.approx(1.0)
    assert limiter.take("a", 20.0) == 0.0


@given(st.integers(1, 500), st.floats(0.001, 1e5), st.floats(0, 2e9))
def test_exactly_the_burst_is_allowed_at_once(count: int, window: float, now: float) -> None:
    limiter = RateLimiter(count, window)
    assert sum(not limiter.take("a", now) for _ in range(count + 5)) == count
    wait = limiter.compute_wait("a", now)
    assert 0.0 < wait <= window * 1.001


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300).map(sorted))
def test_no_time_span_has_more_than_the_burst_and_the_rate(times: list[float]) -> None:
    limiter = RateLimiter(3, 10.0)
    allowed = [now for now in times if not limiter.take("a", now)]
    for first, start in enumerate(allowed):
        for last, end in enumerate(allowed[first:], first):
            assert last - first + 1 <= 3 + (end - start) * 0.3 + 1e-6


def test_keys_that_may_go_on_are_forgotten_first() -> None:
    limiter = RateLimiter(1, 1000.0)
    limiter.take("recovered", 0.0)
    for number in range(9_999):
        limiter.take(number, 500.0)
    limiter.take("new", 1001.0)
    assert all(limiter.compute_wait(number, 1001.0) for number in (0, 9_998, "new"))


@pytest.mark.parametrize("limiter", [RateLimiter(2, 1000.0), WindowLimiter(2, 1000.0)])
def test_the_key_of_the_oldest_event_makes_room(limiter: RateLimiter | WindowLimiter) -> None:
    for number in range(10_000):
        limiter.take(number, 0.0)
    limiter.take(0, 1.0)
    limiter.take("new", 2.0)
    assert limiter.compute_wait(0, 2.0) > 0.0
    assert limiter.take(1, 2.0) == limiter.take(1, 2.0) == 0.0  # its first event was forgotten


def test_a_flood_of_keys_takes_bounded_memory() -> None:
    limiter = RateLimiter(1, 1000.0)
    for number in range(10_000):
        limiter.take(number, 0.0)
    tracemalloc.start()
    try:
        for number in range(10_000, 40_000):
            limiter.take(number, 1.0)
        growth, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert growth < 10_000 * 300
    assert limiter.compute_wait(39_999, 1.0)


@given(st.integers(1, 5), st.lists(st.floats(0, 30), max_size=60).map(sorted))
def test_no_window_has_more_events_than_allowed(max_count: int, times: list[float]) -> None:
    limiter, allowed = WindowLimiter(max_count, 10.0), []
    for now in times:
        wait_s = limiter.compute_wait("a", now)
        assert limiter.take("a", now) == wait_s
        if not wait_s:
            allowed.append(now)
        else:
            assert wait_s == pytest.approx(allowed[-max_count] + 10.0 - now, abs=1e-6)
    for start in allowed:
        assert sum(start <= moment < start + 10.0 for moment in allowed) <= max_count


def test_a_window_limiter_counts_each_key_and_can_undo() -> None:
    limiter = WindowLimiter(2, 10.0)
    assert [limiter.take("a", 100.0) for _ in range(3)] == [0.0, 0.0, 10.0]
    assert limiter.take("b", 100.0) == 0.0
    limiter.undo("a")
    limiter.undo("unknown")
    assert [limiter.take("a", 101.0) for _ in range(2)] == [0.0, 9.0]
    assert WindowLimiter(0, 10.0).take("a", 0.0) == 10.0


def test_a_window_limiter_forgets_times_ahead_after_the_clock_was_set_back() -> None:
    limiter = WindowLimiter(1, 10.0)
    assert [limiter.take("a", 86400.0), limiter.take("a", 0.0), limiter.take("a", 1.0)] == [0.0, 0.0, 9.0]


def test_a_window_limiter_has_bounded_memory() -> None:
    limiter = WindowLimiter(1, 10.0)
    for number in range(10_001):
        assert limiter.take(number, 0.0) == 0.0
    assert limiter.take(10_000, 1.0) > 0.0
    assert limiter.take(0, 1.0) == 0.0  # the oldest key made room


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ],
)
def test_one_client_has_a_whole_network(address: str, group: str) -> None:
    assert group_address(address) == group
