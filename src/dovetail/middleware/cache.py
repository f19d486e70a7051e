"""Middleware that stores results for a limited time, so that the same request does not run twice."""

import contextlib
from collections import OrderedDict
from collections.abc import Collection
from time import monotonic
from typing import Any, Final

from dovetail.middleware.caller_and_outcome import has_failed
from dovetail.protocol import subscription_filter
from dovetail.protocol.exchange import Exchange, IncomingExchange
from dovetail.protocol.middleware import CallNext
from dovetail.protocol.uri_key import uri_key
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode, encode_canonical
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.raw_message import decode_body
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.tools import CallToolResult

CacheKey = tuple[str, str, bytes]


class _CachedResult(Struct):
    name: str
    expires_at: float
    encoded: bytes  # The cache contains encoded results, so that each caller gets a separate copy and may change it.
    result_type: type[Any]
    wraps: bool


_NAME_FIELD_BY_METHOD: Final = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}
_CACHEABLE_TYPES: Final = (CallToolResult, ReadResourceResult, GetPromptResult)
# These claims describe a token, not the caller.
_TOKEN_CLAIMS: Final = frozenset({"exp", "iat", "nbf", "jti", "auth_time"})


class ResponseCache:
    """Middleware that caches the results of tools, prompts and resources.

    Results are stored separately for each caller, and for each set of scopes and claims. Each
    anonymous connection counts as a caller. Results of anonymous HTTP callers are only cached if `shared` is True.

    A server checks access before it returns a cached result. An update notification for a resource removes its result
    from the cache. A list change removes all results. Failures and input requests are not cached.

    Args:
        names: The names of the tools and prompts to cache, and the URIs of the resources to cache.
        ttl: Seconds for which a result is reused.
        shared: Whether all callers share the cached results.
        max_entries: The maximum number of cached results. The least recently used result is removed first.
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
            raise TypeError(f"names must be a collection, not a string. Write ResponseCache([{names!r}])")
        self._names = frozenset(names)
        self._uri_keys = frozenset(map(uri_key, names))
        self._ttl = ttl
        self._shared = shared
        self._max_entries = max_entries
        self._cached: OrderedDict[CacheKey, _CachedResult] = OrderedDict()
        self._change_count = 0  # the number of changes that the server has reported

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
        name = exchange.params.get(_NAME_FIELD_BY_METHOD.get(exchange.method, ""))
        if type(name) is not str or "requestState" in exchange.params or not self._is_cached(exchange.method, name):
            return await call_next(exchange)
        owner = "" if self._shared else _get_cache_owner(exchange)
        if owner is None:
            return await call_next(exchange)
        request_params = {name: value for name, value in exchange.params.items() if name != "_meta"}
        key = exchange.method, owner, encode_canonical(request_params)
        cached = self._cached.get(key)
        if cached is not None and monotonic() < cached.expires_at:
            if isinstance(exchange, IncomingExchange):
                exchange.wraps = cached.wraps
                if exchange.check is not None:
                    await exchange.check(exchange)
            # Another task may have removed the entry.
            with contextlib.suppress(KeyError):
                self._cached.move_to_end(key)
            return decode_body(cached.encoded, cached.result_type, "result")
        change_count = self._change_count
        result = await call_next(exchange)
        is_cacheable = (
            isinstance(result, _CACHEABLE_TYPES)
            and not isinstance(result, InputRequiredResult)
            and not has_failed(result)
        )
        # If the server reported a change during the call, the result may be outdated.
        if is_cacheable and change_count == self._change_count:
            wraps = isinstance(exchange, IncomingExchange) and exchange.wraps
            self._store(key, _CachedResult(name, monotonic() + self._ttl, encode(result), type(result), wraps))
        return result

    def _is_cached(self, method: str, name: str) -> bool:
        return name in self._names or (method == "resources/read" and uri_key(name) in self._uri_keys)

    def on_change(self, method: str, uri: str | None) -> None:
        """Remove the results that a change may have made outdated. Any thread may call this method."""
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
        """Remove all results."""
        self._cached.clear()


def _get_cache_owner(exchange: Exchange) -> str | None:
    """Return a key that identifies the caller in the cache.

    Return None for anonymous callers, because a server may distinguish them by their headers.
    """
    principal = exchange.caller.principal
    if principal is None:
        # A task has no headers, even if it was created by an HTTP request.
        return exchange.caller.session_id if exchange.headers is None and not exchange.is_task else None
    scopes = sorted(getattr(principal, "scopes", ()))
    claims: dict[str, Any] = getattr(principal, "claims", {})
    stable_claims = sorted((name, repr(value)) for name, value in claims.items() if name not in _TOKEN_CLAIMS)
    return repr((str(principal), scopes, stable_claims))
