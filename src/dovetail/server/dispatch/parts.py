"""The interface through which optional features, such as mounts and tool search, attach to a server.

The dispatcher knows the parts of its server only through this interface.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.middleware import Handler, Middleware
from dovetail.protocol.principal import Principal

if TYPE_CHECKING:  # Few servers have extensions, routes or a cluster.
    from dovetail.protocol.interfaces.extension import ExtensionSubscription
    from dovetail.protocol.interfaces.shared_state import SharedWorker
    from dovetail.server.routes import RouteMatch

Handlers: TypeAlias = Mapping[str, Handler]


class Position(IntEnum):
    """The order of parts, from the inside to the outside. A request reaches the outermost part first."""

    ROUTES = 0
    ITEMS = 1  # adds items to those of the server
    CALLS = 2  # decides how a call runs
    LISTS = 3  # replaces lists
    EXTENSIONS = 4
    PROCESS = 5  # concerns all requests of a process


class ServerPart:
    """What one feature adds to a server. A feature overrides the methods that it needs.

    `wrap` and `rewrite` are called again after each change of the server's handlers.
    """

    position: ClassVar[Position]
    middleware: Sequence[Middleware] = ()  # inside the middleware of the server

    def wrap(self, handlers: Handlers) -> Handlers:
        """Return handlers that replace `handlers`. All middleware wraps the returned handlers."""
        return handlers

    def rewrite(self, handlers: Handlers) -> Handlers:
        """Return handlers that replace `handlers`. The returned handlers wrap all middleware.

        A handler that changes which tool a request calls belongs here, so that middleware sees the real tool.
        """
        return handlers

    def list_used_scopes(self) -> list[str]:
        """Return the scopes that this part requires."""
        return []

    def find_route(self, path: str, method: str) -> "RouteMatch | None":
        """Return the HTTP route of a path, or None."""
        return None

    def receive_notification(self, exchange: IncomingExchange) -> None:
        """Receive a notification from a client. This method must not block."""

    def watch_resource(self, uri: str, principal: Principal | None, origin: str | None) -> Callable[[], None] | None:
        """Forward updates of a resource to a client. Return a function that stops the updates, or None."""
        return None

    async def open_subscriptions(self, exchange: IncomingExchange) -> "Mapping[str, ExtensionSubscription]":
        """Open the subscriptions that this part handles. The keys are fields of the subscription filter."""
        return {}

    def on_local_change(self) -> None:
        """React to the author's change of the items of this server."""

    def share_limits(self, cluster: "SharedWorker", path: str) -> None:
        """Share limits with all workers. `path` identifies the server at all of them."""

    async def start(self) -> None:
        """Start in the running event loop, before the lifespan of the server. This method may be called again."""

    def on_started(self) -> None:
        """React to the end of a start, after the lifespan of the server has opened."""

    async def stop(self) -> None:
        """Stop in the running event loop, after the lifespan of the server."""

    async def close(self) -> None:
        """Release what this part holds in the running event loop, even if stopping the server failed."""
