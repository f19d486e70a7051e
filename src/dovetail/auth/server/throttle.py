"""Throttle: how often something may go wrong, or be asked for, within a while. The time is an argument."""

from collections import deque
from typing import Final

_KEYS: Final = 10_000


class Throttle:
    """So many times within so many seconds, for each key."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._seen: dict[str, deque[float]] = {}

    def full(self, key: str, now: float) -> bool:
        """Whether the next time would be too much."""
        seen = self._seen.get(key)
        if seen is None:
            return False
        while seen and seen[0] <= now - self._seconds:
            seen.popleft()
        if not seen:
            del self._seen[key]
        return len(seen) >= self._most

    def count(self, key: str, now: float) -> None:
        """It happened."""
        if key not in self._seen and len(self._seen) >= _KEYS:
            del self._seen[next(iter(self._seen))]
        self._seen.setdefault(key, deque(maxlen=self._most)).append(now)

    @property
    def wait(self) -> int:
        """Seconds after which it is worth trying again."""
        return max(1, int(self._seconds))
