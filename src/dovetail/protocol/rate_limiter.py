"""Limit how often an event happens, such as a call, a failed login or a registration.

`build_limiter_key` and `group_address` create the keys of a limiter from names and addresses.
"""

import hashlib
import ipaddress
from array import array
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from dovetail.keys import build_key
from dovetail.wire.base import Struct

_MAX_KEYS: Final = 10_000
_MAX_KEY_CHARS: Final = 128
_ROUNDING: Final = 1e-9  # the tolerance for rounding errors, in tokens
_MIN_WAIT_S: Final = 1e-9  # The waiting time is never 0, because 0 means that the event is allowed.


class _Bucket(Struct):
    tokens: float
    updated_at: float


class RateLimiter:
    """A rate limit for each key. It allows `burst` events at once, and then `max_count` events per `window_s` seconds.

    `burst` is `max_count` by default, and at least 1 if any event is allowed. If there are too many keys, the limiter
    drops full buckets, because they restrict nothing. It looks for them at most once per window. Otherwise it drops the
    key of the oldest event.
    """

    def __init__(self, max_count: float, window_s: float, *, burst: float | None = None) -> None:
        if burst is None:
            burst = max(1.0, max_count) if max_count > 0 else 0.0
        self._burst = burst
        self._rate = max_count / window_s
        self._window_s = window_s
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()  # the key with the oldest event is first
        self._sweep_at = 0.0

    def take(self, key: Hashable, now: float, *, borrow: bool = False) -> float:
        """Count an event and return 0. If the limit is reached, return the seconds to wait instead.

        With `borrow`, count the event even if the limit is reached. The caller must then wait for the returned time.
        """
        bucket = self._buckets.get(key) or self._add_bucket(key, now)
        tokens = self._refill(bucket, now)
        bucket.updated_at = now
        self._buckets.move_to_end(key)
        if tokens + _ROUNDING >= 1.0:
            bucket.tokens = tokens - 1.0
            return 0.0
        bucket.tokens = tokens - 1.0 if borrow else tokens
        return self._to_seconds(tokens)

    def compute_wait(self, key: Hashable, now: float) -> float:
        """Return the seconds until the next event is allowed, or 0 if it is allowed now."""
        bucket = self._buckets.get(key)
        tokens = self._burst if bucket is None else self._refill(bucket, now)
        return 0.0 if tokens + _ROUNDING >= 1.0 else self._to_seconds(tokens)

    def undo(self, key: Hashable) -> None:
        """Remove one counted event."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.tokens = min(bucket.tokens + 1.0, self._burst)

    def _refill(self, bucket: _Bucket, now: float) -> float:
        elapsed = now - bucket.updated_at
        if elapsed < 0.0:  # The clock was set back.
            bucket.updated_at = now
            return bucket.tokens
        return min(self._burst, bucket.tokens + elapsed * self._rate)

    def _to_seconds(self, tokens: float) -> float:
        return (1.0 - tokens) / self._rate if self._rate else self._window_s

    def _add_bucket(self, key: Hashable, now: float) -> _Bucket:
        if len(self._buckets) >= _MAX_KEYS:
            self._make_room(now)
        bucket = self._buckets[key] = _Bucket(self._burst, now)
        return bucket

    def _make_room(self, now: float) -> None:
        if _is_sweep_due(self._sweep_at, self._window_s, now):
            self._sweep_at = now + self._window_s
            full_keys = [key for key, bucket in self._buckets.items() if self._refill(bucket, now) >= self._burst]
            for key in full_keys:
                del self._buckets[key]
        if len(self._buckets) >= _MAX_KEYS:
            self._buckets.popitem(last=False)


class WindowLimiter:
    """A strict rate limit for each key. In any `window_s` seconds, it allows at most `max_count` events.

    A token bucket allows up to twice as many events in its first window. This limiter stores the time of each event.
    """

    def __init__(self, max_count: int, window_s: float) -> None:
        self._max_count = max_count
        self._window_s = window_s
        self._times: OrderedDict[Hashable, array[float]] = OrderedDict()  # the key with the oldest event is first
        self._sweep_at = 0.0

    def take(self, key: Hashable, now: float) -> float:
        """Count an event and return 0. If the limit is reached, return the seconds to wait instead."""
        wait_s = self.compute_wait(key, now)
        if not wait_s:
            if key not in self._times:
                self._make_room(now)
            self._times.setdefault(key, array("d")).append(now)
            self._times.move_to_end(key)
        return wait_s

    def compute_wait(self, key: Hashable, now: float) -> float:
        """Return the seconds until the next event is allowed, or 0 if it is allowed now."""
        times = self._drop_old(key, now)
        if len(times) < self._max_count:
            return 0.0
        return max(times[-self._max_count] + self._window_s - now, _MIN_WAIT_S) if self._max_count else self._window_s

    def undo(self, key: Hashable) -> None:
        """Remove one counted event."""
        times = self._times.get(key)
        if times:
            times.pop()

    def _drop_old(self, key: Hashable, now: float) -> "array[float]":
        times = self._times.get(key)
        if times is None:
            return array("d")
        # After the clock was set back, a stored time can be far in the future.
        if times and not now - self._window_s < times[0] <= now + self._window_s:
            times = array("d", (time for time in times if now - self._window_s < time <= now + self._window_s))
            self._times[key] = times
        return times

    def _make_room(self, now: float) -> None:
        if len(self._times) >= _MAX_KEYS and _is_sweep_due(self._sweep_at, self._window_s, now):
            self._sweep_at = now + self._window_s
            for key in list(self._times):
                if not self._drop_old(key, now):
                    del self._times[key]
        if len(self._times) >= _MAX_KEYS:
            self._times.popitem(last=False)


def _is_sweep_due(sweep_at: float, window_s: float, now: float) -> bool:
    # After the clock was set back, a stored time can be far in the future.
    return not sweep_at - window_s <= now < sweep_at


def build_limiter_key(*names: str) -> str:
    """Return a rate limiter key for these names. Long keys are hashed."""
    key = build_key(*names)
    return key if len(key) <= _MAX_KEY_CHARS else hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def group_address(address: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address. One client usually has a whole /64 network."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
