"""Requests that a server makes to itself: from its functions, and for work that no client waits for, such as tasks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dovetail.errors import ProtocolError
from dovetail.protocol.exchange import IncomingExchange
from dovetail.server.dispatch.lifecycle import Lifecycle
from dovetail.server.exception_mask import ExceptionMask
from dovetail.server.thread_pool import lend_current_slot
from dovetail.wire.base import Result

_MAX_NESTED_REQUESTS: Final = 16  # The maximum depth of requests that functions make to their own server.


class NestedCalls:
    """Runs requests that do not come from a transport. Limits on running calls do not apply to them."""

    def __init__(
        self,
        dispatch: Callable[[IncomingExchange], Awaitable[Result | bytes]],
        lifecycle: Lifecycle,
        exception_mask: ExceptionMask,
    ) -> None:
        self._dispatch = dispatch
        self._lifecycle = lifecycle
        self._exception_mask = exception_mask

    async def handle(self, parent: IncomingExchange, method: str, params: dict[str, Any]) -> Result | bytes:
        """Handle a request from a function to its own server. `parent` is the request that runs the function.

        The nested request has the rights of the caller. It runs in a separate task, so that the timeout of its item
        stops only the nested request. It counts as part of its parent.

        Raises:
            RecursionError: the functions call each other without end.
        """
        exchange = parent.create_nested(method, params)
        _check_nesting(exchange)
        state = self._lifecycle.get_state()
        exchange.task = state.loop.create_task(self._run(exchange))
        state.nested_exchanges.add(exchange)
        self._lifecycle.start_sweeping(state)
        try:
            with lend_current_slot():
                return await exchange.task
        finally:
            state.nested_exchanges.discard(exchange)
            exchange.emit = None

    async def _run(self, exchange: IncomingExchange) -> Result | bytes:
        try:
            return await self._dispatch(exchange)
        except asyncio.CancelledError as exc:
            # Only cancellations are converted. The function that made the request receives other exceptions unchanged.
            raise self._exception_mask.mask(exchange, exc) from None

    async def handle_in_background(self, exchange: IncomingExchange) -> Result | bytes:
        """Handle a request for which no client waits, for example a task."""
        state = self._lifecycle.get_state()
        if self._lifecycle.has_lifespan:
            await self._lifecycle.get_lifespan_run(state).wait_until_ready()
        exchange.task = asyncio.current_task()
        state.nested_exchanges.add(exchange)
        self._lifecycle.start_sweeping(state)
        try:
            return await self._dispatch(exchange)
        except ProtocolError:
            raise
        except BaseException as exc:
            raise self._exception_mask.convert(exchange, exc) from None
        finally:
            state.nested_exchanges.discard(exchange)


def _check_nesting(exchange: IncomingExchange) -> None:
    """Raise RecursionError if a nested request has too many parents.

    Each request has a separate task, so Python does not detect the recursion.
    """
    depth, ancestor = 0, exchange.parent
    while ancestor is not None:
        depth, ancestor = depth + 1, ancestor.parent
    if depth > _MAX_NESTED_REQUESTS:
        raise RecursionError(
            f"{exchange.method} is nested more than {_MAX_NESTED_REQUESTS} levels deep. A function may call itself"
        )
