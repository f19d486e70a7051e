"""A cache for results. Callers that need the same result at the same time share one request.

The server sets how long a result may be cached. The key is the method with its parameters. Each caller gets a separate
copy and may change it. A change notification removes the affected results. spec: caching#cache-key
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dovetail.log import log_failure
from dovetail.wire.base import CacheableResult, Struct
from dovetail.wire.codec import encode_canonical
from dovetail.wire.methods import METHODS
from dovetail.wire.raw_message import copy_value

Key = tuple[str, bytes]

_MAX_TTL_MS: Final = 365 * 86_400_000

# A change notification makes the cached results of these methods outdated.
_INVALIDATED_METHODS: dict[str, tuple[str, ...]] = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
    "notifications/resources/updated": ("resources/read",),
}


class _FetchAbandoned(Exception):
    """Raised in callers that wait for the request of another caller, if that caller was cancelled."""


class Fetch(Struct, eq=False):
    """An open request. Several callers can wait for its result."""

    key: Key
    future: asyncio.Future[Any]
    generation: int
    is_shared: bool = False  # True if other callers wait for the result


class ResultCache:
    """A cache of at most `max_entries` results. If it is full, the least recently used result is removed.

    A disabled cache stores no results and shares no requests.
    """

    def __init__(self, max_entries: int, now: Callable[[], float] = time.monotonic, *, is_enabled: bool = True) -> None:
        self._max_entries = max_entries
        self._now = now
        self._is_enabled = is_enabled
        self._entries: OrderedDict[Key, tuple[float, Any]] = OrderedDict()
        self._fetches: dict[Key, Fetch] = {}
        self._generation = 0

    async def get(self, method: str, params: Any, request: Callable[[], Awaitable[Any]]) -> Any:
        """Return a cached result, or call `request`. Concurrent callers share one call."""
        cached, fetch = await self.find_or_start(method, params)
        if fetch is None:
            return cached
        try:
            result = await request()
        except BaseException as exc:
            self.fail(fetch, exc)
            raise
        self.complete(fetch, result)
        return result

    async def find_or_start(self, method: str, params: Any) -> tuple[Any, Fetch | None]:
        """Return a cached result, or a `Fetch`. The caller must end the `Fetch` with `complete` or `fail`.

        If the same request is already open, this method waits for its result. If the caller that sent the request is
        cancelled, the next caller sends it again.
        """
        key = (method, encode_canonical(params))
        while True:
            entry = self._entries.get(key)
            if entry is not None:
                if self._now() < entry[0]:
                    self._entries.move_to_end(key)
                    return copy_value(entry[1]), None
                del self._entries[key]
            fetch = self._fetches.get(key)
            if fetch is None:
                break
            fetch.is_shared = True
            try:
                return _copy_result(await asyncio.shield(fetch.future)), None
            except _FetchAbandoned:
                continue
        fetch = Fetch(key, asyncio.get_running_loop().create_future(), self._generation)
        if self._is_enabled:
            self._fetches[key] = fetch
        return None, fetch

    def complete(self, fetch: Fetch, result: Any) -> None:
        """Pass the result to the waiting callers. Cache the result as long as the server allows."""
        if self._fetches.get(fetch.key) is fetch:
            del self._fetches[fetch.key]
        if fetch.is_shared:
            fetch.future.set_result(_copy_result(result))
        ttl_ms = result.ttl_ms if isinstance(result, CacheableResult) else None
        if ttl_ms and ttl_ms > 0 and fetch.generation == self._generation and self._is_enabled:
            self._entries[fetch.key] = (self._now() + min(ttl_ms, _MAX_TTL_MS) / 1000, copy_value(result))
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)

    def fail(self, fetch: Fetch, exc: BaseException) -> None:
        """Pass the error to the waiting callers.

        If the sender was cancelled, another caller sends the request again.
        """
        if self._fetches.get(fetch.key) is fetch:
            del self._fetches[fetch.key]
        if fetch.is_shared:
            fetch.future.set_exception(_FetchAbandoned() if isinstance(exc, asyncio.CancelledError) else exc)
            log_failure(fetch.future)  # Perhaps no other caller waits.

    def invalidate(self, method: str) -> None:
        """Remove cached results that are outdated after a change notification."""
        stale_methods = _INVALIDATED_METHODS.get(method)
        if stale_methods is not None:
            self._generation += 1
            for key in [key for key in self._entries if _is_stale(key[0], stale_methods)]:
                del self._entries[key]
            for key in [key for key in self._fetches if _is_stale(key[0], stale_methods)]:
                del self._fetches[key]

    def clear(self) -> None:
        self._generation += 1
        self._entries.clear()
        self._fetches.clear()


def _is_stale(method: str, stale_methods: tuple[str, ...]) -> bool:
    # Any change may affect the methods of extensions.
    return method in stale_methods or method not in METHODS


def _copy_result(result: Any) -> Any:
    return copy_value(result) if isinstance(result, Struct) else result
