"""Cache of encoded pages of lists. A page is cached until the list changes."""

from collections.abc import Callable, Collection, Hashable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from dovetail.protocol import downgrade
from dovetail.protocol.exchange import IncomingExchange
from dovetail.server.items.cursor import encode_cursor, find_page_start
from dovetail.server.items.item_options import CacheHint
from dovetail.wire.base import PaginatedParams, Result
from dovetail.wire.codec import convert, encode

if TYPE_CHECKING:
    from dovetail.server.items.access_rules import VisibilitySnapshot

ResultFactory = Callable[..., Result]

# If all cached pages together are larger than this, the oldest pages are removed.
_MAX_CACHE_BYTES = 16 * 2**20
_KEY_OVERHEAD_BYTES = 1024  # Estimated memory for the key of one cached page, in bytes.


class CachedPages:
    """Cached pages of lists. They are valid until the registry or its access rules change."""

    def __init__(self) -> None:
        self.visibility_by_kind: dict[str, VisibilitySnapshot | None] = {}
        self.pages: dict[Hashable, bytes] = {}
        self._total_bytes = 0
        self._lock = Lock()

    def put(self, key: Hashable, page: bytes) -> None:
        """Cache a page. If the cache is too large, remove the oldest pages."""
        with self._lock:
            if key not in self.pages:
                self.pages[key] = page
                self._total_bytes += len(page) + _KEY_OVERHEAD_BYTES
            while self._total_bytes > _MAX_CACHE_BYTES and len(self.pages) > 1:
                self._total_bytes -= len(self.pages.pop(next(iter(self.pages)))) + _KEY_OVERHEAD_BYTES


class PageCache:
    """Caches the encoded pages of a server's lists."""

    def __init__(self, page_size: int | None, max_cursor_bytes: int) -> None:
        if page_size is not None and page_size < 1:
            raise ValueError("page_size must be at least 1")
        self._page_size = page_size
        self._max_cursor_bytes = max_cursor_bytes
        # Read `current` before the registry. Otherwise a change in between could lead to outdated items in the cache.
        self.current = CachedPages()

    def clear(self) -> None:
        self.current = CachedPages()

    def get_page(
        self,
        cached_pages: CachedPages,
        exchange: IncomingExchange,
        items: Mapping[str, Any],
        field: str,
        result_type: ResultFactory,
        cache_hint: CacheHint,
        variant: Hashable = None,
        hidden: Collection[str] = (),
    ) -> bytes:
        """Return a page of a list, encoded for the client's protocol version.

        Callers with the same `variant` see the same items.
        """
        cursor = convert(exchange.params, PaginatedParams).cursor
        key = (exchange.method, cursor, exchange.caller.protocol_version, variant)
        page = cached_pages.pages.get(key)
        if page is None:
            visible_items = {name: item for name, item in items.items() if name not in hidden} if hidden else items
            page = self._encode_page(exchange, cursor, visible_items, field, result_type, cache_hint)
            cached_pages.put(key, page)
        return page

    def build_uncached_page(
        self,
        exchange: IncomingExchange,
        items: Mapping[str, Any],
        field: str,
        result_type: ResultFactory,
        cache_hint: CacheHint,
    ) -> bytes:
        """Build a page of a list that must not be cached, because it differs between callers."""
        cursor = convert(exchange.params, PaginatedParams).cursor
        return self._encode_page(exchange, cursor, items, field, result_type, cache_hint)

    def _encode_page(
        self,
        exchange: IncomingExchange,
        cursor: str | None,
        items: Mapping[str, Any],
        field: str,
        result_type: ResultFactory,
        cache_hint: CacheHint,
    ) -> bytes:
        """Encode one page. Middleware gets bytes, so that it cannot change the definitions of the server."""
        names, method = list(items), exchange.method
        start = find_page_start(method, cursor, names, self._max_cursor_bytes)
        end = len(names) if self._page_size is None else start + self._page_size
        next_cursor = encode_cursor(method, names[end - 1]) if end < len(names) else None
        declarations = [items[name].declaration for name in names[start:end]]
        result = result_type(
            **{field: declarations}, next_cursor=next_cursor, ttl_ms=cache_hint.ttl_ms, cache_scope=cache_hint.scope
        )
        if not exchange.caller.is_stateless:
            result = downgrade.downgrade_result(exchange.caller.protocol_version, method, result)
        return encode(result)
