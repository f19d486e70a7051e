"""Mountable: the interface of a server that is mounted on another server, in this process or remote.

The two servers do not know each other's class. A server mounts any object with this interface.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias

from dovetail.errors import InvalidParams, PromptNotFound, ResourceNotFound, ToolNotFound
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.principal import Principal
from dovetail.wire.base import Result
from dovetail.wire.lifecycle import ServerCapabilities

ItemKind: TypeAlias = Literal["tool", "resource", "resource template", "prompt"]

ITEM_KINDS: Final[tuple[ItemKind, ...]] = ("tool", "resource", "resource template", "prompt")

# The error for an item that does not exist.
NOT_FOUND_ERRORS: Final[Mapping[ItemKind, Callable[[str], InvalidParams]]] = {
    "tool": ToolNotFound,
    "resource": ResourceNotFound,
    "resource template": ResourceNotFound,
    "prompt": PromptNotFound,
}

# Receives the method of a change notification, and the URI if the change concerns one resource.
ChangeCallback: TypeAlias = Callable[[str, str | None], None]


class SupportsMount(Protocol):
    """A `Client`, or any other object except a `Server` that can be mounted on a server."""

    def __mountable__(self) -> "Mountable":
        """Return the interface that the mounting server uses."""
        ...


class Mountable(Protocol):
    """A server that is mounted on another server."""

    name: str
    is_remote: bool  # whether finding an item needs a request to another process

    async def start(self) -> None:
        """Start the server. This method is called before each use, so it must be fast if the server is already
        running.
        """
        ...

    async def stop(self) -> None:
        """Release all resources. `start` can start the server again."""
        ...

    def capabilities(self) -> ServerCapabilities:
        """Return the known capabilities."""
        ...

    async def list_items(self, kind: ItemKind, exchange: IncomingExchange) -> Mapping[str, Any]:
        """Return the definitions that this caller can see, by name or URI."""
        ...

    async def has_item(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        """Return whether there is an item with this name or URI."""
        ...

    async def handle(self, exchange: IncomingExchange) -> Result | bytes:
        """Return the result of an exchange."""
        ...

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        """Report changes to a callback. Call the returned function to stop the reports."""
        ...

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may receive updates of a resource. Decide without a request to another process."""
        ...

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> Callable[[], None]:
        """Report updates of these resources for this caller, too. Call the returned function to stop the reports."""
        ...
