"""Mounts: other servers offered as part of this one, live, under a prefix.

Stands in for the server's own work only once something is mounted; what the server has itself comes first. Names and
URIs are changed here and nowhere else: on the way in, in lists, and in the links of results.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from dovetail.errors import (
    InvalidParams,
    MCPError,
    MethodNotFound,
    PromptNotFound,
    ResourceNotFound,
    ToolNotFound,
    clip,
)
from dovetail.protocol.around import Call
from dovetail.protocol.exchange import Exchange, typed
from dovetail.protocol.limits import Limits
from dovetail.protocol.mounting import KINDS, Hear, Kind, Mountable
from dovetail.protocol.principal import Principal
from dovetail.server.changes import Changes
from dovetail.server.naming import Names, relinked, tags_of
from dovetail.server.templates import Template
from dovetail.server.tool import error_result
from dovetail.wire.completion import CompleteParams, PromptReference
from dovetail.wire.lifecycle import ServerCapabilities
from dovetail.wire.prompts import ListPromptsResult
from dovetail.wire.resources import ListResourcesResult, ListResourceTemplatesResult
from dovetail.wire.shape import Result, replace
from dovetail.wire.subscriptions import ListenParams
from dovetail.wire.tools import ListToolsResult

if TYPE_CHECKING:  # loaded once something is not for everyone
    from dovetail.server.access import Access, Rules

log = logging.getLogger("dovetail")

_MOST_KEPT: Final = 4096
LIST_TIME: Final = 10.0  # seconds a mounted server may take to list what it has; the others do not wait longer

_LISTS: Final[dict[str, tuple[Kind, str, Any]]] = {
    "tools/list": ("tool", "tools", ListToolsResult),
    "resources/list": ("resource", "resources", ListResourcesResult),
    "resources/templates/list": ("resource template", "resource_templates", ListResourceTemplatesResult),
    "prompts/list": ("prompt", "prompts", ListPromptsResult),
}


class Place(Protocol):
    """A server, as far as mounting goes."""

    mounts: "Mounts | None"
    disabled_tags: frozenset[str]

    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def changes(self) -> Changes: ...
    @property
    def rules(self) -> "Rules | None": ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def capabilities(self) -> ServerCapabilities: ...
    def own(self, kind: Kind, exchange: Exchange) -> dict[str, Any]: ...
    def declared(self, kind: Kind) -> dict[str, Any]: ...
    def has(self, kind: Kind, name: str) -> bool: ...
    def page_of(self, exchange: Exchange, items: Mapping[str, Any], field: str, shape: type[Result]) -> Result: ...
    async def work_on(self, exchange: Exchange) -> Result | bytes: ...
    def heard(self, method: str, uri: str | None) -> None: ...
    def changed(self, *lists: str) -> None: ...
    def readable(self, uri: str, principal: Principal | None) -> bool: ...
    def needed_scopes(self) -> tuple[str, ...]: ...


def leads_to(server: Place, other: Place) -> bool:
    """Whether a server is another one, or has it mounted, itself or through others of this process."""
    if server is other:
        return True
    inside = server.mounts.local() if server.mounts is not None else ()
    return any(leads_to(one, other) for one in inside)


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


class Listed:
    """A declaration where a registered thing is expected."""

    __slots__ = ("declaration",)

    def __init__(self, declaration: Any) -> None:
        self.declaration = declaration


class Mounts:
    """Everything mounted on one server, and the work of that server with it."""

    def __init__(self, server: Place, own: Mapping[str, Call]) -> None:
        self._server = server
        self._own = own
        self._mounts: list[Mount] = []
        self._kept: dict[str, Callable[[], None] | None] = {}  # what sessions want to hear of, from far away
        self._keeping: set[asyncio.Task[None]] = set()
        self.work: dict[str, Call] = {
            **own,
            **dict.fromkeys(_LISTS, self._list),
            "tools/call": self._call,
            "prompts/get": self._get,
            "resources/read": self._read,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
        }

    def add(self, target: Mountable, names: Names, access: "Access | None" = None) -> Callable[[], None]:
        """Mount a server; call what is returned to take it off again."""
        unchecked = names.changes and not _fits(target, names)
        mount = Mount(target, names, target.follow(self._hearing(names)), access)
        mount.unchecked = unchecked
        self._mounts.append(mount)

        def unmount() -> None:
            if mount in self._mounts:
                self._mounts.remove(mount)
                mount.stop_following()
                self._server.changed("tools", "resources", "prompts")

        self._server.changed("tools", "resources", "prompts")
        return unmount

    def local(self) -> list[Place]:
        """Those of this process."""
        return [mount.target.server for mount in self._mounts if isinstance(mount.target, Local)]

    def needed_scopes(self) -> list[str]:
        """Every scope that something mounted takes, as far as that is known."""
        rules = [scope for mount in self._mounts if mount.access is not None for scope in mount.access.scopes]
        return [*rules, *(scope for server in self.local() for scope in server.needed_scopes())]

    def _hearing(self, names: Names) -> Hear:
        def hear(method: str, uri: str | None) -> None:
            own = None if uri is None else names.outward("resource", uri)
            if own in self._kept and not self._server.changes.wanted(method, own):
                self._drop(own)
            self._server.heard(method, own)

        return hear

    # Life

    async def start(self) -> None:
        """Start what is mounted; what cannot be reached does not hold up the rest."""
        for mount in tuple(self._mounts):
            try:
                await mount.target.start()
            except MCPError as exc:
                log.warning("%s, mounted on %s, is not there: %s", mount.target.name, self._server.name, exc)

    async def stop(self) -> None:
        """Stop what is mounted."""
        for uri in tuple(self._kept):
            self._drop(uri)
        for mount in tuple(self._mounts):
            await mount.target.stop()

    def capabilities(self, own: ServerCapabilities) -> ServerCapabilities:
        """What is offered in all."""
        for mount in self._mounts:
            more = mount.target.capabilities()
            own = replace(
                own,
                tools=own.tools or more.tools,
                resources=own.resources or more.resources,
                prompts=own.prompts or more.prompts,
                completions=own.completions if own.completions is not None else more.completions,
            )
        return own

    # Lists

    async def _list(self, exchange: Exchange) -> Result:
        kind, field, shape = _LISTS[exchange.method]
        items = {name: Listed(one) for name, one in (await self.listed(kind, exchange)).items()}
        if not items and getattr(self._server.capabilities(), exchange.method.partition("/")[0]) is None:
            raise MethodNotFound(exchange.method)
        return self._server.page_of(exchange, items, field, shape)

    async def listed(self, kind: Kind, exchange: Exchange) -> dict[str, Any]:
        """Everything there is for this caller; of two things of one name, the first."""
        found = self._server.own(kind, exchange)
        principal = exchange.caller.principal
        mounts = [mount for mount in self._mounts if self._lists(mount.access, mount.target.name, principal)]
        for shown in await asyncio.gather(*(self._of(mount, kind, exchange) for mount in mounts)):
            for name, declaration in shown.items():
                rules = (self._tagged(declaration), self._named(name))
                if self._enabled(declaration) and all(self._lists(rule, name, principal) for rule in rules):
                    found.setdefault(name, declaration)
        return found

    def _lists(self, access: "Access | None", name: str, principal: Principal | None) -> bool:
        return access is None or self._server.rules is None or self._server.rules.lists(access, name, principal)

    def _enabled(self, declaration: Any) -> bool:
        return self._server.disabled_tags.isdisjoint(tags_of(declaration))

    def _tagged(self, declaration: Any) -> "Access | None":
        """The rule of this server about something with such tags."""
        return None if self._server.rules is None else self._server.rules.tagged(tags_of(declaration))

    def _named(self, name: str) -> "Access | None":
        """The rule of this server about something of such a name."""
        return None if self._server.rules is None else self._server.rules.named(name)

    async def _of(self, mount: Mount, kind: Kind, exchange: Exchange) -> Mapping[str, Any]:
        target = mount.target
        if not target.distant:
            await target.start()
            await self._check(mount, exchange)
            return mount.names.shown(kind, await target.listed(kind, exchange))
        try:
            async with asyncio.timeout(LIST_TIME):
                await target.start()
                mount.known[kind] = mount.names.shown(kind, await target.listed(kind, exchange))
                await self._check(mount, exchange)
        except (MCPError, TimeoutError) as exc:
            log.warning("%s could not list what it has: %s", target.name, exc)
        return mount.known.get(kind, {})

    async def _check(self, mount: Mount, exchange: Exchange) -> None:
        """Say once, as soon as it can be known, what is wrong with the transforms of a mount."""
        if not mount.unchecked:
            return
        mount.unchecked = False
        declared: dict[Kind, Mapping[str, Any]] = {kind: await mount.target.listed(kind, exchange) for kind in KINDS}
        for line in mount.names.complaints(declared):
            log.warning("%s, mounted on %s: %s", mount.target.name, self._server.name, line)

    def declared(self, kind: Kind) -> dict[str, Any] | None:
        """Everything that is mounted, whoever asks; None where some of it is elsewhere."""
        found: dict[str, Any] = {}
        for mount in self._mounts:
            inside = _declared(mount.target, kind)
            if inside is None:
                return None
            found |= mount.names.shown(kind, inside)
        return found

    # Finding

    async def holds(self, kind: Kind, name: str, exchange: Exchange) -> bool:
        """Whether there is something of this name here."""
        return await self._find(kind, name, exchange) is not None

    async def _find(self, kind: Kind, name: str, exchange: Exchange) -> tuple[Mount, str] | None:
        """The mount that has it, and what it is called there. A distant one is asked only if there is a choice."""
        able: list[tuple[Mount, str]] = []
        if not _admits(self._named(name), name, exchange):
            return None
        for mount in self._mounts:
            inner = mount.names.inward(kind, name)
            if inner is None or not _admits(mount.access, name, exchange):
                continue
            if not mount.target.distant and await self._has(mount, kind, inner, exchange):
                return mount, inner
            if mount.target.distant:
                able.append((mount, inner))
        if len(able) == 1 and able[0][0].names.certain and not self._picks:
            return able[0]
        return await self._first(kind, able, exchange)

    async def _first(self, kind: Kind, able: list[tuple[Mount, str]], exchange: Exchange) -> tuple[Mount, str] | None:
        for mount, inner in able:
            await mount.target.start()
            if await self._has(mount, kind, inner, exchange):
                return mount, inner
        return None

    async def _has(self, mount: Mount, kind: Kind, inner: str, exchange: Exchange) -> bool:
        """Whether a mount has it and offers it here."""
        if not await mount.target.holds(kind, inner, exchange):
            return False
        if not mount.names.picks and not self._picks:
            return True
        declared = (await mount.target.listed(kind, exchange)).get(inner)
        if declared is not None or kind != "resource":
            return self._allows(mount, declared, inner, exchange)
        templates = await mount.target.listed("resource template", exchange)
        found = [one for uri, one in templates.items() if Template(uri).match(inner)]
        return any(self._allows(mount, one, inner, exchange) for one in found)

    @property
    def _picks(self) -> bool:
        """Whether tags decide here what is offered, so that they have to be known."""
        return bool(self._server.disabled_tags) or self._restricts

    @property
    def _restricts(self) -> bool:
        """Whether tags decide here who may use something."""
        return self._server.rules is not None and self._server.rules.by_tag

    def _allows(self, mount: Mount, declared: Any, inner: str, exchange: Exchange) -> bool:
        offered = mount.names.allows(declared) and self._enabled(declared)
        return offered and _admits(self._tagged(declared), inner, exchange)

    def readable(self, uri: str, principal: Principal | None) -> bool:
        """Whether a caller may hear of a resource that is mounted; where tags decide, they are not known here."""
        if not self._lists(self._named(uri), uri, principal):
            return False
        for mount in self._mounts:
            inner = mount.names.inward("resource", uri)
            if inner is None or self._restricts or not self._lists(mount.access, uri, principal):
                continue
            if not isinstance(mount.target, Local) or mount.target.server.readable(inner, principal):
                return True
        return False

    # Requests for something by name

    async def _call(self, exchange: Exchange) -> Result | bytes:
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        if type(name) is not str or self._server.has("tool", name):
            return await self._own["tools/call"](exchange)
        found = await self._find("tool", name, exchange)
        if found is None:
            raise ToolNotFound(name)
        mount, inner = found
        if arguments is not None and type(arguments) is not dict:
            raise InvalidParams("Invalid params: arguments must be an object")
        try:
            told = mount.names.of(inner).inward(arguments or {})
        except MCPError as exc:
            return error_result(str(exc))
        return await self._pass(mount, exchange, {"name": inner, "arguments": told})

    async def _get(self, exchange: Exchange) -> Result | bytes:
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        if type(name) is not str or self._server.has("prompt", name):
            return await self._own["prompts/get"](exchange)
        found = await self._find("prompt", name, exchange)
        if found is None:
            raise PromptNotFound(name)
        mount, inner = found
        told: dict[str, Any] = {"name": inner}
        if type(arguments) is dict:
            told["arguments"] = mount.names.of(inner).inward(arguments)
        return await self._pass(mount, exchange, told)

    async def _read(self, exchange: Exchange) -> Result | bytes:
        uri = exchange.params.get("uri")
        if type(uri) is not str or len(uri) > self._server.limits.uri or self._server.has("resource", uri):
            return await self._own["resources/read"](exchange)
        found = await self._find("resource", uri, exchange)
        if found is None:
            raise ResourceNotFound(uri)
        return await self._pass(found[0], exchange, {"uri": found[1]})

    async def _complete(self, exchange: Exchange) -> Result | bytes:
        params = typed(exchange, CompleteParams)
        prompts = isinstance(params.ref, PromptReference)
        kind: Kind = "prompt" if prompts else "resource template"
        of = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        if self._server.has(kind, of):
            return await self._own["completion/complete"](exchange)
        found = await self._find(kind, of, exchange)
        if found is None:
            raise InvalidParams(f"Invalid params: nothing is called {clip(of)}")
        mount, inner = found
        ref = exchange.params["ref"] | {"name" if prompts else "uri": inner}
        argument: dict[str, Any] = exchange.params["argument"]
        told = {"ref": ref, "argument": argument | {"name": mount.names.of(inner).inner_argument(argument["name"])}}
        return await self._pass(mount, exchange, told)

    async def _pass(self, mount: Mount, exchange: Exchange, changes: dict[str, Any]) -> Result | bytes:
        """Have the mounted server do it, in its own words; whoever stands around here sees those of this server."""
        before = exchange.params
        if not mount.target.distant:
            await mount.target.start()
        exchange.params = before | changes
        try:
            return relinked(await mount.target.serve(exchange), exchange.method, mount.names)
        finally:
            exchange.params = before

    # Listening

    def wanted(self, uri: str) -> None:
        """A handshake session wants to hear of a resource: a distant server is told, until nobody does any more."""
        if uri in self._kept or len(self._kept) >= _MOST_KEPT:
            return
        for mount in self._mounts:
            inner = mount.names.inward("resource", uri) if mount.target.distant else None
            if inner is not None:
                self._kept[uri] = None
                task = asyncio.get_running_loop().create_task(self._keep(mount, uri, inner))
                self._keeping.add(task)
                task.add_done_callback(self._keeping.discard)
                return

    async def _keep(self, mount: Mount, uri: str, inner: str) -> None:
        try:
            stop = await mount.target.subscribed([inner])
        except MCPError as exc:
            log.warning("%s could not be asked to tell of %s: %s", mount.target.name, clip(uri), exc)
            self._kept.pop(uri, None)
            return
        if uri in self._kept:
            self._kept[uri] = stop
        else:
            stop()

    def _drop(self, uri: str) -> None:
        stop = self._kept.pop(uri)
        if stop is not None:
            stop()

    async def _listen(self, exchange: Exchange) -> Result | bytes:
        """The server's own subscription; distant servers must be told which resources are wanted."""
        stops: list[Callable[[], None]] = []
        try:
            asked = typed(exchange, ListenParams).notifications.resource_subscriptions or []
            for mount in self._mounts if asked else ():
                inner = [name for uri in asked if (name := mount.names.inward("resource", uri)) is not None]
                if inner and mount.target.distant:
                    stops.append(await mount.target.subscribed(inner))
            return await self._own["subscriptions/listen"](exchange)
        finally:
            for stop in stops:
                stop()


