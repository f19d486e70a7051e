"""Mountable: what a server needs of another server that it mounts, in this process or remote.

Neither side knows the other: the framework mounts anything of this shape, and a client can be put into it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias

from dovetail.errors import InvalidParams, PromptNotFound, ResourceNotFound, ToolNotFound
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.principal import Principal
from dovetail.wire.base import Result
from dovetail.wire.lifecycle import ServerCapabilities

ItemKind: TypeAlias = Literal["tool", "resource", "resource template", "prompt"]

ITEM_KINDS: Final[tuple[ItemKind, ...]] = ("tool", "resource", "resource template", "prompt")

# What is raised when there is nothing of a name.
NOT_FOUND_ERRORS: Final[Mapping[ItemKind, Callable[[str], InvalidParams]]] = {
    "tool": ToolNotFound,
    "resource": ResourceNotFound,
    "resource template": ResourceNotFound,
    "prompt": PromptNotFound,
}

# Told of a change: the method of its notification, and the URI where it is about one resource.
ChangeCallback: TypeAlias = Callable[[str, str | None], None]


class SupportsMount(Protocol):
    """A `Client`, or anything else besides a `Server` that can be mounted on a server."""

    def __mountable__(self) -> "Mountable":
        """Return the server as the one it is mounted on sees it."""
        ...


class Mountable(Protocol):
    """A server as seen by the one it is mounted on."""

    name: str
    is_remote: bool  # whether looking something up takes a journey

    async def start(self) -> None:
        """Make it ready; called before each use, so it costs nothing when it is."""
        ...

    async def stop(self) -> None:
        """Let go of everything; `start` may follow."""
        ...

    def capabilities(self) -> ServerCapabilities:
        """What it offers, as far as that is known."""
        ...

    async def list_items(self, kind: ItemKind, exchange: Exchange) -> Mapping[str, Any]:
        """The declarations it shows to this caller, by name or URI."""
        ...

    async def has_item(self, kind: ItemKind, name: str, exchange: Exchange) -> bool:
        """Whether it has something of this name, or under this URI."""
        ...

    async def handle(self, exchange: Exchange) -> Result | bytes:
        """The result of an exchange in its own words."""
        ...

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        """Hear of its changes; call what is returned to stop."""
        ...

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Whether this caller may hear of a resource, as far as that is known."""
        ...

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> Callable[[], None]:
        """Hear of changes of these resources too, for this caller; call what is returned to stop."""
        ...
