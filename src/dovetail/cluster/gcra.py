"""The generic cell rate algorithm. It limits a rate with one number: the time at which the whole burst is unused."""

from typing import Final

_ROUNDING_S: Final = 1e-6  # the tolerance for rounding errors


def take_cell(full_at: float | None, now: float, rate: float, burst: float) -> tuple[float, float]:
    """Count an event. Return the new time at which the burst is unused, and the seconds to wait, or 0.

    If the event must wait, it is not counted.
    """
    interval = 1.0 / rate
    tolerance = max(burst, 1.0) * interval
    # If the clock was set back, the stored time is too far in the future.
    start = now if full_at is None else max(now, min(full_at, now + tolerance))
    wait = start + interval - now - tolerance
    return (start, wait) if wait > _ROUNDING_S else (start + interval, 0.0)
