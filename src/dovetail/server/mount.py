"""Mounts: other servers offered as part of this one, live, under a prefix.

Stands in for the server's own work only once something is mounted; what the server has itself comes first. Names and
URIs are changed here and nowhere else: on the way in, in lists, and in the links of results.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dovetail.errors import (
    InvalidParams,
    MCPError,
    MethodNotFound,
    PromptNotFound,
    ResourceNotFound,
    ToolError,
    ToolNotFound,
    clip,
)
from dovetail.protocol.around import Call
from dovetail.protocol.exchange import Exchange, typed
from dovetail.protocol.mounting import KINDS, Hear, Kind, Mountable
from dovetail.protocol.principal import Principal
from dovetail.protocol.topics import UPDATED
from dovetail.protocol.uri_key import uri_key
from dovetail.server.local import Local, Place, all_of
from dovetail.server.naming import Names, echo_uri, opened, relinked
from dovetail.server.owning import LIST_TIME, Mount, Owners, why
from dovetail.server.signature import BadArguments
from dovetail.server.tool import error_result
from dovetail.server.transforms import Transform
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

_LISTS: Final[dict[str, tuple[Kind, str, Any]]] = {
    "tools/list": ("tool", "tools", ListToolsResult),
    "resources/list": ("resource", "resources", ListResourcesResult),
    "resources/templates/list": ("resource template", "resource_templates", ListResourceTemplatesResult),
    "prompts/list": ("prompt", "prompts", ListPromptsResult),
}


class Listed:
    """A declaration where a registered thing is expected."""

    __slots__ = ("declaration",)

    def __init__(self, declaration: Any) -> None:
        self.declaration = declaration


class Ear:
    """What somebody wants to hear of, from far away."""

    def __init__(self, uris: list[str], principal: Principal | None) -> None:
        self.uris = uris
        self.principal = principal
        self._stops: list[Callable[[], None]] = []
        self._over = False

    def add(self, stop: Callable[[], None]) -> None:
        """One more server tells of it, until it is stopped."""
        self._stops.append(stop)
        if self._over:
            self.end()

    def end(self) -> None:
        """Nobody listens any more."""
        self._over = True
        stops, self._stops = self._stops, []
        for stop in stops:
            stop()


class Mounts:
    """Everything mounted on one server, and the work of that server with it."""

    def __init__(self, server: Place, own: Mapping[str, Call]) -> None:
        self._server = server
        self._own = own
        self._mounts: list[Mount] = []
        self.owners = Owners(server, self._mounts)
        self._removed: list[Mount] = []  # and not stopped yet
        self._ears: set[Ear] = set()
        self._kept: dict[tuple[str, Principal | None], Ear] = {}  # those of sessions
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
        for ear in self._ears:
            self._begin(self._again(mount, ear))
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
                for key in [one for one in self._kept if one[0] == uri_key(own)]:
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
            mount.silent("%s, mounted on %s, is not there: %s", self._server.name, why(exc))

    async def stop(self) -> None:
        """Stop what is mounted."""
        for key in tuple(self._kept):
            self._drop(key)
        removed, self._removed = self._removed, []
        for mount in (*self._mounts, *removed):
            await mount.target.stop()
        loop = asyncio.get_running_loop()
        leaving = [task for task in self._leaving if task.get_loop() is loop]
        if leaving:
            await asyncio.wait(leaving, timeout=LIST_TIME)

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
        rules = self._server.rules
        if rules is not None and rules.unproven:
            rules.unproven = False
            await self._tell_idle(rules, exchange)
        items = {name: Listed(one) for name, one in (await self.listed(kind, exchange)).items()}
        if not items and getattr(self._server.capabilities(), exchange.method.partition("/")[0]) is None:
            raise MethodNotFound(exchange.method)
        return self._server.page_of(exchange, items, field, shape)

    async def listed(self, kind: Kind, exchange: Exchange) -> dict[str, Any]:
        """Everything there is for this caller; of two things of one name, the first."""
        found = self._server.own(kind, exchange)
        principal = exchange.caller.principal
        mounts = [mount for mount in self._mounts if self.owners.lists(mount.access, mount.target.name, principal)]
        for shown in await asyncio.gather(*(self._of(mount, kind, exchange) for mount in mounts)):
            for name, declaration in shown.items():
                rules = (self.owners.tagged(declaration), self.owners.named(kind, name))
                offered = not self.owners.is_disabled(kind, name) and self.owners.enabled(declaration)
                if offered and all(self.owners.lists(rule, name, principal) for rule in rules):
                    found.setdefault(name, declaration)
        return found

    async def _tell_idle(self, rules: "Rules", exchange: Exchange) -> None:
        """Say which rules are about nothing, now that those elsewhere can be asked."""
        there = [name for kind in KINDS for name in self._server.declared(kind)]
        silent: list[Mount] = []
        for mount in tuple(self._mounts):
            try:
                for kind in KINDS:
                    there += [mount.names.outward(kind, inner) for inner in await _everything(mount, kind, exchange)]
            except (MCPError, TimeoutError):
                silent.append(mount)
        names = [mount.names for mount in silent]
        rules.tell_idle(self._server.name, there, lambda name: any(_may_have(one, name) for one in names))

    def names(self) -> list[str] | None:
        """Everything that is mounted, by its name or URI here; None where some of it is elsewhere."""
        found = [self.declared(kind) for kind in KINDS]
        return None if None in found else [name for items in found for name in items or ()]

    def may_have(self, name: str) -> bool:
        """Whether something mounted has a name or URI; of what is elsewhere, whether it can."""
        for mount in self._mounts:
            for kind in KINDS:
                inside, inner = all_of(mount.target, kind), mount.names.inward(kind, name)
                if inner is not None and (inside is None or inner in inside):
                    return True
        return False

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
                mount.answered()
        except (MCPError, TimeoutError) as exc:
            mount.silent("%s could not list what it has: %s", why(exc))
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
            inside = all_of(mount.target, kind)
            if inside is None:
                return None
            found |= mount.names.shown(kind, inside)
        return found

    # Requests for something by name

    def _has_own(self, kind: Kind, name: str, exchange: Exchange) -> bool:
        return self._server.has(kind, name, exchange.caller.principal)

    async def _call(self, exchange: Exchange) -> Result | bytes:
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        if type(name) is not str or self._has_own("tool", name, exchange):
            return await self._own["tools/call"](exchange)
        found = await self.owners.find("tool", name, exchange)
        if found is None:
            raise ToolNotFound(name)
        mount, inner = found
        if arguments is not None and type(arguments) is not dict:
            raise InvalidParams("Invalid params: arguments must be an object")
        change = mount.names.of(inner)
        try:
            told = change.inward(arguments or {})
        except MCPError as exc:
            return error_result(str(exc))
        result = await self._pass(mount, exchange, {"name": inner, "arguments": told})
        if change.arguments and isinstance(fault := exchange.fault, BadArguments):
            exchange.fault = other = _retold(fault, change, name)
            if result == error_result(str(fault)):
                return error_result(str(other))
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
        found = await self.owners.find("prompt", name, exchange)
        if found is None:
            raise PromptNotFound(name)
        mount, inner = found
        told: dict[str, Any] = {"name": inner}
        change = mount.names.of(inner)
        if type(arguments) is dict or change.arguments:
            told["arguments"] = change.inward(arguments if type(arguments) is dict else {})
        try:
            return await self._pass(mount, exchange, told)
        except BadArguments as exc:
            raise (_retold(exc, change, name) if change.arguments else exc) from None

    async def _read(self, exchange: Exchange) -> Result | bytes:
        uri = exchange.params.get("uri")
        if type(uri) is not str or len(uri) > self._server.limits.uri or self._has_own("resource", uri, exchange):
            return await self._own["resources/read"](exchange)
        found = await self.owners.find("resource", uri, exchange)
        if found is None:
            raise ResourceNotFound(uri)
        mount, inner = found
        return echo_uri(await self._pass(mount, exchange, {"uri": inner}), mount.names, inner, uri)

    async def _complete(self, exchange: Exchange) -> Result | bytes:
        params = typed(exchange, CompleteParams)
        prompts = isinstance(params.ref, PromptReference)
        kind: Kind = "prompt" if prompts else "resource template"
        of = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        if self._has_own(kind, of, exchange):
            return await self._own["completion/complete"](exchange)
        found = await self.owners.find(kind, of, exchange)
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
        key = uri_key(uri), principal
        if key in self._kept or len(self._kept) >= _MOST_KEPT:
            return
        for mount, inner in self.owners.able("resource", uri):
            if isinstance(mount.target, Local) and mount.target.server.mounts is not None:
                mount.target.server.mounts.wanted(inner, principal)
            if mount.target.distant:
                ear = self._kept[key] = Ear([uri], principal)
                self._ears.add(ear)
                self._begin(self._keep(mount, key, ear))
                return

    async def _keep(self, mount: Mount, key: tuple[str, Principal | None], ear: Ear) -> None:
        if not await self._subscribed(mount, ear) and self._kept.get(key) is ear:
            self._drop(key)

    def _drop(self, key: tuple[str, Principal | None]) -> None:
        self._end(self._kept.pop(key))

    def _end(self, ear: Ear) -> None:
        self._ears.discard(ear)
        ear.end()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _listen(self, exchange: Exchange) -> Result | bytes:
        """The server's own subscription; distant servers must be told which resources are wanted."""
        asked = typed(exchange, ListenParams).notifications.resource_subscriptions or []
        ear = Ear(asked, exchange.caller.principal)
        try:
            if asked:
                self._ears.add(ear)
                await asyncio.gather(*(self._subscribed(mount, ear) for mount in self._mounts))
            return await self._own["subscriptions/listen"](exchange)
        finally:
            self._end(ear)

    async def _again(self, mount: Mount, ear: Ear) -> None:
        """What has just been mounted may have been there before: nobody knows what was missed meanwhile."""
        if await self._subscribed(mount, ear):
            for uri in ear.uris:
                if mount.names.inward("resource", uri) is not None:
                    self._server.heard(UPDATED, uri)

    async def _subscribed(self, mount: Mount, ear: Ear) -> bool:
        """Have a distant server tell of its part of it; one that does not answer keeps nobody from the others."""
        inner = [name for uri in ear.uris if (name := mount.names.inward("resource", uri)) is not None]
        if not inner or not mount.target.distant:
            return False
        try:
            async with asyncio.timeout(LIST_TIME):
                ear.add(await mount.target.subscribed(inner, ear.principal))
        except (MCPError, TimeoutError) as exc:
            log.warning("%s does not tell of changes: %s", mount.target.name, why(exc))
            return False
        return True


def _retold(fault: BadArguments, change: Transform, name: str) -> ToolError:
    """What is wrong with the arguments, in the words of this server."""
    other = fault.retold(change.word)
    if str(other):
        return other
    log.error("%s cannot be called: a value that its transform fixes does not fit: %s", clip(name), fault)
    return ToolError(f"{clip(name)} cannot be called: its server gives it an argument that does not fit")


async def _everything(mount: Mount, kind: Kind, exchange: Exchange) -> Iterable[str]:
    found = all_of(mount.target, kind)
    if found is not None:
        return found
    async with asyncio.timeout(LIST_TIME):
        await mount.target.start()
        return await mount.target.listed(kind, exchange)


def _may_have(names: Names, name: str) -> bool:
    return any(names.inward(kind, name) is not None for kind in KINDS)


def _fits(target: Mountable, names: Names) -> bool:
    """Whether the transforms fit what a server has; False if only its lists will tell. ValueError if they do not."""
    declared: dict[Kind, Mapping[str, Any]] = {}
    for kind in KINDS:
        found = all_of(target, kind)
        if found is None:
            return False
        declared[kind] = found
    for line in names.complaints(declared):
        raise ValueError(f"{target.name} cannot be mounted so: {line}")
    return True
