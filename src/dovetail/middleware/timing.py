"""Timing: how long requests take, counted in this process, to be looked at whenever one likes."""

import bisect
import time
from typing import Any, Final

from dovetail.middleware.seeing import about, failed, listens
from dovetail.protocol.around import Call
from dovetail.protocol.exchange import Exchange
from dovetail.wire.shape import Struct

_MOST: Final = 1000  # different things counted apart; names are the caller's to choose
_OTHERS: Final = "(others)"
# Upper ends in seconds; within one the true value is at most twice off.
_STEPS: Final = tuple(0.0001 * 2**n for n in range(22))


class Measured(Struct):
    """What is known of one method and name, in seconds."""

    count: int = 0
    failures: int = 0
    total: float = 0.0
    slowest: float = 0.0
    steps: list[int] | None = None

    @property
    def mean(self) -> float:
        """The average."""
        return self.total / self.count if self.count else 0.0

    def within(self, share: float) -> float:
        """The time within which this share of the requests was done, rounded up to a power of two."""
        wanted, seen = share * self.count, 0
        for step, count in zip(_STEPS, self.steps or (), strict=False):
            seen += count
            if seen >= wanted:
                return min(step, self.slowest)
        return self.slowest


class Timing:
    """Counts and times requests; `timing["tools/call", "search"].mean`, or all of them in `timing.seen`."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], Measured] = {}

    def __getitem__(self, key: tuple[str, str]) -> Measured:
        return self.seen.get(key) or Measured()

    async def __call__(self, exchange: Exchange, proceed: Call) -> Any:
        if listens(exchange):
            return await proceed(exchange)
        started, bad = time.perf_counter(), True
        try:
            result = await proceed(exchange)
            bad = failed(result)
            return result
        finally:
            self._count(exchange, time.perf_counter() - started, bad)

    def _count(self, exchange: Exchange, took: float, bad: bool) -> None:
        key = (exchange.method, about(exchange))
        if key not in self.seen and len(self.seen) >= _MOST:
            key = (exchange.method, _OTHERS)
        one = self.seen.setdefault(key, Measured())
        one.steps = one.steps or [0] * (len(_STEPS) + 1)
        one.steps[bisect.bisect_left(_STEPS, took)] += 1
        one.count += 1
        one.failures += bad
        one.total += took
        one.slowest = max(one.slowest, took)
