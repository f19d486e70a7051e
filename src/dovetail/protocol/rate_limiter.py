"""Limit how often an event happens, for example a call, a failed login or a registration. Callers pass the time."""

import hashlib
import ipaddress
from collections.abc import Hashable
from typing import Final

from dovetail.wire.base import Struct

_MAX_KEYS: Final = 10_000
_MAX_KEY_CHARS: Final = 128
_ROUNDING: Final = 1e-9  # tolerance for rounding errors, as a fraction of a token


class _Bucket(Struct):
    tokens: float
    updated_at: float


class RateLimiter:
    """A rate limit for each key. It allows `burst` events at once, and `max_count` more in every `window_s` seconds.

    If there are too many keys, the limiter drops full buckets first, because they contain no information.
    """

    def __init__(self, max_count: float, window_s: float, *, burst: float | None = None) -> None:
        self._burst = max_count if burst is None else burst
        self._rate = max_count / window_s
        self._window_s = window_s
        self._buckets: dict[Hashable, _Bucket] = {}
        self._sweep_at = 0.0

    def take(self, key: Hashable, now: float, *, borrow: bool = False) -> float:
        """Count an event and return 0. If it is one too many, do not count it, and return how many seconds to wait.

        With `borrow`, count the event in any case. The caller must then wait for the returned time.
        """
        bucket = self._buckets.get(key) or self._add_bucket(key, now)
        tokens = self._refill(bucket, now)
        bucket.updated_at = now
        if tokens + _ROUNDING >= 1.0:
            bucket.tokens = tokens - 1.0
            return 0.0
        bucket.tokens = tokens - 1.0 if borrow else tokens
        return self._to_seconds(tokens)

    def compute_wait(self, key: Hashable, now: float) -> float:
        """Return how many seconds to wait for the next event, or 0 if it is allowed now."""
        bucket = self._buckets.get(key)
        tokens = self._burst if bucket is None else self._refill(bucket, now)
        return 0.0 if tokens + _ROUNDING >= 1.0 else self._to_seconds(tokens)

    def undo(self, key: Hashable) -> None:
        """Remove one counted event."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.tokens = min(bucket.tokens + 1.0, self._burst)

    def _refill(self, bucket: _Bucket, now: float) -> float:
        elapsed = now - bucket.updated_at  # negative if the clock was set back
        tokens = bucket.tokens + elapsed * self._rate if elapsed > 0.0 else bucket.tokens
        return min(self._burst, tokens)

    def _to_seconds(self, tokens: float) -> float:
        return (1.0 - tokens) / self._rate if self._rate else self._window_s

    def _add_bucket(self, key: Hashable, now: float) -> _Bucket:
        if len(self._buckets) >= _MAX_KEYS:
            self._make_room(now)
        bucket = self._buckets[key] = _Bucket(self._burst, now)
        return bucket

    def _make_room(self, now: float) -> None:
        if now >= self._sweep_at:
            # remove old keys at most once per window, because this reads all keys
            self._sweep_at = now + self._window_s
            self._buckets = {
                key: bucket for key, bucket in self._buckets.items() if self._refill(bucket, now) < self._burst
            }
        if len(self._buckets) >= _MAX_KEYS:
            del self._buckets[next(iter(self._buckets))]


def build_key(*names: str) -> str:
    """Return a key of limited size for names that a caller chooses."""
    key = "\0".join(names)
    return key if len(key) <= _MAX_KEY_CHARS else hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def normalize_address(address: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address, because a client usually has a whole network."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
