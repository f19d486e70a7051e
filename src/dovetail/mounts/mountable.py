"""The interface of a server that is mounted on another server, in this process or remote.

The two servers do not know each other's class. A server mounts any object with this interface.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dovetail.protocol.exchange import ChangeCallback, IncomingExchange
from dovetail.protocol.headers import HeaderPath
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.principal import Principal
from dovetail.wire.base import Result
from dovetail.wire.lifecycle import ServerCapabilities


class ResourceWatch(NamedTuple):
    """A subscription to resources of a mounted server."""

    uris: Sequence[str]  # the URIs to which the server accepted subscriptions
    stop: Callable[[], None]  # a function that ends the subscription


class SupportsMount(Protocol):
    """An object that can be mounted on a server, such as a `Client`."""

    def __mountable__(self) -> "Mountable":
        """Return a `Mountable` for this object. `Server.mount` calls this method."""
        ...


class Mountable(Protocol):
    """A server that is mounted on another server."""

    name: str
    is_remote: bool  # True if looking up an item needs a request to another process

    async def start(self) -> None:
        """Start the server. This method is called before each use, so it must be fast if the server is running."""
        ...

    async def stop(self) -> None:
        """Release all resources of the server. `start` may be called again later."""
        ...

    def capabilities(self) -> ServerCapabilities:
        """Return the known capabilities of the server."""
        ...

    async def list_items(self, kind: ItemKind, exchange: IncomingExchange) -> Mapping[str, Any]:
        """Return the definitions that this caller can see. The keys are names or URIs."""
        ...

    async def has_item(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        """Return whether the server has an item with this name or URI."""
        ...

    async def find_header_paths(self, name: str, exchange: IncomingExchange) -> Sequence[HeaderPath]:
        """Return the headers that repeat arguments of a tool, as this caller knows the tool.

        If the server has no such tool, return nothing. Raise MCPError if the definition of the tool cannot be read.
        """
        ...

    async def handle(self, exchange: IncomingExchange) -> Result | bytes:
        """Handle a request and return the result."""
        ...

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call a function for each change on the server. The returned function removes the callback."""
        ...

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may receive updates of a resource. Implementations must not send a request."""
        ...

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> ResourceWatch:
        """Subscribe to resources for this caller. Raise MCPError if the server refuses all of them."""
        ...
