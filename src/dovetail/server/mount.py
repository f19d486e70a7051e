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
from dovetail.protocol.mounting import KINDS, MISSING, Hear, Kind, Mountable
from dovetail.protocol.principal import Principal
from dovetail.server.changes import Changes
from dovetail.server.naming import Names, opened, relinked, tags_of
from dovetail.server.templates import stands_for
from dovetail.server.tool import error_result
from dovetail.wire.completion import CompleteParams, PromptReference
from dovetail.wire.lifecycle import ServerCapabilities
from dovetail.wire.prompts import ListPromptsResult
from dovetail.wire.resources import ListResourcesResult, ListResourceTemplatesResult
from dovetail.wire.shape import UNSET, Result, replace
from dovetail.wire.subscriptions import ListenParams
from dovetail.wire.tools import CallToolResult, ListToolsResult

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
    def watched(self) -> bool: ...
    @property
    def keeps_results(self) -> bool: ...
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
        self._removed: list[Mount] = []  # and not stopped yet
        # What sessions want to hear of, from far away: a URI, and for whom.
        self._kept: dict[tuple[str, Principal | None], Callable[[], None] | None] = {}
        self._keeping: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
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
                self._removed.append(mount)
                mount.stop_following()
                self._retire(mount)
                self._server.changed("tools", "resources", "prompts")

        self._server.changed("tools", "resources", "prompts")
        return unmount

    def _retire(self, mount: Mount) -> None:
        """Leave a distant server once nothing is asked of it any more. One of this process may be in use elsewhere."""
        if mount not in self._removed or not mount.target.distant or mount.busy:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # `stop` does it
        self._removed.remove(mount)
        task = loop.create_task(mount.target.stop())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

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
            if own is not None and not self._server.changes.wanted(method, own):
                for key in [one for one in self._kept if one[0] == own]:
                    self._drop(key)
            self._server.heard(method, own)

        return hear

    # Life

    async def start(self) -> None:
        """Start what is mounted; what cannot be reached does not hold up the rest."""
        for mount in tuple(self._mounts):
            if not mount.target.distant:
                await self._start(mount)
        await asyncio.gather(*(self._start(mount) for mount in tuple(self._mounts) if mount.target.distant))

    async def _start(self, mount: Mount) -> None:
        try:
            async with asyncio.timeout(LIST_TIME if mount.target.distant else None):
                await mount.target.start()
        except (MCPError, TimeoutError) as exc:
            log.warning("%s, mounted on %s, is not there: %s", mount.target.name, self._server.name, _why(exc))

    async def stop(self) -> None:
        """Stop what is mounted."""
        for key in tuple(self._kept):
            self._drop(key)
        removed, self._removed = self._removed, []
        for mount in (*self._mounts, *removed):
            await mount.target.stop()
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=LIST_TIME)

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
                mount.away = 0.0
        except (MCPError, TimeoutError) as exc:
            log.warning("%s could not list what it has: %s", target.name, _why(exc))
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
        """The mount that lists it for this caller, and what it is called there: the first, as in lists.

        One that is elsewhere is asked only if there is a choice. InsufficientScope if nobody lists it, but somebody
        would to a caller with more scopes.
        """
        if not _admits(self._named(name), name, exchange):
            return None
        able = [pair for pair in self._able(kind, name) if self._lists(pair[0].access, name, exchange.caller.principal)]
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
            _admits(self._tagged(one), inner, exchange)
        return mount, inner

    async def check(self, kind: Kind, name: str, exchange: Exchange) -> None:
        """Refuse what is not there for this caller."""
        found = await self._find(kind, name, exchange)
        if found is None:
            raise MISSING[kind](name)
        if isinstance(found[0].target, Local):
            await found[0].target.server.check(kind, found[1], exchange)

    def _able(self, kind: Kind, name: str) -> list[tuple[Mount, str]]:
        """The mounts that can have it, by their names alone."""
        found = ((mount, mount.names.inward(kind, name)) for mount in self._mounts)
        return [(mount, inner) for mount, inner in found if inner is not None]

    def _sure(self, mount: Mount, inner: str, kind: Kind) -> bool:
        return mount.names.certain and not self._picks and not (kind == "resource" and mount.names.covers(inner))

    def _may_have(self, mount: Mount, inner: str) -> bool:
        picks = mount.names.picks or self._picks or mount.names.covers(inner)
        return mount.target.distant and not picks and _now() >= mount.away

    async def challenge(self, kind: Kind, name: str, exchange: Exchange) -> None:
        """Raise InsufficientScope if something of this name would be here for this caller, with more scopes."""
        principal = exchange.caller.principal
        self._server.challenge(kind, name, principal)
        if self._server.rules is None and not self.local():
            return
        for mount, inner in self._able(kind, name):
            for one in await self._offered(mount, kind, inner, exchange):
                if _admits(mount.access, name, exchange):
                    _admits(self._tagged(one), name, exchange)
            if isinstance(mount.target, Local) and _sees(mount.access, name, principal):
                await mount.target.challenge(kind, inner, exchange)

    async def _has(self, mount: Mount, kind: Kind, inner: str, exchange: Exchange) -> bool:
        """Whether a mount lists it for this caller, and it is offered here."""
        if not mount.target.distant:
            if not await mount.target.holds(kind, inner, exchange):
                return False
            if not mount.names.picks and not self._picks and not (kind == "resource" and mount.names.covers(inner)):
                return True
        offered = await self._offered(mount, kind, inner, exchange)
        return any(self._lists(self._tagged(one), inner, exchange.caller.principal) for one in offered)

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
                log.warning("%s could not say whether it has %s: %s", mount.target.name, clip(inner), _why(exc))
        known = mount.known.get(kind, {}).get(mount.names.outward(kind, inner))
        return [known] if known is not None and self._enabled(known) else []

    async def _standing_for(self, mount: Mount, kind: Kind, inner: str, exchange: Exchange) -> list[Any]:
        target = mount.target
        declared = (await target.listed(kind, exchange)).get(inner)
        found = [] if declared is None else [declared]
        if declared is None and kind == "resource" and not mount.names.covers(inner):
            templates = await target.listed("resource template", exchange)
            found = [one for uri, one in templates.items() if stands_for(uri, inner)]
        return [one for one in found if mount.names.allows(one) and self._enabled(one)]

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
        if not self._lists(self._named(uri), uri, principal):
            return False
        able = self._able("resource", uri)
        for mount, inner in able:
            target = mount.target
            if self._restricts or not self._lists(mount.access, uri, principal):
                continue
            if mount.names.covers(inner) and not (
                isinstance(target, Local) and inner in (_declared(target, "resource") or ())
            ):
                continue
            if target.audible(inner, principal):
                return True
        return not able and self._server.rules is None and not self._hides(uri)

    def _hides(self, uri: str) -> bool:
        """Whether a transform keeps this from being offered."""
        return any(mount.names.hides(uri) for mount in self._mounts)

    # Requests for something by name

    def _has_own(self, kind: Kind, name: str, exchange: Exchange) -> bool:
        return self._server.has(kind, name, exchange.caller.principal)

    async def _call(self, exchange: Exchange) -> Result | bytes:
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        if type(name) is not str or self._has_own("tool", name, exchange):
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
        result = await self._pass(mount, exchange, {"name": inner, "arguments": told})
        if isinstance(result, CallToolResult):
            published = result.structured_content is UNSET or await self._publishes(mount, inner, exchange)
            return self._server.lighten(result, exchange, published=published)
        return result

    async def _publishes(self, mount: Mount, tool: str, exchange: Exchange) -> bool:
        """Whether a tool has promised a schema for its results; if that cannot be known, it may have."""
        if not self._server.keeps_results:
            return True
        try:
            found = (await mount.target.listed("tool", exchange)).get(tool)
        except MCPError:
            return True
        return found is None or found.output_schema is not None

    async def _get(self, exchange: Exchange) -> Result | bytes:
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        if type(name) is not str or self._has_own("prompt", name, exchange):
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
        if type(uri) is not str or len(uri) > self._server.limits.uri or self._has_own("resource", uri, exchange):
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
        if self._has_own(kind, of, exchange):
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
        mount.busy += 1
        try:
            result = relinked(await mount.target.serve(exchange), exchange.method, mount.names)
            return opened(result, exchange.method) if isinstance(result, bytes) and self._server.watched else result
        finally:
            exchange.params = before
            mount.busy -= 1
            self._retire(mount)

    # Listening

    def wanted(self, uri: str, principal: Principal | None) -> None:
        """A handshake session wants to hear of a resource: a distant server is told, until nobody does any more."""
        if (uri, principal) in self._kept or len(self._kept) >= _MOST_KEPT:
            return
        for mount, inner in self._able("resource", uri):
            if isinstance(mount.target, Local) and mount.target.server.mounts is not None:
                mount.target.server.mounts.wanted(inner, principal)
            if mount.target.distant:
                self._kept[uri, principal] = None
                task = asyncio.get_running_loop().create_task(self._keep(mount, inner, (uri, principal)))
                self._keeping.add(task)
                task.add_done_callback(self._keeping.discard)
                return

    async def _keep(self, mount: Mount, inner: str, key: tuple[str, Principal | None]) -> None:
        try:
            stop = await mount.target.subscribed([inner], key[1])
        except MCPError as exc:
            log.warning("%s could not be asked to tell of %s: %s", mount.target.name, clip(key[0]), exc)
            self._kept.pop(key, None)
            return
        if key in self._kept:
            self._kept[key] = stop
        else:
            stop()

    def _drop(self, key: tuple[str, Principal | None]) -> None:
        stop = self._kept.pop(key)
        if stop is not None:
            stop()

    async def _listen(self, exchange: Exchange) -> Result | bytes:
        """The server's own subscription; distant servers must be told which resources are wanted."""
        stops: list[Callable[[], None]] = []
        try:
            asked = typed(exchange, ListenParams).notifications.resource_subscriptions or []
            if asked:
                stops += await asyncio.gather(
                    *(self._subscribed(mount, asked, exchange.caller.principal) for mount in self._mounts)
                )
            return await self._own["subscriptions/listen"](exchange)
        finally:
            for stop in stops:
                stop()

    async def _subscribed(self, mount: Mount, uris: list[str], principal: Principal | None) -> Callable[[], None]:
        """Have a distant server tell of its part of them; one that does not answer keeps nobody from the others."""
        inner = [name for uri in uris if (name := mount.names.inward("resource", uri)) is not None]
        if inner and mount.target.distant:
            try:
                async with asyncio.timeout(LIST_TIME):
                    return await mount.target.subscribed(inner, principal)
            except (MCPError, TimeoutError) as exc:
                log.warning("%s does not tell of changes: %s", mount.target.name, _why(exc))
        return lambda: None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _why(exc: MCPError | TimeoutError) -> str:
    return str(exc) or f"no answer within {LIST_TIME:g} s"


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


def _sees(access: "Access | None", name: str, principal: Principal | None) -> bool:
    if access is None:
        return True
    from dovetail.server.access import visible_to

    return visible_to(access, name, principal)


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
        """Whether it lists it for this caller, or one of its templates stands for it."""
        if self.server.has(kind, name, exchange.caller.principal):
            return True
        mounts = self.server.mounts
        return mounts is not None and await mounts.holds(kind, name, exchange)

    async def challenge(self, kind: Kind, name: str, exchange: Exchange) -> None:
        """InsufficientScope if it would be there with more scopes."""
        if self.server.mounts is not None:
            await self.server.mounts.challenge(kind, name, exchange)
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
