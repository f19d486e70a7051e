"""Rate limits of an authorization server. If its workers share a store, they also share these limits."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from dovetail.oauth.authorization_server.store import AuthorizationStore
from dovetail.oauth.flow import Flow, wait_for
from dovetail.protocol.rate_limiter import RateLimiter, WindowLimiter

# If the store has this method, it counts the events of all workers. See `SharedStateStore.count_event`.
_COUNT_METHOD: Final = "count_event"

CountEvent = Callable[[str, float, float, float], Awaitable[float]]


class StoreLimiter:
    """A rate limit for each key, in this process or in a store that counts the events of all workers.

    In a store, the limit allows `max_count` events at once, and then `max_count` per `window_s` seconds.
    """

    def __init__(
        self, store: AuthorizationStore, name: str, max_count: int, window_s: float, *, is_strict: bool = False
    ) -> None:
        self._name = name
        self._max_count = max_count
        self._window_s = window_s
        self._count_event: CountEvent | None = getattr(store, _COUNT_METHOD, None)
        self._limiter: Any = (WindowLimiter if is_strict else RateLimiter)(max_count, window_s)

    def take(self, key: str, now: float) -> Flow[float]:
        """Count an event and return 0. If the limit is reached, return the seconds to wait instead."""
        if self._count_event is None:
            return self._limiter.take(key, now)
        return (yield from self._count(self._count_event, key, 1.0))

    def compute_wait(self, key: str, now: float) -> Flow[float]:
        """Return the seconds until the next event is allowed, or 0 if it is allowed now."""
        if self._count_event is None:
            return self._limiter.compute_wait(key, now)
        return (yield from self._count(self._count_event, key, 0.0))

    def undo(self, key: str) -> Flow[None]:
        """Remove one counted event."""
        if self._count_event is None:
            self._limiter.undo(key)
        else:
            yield from self._count(self._count_event, key, -1.0)

    def _count(self, count_event: CountEvent, key: str, cost: float) -> Flow[float]:
        if self._max_count <= 0:
            return self._window_s
        name = f"{self._name}\0{key}"
        return (yield from wait_for(count_event(name, self._max_count / self._window_s, self._max_count, cost)))