def _fits(target: Mountable, names: Names) -> bool:
    """Whether the transforms fit what a server has; False if only its lists will tell. ValueError if they do not."""
    declared: dict[Kind, Mapping[str, Any]] = {}
    for kind in KINDS:
        found = _declared(target, kind)
        if found is None:
            return False
        declared[kind] = found
    for line in names.complaints(declared):
        raise ValueError(f"{target.name} cannot be mounted so: {line}")
    return True


def _declared(target: Mountable, kind: Kind) -> dict[str, Any] | None:
    if not isinstance(target, Local):
        return None
    mounts = target.server.mounts
    inside = {} if mounts is None else mounts.declared(kind)
    return None if inside is None else inside | target.server.declared(kind)


def _admits(access: "Access | None", name: str, exchange: Exchange) -> bool:
    if access is None:
        return True
    from dovetail.server.access import admitted

    return admitted(access, name, exchange.caller.principal)


class Local:
    """A server of this process, as something to mount."""

    distant = False

    def __init__(self, server: Place) -> None:
        self.name = server.name
        self.server = server

    async def start(self) -> None:
        """Enter its lifespan."""
        await self.server.start()

    async def stop(self) -> None:
        """Leave it."""
        await self.server.stop()

    def capabilities(self) -> ServerCapabilities:
        """What it offers."""
        return self.server.capabilities()

    async def listed(self, kind: Kind, exchange: Exchange) -> Mapping[str, Any]:
        """What it has, and what is mounted on it."""
        mounts = self.server.mounts
        return self.server.own(kind, exchange) if mounts is None else await mounts.listed(kind, exchange)

    async def holds(self, kind: Kind, name: str, exchange: Exchange) -> bool:
        """Whether it has it."""
        mounts = self.server.mounts
        return self.server.has(kind, name) or (mounts is not None and await mounts.holds(kind, name, exchange))

    async def serve(self, exchange: Exchange) -> Result | bytes:
        """Its own work, with its own middleware around it."""
        return await self.server.work_on(exchange)

    def follow(self, hear: Hear) -> Callable[[], None]:
        """Hear of its changes."""
        return self.server.changes.follow(hear)

    async def subscribed(self, uris: list[str]) -> Callable[[], None]:
        """Everything is heard of anyway."""
        return lambda: None
