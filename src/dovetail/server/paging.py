"""Pages: lists as bytes, encoded once and kept until the list changes.

A cursor names the item its page ended with, so items that come and go elsewhere do not shift it.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.errors import InvalidParams
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Exchange
from dovetail.server.options import Lifetime
from dovetail.wire.codec import convert, encode
from dovetail.wire.shape import PaginatedParams, Result

Shape = Callable[..., Result]

_KEPT = 1000  # encoded pages; more than that is somebody trying


class Pages:
    """The encoded pages of one server's lists."""

    def __init__(self, size: int | None, cursor_limit: int) -> None:
        if size is not None and size < 1:
            raise ValueError("page_size must be at least 1")
        self._size = size
        self._cursor_limit = cursor_limit
        self._encoded: dict[tuple[str, str | None, str, tuple[str, ...]], bytes] = {}

    def clear(self) -> None:
        """A list is another now."""
        self._encoded = {}  # not emptied: a page being made in another thread must not land among the new ones

    def page(
        self,
        exchange: Exchange,
        items: Mapping[str, Any],
        field: str,
        shape: Shape,
        life: Lifetime,
        shown: tuple[str, ...] = (),
    ) -> bytes:
        """The page an exchange asks for, in the words of its revision; `shown` names the items if they are not all."""
        cursor = convert(exchange.params, PaginatedParams).cursor
        key = (exchange.method, cursor, exchange.caller.revision, shown)
        encoded = self._encoded
        known = encoded.get(key)
        if known is None:
            result = self._make(exchange.method, cursor, items, field, shape, life)
            if not exchange.caller.stateless:
                result = downgrade.result(exchange.caller.revision, exchange.method, result)
            known = encode(result)
            if len(encoded) < _KEPT:
                encoded[key] = known
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
            for place, name in enumerate(names):
                if encode([method, name]) == raw:
                    return place + 1
        raise InvalidParams("Invalid params: cursor")


def _cursor(method: str, last: str) -> str:
    return base64.urlsafe_b64encode(encode([method, last])).decode("ascii")
