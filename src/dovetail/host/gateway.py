"""Gateway: what all servers of a host offer, as one server of its own, for callers of any era.

Each server stands behind a seat: policy and consent come first, then the request is forwarded as it came. Consent is
asked of the caller's own user, by elicitation. A caller's credentials are never handed on.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from dovetail.errors import (
    InternalError,
    InvalidParams,
    MCPError,
    NotOffered,
    PolicyError,
    PromptNotFound,
    ProtocolError,
    ResourceNotFound,
    ToolNotFound,
)
from dovetail.host.asking import Needed, Round
from dovetail.host.catalog import Catalog
from dovetail.host.consent import Answer, ConsentRequest, Deny, attended
from dovetail.host.deciding import Desk
from dovetail.host.events import Event
from dovetail.host.member import Member
from dovetail.host.metering import Meter
from dovetail.host.names import exposed
from dovetail.host.noting import noted
from dovetail.host.offers import Offered
from dovetail.host.paths import Paths
from dovetail.host.policy import Policy, Question
from dovetail.host.quotas import Quota
from dovetail.host.searching import CALL, DESCRIBE, SEARCH, TOOLS, inner_call, looked_up
from dovetail.protocol.around import unseeing
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.mounting import Hear, Kind
from dovetail.protocol.state import Sealer
from dovetail.serve import Server
from dovetail.server.mount import Listed
from dovetail.server.naming import Names
from dovetail.server.tool import error_result
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.shape import Result, replace
from dovetail.wire.tools import ListToolsResult

log = logging.getLogger("dovetail")

Mode: TypeAlias = Literal["merged", "search"]

_KINDS: Final = {
    "tools/call": "tool.call",
    "resources/read": "resource.read",
    "prompts/get": "prompt.get",
    "completion/complete": "complete",
}

# Servers that sleep may have anything.
_ANYTHING: Final = ServerCapabilities(
    tools=ListChangedCapability(list_changed=True),
    prompts=ListChangedCapability(list_changed=True),
    resources=ResourcesCapability(subscribe=True, list_changed=True),
    completions={},
)


class Place(Protocol):
    """A host, as far as its gateways go."""

    policy: Policy
    patience: float
    desk: Desk
    meter: Meter

    @property
    def servers(self) -> tuple[Member, ...]: ...
    @property
    def is_open(self) -> bool: ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def tools(self) -> tuple[Offered, ...]: ...
    async def catalog(self) -> Catalog: ...
    def known(self, *kinds: Kind) -> Catalog: ...
    def shows(self, member: Member, kind: Kind, name: str, declaration: Any) -> bool: ...
    def question(
        self, member: Member, kind: str, name: str, arguments: Mapping[str, Any] | None, declaration: Any = None
    ) -> Question: ...
    async def declared(self, member: Member, tool: str) -> Any: ...
    def quota(self, member: Member, tool: str) -> Quota: ...
    def tell(self, event: Event) -> None: ...
    def member_for(self, member: Member, principal: str | None) -> Member: ...


class Exposed(Names):
    """The names of one server among others: those a model sees, and URIs with the server before them."""

    def __init__(self, server: str, known: Callable[[Kind], Mapping[str, Any]]) -> None:
        super().__init__(scheme(server), {}, ())
        self._server = server
        self._known = known

    def outward(self, kind: Kind, inner: str) -> str:
        """What it is called here."""
        if kind in ("tool", "prompt"):
            return exposed(self._server, inner)
        return f"{self.prefix}+{inner}"

    def inward(self, kind: Kind, name: str) -> str | None:
        """What it is called at home: told by the name itself, or, where that was cut, by what is known."""
        if kind not in ("tool", "prompt"):
            return name[len(self.prefix) + 1 :] if name.startswith(f"{self.prefix}+") else None
        _, _, bare = name.partition("__")
        if exposed(self._server, bare) == name:
            return bare
        return next((one for one in self._known(kind) if exposed(self._server, one) == name), None)


class Plain(Names):
    """The names of the only server on a path: its own."""

    def __init__(self) -> None:
        super().__init__("", {}, ())

    @property
    def certain(self) -> bool:
        """There is no other."""
        return True


def scheme(server: str) -> str:
    """A server's name as it may stand before a URI; another for every other name."""
    plain = re.sub(r"[^A-Za-z0-9-]", "-", server)
    plain = plain if plain[:1].isalpha() else f"s{plain}"
    return plain if plain == server else f"{plain}-{exposed(server, '').rpartition('__')[2]}"


