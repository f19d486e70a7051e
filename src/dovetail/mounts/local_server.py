"""Mounted servers that run in the same process, and the interfaces that mounts use."""

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.errors import MCPError
from dovetail.mounts.mountable import Mountable, ResourceWatch
from dovetail.protocol.exchange import ChangeCallback, IncomingExchange
from dovetail.protocol.headers import HeaderPath
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.server.dispatch.handler_table import HandlerTable
from dovetail.server.dispatch.item_source import ItemSource
from dovetail.server.dispatch.lifecycle import Lifecycle
from dovetail.server.dispatch.lifespan import log_start_failure
from dovetail.server.items.registry import Registry
from dovetail.server.items.visibility import Visibility
from dovetail.wire.base import Result
from dovetail.wire.lifecycle import ServerCapabilities

if TYPE_CHECKING:  # Few servers have routes.
    from dovetail.server.routes import RouteMatch


class MountingServer(Protocol):
    """The parts of a dispatcher that mounting uses."""

    items: ItemSource

    @property
    def registry(self) -> Registry: ...
    @property
    def visibility(self) -> Visibility: ...
    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> ServerLimits: ...
    @property
    def handler_table(self) -> HandlerTable: ...
    @property
    def lifecycle(self) -> Lifecycle: ...

    def capabilities(self) -> ServerCapabilities: ...
    async def dispatch(self, exchange: IncomingExchange) -> Result | bytes: ...
    def receive_notification(self, exchange: IncomingExchange) -> None: ...
    def watch_resource(
        self, uri: str, principal: Principal | None, origin: str | None
    ) -> Callable[[], None] | None: ...
    def list_used_scopes(self) -> tuple[str, ...]: ...
    def find_route(self, path: str, method: str) -> "RouteMatch | None": ...


class LocalServer:
    """A mounted server in the same process."""

    is_remote = False

    def __init__(self, server: MountingServer) -> None:
        self.name = server.name
        self.server = server
        # A request may start the server, which then lives longer than the request.
        self._context = contextvars.copy_context()

    async def start(self) -> None:
        try:
            await self.server.lifecycle.start(self, self._context)
        except (MCPError, asyncio.CancelledError):
            raise
        except Exception as exc:
            raise log_start_failure(self.name, exc) from None

    async def stop(self) -> None:
        """Stop using the server. Its lifespan ends when no other user is left."""
        await self.server.lifecycle.stop(self)

    def capabilities(self) -> ServerCapabilities:
        return self.server.capabilities()

    async def list_items(self, kind: ItemKind, exchange: IncomingExchange) -> Mapping[str, Any]:
        """Return the items of the server and of the servers mounted on it."""
        return await self.server.items.list_items(kind, exchange)

    async def has_item(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        """Return whether this caller sees an item with this name, or a resource or template for this URI."""
        return await self.server.items.has_item(kind, name, exchange)

    async def check_scopes(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> None:
        """Raise InsufficientScope if the caller needs more scopes to see the item."""
        await self.server.items.check_scopes(kind, name, exchange)

    async def find_header_paths(self, name: str, exchange: IncomingExchange) -> Sequence[HeaderPath]:
        """Return the headers that repeat arguments of a tool of the server, or of a server mounted on it."""
        return await self.server.items.find_header_paths(name, exchange)

    async def handle(self, exchange: IncomingExchange) -> Result | bytes:
        """Handle a request with the server's handlers and middleware."""
        return await self.server.dispatch(exchange)

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call a function for each change on the server. The returned function removes the callback."""
        return self.server.registry.subscriptions.add_callback(callback)

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        return self.server.items.can_receive_updates(uri, principal)

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> ResourceWatch:
        """Do nothing. `watch_changes` already reports all updates of resources."""
        return ResourceWatch(uris, lambda: None)


def list_all_items(target: Mountable, kind: ItemKind) -> dict[str, Any] | None:
    """Return all items of a server, even those that are hidden from callers. Return None if the server is remote."""
    return target.server.items.list_all_items(kind) if isinstance(target, LocalServer) else None
