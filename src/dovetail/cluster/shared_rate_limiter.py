"""A limit on how often an event happens at all workers of a cluster together."""

from dovetail.keys import build_key
from dovetail.protocol.interfaces.shared_state import SharedState, SharedStateUnavailable
from dovetail.protocol.rate_limiter import RateLimiter


class SharedRateLimiter:
    """A rate limit for each key that all workers of a cluster share. Its meaning is that of `RateLimiter`.

    While the back end cannot be used, each worker allows its share: the limit divided by the last known number of
    workers, and at least one event at once.
    """

    def __init__(
        self, state: SharedState, name: str, max_count: float, window_s: float, *, burst: float | None = None
    ) -> None:
        if burst is None:
            burst = max(1.0, max_count) if max_count > 0 else 0.0
        self._state = state
        self._name = name
        self._max_count = max_count
        self._window_s = window_s
        self._burst = burst
        self._share = RateLimiter(max_count, window_s, burst=burst)
        self._share_workers = 1  # the number of workers for which `_share` was created

    async def take(self, key: str, now: float) -> float:
        """Count an event and return 0. If the limit is reached, return the seconds to wait instead."""
        if self._max_count <= 0:
            return self._window_s
        try:
            return await self._state.take(build_key(self._name, key), self._max_count / self._window_s, self._burst)
        except SharedStateUnavailable:
            return self._get_share().take(key, now)

    def _get_share(self) -> RateLimiter:
        workers = max(1, self._state.get_status().worker_count)
        if workers != self._share_workers:
            self._share_workers = workers
            self._share = RateLimiter(self._max_count / workers, self._window_s, burst=max(1.0, self._burst / workers))
        return self._share