class Seat:
    """One server of a host, as a gateway mounts it."""

    distant = True

    def __init__(self, host: Place, member: Member, sealer: Sealer) -> None:
        self.name = member.name
        self.member = member
        self._host = host
        self._sealer = sealer

    def mountable(self) -> "Seat":
        """What a server mounts."""
        return self

    async def start(self) -> None:
        """Nothing is started before it is needed."""

    async def stop(self) -> None:
        """The host stops its servers."""

    def capabilities(self) -> ServerCapabilities:
        """What it may offer."""
        return _ANYTHING

    async def listed(self, kind: Kind, exchange: Exchange) -> Mapping[str, Any]:
        """What it offers this caller; of one that is slow or gone, what it offered last."""
        member = self.member
        try:
            member = self._of(exchange)
            async with asyncio.timeout(self._host.patience):
                found = await member.listed(kind)
        except PolicyError:
            return {}
        except (MCPError, TimeoutError):
            found = member.known.get(kind, {})
        return {name: one for name, one in found.items() if self._host.shows(member, kind, name, one)}

    async def holds(self, kind: Kind, name: str, exchange: Exchange) -> bool:
        """Whether it offers something of this name, or may."""
        return kind == "resource" or name in await self.listed(kind, exchange)

    def follow(self, hear: Hear) -> Callable[[], None]:
        """Hear of its changes."""
        return self.member.follow(hear)

    async def subscribed(self, uris: list[str]) -> Callable[[], None]:
        """Hear of these resources; a server that cannot tell of them keeps nobody from hearing of others."""
        try:
            return await self.member.subscribe(uris)
        except MCPError as exc:
            log.warning("%s does not tell of changes: %s", self.name, exc)
            return lambda: None

    def _of(self, exchange: Exchange) -> Member:
        return self._host.member_for(self.member, exchange.caller.principal)

    # Requests

    async def serve(self, exchange: Exchange) -> Result | bytes:
        """Have it done, if it may be."""
        member = self.member
        try:
            member = self._of(exchange)
            return await self._served(exchange, member)
        except Needed as needed:
            return needed.result
        except PolicyError as exc:
            return self._refused(exchange, exc)
        except ProtocolError:
            raise
        except NotOffered:
            raise _not_found(exchange) from None
        except MCPError as exc:
            log.warning("a request for %s failed: %s", self.name, exc)
            raise InternalError(f"{self.name} cannot be used now: it is {member.state}") from None

    async def _served(self, exchange: Exchange, member: Member) -> Result | bytes:
        host, params = self._host, exchange.params
        kind = _KINDS[exchange.method]
        name = str(params.get("name") or params.get("uri") or "")
        arguments = params.get("arguments")
        if host.desk.look(host.question(member, kind, name, None)).verdict == "hide":
            raise _not_found(exchange)  # before anything is started: it is not there
        declared = await host.declared(member, name) if kind == "tool.call" else None
        question = host.question(member, kind, name, arguments if kind == "tool.call" else None, declared)
        who = str(exchange.caller.principal or exchange.origin or "")
        question = replace(question, caller=who)
        round_ = Round(exchange, self._sealer)
        if not round_.consented:
            settled = await host.desk.settle(
                question,
                declared,
                {"description": (declared.description or "") if declared is not None else ""},
                ask=lambda request: self._ask(request, round_),
            )
            if settled.edited is not None:
                exchange.params = {**params, "arguments": settled.edited}
        round_.go_on()
        try:
            async with host.meter.within(member.name, name, host.quota(member, name), kind), member.using():
                forwarding = await member.forwarding()
                with noted(question, host.tell) as note:
                    result = await forwarding.serve(exchange)
                    note(result)
        finally:
            exchange.params = params
        return round_.wrapped(result)

    async def _ask(self, request: ConsentRequest, round_: Round) -> Answer:
        if round_.able:
            return await round_.ask(request)
        broker = self._host.desk.broker
        if not attended(broker):
            return Deny("this needs the user's consent, and the client cannot ask for it: it declares no elicitation")
        return await broker.ask(request)

    def _refused(self, exchange: Exchange, exc: PolicyError) -> Result:
        if exc.verdict == "hide":
            raise _not_found(exchange)
        if exchange.method == "tools/call":
            return error_result(f"Not allowed: {exc.args[0]}")
        raise InvalidParams(f"Not allowed: {exc.args[0]}")


