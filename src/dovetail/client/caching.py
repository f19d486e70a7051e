"""Results that are kept for as long as their server says, and requests that are made once for all who want them.

Keyed by method and parameters; each caller has a copy of its own, to do with as it likes. A notice of change drops what
it speaks of. spec: caching#cache-key
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dovetail.wire.codec import canonical
from dovetail.wire.incoming import copied
from dovetail.wire.shape import Cacheable, Struct

Key = tuple[str, bytes]

_LONGEST: Final = 365 * 86_400_000  # milliseconds; a number without an end is no time

# What a notice of change makes stale.
_STALE: dict[str, tuple[str, ...]] = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
    "notifications/resources/updated": ("resources/read",),
}


class _GaveUp(Exception):
    """Whoever was fetching does not want it any more; others may."""


class Cache:
    """At most `limit` results; the longest unused give way."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._kept: OrderedDict[Key, tuple[float, Any]] = OrderedDict()
        self._under_way: dict[Key, asyncio.Future[Any]] = {}
        self._awaited: set[asyncio.Future[Any]] = set()  # by others than who fetches
        self._generation = 0

    async def get(self, method: str, params: Any, fetch: Callable[[], Awaitable[Any]]) -> Any:
        """The kept result if it is fresh, else what `fetch` brings, fetched once for all who wait."""
        key = (method, canonical(params))
        kept = self._kept.get(key)
        if kept is not None:
            if self._clock() < kept[0]:
                self._kept.move_to_end(key)
                return copied(kept[1])
            del self._kept[key]
        under_way = self._under_way.get(key)
        if under_way is not None:
            self._awaited.add(under_way)
            try:
                return _own(await asyncio.shield(under_way))
            except _GaveUp:
                return await self.get(method, params, fetch)
        return await self._fetch(key, fetch)

    async def _fetch(self, key: Key, fetch: Callable[[], Awaitable[Any]]) -> Any:
        """The first who asks fetches; if it gives up, those who wait with it ask for themselves."""
        loop = asyncio.get_running_loop()
        shared: asyncio.Future[Any] = loop.create_future()
        shared.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._under_way[key] = shared
        generation = self._generation
        try:
            result = await fetch()
        except asyncio.CancelledError:
            shared.set_exception(_GaveUp())
            raise
        except BaseException as exc:
            shared.set_exception(exc)
            raise
        finally:
            if self._under_way.get(key) is shared:
                del self._under_way[key]
            awaited = shared in self._awaited
            self._awaited.discard(shared)
        shared.set_result(_own(result) if awaited else None)
        if generation == self._generation:
            self._keep(key, result)
        return result

    def _keep(self, key: Key, result: Any) -> None:
        lifetime = result.ttl_ms if isinstance(result, Cacheable) else None
        if lifetime and lifetime > 0:
            self._kept[key] = (self._clock() + min(lifetime, _LONGEST) / 1000, copied(result))
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)

    def heard(self, method: str) -> None:
        """A notice of change came."""
        stale = _STALE.get(method)
        if stale is not None:
            self._generation += 1
            for key in [key for key in self._kept if key[0] in stale]:
                del self._kept[key]
            for key in [key for key in self._under_way if key[0] in stale]:
                del self._under_way[key]

    def clear(self) -> None:
        """Forget everything."""
        self._generation += 1
        self._kept.clear()
        self._under_way.clear()


def _own(result: Any) -> Any:
    return copied(result) if isinstance(result, Struct) else result
