"""How long to wait before something is tried again: twice as long each time, up to a limit, however often that is."""

from typing import Final

_STEPS: Final = 30  # of doubling: a nanosecond has become a second


def backoff(first: float, tries: int, most: float) -> float:
    """Seconds to wait after so many vain tries; `first` after none."""
    return min(first * 2 ** min(tries, _STEPS), most)
