"""The generic cell rate algorithm. Its state is one number: the time at which the full burst is available again."""

from typing import Final

_ROUNDING_S: Final = 1e-6  # the tolerance for rounding errors


def take_cell(full_at: float | None, now: float, rate: float, burst: float) -> tuple[float, float]:
    """Count an event. Return the new state and 0.

    If the limit is reached, do not count the event. Return the old state and the seconds to wait.
    """
    interval = 1.0 / rate
    tolerance = max(burst, 1.0) * interval
    # The stored time is too far in the future if the clock was set back.
    start = now if full_at is None else max(now, min(full_at, now + tolerance))
    wait = start + interval - now - tolerance
    return (start, wait) if wait > _ROUNDING_S else (start + interval, 0.0)
