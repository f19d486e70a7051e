"""Compute the delay before another try: doubled each time, up to a limit."""

from typing import Final

_MAX_DOUBLINGS: Final = 30  # of doubling: a nanosecond has become a second


def compute_backoff(initial_delay: float, attempts: int, max_delay: float) -> float:
    """Seconds to wait after so many vain tries; `first` after none."""
    return min(initial_delay * 2 ** min(attempts, _MAX_DOUBLINGS), max_delay)
