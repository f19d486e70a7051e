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
from dovetail.server.options import Lifetime
from dovetail.wire.codec import convert, encode
from dovetail.wire.shape import PaginatedParams, Result

if TYPE_CHECKING:
    from dovetail.server.access import Sight

Shape = Callable[..., Result]

_MOST = 16 * 2**20  # bytes of encoded pages; what is over makes room, the oldest first
_KEY = 1024  # bytes a page's key may take


class Kept:
    """What was made of one state of the registry and its rules; another state has another."""

    def __init__(self) -> None:
        self.sights: dict[str, Sight | None] = {}  # by kind: who is shown which
        self.pages: dict[Hashable, bytes] = {}
        self._size = 0
        self._lock = Lock()

    def put(self, key: Hashable, page: bytes) -> None:
        """Keep a page, within bounds; a single one however large."""
        with self._lock:
            if key not in self.pages:
                self.pages[key] = page
                self._size += len(page) + _KEY
            while self._size > _MOST and len(self.pages) > 1:
                self._size -= len(self.pages.pop(next(iter(self.pages)))) + _KEY


class Pages:
    """The encoded pages of one server's lists."""

    def __init__(self, size: int | None, cursor_limit: int) -> None:
        if size is not None and size < 1:
            raise ValueError("page_size must be at least 1")
        self._size = size
        self._cursor_limit = cursor_limit
        self.kept = Kept()  # whoever makes a page takes this first, then looks at the registry

    def clear(self) -> None:
        """A list is another now."""
        self.kept = Kept()

    def page(
        self,
        kept: Kept,
        exchange: Exchange,
        items: Mapping[str, Any],
        field: str,
        shape: Shape,
        life: Lifetime,
        seen: Hashable = None,
        hidden: Collection[str] = (),
    ) -> bytes:
        """The page an exchange asks for, in the words of its revision; `seen` tells apart from whom what is hidden."""
        cursor = convert(exchange.params, PaginatedParams).cursor
        key = (exchange.method, cursor, exchange.caller.revision, seen)
        known = kept.pages.get(key)
        if known is None:
            shown = {name: one for name, one in items.items() if name not in hidden} if hidden else items
            result = self._make(exchange.method, cursor, shown, field, shape, life)
            if not exchange.caller.stateless:
                result = downgrade.result(exchange.caller.revision, exchange.method, result)
            known = encode(result)
            kept.put(key, known)
        return known

    def made(self, exchange: Exchange, items: Mapping[str, Any], field: str, shape: Shape, life: Lifetime) -> Result:
        """The page an exchange asks for of a list that is put together for it."""
        cursor = convert(exchange.params, PaginatedParams).cursor
        return self._make(exchange.method, cursor, items, field, shape, life)

    def _make(
        self, method: str, cursor: str | None, items: Mapping[str, Any], field: str, shape: Shape, life: Lifetime
    ) -> Result:
        names = list(items)
        start = self._start(method, cursor, names)
        end = len(names) if self._size is None else start + self._size
        following = _cursor(method, names[end - 1]) if end < len(names) else None
        declared = [items[name].declaration for name in names[start:end]]
        return shape(**{field: declared}, next_cursor=following, ttl_ms=life.ttl_ms, cache_scope=life.scope)

    def _start(self, method: str, cursor: str | None, names: list[str]) -> int:
        """Where a page starts: after the item its cursor names. spec: pagination#error-handling"""
        if cursor is None:
            return 0
        if len(cursor) <= self._cursor_limit:
            try:
                raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
            except (binascii.Error, ValueError):
                raw = b""
            if base64.urlsafe_b64encode(raw).decode("ascii") == cursor:  # the one spelling that was given out
                for place, name in enumerate(names):
                    if encode([method, name]) == raw:
                        return place + 1
        raise InvalidParams("Invalid params: cursor")


def _cursor(method: str, last: str) -> str:
    return base64.urlsafe_b64encode(encode([method, last])).decode("ascii")
