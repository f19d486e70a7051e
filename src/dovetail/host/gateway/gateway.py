"""Gateway: all servers of a host as one server, for callers of any era.

Each server is mounted as an `Upstream`, under unambiguous names. Over HTTP there is a path for each mode and server.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Literal, TypeAlias, get_args

from dovetail.errors import InvalidParams
from dovetail.host.catalog import Catalog
from dovetail.host.catalog_item import Manifest
from dovetail.host.gateway.caller_consent import SingleUseStates
from dovetail.host.gateway.upstream import Upstream
from dovetail.host.parts import HostParts
from dovetail.host.qualified_names import make_model_name
from dovetail.host.search_tools import (
    CALL_TOOL,
    DESCRIBE_TOOL,
    SEARCH_TOOL,
    SEARCH_TOOLS,
    parse_inner_call,
    run_search_tool,
)
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.middleware import ignores_results
from dovetail.protocol.mountable import ItemKind
from dovetail.protocol.request_state import Sealer
from dovetail.server.mounts.mounted_servers import ListedItem
from dovetail.server.mounts.name_map import NameMap
from dovetail.server.server import Server, get_dispatcher
from dovetail.wire.tools import ListToolsResult

_SERVER_PATH: Final = re.compile(r"/servers/([A-Za-z0-9_-]{1,64})(/mcp)?/?")
_SEARCH_PATH: Final = re.compile(r"/search(/mcp)?/?")
_METADATA_PREFIX: Final = "/.well-known/oauth-protected-resource"


class GatewayRouter:
    """An ASGI application that chooses the gateway by the path."""

    def __init__(self, default_app: Any, create_app: Callable[[str, str | None, str], Any | None]) -> None:
        self._default_app = default_app
        self._create_app = create_app  # from a mode, the name of a server and a path
        self._apps: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        app = self._default_app if scope["type"] != "http" else self._choose_app(scope)
        await app(scope, receive, send)

    async def close(self) -> None:
        """Let what runs come to its end."""
        for app in (self._default_app, *self._apps.values()):
            await app.close()

    def _choose_app(self, scope: Any) -> Any:
        path = scope["path"].removeprefix(scope.get("root_path") or "").removeprefix(_METADATA_PREFIX)
        if match := _SEARCH_PATH.fullmatch(path):
            return self._get_app("search", None, "/search/mcp") or self._default_app
        if match := _SERVER_PATH.fullmatch(path):
            return self._get_app("merged", match[1], f"/servers/{match[1]}/mcp") or self._default_app
        return self._default_app

    def _get_app(self, mode: str, server_name: str | None, path: str) -> Any | None:
        if path not in self._apps and (app := self._create_app(mode, server_name, path)) is not None:
            self._apps[path] = app
        return self._apps.get(path)


GatewayMode: TypeAlias = Literal["merged", "search"]
HostLifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]


class GatewayNameMap(NameMap):
    """The names of one server among others: those a model sees, and URIs with the server before them."""

    def __init__(self, server_name: str, get_known_items: Callable[[ItemKind], Mapping[str, Any]]) -> None:
        super().__init__(make_uri_scheme(server_name), {}, ())
        self._server_name = server_name
        self._get_known_items = get_known_items

    def to_outer(self, kind: ItemKind, inner_name: str) -> str:
        """What it is called here."""
        if kind in ("tool", "prompt"):
            return make_model_name(self._server_name, inner_name)
        return f"{self.prefix}+{inner_name}"

    def to_inner(self, kind: ItemKind, name: str) -> str | None:
        """What it is called at home: told by the name itself, or, where that was cut, by what is known."""
        if kind not in ("tool", "prompt"):
            return name[len(self.prefix) + 1 :] if name.startswith(f"{self.prefix}+") else None
        _, _, bare_name = name.partition("__")
        if make_model_name(self._server_name, bare_name) == name:
            return bare_name
        return next(
            (
                known_name
                for known_name in self._get_known_items(kind)
                if make_model_name(self._server_name, known_name) == name
            ),
            None,
        )


class IdentityNameMap(NameMap):
    """The names of the only server on a path: its own."""

    def __init__(self) -> None:
        super().__init__("", {}, ())

    @property
    def is_unambiguous(self) -> bool:
        """There is no other."""
        return True


def make_uri_scheme(server: str) -> str:
    """A server's name as it may stand before a URI; another for every other name."""
    uri_scheme = re.sub(r"[^a-z0-9-]", "-", server.lower())  # a scheme is the same in either case
    uri_scheme = uri_scheme if uri_scheme[:1].isalpha() else f"s{uri_scheme}"
    return uri_scheme if uri_scheme == server else f"{uri_scheme}-{make_model_name(server, '').rpartition('__')[2]}"


class GatewayServer(Server):
    """A gateway's server; over HTTP it has a path for each form of it."""

    def __init__(self, name: str, create_variant: Callable[..., Server | None], **options: Any) -> None:
        super().__init__(name, **options)
        self._create_variant = create_variant

    def asgi(self, *, path: str = "/mcp", **options: Any) -> Any:
        """As the application of a server, with `/search/mcp` and `/servers/NAME/mcp` beside it."""

        def create_app(mode: str, server_name: str | None, variant_path: str) -> Any | None:
            server = self._create_variant(mode, server_name)
            return None if server is None else create_server_app(server, path=variant_path, **options)

        return GatewayRouter(super().asgi(path=path, **options), create_app)


