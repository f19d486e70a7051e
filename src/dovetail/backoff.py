"""Compute the delay before a retry. The delay doubles each time, up to a limit."""

from typing import Final

_MAX_DOUBLINGS: Final = 30  # This limit prevents an overflow after many failures.


def compute_backoff(initial_delay: float, attempts: int, max_delay: float) -> float:
    """Return how many seconds to wait before the next attempt, based on the number of failed attempts.

    The delay starts at `initial_delay` and doubles with each attempt, up to `max_delay`.
    """
    return min(initial_delay * 2 ** min(attempts, _MAX_DOUBLINGS), max_delay)
