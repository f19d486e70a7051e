"""Pages: lists as bytes, encoded once and kept until the list changes.

A cursor names the item its page ended with, so items that come and go elsewhere do not shift it.
"""

import base64
import binascii
from collections.abc import Callable, Collection, Hashable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from dovetail.errors import InvalidParams
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Exchange
from dovetail.server.item_options import CacheHint
from dovetail.wire.base import PaginatedParams, Result
from dovetail.wire.codec import convert, encode

if TYPE_CHECKING:
    from dovetail.server.access_rules import VisibilitySnapshot

ResultFactory = Callable[..., Result]

_MAX_CACHE_BYTES = 16 * 2**20  # bytes of encoded pages; what is over makes room, the oldest first
_KEY_OVERHEAD_BYTES = 1024  # bytes a page's key may take


class CachedPages:
    """What was made of one state of the registry and its rules; another state has another."""

    def __init__(self) -> None:
        self.visibility_by_kind: dict[str, VisibilitySnapshot | None] = {}  # by kind: who is shown which
        self.pages: dict[Hashable, bytes] = {}
        self._total_bytes = 0
        self._lock = Lock()

    def put(self, key: Hashable, page: bytes) -> None:
        """Keep a page, within bounds; a single one however large."""
        with self._lock:
            if key not in self.pages:
                self.pages[key] = page
                self._total_bytes += len(page) + _KEY_OVERHEAD_BYTES
            while self._total_bytes > _MAX_CACHE_BYTES and len(self.pages) > 1:
                self._total_bytes -= len(self.pages.pop(next(iter(self.pages)))) + _KEY_OVERHEAD_BYTES


class PageCache:
    """The encoded pages of one server's lists."""

    def __init__(self, page_size: int | None, max_cursor_bytes: int) -> None:
        if page_size is not None and page_size < 1:
            raise ValueError("page_size must be at least 1")
        self._page_size = page_size
        self._max_cursor_bytes = max_cursor_bytes
        self.current = CachedPages()  # whoever makes a page takes this first, then looks at the registry

    def clear(self) -> None:
        """A list is another now."""
        self.current = CachedPages()

    def get_page(
        self,
        cached_pages: CachedPages,
        exchange: Exchange,
        items: Mapping[str, Any],
        field: str,
        result_type: ResultFactory,
        cache_hint: CacheHint,
        variant: Hashable = None,
        hidden: Collection[str] = (),
    ) -> bytes:
        """The page an exchange asks for, in the words of its revision; `seen` tells apart from whom what is hidden."""
        cursor = convert(exchange.params, PaginatedParams).cursor
        key = (exchange.method, cursor, exchange.caller.protocol_version, variant)
        page = cached_pages.pages.get(key)
        if page is None:
            visible_items = {name: item for name, item in items.items() if name not in hidden} if hidden else items
            result = self._build_page(exchange.method, cursor, visible_items, field, result_type, cache_hint)
            if not exchange.caller.is_stateless:
                result = downgrade.downgrade_result(exchange.caller.protocol_version, exchange.method, result)
            page = encode(result)
            cached_pages.put(key, page)
        return page

    def build_uncached_page(
        self,
        exchange: Exchange,
        items: Mapping[str, Any],
        field: str,
        result_type: ResultFactory,
        cache_hint: CacheHint,
    ) -> Result:
        """The page an exchange asks for of a list that is put together for it."""
        cursor = convert(exchange.params, PaginatedParams).cursor
        return self._build_page(exchange.method, cursor, items, field, result_type, cache_hint)

    def _build_page(
        self,
        method: str,
        cursor: str | None,
        items: Mapping[str, Any],
        field: str,
        result_type: ResultFactory,
        cache_hint: CacheHint,
    ) -> Result:
        names = list(items)
        start = self._find_start(method, cursor, names)
        end = len(names) if self._page_size is None else start + self._page_size
        next_cursor = _encode_cursor(method, names[end - 1]) if end < len(names) else None
        declarations = [items[name].declaration for name in names[start:end]]
        return result_type(
            **{field: declarations}, next_cursor=next_cursor, ttl_ms=cache_hint.ttl_ms, cache_scope=cache_hint.scope
        )

    def _find_start(self, method: str, cursor: str | None, names: list[str]) -> int:
        """Where a page starts: after the item its cursor names. spec: pagination#error-handling"""
        if cursor is None:
            return 0
        if len(cursor) <= self._max_cursor_bytes:
            try:
                raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
            except (binascii.Error, ValueError):
                raw = b""
            if base64.urlsafe_b64encode(raw).decode("ascii") == cursor:  # the one spelling that was given out
                for index, name in enumerate(names):
                    if encode([method, name]) == raw:
                        return index + 1
        raise InvalidParams("Invalid params: cursor")


def _encode_cursor(method: str, last_name: str) -> str:
    return base64.urlsafe_b64encode(encode([method, last_name])).decode("ascii")
