"""Middleware that limits the requests of each caller per second with a token bucket."""

import asyncio
from collections.abc import Callable, Collection
from time import monotonic
from typing import TYPE_CHECKING, Any

from dovetail.middleware.caller_and_outcome import get_caller_key
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.limits import CallerBusy
from dovetail.protocol.middleware import CallNext
from dovetail.protocol.rate_limiter import RateLimiter

if TYPE_CHECKING:
    from dovetail.protocol.interfaces.shared_state import EventLimiter, SharedWorker


def get_limit_key(exchange: Exchange) -> str:
    """Return the key for the rate limit: the principal, the address or the connection of a caller.

    The key is "" for anonymous HTTP callers on this machine.
    """
    caller_key = get_caller_key(exchange)
    if caller_key or exchange.headers is not None:
        return caller_key
    return exchange.caller.session_id


class RateLimit:
    """Middleware that limits the number of requests from each caller.

    On a server, requests above the limit are rejected with `ServerBusy`, which says when to try again. On a client,
    they wait. In a cluster, all workers count together. While their shared state is away, each worker allows its share
    of the limit.

    Args:
        requests: The maximum number of requests in one period.
        per: The length of the period in seconds.
        burst: The maximum number of requests at once. Defaults to `requests`.
        key: A function that returns a key for a request. Requests with the same key share a limit. Defaults to the
            principal, then to the address or connection.
        methods: The methods to which the limit applies.
    """

    def __init__(
        self,
        requests: float,
        *,
        per: float = 1.0,
        burst: int | None = None,
        key: Callable[[Exchange], str] = get_limit_key,
        methods: Collection[str] = ("tools/call", "resources/read", "prompts/get", "completion/complete"),
    ) -> None:
        numbers: dict[str, Any] = {"requests": requests, "per": per, "burst": burst}
        for name, value in numbers.items():
            if not isinstance(value, int | float | None) or isinstance(value, bool):
                raise TypeError(f"the option {name} must be a number, not {value!r}")
        if isinstance(methods, str):
            raise TypeError(f"methods must be a collection, not a string. Write methods=[{methods!r}]")
        if requests <= 0 or per <= 0:
            raise ValueError("`requests` and `per` must be positive")
        if burst is not None and burst < 1:
            raise ValueError("burst must be at least 1")
        self._limiter = RateLimiter(requests, per, burst=burst)
        self._shared_limiter: EventLimiter | None = None  # None if the server has only one worker
        self._limit = requests, per, burst
        self._get_key = key
        self._methods = frozenset(methods)

    def _join_cluster(self, worker: "SharedWorker", name: str) -> None:
        """From now on, count the requests to all workers together. `name` identifies this limit in the cluster.

        The dispatcher calls this method.
        """
        requests, per, burst = self._limit
        self._shared_limiter = worker.create_rate_limiter(name, requests, per, burst)

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
        # Do not count a task, because the request that created the task was already counted.
        if exchange.method in self._methods and not exchange.is_task:
            key = self._get_key(exchange)
            if self._shared_limiter is None or exchange.is_outgoing:
                wait = self._limiter.take(key, monotonic(), borrow=exchange.is_outgoing)
            else:
                wait = await self._shared_limiter.take(key, monotonic())
            if wait and not exchange.is_outgoing:
                raise CallerBusy("You have made too many requests", retry_after=wait)
            if wait:
                await asyncio.sleep(wait)
        return await call_next(exchange)
