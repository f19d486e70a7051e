"""Middleware that measures the duration of requests, by method and name."""

import bisect
import time
from typing import Final

from dovetail.middleware.caller_and_outcome import has_failed
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.middleware import CallNext, get_target_name
from dovetail.wire.base import Struct

# Callers choose the names, so the number of entries is limited. At the limit, all new names share one entry.
_MAX_ENTRIES: Final = 1000
_OTHER_NAMES: Final = "(others)"
# Each upper bound is twice the previous one, so a percentile is at most twice the true value.
_BUCKET_BOUNDS_S: Final = tuple(0.0001 * 2**n for n in range(22))


class TimingStats(Struct):
    """Statistics about the requests with the same method and name. Durations are in seconds."""

    count: int = 0  # The number of requests.
    failures: int = 0  # The number of requests that failed.
    total: float = 0.0  # The sum of the durations.
    slowest: float = 0.0  # The longest duration.
    bucket_counts: list[int] | None = None  # The histogram of the durations, which `percentile` uses.

    @property
    def mean(self) -> float:
        """The mean duration in seconds."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return a percentile of the durations in seconds. For example, `percentile(50)` is the median.

        The returned duration is approximate. It can be up to twice as long as the exact duration.
        """
        target_count, counted = percent / 100 * self.count, 0
        for bound, count in zip(_BUCKET_BOUNDS_S, self.bucket_counts or (), strict=False):
            counted += count
            if counted >= target_count:
                return min(bound, self.slowest)
        return self.slowest


class Timing:
    """Middleware that measures the number and duration of requests.

    Read `timing["tools/call", "search"].mean`, or all values in `timing.stats`.
    """

    def __init__(self) -> None:
        self.stats: dict[tuple[str, str], TimingStats] = {}

    def __getitem__(self, key: tuple[str, str]) -> TimingStats:
        return self.stats.get(key) or TimingStats()

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
        if exchange.method == "subscriptions/listen":  # A subscription stays open, so its duration is not useful.
            return await call_next(exchange)
        started, is_failure = time.perf_counter(), True
        try:
            result = await call_next(exchange)
            is_failure = has_failed(result)
            return result
        finally:
            self._record(exchange, time.perf_counter() - started, is_failure)

    def _record(self, exchange: Exchange, duration: float, is_failure: bool) -> None:
        key = (exchange.method, get_target_name(exchange))
        if key not in self.stats and len(self.stats) >= _MAX_ENTRIES:
            key = (exchange.method, _OTHER_NAMES)
        stats = self.stats.setdefault(key, TimingStats())
        stats.bucket_counts = stats.bucket_counts or [0] * (len(_BUCKET_BOUNDS_S) + 1)
        stats.bucket_counts[bisect.bisect_left(_BUCKET_BOUNDS_S, duration)] += 1
        stats.count += 1
        stats.failures += is_failure
        stats.total += duration
        stats.slowest = max(stats.slowest, duration)