def _not_found(exchange: Exchange) -> ProtocolError:
    params = exchange.params
    match exchange.method:
        case "tools/call":
            return ToolNotFound(str(params.get("name")))
        case "resources/read":
            return ResourceNotFound(str(params.get("uri")))
        case "prompts/get":
            return PromptNotFound(str(params.get("name")))
        case _:
            return InvalidParams("Invalid params: there is nothing of this name")


class GatewayServer(Server):
    """A gateway's server; over HTTP it has a path for each form of it."""

    def __init__(self, name: str, forms: Callable[..., Server | None], **options: Any) -> None:
        super().__init__(name, **options)
        self._forms = forms

    def asgi(self, *, path: str = "/mcp", **options: Any) -> Any:
        """As the application of a server, with `/search/mcp` and `/s/NAME/mcp` beside it."""

        def make(mode: str, only: str | None, own: str) -> Any | None:
            server = self._forms(mode, only)
            return None if server is None else framework_asgi(server, path=own, **options)

        return Paths(super().asgi(path=path, **options), make)


def framework_asgi(server: Server, **options: Any) -> Any:
    """The application of one server, on one path."""
    return Server.asgi(server, **options)


class Gateway:
    """A host as one server."""

    def __init__(
        self, host: Place, *, mode: Mode = "merged", only: str | None = None, name: str = "gateway", **options: Any
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode is 'merged' or 'search', not {mode!r}")
        secrets = options.get("secrets", ())
        self._host = host
        self._mode = mode
        self._only = only
        self._sealer = Sealer(secrets)
        self.forms: list[Gateway] = []
        self._seated: dict[str, tuple[Member, Callable[[], None]]] = {}
        self._options = options
        self.server = GatewayServer(name, self._form, lifespan=self._life, **options)
        self.server.middleware(self._around)
        self.seat()

    def _form(self, mode: Mode, only: str | None) -> Server | None:
        """Another form of the same host; None for a server it does not have."""
        if only is not None and only not in {member.name for member in self._host.servers}:
            return None
        form = Gateway(self._host, mode=mode, only=only, name=only or self.server.name, **self._options)
        self.forms.append(form)
        return form.server

    @asynccontextmanager
    async def _life(self) -> AsyncGenerator[None]:
        """The host lives as long as its gateway, unless somebody else opened it."""
        opened = self._host.is_open
        if not opened:
            await self._host.open()
        try:
            yield
        finally:
            if not opened:
                await self._host.close()

    def seat(self) -> None:
        """Mount what has joined, and take off what has left."""
        for form in self.forms:
            form.seat()
        members = {one.name: one for one in self._host.servers if self._only in (None, one.name)}
        for name, (member, unmount) in tuple(self._seated.items()):
            if members.get(name) is not member:
                unmount()
                del self._seated[name]
        for name, member in members.items():
            if name not in self._seated:
                member.shared = member.shared or member.client is None
                seat = Seat(self._host, member, self._sealer)
                names = Exposed(name, self._known(member)) if self._only is None else Plain()
                self._seated[name] = member, self.server.mount(seat, names)

    @staticmethod
    def _known(member: Member) -> Callable[[Kind], Mapping[str, Any]]:
        return lambda kind: member.known.get(kind, {})

    @unseeing
    async def _around(self, exchange: Exchange, proceed: Any) -> Any:
        if exchange.method == "tools/list" and self._mode == "search":
            items = {tool.name: Listed(tool) for tool in TOOLS}
            return self.server.page_of(exchange, items, "tools", ListToolsResult)
        if exchange.method in ("prompts/get", "completion/complete"):
            ref = exchange.params.get("ref")
            await self._learned(str((ref if type(ref) is dict else exchange.params).get("name")))
        if exchange.method != "tools/call":
            return await proceed(exchange)
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments") or {}
        if type(arguments) is not dict:
            raise InvalidParams("Invalid params: arguments must be an object")
        if self._mode == "search" and name in (SEARCH, DESCRIBE):
            return looked_up((await self._host.catalog()), name, arguments)
        before = exchange.params
        if self._mode == "search" and name == CALL:
            inner, told = inner_call(arguments)
            exchange.params = before | {"name": inner, "arguments": told}
        await self._learned(str(exchange.params.get("name")))
        try:
            return await proceed(exchange)
        finally:
            exchange.params = before

    async def _learned(self, name: str) -> None:
        """A name that was cut can only be told back once the servers have listed what they have."""
        if name.count("__") == 2:
            known = self._host.known()
            if known.find(name) is None and known.find_prompt(name) is None:
                await self._host.catalog()
