"""Caching: results kept on this side for a while, so that the same question is not worked on twice."""

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Final

from dovetail.middleware.seeing import failed
from dovetail.protocol import topics
from dovetail.protocol.around import Call
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.uri_key import uri_key
from dovetail.wire.codec import canonical
from dovetail.wire.inputs import InputRequiredResult
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.shape import Struct
from dovetail.wire.tools import CallToolResult

Key = tuple[str, str, bytes]


class _Kept(Struct):
    name: str
    until: float
    result: Any
    wraps: bool


_OF: Final = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}
_COMPLETE: Final = (CallToolResult, ReadResourceResult, GetPromptResult)
_OF_THE_TOKEN: Final = frozenset({"exp", "iat", "nbf", "jti", "auth_time"})  # not of whoever it was given to


class Caching:
    """Keeps the results of these tools, prompts (by name) and resources (by URI) for so many seconds.

    Each caller has results of its own, with each set of scopes and claims, unless `shared=True` says that all get the
    same, whoever they are: without it nothing is kept over HTTP for callers who prove nothing, for they cannot be told
    apart. On a server, what a caller may not use is refused, kept or not; a resource that the server says was updated
    is read anew, and once it says that a list is another, everything. Failures and questions are not kept. At most
    `entries` are; the longest unused give way.
    """

    def __init__(
        self,
        names: Collection[str],
        *,
        seconds: float = 60.0,
        shared: bool = False,
        entries: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(names, str):
            raise TypeError(f"names are several: write Caching([{names!r}])")
        self._names = frozenset(names)
        self._seconds = seconds
        self._shared = shared
        self._entries = entries
        self._clock = clock
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._changes = 0  # how many were heard of

    async def __call__(self, exchange: Exchange, proceed: Call) -> Any:
        name = exchange.params.get(_OF.get(exchange.method, ""))
        if type(name) is not str or name not in self._names or "requestState" in exchange.params:
            return await proceed(exchange)
        who = "" if self._shared else _whose(exchange)
        if who is None:
            return await proceed(exchange)
        asked = {name: value for name, value in exchange.params.items() if name != "_meta"}
        key = exchange.method, who, canonical(asked)
        kept = self._kept.get(key)
        if kept is not None and self._clock() < kept.until:
            if exchange.check is not None:
                await exchange.check(exchange)
            with contextlib.suppress(KeyError):  # meanwhile forgotten
                self._kept.move_to_end(key)
            exchange.wraps = kept.wraps
            return kept.result
        changes = self._changes
        result = await proceed(exchange)
        complete = isinstance(result, _COMPLETE) and not isinstance(result, InputRequiredResult) and not failed(result)
        if complete and changes == self._changes:  # else it may be of before the change
            self._keep(key, _Kept(name, self._clock() + self._seconds, result, exchange.wraps))
        return result

    def heard(self, method: str, uri: str | None) -> None:
        """The server says that something has changed. From any thread."""
        self._changes += 1
        if method != topics.UPDATED:
            self.clear()
            return
        changed = None if uri is None else uri_key(uri)
        for key, kept in tuple(self._kept.items()):
            if key[0] == "resources/read" and uri_key(kept.name) == changed:
                self._kept.pop(key, None)

    def _keep(self, key: Key, kept: _Kept) -> None:
        self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > self._entries:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()


def _whose(exchange: Exchange) -> str | None:
    """Whose results they are; None where a function may tell callers apart by headers that say nothing here."""
    principal = exchange.caller.principal
    if principal is None:
        return "" if exchange.headers is None else None
    scopes = sorted(getattr(principal, "scopes", ()))
    claims: dict[str, Any] = getattr(principal, "claims", {})
    lasting = sorted((name, repr(value)) for name, value in claims.items() if name not in _OF_THE_TOKEN)
    return repr((str(principal), scopes, lasting))
