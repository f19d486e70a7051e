"""The life of a server in each event loop: start, lifespan, timeouts of calls, and an orderly stop."""

import asyncio
import contextvars
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from dovetail.eager_tasks import EagerTaskStarter
from dovetail.errors import ServerBusy
from dovetail.log import log
from dovetail.protocol.exchange import IncomingExchange, WaitingCalls
from dovetail.protocol.limits import ServerLimits
from dovetail.server.dispatch.change_notices import ChangeStream
from dovetail.server.dispatch.handler_table import HandlerTable
from dovetail.server.dispatch.lifespan import Lifespan, LifespanRun, log_start_failure
from dovetail.server.items.registry import Registry

_SWEEP_INTERVAL_S: Final = 0.5  # Seconds between two checks for calls that take too long.
_QUIET_DRAIN_S: Final = 0.5  # A stop that takes longer is logged.


class LoopState:
    """The state of a server in one event loop, from its first use until it stops."""

    __slots__ = (
        "calls_by_origin",
        "change_streams",
        "closed_event",
        "is_closing",
        "is_sweeping",
        "large_bytes_by_origin",
        "lifespan_run",
        "loop",
        "nested_exchanges",
        "running_exchanges",
        "starter",
        "subscriptions_by_origin",
        "users",
        "waiting_calls",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.running_exchanges: set[IncomingExchange] = set()
        self.nested_exchanges: set[IncomingExchange] = set()  # Requests that functions made to their own server.
        self.calls_by_origin: Counter[str] = Counter()
        self.waiting_calls = WaitingCalls()
        # The total size of large messages in each caller's running calls.
        self.large_bytes_by_origin: Counter[str | None] = Counter()
        self.subscriptions_by_origin: Counter[str] = Counter()
        self.change_streams: set[ChangeStream] = set()
        self.starter = EagerTaskStarter(contextvars.Context())
        self.is_sweeping = False
        self.users: set[object] = set()  # the objects that have started the server and have not stopped it yet
        self.lifespan_run: LifespanRun | None = None
        self.is_closing = False
        self.closed_event = asyncio.Event()


class Lifecycle:
    """Starts and stops one server, and has its state in each event loop."""

    def __init__(
        self,
        registry: Registry,
        handler_table: HandlerTable,
        limits: ServerLimits,
        lifespan: Lifespan | None,
        get_name: Callable[[], str],
    ) -> None:
        self.stops_on_second_signal = False
        self.has_lifespan = lifespan is not None
        self._registry = registry
        self._handler_table = handler_table
        self._limits = limits
        self._lifespan = lifespan
        self._get_name = get_name
        self._extension_lifespans: list[Lifespan] = []
        self._context = contextvars.copy_context()  # the context of a lifespan that a request opens
        self._state_by_loop: dict[asyncio.AbstractEventLoop, LoopState] = {}
        self.last_state: LoopState | None = None  # the state that was used last

    async def ensure_open(self, state: "LoopState") -> None:
        """Open the lifespan if it is not open.

        A mounted server is not started explicitly. Its first request opens the lifespan.

        Raises:
            ServerBusy: the server is stopping.
        """
        if state.is_closing:
            raise ServerBusy("The server is shutting down")
        if self.has_lifespan and (state.lifespan_run is None or not state.lifespan_run.is_open):
            await self._open_lifespan_for_request(state)
            # While this request waited for the lifespan, `stop` may have been called.
            if state.is_closing:
                raise ServerBusy("The server is shutting down")

    async def _open_lifespan_for_request(self, state: "LoopState") -> None:
        run = self.get_lifespan_run(state)
        try:
            await run.wait_until_ready()
        except BaseException as exc:
            if exc is run.failure:
                raise log_start_failure(self._get_name(), exc) from None
            raise
        if not state.users:  # The first request opened the lifespan. It stays open until `stop` is called.
            state.users.add(self)

    def list_states(self) -> "tuple[LoopState, ...]":
        return tuple(self._state_by_loop.values())

    def find_running_state(self) -> "LoopState | None":
        """Return the state of the running event loop, or None if the server has not been used in it."""
        return self._state_by_loop.get(asyncio.get_running_loop())

    async def start(self, user: object = None, context: contextvars.Context | None = None) -> None:
        """Open the lifespan in the running event loop. Call `stop` with the same `user` to close it.

        The lifespan runs in `context`, or else in the context of this call.
        """
        state = self.get_state()
        while state.is_closing:
            await state.closed_event.wait()
            state = self.get_state()
        state.users.add(self if user is None else user)
        try:
            self._registry.warn_unused_rules()
            for part in reversed(self._handler_table.parts):
                await part.start()
            if self.has_lifespan:
                await self.get_lifespan_run(state, context or contextvars.copy_context()).wait_until_ready()
        except BaseException:
            await self._release_user(state, self if user is None else user)
            raise
        for part in self._handler_table.parts:
            part.on_started()

    def get_lifespan_run(self, state: LoopState, context: contextvars.Context | None = None) -> LifespanRun:
        """Return the open lifespan, or open it. A lifespan lives longer than a request, so it has another context."""
        run = state.lifespan_run
        if run is None or not (run.is_open or run.is_starting):
            run = state.lifespan_run = LifespanRun(
                self._lifespan,
                self._extension_lifespans,
                self._get_name(),
                self._context if context is None else context,
            )
        return run

    def add_lifespan(self, lifespan: Lifespan) -> None:
        """Add the lifespan of an extension. If the server is running, open it."""
        self._extension_lifespans.append(lifespan)
        self.has_lifespan = True
        running_loop = _find_running_loop()
        for state in tuple(self._state_by_loop.values()):
            if state.loop is running_loop:
                self._open_added_lifespans(state)
            elif not state.loop.is_closed():
                state.loop.call_soon_threadsafe(self._open_added_lifespans, state)

    def _open_added_lifespans(self, state: LoopState) -> None:
        # A server without users is not running yet. It opens all lifespans at its first request.
        if state.users and not state.is_closing:
            self.get_lifespan_run(state).open_added()

    def get_lifespan_value(self, exchange: IncomingExchange) -> Any:
        # `get_context` may be called in a thread.
        loop = asyncio.get_running_loop() if exchange.task is None else exchange.task.get_loop()
        run = self.find_or_create_state(loop).lifespan_run
        return None if run is None else run.value

    async def stop(self, user: object = None) -> None:
        """Stop the server in this event loop. If `user` is passed, the server keeps running for other users."""
        if user is None:
            await self._close_state(self.get_state())
        elif (state := self._state_by_loop.get(asyncio.get_running_loop())) is not None:
            await self._release_user(state, user)

    async def _release_user(self, state: LoopState, user: object) -> None:
        if user not in state.users:
            return
        state.users.remove(user)
        if state.users:
            return
        if any(
            exchange.verdict is None for exchange in state.running_exchanges
        ) or self._registry.subscriptions.has_listener_on(state.loop):
            # Requests or listeners still use the server, and no event reports when they end.
            # The lifespan therefore stays open, with the dispatcher as its user.
            state.users.add(self)
        else:
            await self._close_state(state)

    def end_subscriptions(self) -> None:
        """Send the result of each open `subscriptions/listen` in this event loop."""
        if (state := self._state_by_loop.get(asyncio.get_running_loop())) is not None:
            for stream in tuple(state.change_streams):
                stream.close()

    def end_calls(self) -> int:
        """End the running calls in this event loop at once, and return their number."""
        state = self._state_by_loop.get(asyncio.get_running_loop())
        exchanges = () if state is None else tuple(call for call in state.running_exchanges if call.verdict is None)
        if exchanges:
            log.warning("%s stops running calls at once: %d", self._get_name(), len(exchanges))
        for exchange in exchanges:
            exchange.end("shutdown")
        return len(exchanges)

    async def _close_state(self, state: LoopState) -> None:
        if state.is_closing:
            await state.closed_event.wait()
            return
        state.is_closing = True
        try:
            self.end_subscriptions()
            await self._drain(state)
            for exchange in tuple(state.running_exchanges):
                if exchange.task is not asyncio.current_task():
                    exchange.end("shutdown")
            await _wait_for_calls(state, 1.0)
            if state.lifespan_run is not None:
                await state.lifespan_run.close()
            for part in self._handler_table.parts:
                await part.stop()
        finally:
            if state.lifespan_run is not None:
                state.lifespan_run.end()
            for part in self._handler_table.parts:
                await part.close()
            self._state_by_loop.pop(state.loop, None)
            self.last_state = None
            state.closed_event.set()

    async def _drain(self, state: LoopState) -> None:
        """Wait for the running calls. If they do not end soon, log for what the server waits."""
        timeout = self._limits.drain_timeout
        quiet_time = min(_QUIET_DRAIN_S, timeout)
        await _wait_for_calls(state, quiet_time)
        count = _count_calls(state)
        if count and timeout > quiet_time:
            hint = ". A second signal stops them at once" if self.stops_on_second_signal else ""
            log.warning(
                "%s (process %d) is stopping and waits up to %g s for running calls (%d)%s",
                *(self._get_name(), os.getpid(), timeout, count, hint),
            )
            await _wait_for_calls(state, timeout - quiet_time)
            count = _count_calls(state)
        if count:
            log.warning(
                "%s (process %d) stops calls that did not end within %g s (drain_timeout): %d",
                *(self._get_name(), os.getpid(), timeout, count),
            )

    def get_state(self) -> LoopState:
        loop = asyncio.get_running_loop()
        state = self.last_state
        return state if state is not None and state.loop is loop else self.find_or_create_state(loop)

    def find_or_create_state(self, loop: asyncio.AbstractEventLoop) -> LoopState:
        state = self._state_by_loop.get(loop)
        if state is None:
            for other_loop in tuple(self._state_by_loop):
                if other_loop.is_closed():
                    self._state_by_loop.pop(other_loop, None)
            state = self._state_by_loop[loop] = LoopState(loop)
        self.last_state = state
        return state

    def _get_sweep_interval(self) -> float:
        return min(_SWEEP_INTERVAL_S, self._limits.call_timeout / 4)

    def start_sweeping(self, state: LoopState) -> None:
        if not state.is_sweeping:
            state.is_sweeping = True
            state.loop.call_later(self._get_sweep_interval(), self._sweep_overdue, state, context=contextvars.Context())

    def _sweep_overdue(self, state: LoopState) -> None:
        """Stop all calls that take too long.

        This check runs periodically, because one timer per call would cost more.
        """
        now = state.loop.time()
        exchanges = (*state.running_exchanges, *state.nested_exchanges)
        for exchange in exchanges:
            if exchange.questions:
                is_overdue, verdict = now > exchange.questions[0] + self._limits.request_state_ttl, "unanswered"
            else:
                is_overdue, verdict = exchange.deadline is not None and now > exchange.deadline, "timeout"
            if is_overdue:
                if exchange.time_limit is None:
                    exchange.time_limit = self._limits.call_timeout
                exchange.end(verdict)
        state.is_sweeping = False
        if exchanges:
            self.start_sweeping(state)


def _find_running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this thread, or None if the thread has no running event loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _count_calls(state: LoopState) -> int:
    current_task = asyncio.current_task()
    return sum(exchange.task is not current_task for exchange in state.running_exchanges)


async def _wait_for_calls(state: LoopState, timeout: float) -> None:
    tasks = [exchange.task for exchange in state.running_exchanges if exchange.task is not asyncio.current_task()]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)
