"""ResponseCache: store results for a while, so that the same request does not run twice."""

import contextlib
from collections import OrderedDict
from collections.abc import Collection
from time import monotonic
from typing import Any, Final

from dovetail.protocol import subscription_filter
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.middleware import CallNext, has_failed
from dovetail.protocol.uri_key import uri_key
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode_canonical
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.tools import CallToolResult

CacheKey = tuple[str, str, bytes]


class _CachedResult(Struct):
    name: str
    expires_at: float
    result: Any
    wraps: bool


_NAME_FIELD_BY_METHOD: Final = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}
_CACHEABLE_TYPES: Final = (CallToolResult, ReadResourceResult, GetPromptResult)
_TOKEN_CLAIMS: Final = frozenset({"exp", "iat", "nbf", "jti", "auth_time"})  # not of whoever it was given to


class ResponseCache:
    """Caches the results of these tools and prompts (by name) and resources (by URI) for `ttl` seconds.

    Each caller has its own results, for each set of scopes and claims. With `shared=True`, all callers share them.
    Without it, nothing is cached for anonymous callers over HTTP, because the server cannot tell them apart.

    A server checks access before it returns a cached result. It drops a resource when it sends an update for it, and
    everything when a list changes. Failures and input requests are not cached. Beyond `max_entries`, the cache drops
    the result that was not used for the longest time.
    """

    def __init__(
        self,
        names: Collection[str],
        *,
        ttl: float = 60.0,
        shared: bool = False,
        max_entries: int = 1000,
    ) -> None:
        if isinstance(names, str):
            raise TypeError(f"names are several: write ResponseCache([{names!r}])")
        self._names = frozenset(names)
        self._ttl = ttl
        self._shared = shared
        self._max_entries = max_entries
        self._cached: OrderedDict[CacheKey, _CachedResult] = OrderedDict()
        self._change_count = 0  # how many were heard of

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> Any:
        name = exchange.params.get(_NAME_FIELD_BY_METHOD.get(exchange.method, ""))
        if type(name) is not str or name not in self._names or "requestState" in exchange.params:
            return await call_next(exchange)
        owner = "" if self._shared else _get_cache_owner(exchange)
        if owner is None:
            return await call_next(exchange)
        request_params = {name: value for name, value in exchange.params.items() if name != "_meta"}
        key = exchange.method, owner, encode_canonical(request_params)
        cached = self._cached.get(key)
        if cached is not None and monotonic() < cached.expires_at:
            if exchange.check is not None:
                await exchange.check(exchange)
            with contextlib.suppress(KeyError):  # meanwhile forgotten
                self._cached.move_to_end(key)
            exchange.wraps = cached.wraps
            return cached.result
        change_count = self._change_count
        result = await call_next(exchange)
        is_cacheable = (
            isinstance(result, _CACHEABLE_TYPES)
            and not isinstance(result, InputRequiredResult)
            and not has_failed(result)
        )
        if is_cacheable and change_count == self._change_count:  # else it may be of before the change
            self._store(key, _CachedResult(name, monotonic() + self._ttl, result, exchange.wraps))
        return result

    def on_change(self, method: str, uri: str | None) -> None:
        """The server says that something has changed. From any thread."""
        self._change_count += 1
        if method != subscription_filter.RESOURCE_UPDATED:
            self.clear()
            return
        changed_key = None if uri is None else uri_key(uri)
        for key, cached in tuple(self._cached.items()):
            if key[0] == "resources/read" and uri_key(cached.name) == changed_key:
                self._cached.pop(key, None)

    def _store(self, key: CacheKey, cached: _CachedResult) -> None:
        self._cached[key] = cached
        self._cached.move_to_end(key)
        while len(self._cached) > self._max_entries:
            self._cached.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._cached.clear()


def _get_cache_owner(exchange: Exchange) -> str | None:
    """Whose results they are; None where a function may tell callers apart by headers that say nothing here."""
    principal = exchange.caller.principal
    if principal is None:
        return "" if exchange.headers is None else None
    scopes = sorted(getattr(principal, "scopes", ()))
    claims: dict[str, Any] = getattr(principal, "claims", {})
    stable_claims = sorted((name, repr(value)) for name, value in claims.items() if name not in _TOKEN_CLAIMS)
    return repr((str(principal), scopes, stable_claims))
