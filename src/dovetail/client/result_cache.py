"""Results that are kept for as long as their server says, and requests that are made once for all who want them.

Keyed by method and parameters; each caller has a copy of its own, to do with as it likes. A notice of change drops what
it speaks of. spec: caching#cache-key
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dovetail.wire.base import CacheableResult, Struct
from dovetail.wire.codec import encode_canonical
from dovetail.wire.raw_message import copy_value

Key = tuple[str, bytes]

_MAX_TTL_MS: Final = 365 * 86_400_000  # milliseconds; a number without an end is no time

# What a notice of change makes stale.
_INVALIDATED_METHODS: dict[str, tuple[str, ...]] = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
    "notifications/resources/updated": ("resources/read",),
}


class _FetchAbandoned(Exception):
    """Whoever was fetching does not want it any more; others may."""


class ResultCache:
    """At most `limit` results; the longest unused give way."""

    def __init__(self, max_entries: int, now: Callable[[], float] = time.monotonic) -> None:
        self._max_entries = max_entries
        self._now = now
        self._entries: OrderedDict[Key, tuple[float, Any]] = OrderedDict()
        self._in_flight: dict[Key, asyncio.Future[Any]] = {}
        self._shared_fetches: set[asyncio.Future[Any]] = set()  # by others than who fetches
        self._generation = 0

    async def get(self, method: str, params: Any, fetch: Callable[[], Awaitable[Any]]) -> Any:
        """The kept result if it is fresh, else what `fetch` brings, fetched once for all who wait."""
        key = (method, encode_canonical(params))
        entry = self._entries.get(key)
        if entry is not None:
            if self._now() < entry[0]:
                self._entries.move_to_end(key)
                return copy_value(entry[1])
            del self._entries[key]
        in_flight = self._in_flight.get(key)
        if in_flight is not None:
            self._shared_fetches.add(in_flight)
            try:
                return _copy_result(await asyncio.shield(in_flight))
            except _FetchAbandoned:
                return await self.get(method, params, fetch)
        return await self._fetch(key, fetch)

    async def _fetch(self, key: Key, fetch: Callable[[], Awaitable[Any]]) -> Any:
        """The first who asks fetches; if it gives up, those who wait with it ask for themselves."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._in_flight[key] = future
        generation = self._generation
        try:
            result = await fetch()
        except asyncio.CancelledError:
            future.set_exception(_FetchAbandoned())
            raise
        except BaseException as exc:
            future.set_exception(exc)
            raise
        finally:
            if self._in_flight.get(key) is future:
                del self._in_flight[key]
            is_shared = future in self._shared_fetches
            self._shared_fetches.discard(future)
        future.set_result(_copy_result(result) if is_shared else None)
        if generation == self._generation:
            self._store(key, result)
        return result

    def _store(self, key: Key, result: Any) -> None:
        ttl_ms = result.ttl_ms if isinstance(result, CacheableResult) else None
        if ttl_ms and ttl_ms > 0:
            self._entries[key] = (self._now() + min(ttl_ms, _MAX_TTL_MS) / 1000, copy_value(result))
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)

    def invalidate(self, method: str) -> None:
        """A notice of change came."""
        stale_methods = _INVALIDATED_METHODS.get(method)
        if stale_methods is not None:
            self._generation += 1
            for key in [key for key in self._entries if key[0] in stale_methods]:
                del self._entries[key]
            for key in [key for key in self._in_flight if key[0] in stale_methods]:
                del self._in_flight[key]

    def clear(self) -> None:
        """Forget everything."""
        self._generation += 1
        self._entries.clear()
        self._in_flight.clear()


def _copy_result(result: Any) -> Any:
    return copy_value(result) if isinstance(result, Struct) else result
