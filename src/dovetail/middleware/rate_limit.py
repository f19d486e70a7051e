"""RateLimit: limit the requests of each caller per second with a token bucket."""

import asyncio
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any, Final

from dovetail.protocol.exchange import Exchange
from dovetail.protocol.limits import CallerBusy
from dovetail.protocol.middleware import CallNext, get_caller_key
from dovetail.wire.base import Struct

_MAX_BUCKETS: Final = 10_000  # callers remembered; a bucket that is full again says nothing and is forgotten


class _Bucket(Struct):
    tokens: float
    updated_at: float


class RateLimit:
    """Allows each caller `requests` in `per` seconds, and `burst` at once.

    A server refuses further requests with `ServerBusy`, which says when to try again. A client waits instead. Each
    principal has its own limit, or each value that `key(exchange)` returns. Only the `methods` count.
    """

    def __init__(
        self,
        requests: float,
        *,
        per: float = 1.0,
        burst: int | None = None,
        key: Callable[[Exchange], str] = get_caller_key,
        methods: Collection[str] = ("tools/call", "resources/read", "prompts/get", "completion/complete"),
    ) -> None:
        numbers: dict[str, Any] = {"requests": requests, "per": per, "burst": burst}
        for name, value in numbers.items():
            if not isinstance(value, int | float | None) or isinstance(value, bool):
                raise TypeError(f"{name} must be a number, not {value!r}")
        if isinstance(methods, str):
            raise TypeError(f"methods are several: write methods=[{methods!r}]")
        if requests <= 0 or per <= 0:
            raise ValueError("a rate limit needs a positive number of requests and of seconds")
        if burst is not None and burst < 1:
            raise ValueError("a burst below 1 would let nobody make a request")
        self._rate = requests / per
        self._burst = float(burst if burst is not None else max(1, int(requests)))
        self._get_key = key
        self._methods = frozenset(methods)
        self._buckets: dict[str, _Bucket] = {}

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> Any:
        if exchange.method in self._methods:
            wait = self._take_token(self._get_key(exchange), borrow=exchange.is_outgoing)
            if wait and not exchange.is_outgoing:
                raise CallerBusy("You have made too many requests", retry_after=wait)
            if wait:
                await asyncio.sleep(wait)
        return await call_next(exchange)

    def _take_token(self, key: str, *, borrow: bool) -> float:
        """Take a token; if there is none, how long until there is one. Who borrows has taken it all the same."""
        now = monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._evict(now)
            bucket = self._buckets[key] = _Bucket(self._burst, now)
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.updated_at) * self._rate)
        bucket.updated_at = now
        missing_tokens = max(0.0, 1.0 - bucket.tokens)
        if not missing_tokens or borrow:
            bucket.tokens -= 1.0
        return missing_tokens / self._rate

    def _evict(self, now: float) -> None:
        """Forget who has a full bucket again; if nobody has, whoever came first."""
        full_keys = [
            key
            for key, bucket in self._buckets.items()
            if bucket.tokens + (now - bucket.updated_at) * self._rate >= self._burst
        ]
        for key in full_keys or [next(iter(self._buckets))]:
            del self._buckets[key]