def create_server_app(server: Server, **options: Any) -> Any:
    """The application of one server, on one path."""
    return Server.asgi(server, **options)


class Gateway:
    """A host as one server."""

    def __init__(
        self,
        parts: HostParts,
        host_lifespan: HostLifespan,
        *,
        mode: GatewayMode = "merged",
        only_server: str | None = None,
        name: str = "gateway",
        states: SingleUseStates | None = None,
        **options: Any,
    ) -> None:
        if mode not in get_args(GatewayMode):
            raise ValueError(f"mode is 'merged' or 'search', not {mode!r}")
        self._parts = parts
        self._host_lifespan = host_lifespan  # that of the host, unless somebody else opened it
        self._mode = mode
        self._only_server = only_server
        self._states = states or SingleUseStates(Sealer(options.get("secrets", ())))
        self._mounted: dict[str, tuple[Upstream, Callable[[], None]]] = {}
        self._search_cache: tuple[list[Any], Catalog] = [], Catalog()
        self._options = options
        self.server = GatewayServer(name, self._create_variant, lifespan=self._lifespan, **options)
        self.server.middleware(self._middleware)
        self.sync_mounts()
        for event in ("server.added", "server.removed"):
            parts.events.on(event, lambda _: self.sync_mounts())

    def _create_variant(self, mode: GatewayMode, only_server: str | None) -> Server | None:
        """Another form of the same host; None for a server it does not have."""
        if only_server is not None and only_server not in {server.name for server in self._parts.servers.list()}:
            return None
        variant_options: dict[str, Any] = {
            "mode": mode,
            "only_server": only_server,
            "name": only_server or self.server.name,
            "states": self._states,
        }
        return Gateway(self._parts, self._host_lifespan, **variant_options, **self._options).server

    @asynccontextmanager
    async def _lifespan(self) -> AsyncGenerator[None]:
        async with self._host_lifespan():
            yield

    def sync_mounts(self) -> None:
        """Mount what has joined, and take off what has left."""
        servers = {
            server.name: server for server in self._parts.servers.list() if self._only_server in (None, server.name)
        }
        for name, (upstream, unmount) in tuple(self._mounted.items()):
            if servers.get(name) is not upstream.supervisor:
                unmount()
                del self._mounted[name]
        for name, server in servers.items():
            if name not in self._mounted:
                server.shared = True
                upstream = Upstream(self._parts, server, self._states)
                names = (
                    GatewayNameMap(name, upstream.get_known_items) if self._only_server is None else IdentityNameMap()
                )
                self._mounted[name] = upstream, self.server.mount(upstream, names)

    # Names and lists that take a look at what the servers have

    @ignores_results
    async def _middleware(self, exchange: Exchange, call_next: Any) -> Any:
        if exchange.method == "tools/list" and self._mode == "search":
            items = {tool.name: ListedItem(tool) for tool in SEARCH_TOOLS}
            return get_dispatcher(self.server).visibility.build_page(exchange, items, "tools", ListToolsResult)
        if exchange.method in ("prompts/get", "completion/complete"):
            reference = exchange.params.get("ref")
            await self._ensure_listed(
                "prompt", str((reference if type(reference) is dict else exchange.params).get("name")), exchange
            )
        if exchange.method != "tools/call":
            return await call_next(exchange)
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments") or {}
        if type(arguments) is not dict:
            raise InvalidParams("Invalid params: arguments must be an object")
        if self._mode == "search" and name in (SEARCH_TOOL, DESCRIBE_TOOL):
            return run_search_tool(await self._build_catalog(exchange), name, arguments)
        original_params = exchange.params
        if self._mode == "search" and name == CALL_TOOL:
            inner_name, inner_arguments = parse_inner_call(arguments)
            exchange.params = original_params | {"name": inner_name, "arguments": inner_arguments}
        await self._ensure_listed("tool", str(exchange.params.get("name")), exchange)
        try:
            return await call_next(exchange)
        finally:
            exchange.params = original_params

    async def _ensure_listed(self, kind: ItemKind, name: str, exchange: Exchange) -> None:
        """A name that was cut can only be told back once the servers have listed what they have."""
        upstreams = [upstream for upstream, _ in self._mounted.values()]
        if name.count("__") == 2 and not any(
            GatewayNameMap(upstream.name, upstream.get_known_items).to_inner(kind, name) for upstream in upstreams
        ):
            await asyncio.gather(*(upstream.list_items(kind, exchange) for upstream in upstreams))

    async def _build_catalog(self, exchange: Exchange) -> Catalog:
        """The tools there are for this caller."""
        upstreams = [upstream for upstream, _ in self._mounted.values()]
        tool_lists = await asyncio.gather(*(upstream.list_items("tool", exchange) for upstream in upstreams))
        tools_by_server = [
            (upstream.name, [*listed_tools.values()])
            for upstream, listed_tools in zip(upstreams, tool_lists, strict=True)
        ]
        cached_tools, catalog = self._search_cache
        if cached_tools != tools_by_server:
            catalog = Catalog.from_manifests({name: Manifest(tools=tools) for name, tools in tools_by_server})
            self._search_cache = tools_by_server, catalog
        return catalog
