"""Test the quotas of a policy, and that the strictest of several applies."""

from typing import Any

import pytest

from dovetail.host.policy.quotas import ToolLimits, combine_limits, parse_limits, parse_rate


@pytest.mark.parametrize(
    ("written", "rate"),
    [("60/min", (60, 60.0)), ("1/s", (1, 1.0)), ("5/h", (5, 3600.0)), ("2/day", (2, 86400.0))],
)
def test_rates(written: str, rate: tuple[int, float]) -> None:
    assert parse_limits(written) == ToolLimits(rate=written)
    assert parse_rate(written) == rate


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("60", "60/min"),
        ("0/min", "60/min"),
        ("-1/min", "60/min"),
        ("1/fortnight", "60/min"),
        ({"rates": "1/s"}, "rates"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": "1"}, "timeout"),
        ({"max_concurrency": 1.5}, r"concurrency.*1\.5"),
        ({"max_result_bytes": -1}, "max_result_bytes"),
        ({"rate": 60}, "60/min"),
    ],
)
def test_an_invalid_limit(given: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_limits(given)


def test_of_two_limits_the_stricter_counts() -> None:
    one = parse_limits({"timeout": 5, "max_result_bytes": 100, "rate": "100/min"})
    other = parse_limits({"timeout": 9, "max_concurrency": 2, "rate": "2/s"})
    tight = combine_limits(one, other)
    assert tight == combine_limits(other, one)
    assert tight == ToolLimits(timeout=5, max_result_bytes=100, max_concurrency=2, rate="100/min")
    assert combine_limits(ToolLimits(), one) == one
    assert str(tight) == "timeout 5, max_result_bytes 100, max_concurrency 2, rate 100/min"
