"""A server as one of several workers that share their state."""

import asyncio
from typing import Protocol

from dovetail.cluster.call_places import CallPlaces
from dovetail.keys import build_key
from dovetail.log import log
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.interfaces.shared_state import SharedWorker
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.middleware import Handler
from dovetail.server.dispatch.admission import Admission
from dovetail.server.dispatch.handler_table import HandlerTable
from dovetail.server.dispatch.parts import Handlers, Position, ServerPart
from dovetail.server.items.registry import Registry
from dovetail.wire.base import Result


class SharingServer(Protocol):
    """What the membership needs of a server."""

    @property
    def name(self) -> str: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def limits(self) -> ServerLimits: ...
    @property
    def handler_table(self) -> HandlerTable: ...
    @property
    def admission(self) -> Admission: ...


class ClusterMembership(ServerPart):
    """Joins a cluster when the server starts, and shares limits and changes with the other workers.

    Args:
        is_owner: Whether this server starts and closes the worker. Several servers of a process may share one worker.
    """

    position = Position.PROCESS

    def __init__(self, server: SharingServer, worker: SharedWorker, *, is_owner: bool) -> None:
        self._server = server
        self._registry = server.registry
        self._worker = worker
        self._is_owner = is_owner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._warns_of_local_changes = self._has_warned_of_local_change = False

    def rewrite(self, handlers: Handlers) -> Handlers:
        """Return handlers that wait until the other workers can learn of what a request has changed."""
        return {
            method: handler if method == "subscriptions/listen" else self._wait_for_changes(handler)
            for method, handler in handlers.items()
        }

    def _wait_for_changes(self, call_next: Handler) -> Handler:
        async def handle(exchange: IncomingExchange) -> Result | bytes:
            changes = self._registry.subscriptions.cluster_changes
            if changes is None or exchange.parent is not None:  # The outer request waits for its nested requests, too.
                return await call_next(exchange)
            last_number = changes.last_number
            try:
                return await call_next(exchange)
            finally:
                if changes.last_number != last_number:
                    await changes.wait_until_sent()

        return handle

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("a server with cluster= can only run in one event loop")
        self._loop = loop
        async with self._lock:
            if not self._worker.is_started:
                await self._worker.start()
            if self._server.admission.shared_calls is None:
                self._share_places()
                self._server.handler_table.share_limits(self._worker, self._server.name)
            self._registry.join_cluster(self._worker)

    def _share_places(self) -> None:
        name, limits, admission = self._server.name, self._server.limits, self._server.admission
        admission.shared_calls = CallPlaces(self._worker, build_key("calls", name), limits.max_calls_per_principal)
        admission.shared_subscriptions = CallPlaces(
            self._worker, build_key("subscriptions", name), limits.max_subscriptions_per_principal
        )

    def on_started(self) -> None:
        # Each worker runs the lifespan, so all workers have the items that were added until now.
        self._warns_of_local_changes = not self._has_warned_of_local_change

    def on_local_change(self) -> None:
        """Log a warning once if the author changes items after this worker has joined a cluster."""
        if self._warns_of_local_changes:
            self._warns_of_local_changes, self._has_warned_of_local_change = False, True
            log.warning(
                "%s changed its tools, resources or prompts at run time. Other workers of the cluster do not have this "
                "change, so clients see it only sometimes. Make such changes before the server starts or in its "
                "lifespan, or at each worker",
                self._server.name,
            )

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            self._loop = None
            await self._registry.leave_cluster()
            if self._is_owner:
                await self._worker.close()
