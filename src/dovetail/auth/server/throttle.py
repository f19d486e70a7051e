"""Throttle: how often something may go wrong, or be asked for, within a while. The time is an argument."""

import ipaddress
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
            return self._most < 1
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

    def forgive(self, key: str) -> None:
        """What was counted last did not happen."""
        seen = self._seen.get(key)
        if seen:
            seen.pop()

    @property
    def wait(self) -> int:
        """Seconds after which it is worth trying again."""
        return max(1, int(self._seconds))


def neighbours(address: str) -> str:
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
