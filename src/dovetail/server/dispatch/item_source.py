"""The items that a server offers: its own items, and the interface for a source of more items, such as mounts."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dovetail.errors import InsufficientScope, ResourceNotFound
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.headers import HeaderPath
from dovetail.protocol.item_kinds import NOT_FOUND_ERRORS, ItemKind
from dovetail.protocol.principal import Principal
from dovetail.server.items.registry import Registry
from dovetail.server.items.visibility import Visibility
from dovetail.wire.lifecycle import ServerCapabilities


class ItemSource(Protocol):
    """The tools, resources, templates and prompts of a server, from wherever they come."""

    def capabilities(self) -> ServerCapabilities:
        """Return the capabilities of all items. The caller may change them."""
        ...

    async def list_items(self, kind: "ItemKind", exchange: IncomingExchange) -> Mapping[str, Any]:
        """Return the definitions that this caller sees. The keys are names or URIs."""
        ...

    def list_all_items(self, kind: "ItemKind") -> dict[str, Any] | None:
        """Return all definitions, even those that are hidden from callers. Return None if they are not known."""
        ...

    async def has_item(self, kind: "ItemKind", name: str, exchange: IncomingExchange) -> bool:
        """Return whether this caller sees an item with this name, or a resource or template for this URI."""
        ...

    async def check_access(self, kind: "ItemKind", name: str, exchange: IncomingExchange) -> None:
        """Raise an error unless the caller may use the item."""
        ...

    async def check_scopes(self, kind: "ItemKind", name: str, exchange: IncomingExchange) -> None:
        """Raise InsufficientScope if the caller needs more scopes to see the item."""
        ...

    async def find_header_paths(self, name: str, exchange: IncomingExchange) -> Sequence[HeaderPath]:
        """Return the headers that repeat arguments of a tool."""
        ...

    def find_unavailable(self, kind: "ItemKind", name: str, principal: Principal | None) -> str | None:
        """Return the name of a server that may have this item but does not respond, or None."""
        ...

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may receive updates of a resource."""
        ...


class OwnItems:
    """The items that are registered on a server."""

    def __init__(self, registry: Registry, visibility: Visibility) -> None:
        self._registry = registry
        self._visibility = visibility

    def capabilities(self) -> ServerCapabilities:
        return self._registry.capabilities()

    async def list_items(self, kind: "ItemKind", exchange: IncomingExchange) -> Mapping[str, Any]:
        return self._visibility.list_visible(kind, exchange)

    def list_all_items(self, kind: "ItemKind") -> dict[str, Any] | None:
        return self._registry.list_registered(kind)

    async def has_item(self, kind: "ItemKind", name: str, exchange: IncomingExchange) -> bool:
        return self._visibility.has_item(kind, name, exchange.caller.principal)

    async def check_access(self, kind: "ItemKind", name: str, exchange: IncomingExchange) -> None:
        principal = exchange.caller.principal
        if kind == "resource":
            self._visibility.find_resource(name, principal)
            return
        self._visibility.check_scopes(kind, name, principal)
        if not self._visibility.has_item(kind, name, principal):
            raise NOT_FOUND_ERRORS[kind](name)

    async def check_scopes(self, kind: "ItemKind", name: str, exchange: IncomingExchange) -> None:
        self._visibility.check_scopes(kind, name, exchange.caller.principal)

    async def find_header_paths(self, name: str, exchange: IncomingExchange) -> Sequence[HeaderPath]:
        tool = self._registry.tools.get(name)
        return () if tool is None else tool.headers

    def find_unavailable(self, kind: "ItemKind", name: str, principal: Principal | None) -> str | None:
        return None

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may receive updates of a resource.

        If there are no access rules, a caller may subscribe to a resource that does not exist yet.
        """
        if self._registry.access_rules is None:
            return True
        try:
            self._visibility.find_resource(uri, principal)
        except (ResourceNotFound, InsufficientScope):
            return False
        return True
