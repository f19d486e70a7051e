"""A server of this process as something to mount, and what mounting needs to know of a server."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.errors import MCPError
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.limits import Limits
from dovetail.protocol.mounting import Hear, Kind, Mountable
from dovetail.protocol.principal import Principal
from dovetail.server.changes import Changes
from dovetail.server.life import log_start_failure
from dovetail.wire.lifecycle import ServerCapabilities
from dovetail.wire.shape import Result

if TYPE_CHECKING:  # loaded once something is not for everyone
    from dovetail.server.access import Rules


class Finding(Protocol):
    """Who has what, of all that is mounted on a server."""

    async def holds(self, kind: Kind, name: str, exchange: Exchange) -> bool: ...
    async def challenge(self, kind: Kind, name: str, exchange: Exchange) -> None: ...


class Inside(Protocol):
    """What is mounted on a server, as far as the servers it is mounted on ask."""

    @property
    def owners(self) -> Finding: ...
    def local(self) -> "list[Place]": ...
    async def listed(self, kind: Kind, exchange: Exchange) -> dict[str, Any]: ...
    def declared(self, kind: Kind) -> dict[str, Any] | None: ...
    def wanted(self, uri: str, principal: Principal | None) -> None: ...


class Place(Protocol):
    """A server, as far as mounting goes."""

    disabled_tags: frozenset[str]
    disabled_names: frozenset[str]

    @property
    def mounts(self) -> Inside | None: ...
    @property
    def name(self) -> str: ...
    @property
    def watched(self) -> bool: ...
    @property
    def keeps_results(self) -> bool: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def changes(self) -> Changes: ...
    @property
    def rules(self) -> "Rules | None": ...

    async def start(self, user: object = None) -> None: ...
    async def stop(self, user: object = None) -> None: ...
    def capabilities(self) -> ServerCapabilities: ...
    def own(self, kind: Kind, exchange: Exchange) -> dict[str, Any]: ...
    def declared(self, kind: Kind) -> dict[str, Any]: ...
    def has(self, kind: Kind, name: str, principal: Principal | None) -> bool: ...
    def challenge(self, kind: Kind, name: str, principal: Principal | None) -> None: ...
    async def check(self, kind: Kind, name: str, exchange: Exchange) -> None: ...
    def page_of(self, exchange: Exchange, items: Mapping[str, Any], field: str, shape: type[Result]) -> Result: ...
    async def work_on(self, exchange: Exchange) -> Result | bytes: ...
    def heard(self, method: str, uri: str | None) -> None: ...
    def changed(self, *lists: str) -> None: ...
    def lighten(self, result: Result, exchange: Exchange, *, published: bool) -> Result: ...
    def audible(self, uri: str, principal: Principal | None) -> bool: ...
    def readable(self, uri: str, principal: Principal | None) -> bool: ...
    def needed_scopes(self) -> tuple[str, ...]: ...


def leads_to(server: Place, other: Place) -> bool:
    """Whether a server is another one, or has it mounted, itself or through others of this process."""
    if server is other:
        return True
    inside = server.mounts.local() if server.mounts is not None else ()
    return any(leads_to(one, other) for one in inside)


class Local:
    """A server of this process, as something to mount."""

    distant = False

    def __init__(self, server: Place) -> None:
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

    async def listed(self, kind: Kind, exchange: Exchange) -> Mapping[str, Any]:
        """What it has, and what is mounted on it."""
        mounts = self.server.mounts
        return self.server.own(kind, exchange) if mounts is None else await mounts.listed(kind, exchange)

    async def holds(self, kind: Kind, name: str, exchange: Exchange) -> bool:
        """Whether it lists it for this caller, or one of its templates stands for it."""
        if self.server.has(kind, name, exchange.caller.principal):
            return True
        mounts = self.server.mounts
        return mounts is not None and await mounts.owners.holds(kind, name, exchange)

    async def challenge(self, kind: Kind, name: str, exchange: Exchange) -> None:
        """InsufficientScope if it would be there with more scopes."""
        if self.server.mounts is not None:
            await self.server.mounts.owners.challenge(kind, name, exchange)
        else:
            self.server.challenge(kind, name, exchange.caller.principal)

    async def serve(self, exchange: Exchange) -> Result | bytes:
        """Its own work, with its own middleware around it."""
        return await self.server.work_on(exchange)

    def follow(self, hear: Hear) -> Callable[[], None]:
        """Hear of its changes."""
        return self.server.changes.follow(hear)

    def audible(self, uri: str, principal: Principal | None) -> bool:
        """Whether a caller may hear of a resource."""
        return self.server.audible(uri, principal)

    async def subscribed(self, uris: list[str], principal: Principal | None) -> Callable[[], None]:
        """Everything is heard of anyway."""
        return lambda: None


def all_of(target: Mountable, kind: Kind) -> dict[str, Any] | None:
    """Everything a server has, whoever asks; None where only its lists tell."""
    if not isinstance(target, Local):
        return None
    mounts = target.server.mounts
    inside = {} if mounts is None else mounts.declared(kind)
    return None if inside is None else inside | target.server.declared(kind)
