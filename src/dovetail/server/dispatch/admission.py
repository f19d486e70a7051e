"""Admission of requests: how many calls, large messages and subscriptions may be open, in total and per caller."""

import asyncio
from collections import Counter
from typing import Any, Final, Protocol

from dovetail.errors import ServerBusy
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.limits import CallerBusy, ServerLimits
from dovetail.server.context import get_input_requests
from dovetail.server.dispatch.lifecycle import Lifecycle, LoopState

_LARGE_MESSAGE_BYTES: Final = 64 * 1024  # Messages above this size count toward `max_inflight_bytes`.


class SharedPlaces(Protocol):
    """Limits how many requests of one caller run at all workers together."""

    async def acquire(self, origin: str, running: int) -> bool:
        """Return whether one more request may run. `running` is the number of requests that run at this worker."""
        ...

    def release(self, origin: str, running: int) -> None:
        """Give back the places that `running` requests do not need."""
        ...


class Admission:
    """Counts the open requests of a server, and refuses those that exceed a limit."""

    def __init__(self, limits: ServerLimits, lifecycle: Lifecycle) -> None:
        # Both are None if no other worker serves the same callers.
        self.shared_calls: SharedPlaces | None = None
        self.shared_subscriptions: SharedPlaces | None = None
        self._limits = limits
        self._max_calls = limits.max_calls
        self._max_calls_per_principal = limits.max_calls_per_principal
        self._call_timeout = limits.call_timeout
        self._lifecycle = lifecycle

    def begin(self, exchange: IncomingExchange, state: LoopState) -> None:
        """Count a call and set its deadline. Raise ServerBusy if it exceeds a limit."""
        if len(state.running_exchanges) >= self._max_calls and self._is_full(state):
            raise ServerBusy("Too many calls are running")
        if exchange.size > _LARGE_MESSAGE_BYTES:
            self._check_large_messages(exchange, state)
        origin, loop = exchange.origin, state.loop
        if origin is not None:
            if self.shared_calls is None and state.calls_by_origin[origin] >= self._max_calls_per_principal:
                self._check_share(origin, state)
            state.calls_by_origin[origin] += 1
        if exchange.task is None:
            exchange.task = asyncio.current_task(loop)
        exchange.deadline = loop.time() + self._call_timeout
        if not state.is_sweeping:
            self._lifecycle.start_sweeping(state)
        state.running_exchanges.add(exchange)
        exchange.waiting_calls = state.waiting_calls
        if exchange.size > _LARGE_MESSAGE_BYTES:
            state.large_bytes_by_origin[origin] += exchange.size

    async def begin_shared(self, exchange: IncomingExchange, state: LoopState) -> None:
        """Count a call like `begin`, after it has a place among the caller's calls at all workers."""
        places, origin = self.shared_calls, exchange.origin
        if len(state.running_exchanges) >= self._max_calls and self._is_full(state):
            raise ServerBusy("Too many calls are running")
        if places is None or origin is None:
            self.begin(exchange, state)
            return
        if not await places.acquire(origin, self._count_running(origin, state)):
            raise _make_share_error(self._max_calls_per_principal)
        try:
            if state.is_closing:
                raise ServerBusy("The server is shutting down")
            self.begin(exchange, state)
        except BaseException:
            places.release(origin, self._count_running(origin, state))
            raise

    def end(self, exchange: IncomingExchange, state: LoopState) -> None:
        """End a call: it no longer counts, and can send no more messages."""
        origin = exchange.origin
        if exchange.context is not None:
            get_input_requests(exchange.context).is_ended = True
            exchange.context = None
        state.running_exchanges.discard(exchange)
        if exchange.questions:
            state.waiting_calls.remove(origin)
        exchange.waiting_calls = None
        if exchange.size > _LARGE_MESSAGE_BYTES:
            _release_share(state.large_bytes_by_origin, origin, exchange.size)
        # After a call has ended, its background tasks must not send messages. spec: progress#implementation-notes
        exchange.emit = None
        if origin is not None:
            calls = state.calls_by_origin[origin] = state.calls_by_origin[origin] - 1
            if not calls:
                del state.calls_by_origin[origin]
            if self.shared_calls is not None:
                self.shared_calls.release(origin, self._count_running(origin, state))

    async def begin_subscription(self, origin: str | None, state: LoopState) -> None:
        """Count a subscription. Raise CallerBusy if it exceeds `max_subscriptions_per_principal`."""
        if origin is None:
            return
        running, limit = state.subscriptions_by_origin[origin], self._limits.max_subscriptions_per_principal
        places = self.shared_subscriptions
        if not (running < limit if places is None else await places.acquire(origin, running)):
            raise _make_share_error(limit)
        state.subscriptions_by_origin[origin] += 1

    def end_subscription(self, origin: str | None, state: LoopState) -> None:
        if origin is not None:
            _release_share(state.subscriptions_by_origin, origin)
            if self.shared_subscriptions is not None:
                self.shared_subscriptions.release(origin, state.subscriptions_by_origin[origin])

    def _is_full(self, state: LoopState) -> bool:
        """Return whether too many calls are running.

        Up to `max_calls` calls that wait for the user are not counted.
        """
        running_count = len(state.running_exchanges) - min(state.waiting_calls.total, self._max_calls)
        return running_count >= self._max_calls

    def _check_share(self, origin: str, state: LoopState) -> None:
        """Raise CallerBusy if too many calls of this caller are running."""
        if self._count_running(origin, state) >= self._max_calls_per_principal:
            raise _make_share_error(self._max_calls_per_principal)

    def _count_running(self, origin: str, state: LoopState) -> int:
        """Return the running calls of a caller.

        Calls that wait for user input do not count, up to `max_calls_per_principal`.
        """
        waiting_count = min(state.waiting_calls.by_origin[origin], self._max_calls_per_principal)
        return state.calls_by_origin[origin] - waiting_count

    def _check_large_messages(self, exchange: IncomingExchange, state: LoopState) -> None:
        """Raise ServerBusy if the large messages of all running calls exceed `max_inflight_bytes`.

        Raise CallerBusy if the messages of this caller exceed half of this limit. One caller must not use all of it.
        """
        limit, large_bytes = self._limits.max_inflight_bytes, state.large_bytes_by_origin.total()
        if large_bytes > 0 and large_bytes + exchange.size > limit:
            raise ServerBusy("Too many calls are running")
        own_bytes = state.large_bytes_by_origin[exchange.origin]
        if exchange.origin is not None and own_bytes > 0 and own_bytes + exchange.size > limit // 2:
            raise CallerBusy("You have too many running calls with large messages")


def _make_share_error(limit: int) -> ServerBusy:
    return CallerBusy(f"More than {limit} of your requests are running")


def _release_share(counter: Counter[Any], origin: str | None, count: int = 1) -> None:
    counter[origin] -= count
    if not counter[origin]:
        del counter[origin]
