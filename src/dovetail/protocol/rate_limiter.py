"""Count events within a time window, such as failed logins or registrations. Callers pass the time."""

import ipaddress
from collections import deque
from typing import Final

_MAX_KEYS: Final = 10_000


class RateLimiter:
    """So many times within so many seconds, for each key."""

    def __init__(self, max_count: int, window_s: float) -> None:
        self._max_count = max_count
        self._window_s = window_s
        self._times_by_key: dict[str, deque[float]] = {}

    def is_full(self, key: str, now: float) -> bool:
        """Whether the next time would be too much."""
        times = self._times_by_key.get(key)
        if times is None:
            return self._max_count < 1
        while times and times[0] <= now - self._window_s:
            times.popleft()
        if not times:
            del self._times_by_key[key]
        return len(times) >= self._max_count

    def record(self, key: str, now: float) -> None:
        """It happened."""
        if key not in self._times_by_key and len(self._times_by_key) >= _MAX_KEYS:
            del self._times_by_key[next(iter(self._times_by_key))]
        self._times_by_key.setdefault(key, deque(maxlen=self._max_count)).append(now)

    def undo(self, key: str) -> None:
        """What was counted last did not happen."""
        times = self._times_by_key.get(key)
        if times:
            times.pop()

    @property
    def retry_after_s(self) -> int:
        """Seconds after which it is worth trying again."""
        return max(1, int(self._window_s))


def normalize_address(address: str) -> str:
    """Whom one address stands for: of IPv6 everyone has a whole network of them, the first half."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
