"""Limits: each one has a sensible default, is frozen, and is looked at somewhere."""

import re
from pathlib import Path

import pytest

from dovetail.protocol.limits import Limits

NAMES = Limits.__struct_fields__


def test_every_limit_is_a_positive_number() -> None:
    assert all(getattr(Limits(), name) > 0 for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_limit_is_used(name: str, root: Path) -> None:
    sources = (root / "src" / "dovetail").rglob("*.py")
    use = re.compile(rf"limits\.{name}\b")
    assert any(use.search(path.read_text(encoding="utf-8")) for path in sources if path.name != "limits.py")


def test_times_and_sizes_fit_together() -> None:
    limits = Limits()
    assert limits.calls_per_connection <= limits.calls
    assert limits.calls_per_principal <= limits.calls
    assert limits.sessions_per_address <= limits.sessions_per_principal <= limits.sessions
    assert limits.header <= limits.header_block
    assert limits.body <= limits.line
    assert limits.meta < limits.body
    assert limits.session_opening < limits.session_idle < limits.session_lifetime
    assert limits.drain < limits.hard_stop
    assert limits.waiting_time < limits.run_time


@pytest.mark.parametrize("value", [-1, -0.5, float("nan")])
def test_a_limit_is_not_negative(value: float) -> None:
    for name in NAMES:
        with pytest.raises(ValueError, match=name):
            Limits(**{name: value})
    assert Limits(body=0).body == 0


def test_limits_are_given_by_name_and_never_change() -> None:
    limits = Limits(body=10)
    assert (limits.body, limits.line) == (10, Limits().line)
    with pytest.raises(AttributeError):
        limits.body = 11  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        Limits(10)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="bodies"):
        Limits(bodies=10)  # pyright: ignore[reportCallIssue]
