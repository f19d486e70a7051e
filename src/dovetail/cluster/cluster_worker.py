"""This process as one worker of a cluster: its shared state, its keys, and the handlers of messages."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from dovetail.protocol.exchange import Service
from dovetail.protocol.interfaces.shared_state import (
    ChangeLog,
    ConnectionRouter,
    EventLimiter,
    Message,
    MessageReceiver,
    SharedState,
)
from dovetail.protocol.interfaces.state_store import StateStore
from dovetail.protocol.limits import ServerLimits

if TYPE_CHECKING:
    from dovetail.cluster.cluster_membership import SharingServer
    from dovetail.server.dispatch.parts import ServerPart
    from dovetail.transports.http_server.sessions.handshake_sessions import HandshakeSessions, SessionVersions
    from dovetail.transports.http_server.streams.http_response import ResponseTimers
    from dovetail.transports.spool import MemoryBudget

MessageHandler: TypeAlias = Callable[[Message], None]
CloseHandler: TypeAlias = Callable[[], Awaitable[None]]


class ClusterWorker:
    """One worker of a cluster.

    All workers have the same secret keys. Call all methods in the event loop that started the worker.
    """

    def __init__(self, state: SharedState, secret_keys: Sequence[str | bytes]) -> None:
        self.state = state
        self.secret_keys = secret_keys
        self._handlers: dict[str, list[MessageHandler]] = {}
        self._gap_handlers: dict[object, Callable[[], None]] = {}
        self._close_handlers: dict[object, CloseHandler] = {}
        self.is_started = False
        self.parts: dict[type[Any], Any] = {}  # objects of other packages that exist once for each worker

    @property
    def name(self) -> str:
        """Return the random name of this worker. It is known after `start`."""
        return self.state.worker

    async def start(self) -> None:
        """Join the cluster."""
        await self.state.start(self)
        self.is_started = True

    async def close(self) -> None:
        """Call the close handlers and leave the cluster. Other workers learn at once that this worker has ended."""
        try:
            if self.is_started:
                await _run_close_handlers(tuple(self._close_handlers.values()))
        finally:
            self.is_started = False
            await self.state.close()

    def add_handler(self, kind: str, handler: MessageHandler) -> Callable[[], None]:
        """Handle all messages of one kind. Messages can arrive twice. Return a function that removes the handler.

        A kind can have several handlers, because a server can have several endpoints.
        """
        handlers = self._handlers.setdefault(kind, [])
        handlers.append(handler)

        def remove() -> None:
            if handler in handlers:
                handlers.remove(handler)

        return remove

    def add_gap_handler(self, handler: Callable[[], None]) -> Callable[[], None]:
        """Call a function after a gap in the change log. Return a function that removes it."""
        key = object()
        self._gap_handlers[key] = handler

        def remove() -> None:
            self._gap_handlers.pop(key, None)

        return remove

    def add_close_handler(self, handler: CloseHandler) -> Callable[[], None]:
        """Call a function before this worker leaves the cluster. Return a function that removes it.

        The function can store the results of work in the background, and should need at most a few seconds.
        """
        key = object()
        self._close_handlers[key] = handler

        def remove() -> None:
            self._close_handlers.pop(key, None)

        return remove

    # What transports and servers need. Its modules are only imported if a server uses them.

    def create_sessions(
        self,
        service: Service,
        versions: "SessionVersions",
        budget: "MemoryBudget",
        timers: "ResponseTimers",
        join_cluster: Callable[[], Awaitable[None]] | None,
    ) -> "HandshakeSessions":
        """Return the sessions of an endpoint, which all workers share."""
        from dovetail.cluster.sessions.shared_sessions import SharedSessions

        return SharedSessions(self, service, versions, budget, timers, join_cluster)

    def create_server_part(self, server: "SharingServer", *, is_owner: bool) -> "ServerPart":
        """Return the part that shares the limits and the changes of a server with all workers."""
        from dovetail.cluster.cluster_membership import ClusterMembership

        return ClusterMembership(server, self, is_owner=is_owner)

    def create_connection_router(
        self, server_name: str, limits: ServerLimits, receive: MessageReceiver
    ) -> ConnectionRouter:
        """Return a router for connections whose messages can reach any worker."""
        from dovetail.cluster.sessions.sse_2024_router import SSE2024Router

        return SSE2024Router(self, server_name, limits, receive)

    def create_rate_limiter(
        self, name: str, max_count: float, window_s: float, burst: float | None = None
    ) -> EventLimiter:
        """Return a limit on how often an event happens at all workers together."""
        from dovetail.cluster.shared_rate_limiter import SharedRateLimiter

        return SharedRateLimiter(self.state, name, max_count, window_s, burst=burst)

    def create_state_store(self) -> StateStore:
        """Return a store for the state that functions keep between calls."""
        from dovetail.cluster.cluster_state_store import ClusterStateStore

        return ClusterStateStore(self.state)

    def create_change_log(self, receive_change: Callable[[str, str | None], None]) -> ChangeLog:
        """Return a log through which all workers hear the changes of a server."""
        from dovetail.cluster.cluster_changes import ClusterChanges

        return ClusterChanges(self, receive_change)

    # The methods of SharedStateListener.

    def receive(self, message: Message) -> None:
        """Pass a message to the handlers of its kind. If some of them fail, the others run, and then their errors are
        raised.
        """
        # A worker with a newer release may send kinds of messages that this release does not know.
        handlers = self._handlers.get(message.kind, ())
        _call_all([partial(handler, message) for handler in handlers], f"could not handle a message {message.kind!r}")

    def handle_gap(self) -> None:
        """Call all gap handlers. If some of them fail, the others run, and then their errors are raised."""
        _call_all(tuple(self._gap_handlers.values()), "could not handle a gap in the change log")


async def _run_close_handlers(handlers: Sequence[CloseHandler]) -> None:
    """Call handlers at the same time, because each of them may wait for a second.

    If some of them fail, the others continue, and then their errors are raised.
    """
    outcomes = await asyncio.gather(*(handler() for handler in handlers), return_exceptions=True)
    errors = [outcome for outcome in outcomes if outcome is not None]
    if errors:
        raise BaseExceptionGroup("close handlers of this worker failed", errors)


def _call_all(functions: Iterable[Callable[[], None]], problem: str) -> None:
    errors: list[Exception] = []
    for function in functions:
        try:
            function()
        except Exception as exc:
            errors.append(exc)
    if errors:
        raise ExceptionGroup(problem, errors)
