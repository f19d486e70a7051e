"""Test that the delay doubles up to its limit, for any number of attempts."""

from dovetail.backoff import compute_backoff


def test_it_doubles_up_to_the_limit() -> None:
    assert [compute_backoff(0.5, tries, 5.0) for tries in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_no_number_of_tries_fails() -> None:
    assert compute_backoff(0.5, 5000, 5.0) == 5.0
    assert compute_backoff(0.0, 5000, 5.0) == 0.0
