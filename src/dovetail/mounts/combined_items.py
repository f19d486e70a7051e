"""The items of a server together with those of the servers that are mounted on it."""

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.errors import InsufficientScope, ResourceNotFound
from dovetail.mounts.local_server import LocalServer, MountingServer
from dovetail.mounts.mountable import Mountable
from dovetail.mounts.mounted_servers import MountedServers
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.headers import HeaderPath
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.principal import Principal
from dovetail.server.dispatch.item_source import ItemSource
from dovetail.wire.lifecycle import ServerCapabilities


class CombinedItems:
    """The item source of a server with mounts. The items of the server itself precede mounted items."""

    def __init__(self, own_items: ItemSource, server: MountingServer, mounts: MountedServers) -> None:
        self.mounts = mounts
        self._own_items = own_items
        self._resolver = mounts.resolver
        self._visibility = server.visibility

    def capabilities(self) -> ServerCapabilities:
        return self.mounts.add_capabilities(self._own_items.capabilities())

    async def list_items(self, kind: ItemKind, exchange: IncomingExchange) -> Mapping[str, Any]:
        return await self.mounts.list_items(kind, exchange)

    def list_all_items(self, kind: ItemKind) -> dict[str, Any] | None:
        mounted_items, own_items = self.mounts.list_registered_items(kind), self._own_items.list_all_items(kind)
        return None if mounted_items is None or own_items is None else mounted_items | own_items

    async def has_item(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        return self._has_own(kind, name, exchange) or await self._resolver.has_item(kind, name, exchange)

    async def check_access(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> None:
        source = self._own_items if self._has_own(kind, name, exchange) else self._resolver
        await source.check_access(kind, name, exchange)

    def _has_own(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        return self._visibility.has_item(kind, name, exchange.caller.principal)

    async def check_scopes(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> None:
        await self._resolver.check_scopes(kind, name, exchange)

    async def find_header_paths(self, name: str, exchange: IncomingExchange) -> Sequence[HeaderPath]:
        return await self.mounts.find_header_paths(name, exchange)

    def find_unavailable(self, kind: ItemKind, name: str, principal: Principal | None) -> str | None:
        return self._resolver.find_unavailable(kind, name, principal)

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        try:
            self._visibility.find_resource(uri, principal)
        except ResourceNotFound:
            return self._resolver.can_receive_updates(uri, principal)
        except InsufficientScope:
            return False
        return True


def open_mounts(server: MountingServer) -> MountedServers:
    """Return the mounts of a server. The first call adds them to the server."""
    if isinstance(server.items, CombinedItems):
        return server.items.mounts
    mounts = server.registry.mounted_names = MountedServers(server)
    server.items = CombinedItems(server.items, server, mounts)
    server.handler_table.add_part(mounts)
    return mounts


def check_cycle(target: Mountable, server: MountingServer) -> None:
    """Raise ValueError if a server that is mounted contains the server on which it is mounted."""
    if isinstance(target, LocalServer) and _contains_server(target.server, server):
        raise ValueError(f"cannot mount {target.name} on {server.name}: a server cannot contain itself")


def _contains_server(server: MountingServer, other: MountingServer) -> bool:
    if server is other:
        return True
    mounted_servers = server.items.mounts.list_local_servers() if isinstance(server.items, CombinedItems) else ()
    return any(_contains_server(mounted_server, other) for mounted_server in mounted_servers)
