"""Owners: which of the servers mounted on another has a name or a URI, for whoever asks.

Lists, calls and listeners ask here, so that they agree.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dovetail.errors import MCPError, clip
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.mounting import MISSING, Kind, Mountable
from dovetail.protocol.principal import Principal
from dovetail.protocol.uri_key import rule_keys, uri_key, uri_readings
from dovetail.server.local import Local, Place, all_of
from dovetail.server.naming import Names, tags_of
from dovetail.server.templates import may_stand_for

if TYPE_CHECKING:  # loaded once something is not for everyone
    from dovetail.server.access import Access

log = logging.getLogger("dovetail")

LIST_TIME: Final = 10.0  # seconds a mounted server may take to list what it has; the others do not wait longer

_MAX_FORGOTTEN_URIS: Final = 4096  # of resources that are gone, in the index of those that are there


class Mount:
    """One server mounted on another."""

    def __init__(
        self, target: Mountable, names: Names, stop: Callable[[], None], access: "Access | None" = None
    ) -> None:
        self.target = target
        self.names = names
        self.access = access  # who it is for; None is everyone
        self.stop_following = stop
        self.unchecked = False  # whether nobody could look yet if the transforms fit
        self.known: dict[Kind, dict[str, Any]] = {}  # listed last; what is shown while it cannot be reached
        self.busy = 0  # exchanges it is at
        self.away = 0.0  # until when it is not asked whether it has something: it did not answer
        self.resources = ResourceIndex()
        self._silent = False

    def answered(self) -> None:
        """It is there."""
        self.away = 0.0
        self._silent = False

    def silent(self, words: str, *about: Any) -> None:
        """It is not there: said once, until it answers again."""
        log.log(logging.DEBUG if self._silent else logging.WARNING, words, self.target.name, *about)
        self._silent = True


class ResourceIndex:
    """The URIs of a mounted server by each key under which a rule finds them, so that a look-up reads no others.

    It learns from the listings it is asked about, which differ from caller to caller. Threads may share it, because
    a state never changes.
    """

    def __init__(self) -> None:
        self._state: tuple[frozenset[str], dict[str, tuple[str, ...]]] = (frozenset(), {})

    def find(self, uri: str, declared: Mapping[str, Any]) -> list[str]:
        """Return the URIs in a listing that one of the readings of a URI may mean."""
        uris_at = self._uris_at(declared)
        uris = dict.fromkeys(other for reading in uri_readings(uri) for other in uris_at.get(reading, ()))
        return [other for other in uris if other in declared]

    def has(self, uri: str, declared: Mapping[str, Any]) -> bool:
        """Return whether a listing has a URI, in this or an equivalent spelling."""
        key = uri_key(uri)
        return uri in declared or any(
            other in declared and uri_key(other) == key for other in self._uris_at(declared).get(key, ())
        )

    def _uris_at(self, declared: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        known, uris_at = self._state
        if known.issuperset(declared):
            return uris_at
        if len(known) > _MAX_FORGOTTEN_URIS + 2 * len(declared):
            known, uris_at = frozenset(), {}
        uris_at = uris_at.copy()
        for uri in declared.keys() - known:
            for key in rule_keys(uri):
                uris_at[key] = (*uris_at.get(key, ()), uri)
        self._state = known.union(declared), uris_at
        return uris_at


class Owners:
    """The servers mounted on one, in their order, and who of them has what."""

    def __init__(self, server: Place, mounts: list[Mount]) -> None:
        self._server = server
        self._mounts = mounts

    async def holds(self, kind: Kind, name: str, exchange: Exchange) -> bool:
        """Whether there is something of this name here."""
        return await self.find(kind, name, exchange) is not None

    async def find(self, kind: Kind, name: str, exchange: Exchange) -> tuple[Mount, str] | None:
        """The mount that lists it for this caller, and what it is called there: the first, as in lists.

        One that is elsewhere is asked only if there is a choice. InsufficientScope if nobody lists it, but somebody
        would to a caller with more scopes.
        """
        if self.is_disabled(kind, name) or not _admits(self.named(kind, name), name, exchange):
            return None
        able = [pair for pair in self.able(kind, name) if self.lists(pair[0].access, name, exchange.caller.principal)]
        if len(able) == 1 and able[0][0].target.distant and self._sure(*able[0], kind):
            return await self._admitted(*able[0], kind, exchange)
        for mount, inner in able:
            if await self._has(mount, kind, inner, exchange):
                return await self._admitted(mount, inner, kind, exchange)
        for mount, inner in able if kind == "resource" else ():
            if self._may_have(mount, inner) and await mount.target.holds(kind, inner, exchange):
                # What its templates stand for, only that server knows.
                return await self._admitted(mount, inner, kind, exchange)
        await self.challenge(kind, name, exchange)
        return None

    async def _admitted(self, mount: Mount, inner: str, kind: Kind, exchange: Exchange) -> tuple[Mount, str]:
        """What was found; InsufficientScope if it is listed to callers who lack its scopes, and this is one."""
        _admits(mount.access, inner, exchange)
        for one in await self._offered(mount, kind, inner, exchange) if self._restricts else ():
            _admits(self.tagged(one), inner, exchange)
        return mount, inner

    async def check(self, kind: Kind, name: str, exchange: Exchange) -> None:
        """Refuse what is not there for this caller."""
        found = await self.find(kind, name, exchange)
        if found is None:
            raise MISSING[kind](name)
        if isinstance(found[0].target, Local):
            await found[0].target.server.check(kind, found[1], exchange)

    def able(self, kind: Kind, name: str) -> list[tuple[Mount, str]]:
        """The mounts that can have it, by their names alone."""
        pairs = ((mount, mount.names.inward(kind, name)) for mount in self._mounts)
        found = [(mount, inner) for mount, inner in pairs if inner is not None]
        if kind == "resource" and len(found) > 1:
            found.sort(key=lambda pair: not pair[0].names.matches_case(kind, name))
        return found

    def _sure(self, mount: Mount, inner: str, kind: Kind) -> bool:
        return mount.names.certain and not self._picks and not (kind == "resource" and self._covers(mount, inner))

    def _covers(self, mount: Mount, inner: str) -> bool:
        """Whether a URI is one of a template that is not offered, so that only a resource of that URI can be meant."""
        disabled = self._server.disabled_names
        uri = mount.names.outward("resource", inner) if disabled else ""
        return mount.names.covers(inner) or any(may_stand_for(one, uri) for one in disabled if "{" in one)

    def _may_have(self, mount: Mount, inner: str) -> bool:
        picks = mount.names.picks or self._picks or self._covers(mount, inner)
        return mount.target.distant and not picks and _now() >= mount.away

    async def challenge(self, kind: Kind, name: str, exchange: Exchange) -> None:
        """Raise InsufficientScope if something of this name would be here for this caller, with more scopes."""
        principal = exchange.caller.principal
        self._server.challenge(kind, name, principal)
        if self._server.rules is None and not any(isinstance(mount.target, Local) for mount in self._mounts):
            return
        for mount, inner in self.able(kind, name):
            for one in await self._offered(mount, kind, inner, exchange):
                if _admits(mount.access, name, exchange):
                    _admits(self.tagged(one), name, exchange)
            if isinstance(mount.target, Local) and _sees(mount.access, name, principal):
                await mount.target.challenge(kind, inner, exchange)

    async def _has(self, mount: Mount, kind: Kind, inner: str, exchange: Exchange) -> bool:
        """Whether a mount lists it for this caller, and it is offered here."""
        if not mount.target.distant:
            if not await mount.target.holds(kind, inner, exchange):
                return False
            if not mount.names.picks and not self._picks and not (kind == "resource" and self._covers(mount, inner)):
                return True
        offered = await self._offered(mount, kind, inner, exchange)
        return any(self.lists(self.tagged(one), inner, exchange.caller.principal) for one in offered)

    async def _offered(self, mount: Mount, kind: Kind, inner: str, exchange: Exchange) -> list[Any]:
        """What a name or URI stands for at a mount, of what is offered here; a distant one is given so long."""
        if not mount.target.distant:
            return await self._standing_for(mount, kind, inner, exchange)
        if _now() >= mount.away:
            try:
                async with asyncio.timeout(LIST_TIME):
                    await mount.target.start()
                    return await self._standing_for(mount, kind, inner, exchange)
            except (MCPError, TimeoutError) as exc:
                mount.away = _now() + LIST_TIME
                mount.silent("%s could not say whether it has %s: %s", clip(inner), why(exc))
        known = _find_declared(mount, mount.known.get(kind, {}), kind, mount.names.outward(kind, inner))
        return [one for one in known if self.enabled(one)]

    async def _standing_for(self, mount: Mount, kind: Kind, inner: str, exchange: Exchange) -> list[Any]:
        target = mount.target
        found = _find_declared(mount, await target.listed(kind, exchange), kind, inner)
        if not found and kind == "resource" and not self._covers(mount, inner):
            templates = await target.listed("resource template", exchange)
            found = [one for uri, one in templates.items() if may_stand_for(uri, inner)]
        return [one for one in found if mount.names.allows(one) and self.enabled(one)]

    @property
    def _picks(self) -> bool:
        """Whether tags decide here what is offered, so that they have to be known."""
        return bool(self._server.disabled_tags) or self._restricts

    @property
    def _restricts(self) -> bool:
        """Whether tags decide here who may use something."""
        return self._server.rules is not None and self._server.rules.by_tag

    def audible(self, uri: str, principal: Principal | None) -> bool:
        """Whether a caller may hear of a resource that is mounted; where tags decide, they are not known here."""
        if self.is_disabled("resource", uri) or not self.lists(self.named("resource", uri), uri, principal):
            return False
        able = self.able("resource", uri)
        for mount, inner in able:
            target = mount.target
            if self._restricts or not self.lists(mount.access, uri, principal):
                continue
            if self._covers(mount, inner) and not (
                isinstance(target, Local) and mount.resources.has(inner, all_of(target, "resource") or {})
            ):
                continue
            if target.audible(inner, principal):
                return True
        return not able and self._server.rules is None and not self._hides(uri)

    def _hides(self, uri: str) -> bool:
        """Whether a transform keeps this from being offered."""
        return any(mount.names.hides(uri) for mount in self._mounts)

    # What this server says about it

    def lists(self, access: "Access | None", name: str, principal: Principal | None) -> bool:
        return access is None or self._server.rules is None or self._server.rules.lists(access, name, principal)

    def enabled(self, declaration: Any) -> bool:
        """Whether something is offered here, by its tags."""
        return self._server.disabled_tags.isdisjoint(tags_of(declaration))

    def tagged(self, declaration: Any) -> "Access | None":
        """The rule of this server about something with such tags."""
        return None if self._server.rules is None else self._server.rules.tagged(tags_of(declaration))

    def named(self, kind: Kind, name: str) -> "Access | None":
        """The rule of this server about something of such a name."""
        return None if self._server.rules is None else self._server.rules.named(kind, name)

    def is_disabled(self, kind: Kind, name: str) -> bool:
        """Return whether a name, or a URI in any spelling, is disabled here."""
        names = self._server.disabled_names
        if kind != "resource" or not names:
            return name in names
        return not _all_rule_keys(names).isdisjoint(uri_readings(name))


@lru_cache(16)
def _all_rule_keys(names: frozenset[str]) -> frozenset[str]:
    return frozenset(key for name in names for key in rule_keys(name))


def _find_declared(mount: Mount, declared: Mapping[str, Any], kind: Kind, name: str) -> list[Any]:
    """Return the item of a name. For a URI that is not listed, return what one of its readings may mean."""
    found = declared.get(name)
    if found is not None or kind != "resource":
        return [] if found is None else [found]
    return [declared[uri] for uri in mount.resources.find(name, declared)]


def _now() -> float:
    return asyncio.get_running_loop().time()


def why(exc: MCPError | TimeoutError) -> str:
    """Why a server did not answer."""
    return str(exc) or f"no answer within {LIST_TIME:g} s"


def _admits(access: "Access | None", name: str, exchange: Exchange) -> bool:
    if access is None:
        return True
    from dovetail.server.access import admitted

    return admitted(access, name, exchange.caller.principal)


def _sees(access: "Access | None", name: str, principal: Principal | None) -> bool:
    if access is None:
        return True
    from dovetail.server.access import visible_to

    return visible_to(access, name, principal)
