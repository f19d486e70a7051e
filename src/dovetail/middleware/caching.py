"""Caching: results kept on this side for a while, so that the same question is not worked on twice."""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Final

from dovetail.middleware.seeing import failed, whose
from dovetail.protocol.around import Call
from dovetail.protocol.exchange import Exchange
from dovetail.wire.codec import canonical
from dovetail.wire.inputs import InputRequiredResult
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.tools import CallToolResult

Key = tuple[str, str, bytes]

_OF: Final = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}
_COMPLETE: Final = (CallToolResult, ReadResourceResult, GetPromptResult)


class Caching:
    """Keeps the results of these tools, prompts (by name) and resources (by URI) for so many seconds.

    Each caller has results of its own, unless `shared=True` says that all get the same, whoever they are. Failures and
    questions are not kept. At most `entries` are; the longest unused give way.
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
        self._kept: OrderedDict[Key, tuple[float, Any]] = OrderedDict()

    async def __call__(self, exchange: Exchange, proceed: Call) -> Any:
        name = exchange.params.get(_OF.get(exchange.method, ""))
        if type(name) is not str or name not in self._names or "requestState" in exchange.params:
            return await proceed(exchange)
        key = self._key(exchange)
        kept = self._kept.get(key)
        if kept is not None and self._clock() < kept[0]:
            self._kept.move_to_end(key)
            return kept[1]
        result = await proceed(exchange)
        if isinstance(result, _COMPLETE) and not isinstance(result, InputRequiredResult) and not failed(result):
            self._keep(key, result)
        return result

    def _key(self, exchange: Exchange) -> Key:
        asked = {name: value for name, value in exchange.params.items() if name != "_meta"}
        return exchange.method, "" if self._shared else whose(exchange), canonical(asked)

    def _keep(self, key: Key, result: Any) -> None:
        self._kept[key] = (self._clock() + self._seconds, result)
        self._kept.move_to_end(key)
        while len(self._kept) > self._entries:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
