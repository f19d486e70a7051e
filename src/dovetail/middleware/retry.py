"""Retry: repeat a failed request if the failure may pass and the request may run twice."""

import asyncio
import random
from collections.abc import Collection
from typing import Any

from dovetail.errors import TransportError
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.middleware import CallNext, has_failed

TRANSIENT_ERRORS: tuple[type[BaseException], ...] = (
    OSError,
    TransportError,
)  # timeouts and lost connections among them


class Retry:
    """Tries again what raised one of `on`: reads and lists, and of the tools only those named.

    On a server it sees what the tool's function raised, though the result only says that it failed. The pauses double,
    beginning with `wait` seconds, and vary.
    """

    def __init__(
        self,
        tools: Collection[str] = (),
        *,
        max_retries: int = 2,
        retry_on: tuple[type[BaseException], ...] = TRANSIENT_ERRORS,
        delay: float = 0.2,
    ) -> None:
        if isinstance(tools, str):
            raise TypeError(f"tools are several: write Retry([{tools!r}])")
        self._tools = frozenset(tools)
        self._max_retries = max_retries
        self._retry_on = retry_on
        self._delay = delay

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> Any:
        name = exchange.params.get("name")
        if exchange.method == "tools/call" and (type(name) is not str or name not in self._tools):
            return await call_next(exchange)
        for attempt in range(self._max_retries):
            exchange.exception = None
            try:
                result = await call_next(exchange)
                exception: Any = exchange.exception
                if not has_failed(result) or not isinstance(exception, self._retry_on):
                    return result
            except self._retry_on:
                pass
            if exchange.verdict is not None:  # it was stopped, and would be again
                break
            # Jitter, because many callers meet the same failure at the same moment.
            await asyncio.sleep(self._delay * 2**attempt * random.uniform(0.5, 1.0))
        exchange.exception = None
        return await call_next(exchange)
