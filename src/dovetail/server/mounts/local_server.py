"""A server of this process as something to mount, and the interface of a server that mounts use."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dovetail.errors import MCPError
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.mountable import ChangeCallback, ItemKind, Mountable
from dovetail.protocol.principal import Principal
from dovetail.protocol.request_state import Sealer
from dovetail.server.lifespan import log_start_failure
from dovetail.server.registry import Registry
from dovetail.server.visibility import Visibility
from dovetail.wire.base import Result
from dovetail.wire.lifecycle import ServerCapabilities


class ItemResolver(Protocol):
    """Who has what, of all that is mounted on a server."""

    async def has_item(self, kind: ItemKind, name: str, exchange: Exchange) -> bool: ...
    async def check_scopes(self, kind: ItemKind, name: str, exchange: Exchange) -> None: ...


class MountedItems(Protocol):
    """What is mounted on a server, as far as the servers it is mounted on ask."""

    @property
    def resolver(self) -> ItemResolver: ...
    def list_local_servers(self) -> "list[MountingServer]": ...
    async def list_items(self, kind: ItemKind, exchange: Exchange) -> dict[str, Any]: ...
    def list_registered_items(self, kind: ItemKind) -> dict[str, Any] | None: ...
    def watch_resource(self, uri: str, principal: Principal | None) -> None: ...


class MountingServer(Protocol):
    """A server that is mounted, or on which others are mounted: its dispatcher, as far as mounts use it."""

    @property
    def registry(self) -> Registry: ...
    @property
    def visibility(self) -> Visibility: ...
    @property
    def mounts(self) -> MountedItems | None: ...
    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> ServerLimits: ...
    @property
    def inspects_results(self) -> bool: ...
    @property
    def stores_large_results(self) -> bool: ...

    async def start(self, user: object = None) -> None: ...
    async def stop(self, user: object = None) -> None: ...
    def capabilities(self) -> ServerCapabilities: ...
    async def dispatch(self, exchange: Exchange) -> Result | bytes: ...
    async def check_access(self, kind: ItemKind, name: str, exchange: Exchange) -> None: ...
    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool: ...
    def store_large_parts(self, result: Result, exchange: Exchange, *, has_output_schema: bool) -> Result: ...
    def list_used_scopes(self) -> tuple[str, ...]: ...
    def use_sealer(self, sealer: Sealer) -> None: ...


def contains_server(server: MountingServer, other: MountingServer) -> bool:
    """Whether a server is another one, or has it mounted, itself or through others of this process."""
    if server is other:
        return True
    mounted_servers = server.mounts.list_local_servers() if server.mounts is not None else ()
    return any(contains_server(mounted_server, other) for mounted_server in mounted_servers)


class LocalServer:
    """A server of this process, as something to mount."""

    is_remote = False

    def __init__(self, server: MountingServer) -> None:
        self.name = server.name
        self.server = server

    async def start(self) -> None:
        """Open its lifespan."""
        try:
            await self.server.start(self)
        except (MCPError, asyncio.CancelledError):
            raise
        except Exception as exc:
            raise log_start_failure(self.name, exc) from None

    async def stop(self) -> None:
        """Close it, unless something else uses the server."""
        await self.server.stop(self)

    def capabilities(self) -> ServerCapabilities:
        """What it offers."""
        return self.server.capabilities()

    async def list_items(self, kind: ItemKind, exchange: Exchange) -> Mapping[str, Any]:
        """What it has, and what is mounted on it."""
        mounts = self.server.mounts
        if mounts is None:
            return self.server.visibility.list_visible(kind, exchange)
        return await mounts.list_items(kind, exchange)

    async def has_item(self, kind: ItemKind, name: str, exchange: Exchange) -> bool:
        """Whether it lists it for this caller, or one of its templates stands for it."""
        if self.server.visibility.has_item(kind, name, exchange.caller.principal):
            return True
        mounts = self.server.mounts
        return mounts is not None and await mounts.resolver.has_item(kind, name, exchange)

    async def check_scopes(self, kind: ItemKind, name: str, exchange: Exchange) -> None:
        """InsufficientScope if it would be there with more scopes."""
        if self.server.mounts is not None:
            await self.server.mounts.resolver.check_scopes(kind, name, exchange)
        else:
            self.server.visibility.check_scopes(kind, name, exchange.caller.principal)

    async def handle(self, exchange: Exchange) -> Result | bytes:
        """Its own work, with its own middleware around it."""
        return await self.server.dispatch(exchange)

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        """Hear of its changes."""
        return self.server.registry.subscriptions.add_callback(callback)

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Whether a caller may hear of a resource."""
        return self.server.can_receive_updates(uri, principal)

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> Callable[[], None]:
        """Everything is heard of anyway."""
        return lambda: None


def list_all_items(target: Mountable, kind: ItemKind) -> dict[str, Any] | None:
    """Everything a server has, whoever asks; None where only its lists tell."""
    if not isinstance(target, LocalServer):
        return None
    mounts = target.server.mounts
    mounted_items = {} if mounts is None else mounts.list_registered_items(kind)
    return None if mounted_items is None else mounted_items | target.server.registry.list_registered(kind)
