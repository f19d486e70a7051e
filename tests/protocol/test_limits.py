"""Test that every limit has a default, is frozen and is used."""

import re
from pathlib import Path

import pytest

from dovetail.protocol.limits import FetchLimits, ServerLimits

NAMES = ServerLimits.__struct_fields__


def test_every_limit_is_a_positive_number() -> None:
    assert all(getattr(ServerLimits(), name) > 0 for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_limit_is_used(name: str, root: Path) -> None:
    sources = (root / "src" / "dovetail").rglob("*.py")
    use = re.compile(rf"limits\.{name}\b")
    assert any(use.search(path.read_text(encoding="utf-8")) for path in sources if path.name != "limits.py")


def test_times_and_sizes_fit_together() -> None:
    limits = ServerLimits()
    assert limits.max_calls_per_connection <= limits.max_calls
    assert limits.max_calls_per_principal <= limits.max_calls
    assert limits.max_sessions_per_address <= limits.max_sessions_per_principal <= limits.max_sessions
    assert limits.max_header_bytes <= limits.max_header_block_bytes
    assert limits.max_body_bytes <= limits.max_message_bytes
    assert limits.max_meta_bytes < limits.max_body_bytes
    assert limits.initialize_timeout < limits.session_idle_timeout < limits.session_lifetime
    assert limits.drain_timeout < limits.shutdown_timeout
    assert limits.thread_queue_timeout < limits.call_timeout


@pytest.mark.parametrize("value", [-1, -0.5, float("nan")])
def test_a_limit_is_not_negative(value: float) -> None:
    for name in NAMES:
        with pytest.raises(ValueError, match=name):
            ServerLimits(**{name: value})
    assert ServerLimits(max_body_bytes=0).max_body_bytes == 0


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_an_idle_timeout_is_a_number_of_seconds(value: str) -> None:
    with pytest.raises(ValueError, match=f"idle_timeout must be a number of seconds above 0, not {value}"):
        ServerLimits(idle_timeout=float(value))


def test_limits_are_given_by_name_and_never_change() -> None:
    limits = ServerLimits(max_body_bytes=10)
    assert (limits.max_body_bytes, limits.max_message_bytes) == (10, ServerLimits().max_message_bytes)
    with pytest.raises(AttributeError):
        limits.max_body_bytes = 11  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        ServerLimits(10)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="bodies"):
        ServerLimits(bodies=10)  # pyright: ignore[reportCallIssue]


def test_a_limit_of_fetched_documents_is_at_least_one() -> None:
    for name in FetchLimits.__struct_fields__:
        assert getattr(FetchLimits(**{name: 1}), name) == 1
        with pytest.raises(ValueError, match=f"the limit {name} must be at least 1"):
            FetchLimits(**{name: 0})
