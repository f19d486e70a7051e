"""Middleware that repeats a failed request if the failure may be temporary and the request may run twice."""

import asyncio
import random
from collections.abc import Collection
from typing import Any

from dovetail.errors import TransportError
from dovetail.middleware.caller_and_outcome import has_failed
from dovetail.protocol.exchange import Exchange, IncomingExchange
from dovetail.protocol.middleware import CallNext
from dovetail.wire.methods import METHODS

# These classes include the errors for timeouts and lost connections.
TRANSIENT_ERRORS: tuple[type[BaseException], ...] = (OSError, TransportError)


class Retry:
    """Middleware that repeats failed reads, failed lists, and failed calls of the tools that you name.

    The delay doubles after each attempt, and a part of it is random. Requests for methods of extensions are not
    repeated.

    On a server, `retry_on` applies to the exception that the tool raised, not to the error message that the caller
    gets.

    Args:
        tools: The names of tools that may run twice.
        max_retries: The maximum number of retries after the first attempt.
        retry_on: The types of exceptions that cause a retry.
        delay: Seconds before the first retry.
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
            raise TypeError(f"tools must be a collection, not a string. Write Retry([{tools!r}])")
        self._tools = frozenset(tools)
        self._max_retries = max_retries
        self._retry_on = retry_on
        self._delay = delay

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
        name = exchange.params.get("name")
        is_tool_call = exchange.method == "tools/call"
        may_run_twice = type(name) is str and name in self._tools if is_tool_call else exchange.method in METHODS
        if not may_run_twice:
            return await call_next(exchange)
        for attempt in range(self._max_retries):
            exchange.exception = None
            try:
                result = await call_next(exchange)
                # `Any`, because a type checker does not know that `call_next` sets `exchange.exception`.
                exception: Any = exchange.exception
                if not has_failed(result) or not isinstance(exception, self._retry_on):
                    return result
            except self._retry_on:
                pass
            # The server has stopped this call, so do not try again.
            if isinstance(exchange, IncomingExchange) and exchange.verdict is not None:
                break
            # A random delay spreads the retries of callers that failed at the same time.
            await asyncio.sleep(self._delay * 2**attempt * random.uniform(0.5, 1.0))
        exchange.exception = None
        return await call_next(exchange)
