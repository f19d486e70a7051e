"""The generic cell rate algorithm. Its state is one number: the time at which the full burst is available again."""

from typing import Final

_ROUNDING_S: Final = 1e-6  # the tolerance for rounding errors


def check_rate(rate: float, burst: float, cost: float) -> None:
    """Raise ValueError if no event could ever be allowed."""
    if rate <= 0:
        raise ValueError(f"the rate must be positive, not {rate}")
    if cost > max(burst, 1.0):
        raise ValueError(f"the cost {cost} is above the burst {burst}, so the event would never be allowed")


def take_cell(full_at: float | None, now: float, rate: float, burst: float, cost: float = 1.0) -> tuple[float, float]:
    """Count an event of a cost. Return the new state and 0.

    If the limit is reached, do not count the event. Return the old state and the seconds to wait. With the cost 0,
    return the old state and the seconds until an event of cost 1 is allowed. A negative cost takes back an event.
    """
    interval = 1.0 / rate
    tolerance = max(burst, 1.0) * interval
    # The stored time is too far in the future if the clock was set back.
    start = now if full_at is None else max(now, min(full_at, now + tolerance))
    if cost < 0:
        return max(now, start + cost * interval), 0.0
    wait = start + (cost or 1.0) * interval - now - tolerance
    return (start, wait) if wait > _ROUNDING_S else (start + cost * interval, 0.0)
