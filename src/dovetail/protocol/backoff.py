"""Compute the delay before a retry. The delay doubles each time, up to a limit."""

from typing import Final

_MAX_DOUBLINGS: Final = 30  # 30 doublings turn a nanosecond into a second


def compute_backoff(initial_delay: float, attempts: int, max_delay: float) -> float:
    """Return the seconds to wait after this many failed attempts, starting with `initial_delay`."""
    return min(initial_delay * 2 ** min(attempts, _MAX_DOUBLINGS), max_delay)
