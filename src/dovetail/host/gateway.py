"""Gateway: what all servers of a host offer, as one server of its own, for callers of any era.

Each server stands behind a seat, under names that cannot clash; over HTTP there is a path for each form of the whole.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, TypeAlias, get_args

from dovetail.errors import InvalidParams
from dovetail.host.asking import Tickets
from dovetail.host.catalog import Catalog
from dovetail.host.names import exposed
from dovetail.host.offers import Manifest
from dovetail.host.paths import Paths
from dovetail.host.roster import Roster
from dovetail.host.searching import CALL, DESCRIBE, SEARCH, TOOLS, inner_call, looked_up
from dovetail.host.seat import Seat
from dovetail.protocol.around import unseeing
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.mounting import Kind
from dovetail.protocol.state import Sealer
from dovetail.serve import Server
from dovetail.server.mount import Listed
from dovetail.server.naming import Names
from dovetail.wire.tools import ListToolsResult

Mode: TypeAlias = Literal["merged", "search"]
Life: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]


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
    plain = re.sub(r"[^a-z0-9-]", "-", server.lower())  # a scheme is the same in either case
    plain = plain if plain[:1].isalpha() else f"s{plain}"
    return plain if plain == server else f"{plain}-{exposed(server, '').rpartition('__')[2]}"


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
        self,
        host: Roster,
        life: Life,
        *,
        mode: Mode = "merged",
        only: str | None = None,
        name: str = "gateway",
        tickets: Tickets | None = None,
        **options: Any,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode is 'merged' or 'search', not {mode!r}")
        self._host = host
        self._hosts_life = life  # that of the host, unless somebody else opened it
        self._mode = mode
        self._only = only
        self._tickets = tickets or Tickets(Sealer(options.get("secrets", ())))
        self.forms: list[Gateway] = []
        self._seated: dict[str, tuple[Seat, Callable[[], None]]] = {}
        self._searched: tuple[list[Any], Catalog] = [], Catalog()
        self._options = options
        self.server = GatewayServer(name, self._form, lifespan=self._life, **options)
        self.server.middleware(self._around)
        self.seat()

    def _form(self, mode: Mode, only: str | None) -> Server | None:
        """Another form of the same host; None for a server it does not have."""
        if only is not None and only not in {member.name for member in self._host.servers}:
            return None
        own: dict[str, Any] = {"mode": mode, "only": only, "name": only or self.server.name, "tickets": self._tickets}
        form = Gateway(self._host, self._hosts_life, **own, **self._options)
        self.forms.append(form)
        return form.server

    @asynccontextmanager
    async def _life(self) -> AsyncGenerator[None]:
        async with self._hosts_life():
            yield

    def seat(self) -> None:
        """Mount what has joined, and take off what has left."""
        for form in self.forms:
            form.seat()
        members = {one.name: one for one in self._host.servers if self._only in (None, one.name)}
        for name, (seat, unmount) in tuple(self._seated.items()):
            if members.get(name) is not seat.member:
                unmount()
                del self._seated[name]
        for name, member in members.items():
            if name not in self._seated:
                member.shared = True
                seat = Seat(self._host, member, self._tickets)
                names = Exposed(name, seat.known) if self._only is None else Plain()
                self._seated[name] = seat, self.server.mount(seat, names)

    # Names and lists that take a look at what the servers have

    @unseeing
    async def _around(self, exchange: Exchange, proceed: Any) -> Any:
        if exchange.method == "tools/list" and self._mode == "search":
            items = {tool.name: Listed(tool) for tool in TOOLS}
            return self.server.page_of(exchange, items, "tools", ListToolsResult)
        if exchange.method in ("prompts/get", "completion/complete"):
            ref = exchange.params.get("ref")
            await self._learned("prompt", str((ref if type(ref) is dict else exchange.params).get("name")), exchange)
        if exchange.method != "tools/call":
            return await proceed(exchange)
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments") or {}
        if type(arguments) is not dict:
            raise InvalidParams("Invalid params: arguments must be an object")
        if self._mode == "search" and name in (SEARCH, DESCRIBE):
            return looked_up(await self._catalog(exchange), name, arguments)
        before = exchange.params
        if self._mode == "search" and name == CALL:
            inner, told = inner_call(arguments)
            exchange.params = before | {"name": inner, "arguments": told}
        await self._learned("tool", str(exchange.params.get("name")), exchange)
        try:
            return await proceed(exchange)
        finally:
            exchange.params = before

    async def _learned(self, kind: Kind, name: str, exchange: Exchange) -> None:
        """A name that was cut can only be told back once the servers have listed what they have."""
        seats = [seat for seat, _ in self._seated.values()]
        if name.count("__") == 2 and not any(Exposed(one.name, one.known).inward(kind, name) for one in seats):
            await asyncio.gather(*(seat.listed(kind, exchange) for seat in seats))

    async def _catalog(self, exchange: Exchange) -> Catalog:
        """The tools there are for this caller."""
        seats = [seat for seat, _ in self._seated.values()]
        listed = await asyncio.gather(*(seat.listed("tool", exchange) for seat in seats))
        offered = [(seat.name, [*found.values()]) for seat, found in zip(seats, listed, strict=True)]
        before, catalog = self._searched
        if before != offered:
            catalog = Catalog.of({name: Manifest(tools=tools) for name, tools in offered})
            self._searched = offered, catalog
        return catalog
