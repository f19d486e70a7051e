"""A gateway serves all servers of a host as one MCP server, to callers of any protocol version.

Each server is mounted as an `Upstream`, under unambiguous names. Over HTTP, each mode and each server has a path.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Literal, TypeAlias, get_args

from dovetail.host.events import HostEvent
from dovetail.host.gateway.caller_consent import SingleUseStates
from dovetail.host.gateway.gateway_skills import GatewaySkills
from dovetail.host.gateway.gateway_tasks import GatewayTasks, TaskReviews
from dovetail.host.gateway.task_ids import TaskIds
from dovetail.host.gateway.upstream import Upstream
from dovetail.host.parts import HostParts
from dovetail.host.qualified_names import MAX_NAME_CHARS, SEPARATOR, make_model_name
from dovetail.mounts.name_map import NameMap
from dovetail.protocol.item_kinds import ItemKind
from dovetail.server.attachments import find_secret_keys
from dovetail.server.server import Server, describe_as, get_dispatcher, set_other_apps
from dovetail.version import VERSION
from dovetail.wire.base import Struct
from dovetail.wire.lifecycle import Implementation

GatewayMode: TypeAlias = Literal["merged", "search"]
HostLifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]

_SERVER_PATH: Final = re.compile(r"/servers/([A-Za-z0-9_-]{1,64})(/mcp)?/?")
_SEARCH_PATH: Final = re.compile(r"/search(/mcp)?/?")
_SEARCH_MCP_PATH: Final = "/search/mcp"
_METADATA_PREFIX: Final = "/.well-known/oauth-protected-resource"
_SHORTENED_SEPARATORS: Final = 2  # A shortened name is three parts, joined by two separators.


class GatewayPaths:
    """The additional URL paths of a gateway: `/search/mcp`, and `/servers/NAME/mcp` for each server."""

    def __init__(self, create_app: Callable[[GatewayMode, str | None, str], Any | None]) -> None:
        self._create_app = create_app
        self._apps: dict[str, Any] = {}

    def find(self, scope: Any) -> Any | None:
        """Return the ASGI application for an additional path, or None for all other paths."""
        path = _get_path(scope)
        if _SEARCH_PATH.fullmatch(path):
            return self._get_app("search", None, _SEARCH_MCP_PATH)
        if match := _SERVER_PATH.fullmatch(path):
            return self._get_app("merged", match[1], f"/servers/{match[1]}/mcp")
        return None

    def find_path(self, scope: Any) -> str | None:
        """Return the gateway path of a request, such as `/search/mcp`, or None.

        The server in the path may not exist.
        """
        path = _get_path(scope)
        if match := _SERVER_PATH.fullmatch(path):
            return f"/servers/{match[1]}/mcp"
        return _SEARCH_MCP_PATH if _SEARCH_PATH.fullmatch(path) else None

    def _get_app(self, mode: GatewayMode, server_name: str | None, path: str) -> Any | None:
        if path not in self._apps and (app := self._create_app(mode, server_name, path)) is not None:
            self._apps[path] = app
        return self._apps.get(path)

    async def close(self) -> None:
        """Close the applications after their running requests have finished."""
        for app in self._apps.values():
            await app.close()


def _get_path(scope: Any) -> str:
    return scope["path"].removeprefix(scope.get("root_path") or "").removeprefix(_METADATA_PREFIX)


class GatewayNameMap(NameMap):
    """Translates names between one server and the gateway. In the gateway, resource URIs have a prefix."""

    def __init__(self, server_name: str, get_known_lists: Callable[[ItemKind], Sequence[Mapping[str, Any]]]) -> None:
        super().__init__(make_uri_scheme(server_name), {}, ())
        self._server_name = server_name
        self._get_known_lists = get_known_lists
        # Each index maps gateway names to the names on the server.
        self._indexes: dict[ItemKind, dict[int, tuple[Mapping[str, Any], dict[str, str]]]] = {}

    def to_outer(self, kind: ItemKind, inner_name: str) -> str:
        """Return the gateway name of a server's item."""
        if kind in ("tool", "prompt"):
            return make_model_name(self._server_name, inner_name)
        return super().to_outer(kind, inner_name)

    def to_inner(self, kind: ItemKind, name: str) -> str | None:
        """Translate the name of a gateway item to its name on this server.

        Return None if the item belongs to another server.
        """
        if kind not in ("tool", "prompt"):
            return super().to_inner(kind, name)
        if len(name) > MAX_NAME_CHARS:
            return None
        _, _, bare_name = name.partition("__")
        if make_model_name(self._server_name, bare_name) == name:
            return bare_name
        return self._find_shortened(kind, name) if name.count(SEPARATOR) == _SHORTENED_SEPARATORS else None

    def _find_shortened(self, kind: ItemKind, name: str) -> str | None:
        """Return the full name for a shortened name, or None if it is unknown.

        Any caller can send unknown names, so each list is indexed only once.
        """
        indexes = self._indexes.get(kind, {})
        self._indexes[kind] = current_indexes = {}
        for known_list in self._get_known_lists(kind):
            index = indexes.get(id(known_list))
            if index is None or index[0] is not known_list:
                index = known_list, {make_model_name(self._server_name, inner): inner for inner in known_list}
            current_indexes[id(known_list)] = index
        return next((names[name] for _, names in current_indexes.values() if name in names), None)

    def needs_items(self, kind: ItemKind, name: str) -> bool:
        """Return whether a shortened name can be translated only after the server has listed its items."""
        return (
            kind in ("tool", "prompt")
            and name.count(SEPARATOR) == _SHORTENED_SEPARATORS
            and self.to_inner(kind, name) is None
        )


class IdentityNameMap(NameMap):
    """A name map that changes no names. It is for a gateway path that serves a single server."""

    def __init__(self) -> None:
        super().__init__("", {}, ())

    @property
    def is_unambiguous(self) -> bool:
        """Return True, because names of a single server cannot clash."""
        return True


def make_uri_scheme(server: str) -> str:
    """Return the URI scheme for a server. Each server has a different scheme."""
    uri_scheme = re.sub(r"[^a-z0-9-]", "-", server.lower())  # URI schemes are case-insensitive.
    uri_scheme = uri_scheme if uri_scheme[:1].isalpha() else f"s{uri_scheme}"
    return uri_scheme if uri_scheme == server else f"{uri_scheme}-{make_model_name(server, '').rpartition('__')[2]}"


class GatewayState(Struct, frozen=True):
    """The state that all URL paths of a gateway share, so that a client can read a task through every path."""

    consent_states: SingleUseStates
    task_ids: TaskIds
    task_reviews: TaskReviews


class Gateway:
    """Serves all servers of a host as one MCP server."""

    def __init__(
        self,
        parts: HostParts,
        host_lifespan: HostLifespan,
        *,
        mode: GatewayMode = "merged",
        only_server: str | None = None,
        name: str = "gateway",
        gateway_state: GatewayState | None = None,
        **options: Any,
    ) -> None:
        if mode not in get_args(GatewayMode):
            raise ValueError(f"mode must be 'merged' or 'search', not {mode!r}")
        self._parts = parts
        self._host_lifespan = host_lifespan  # a context manager that opens the host if it is closed
        self._mode = mode
        self._only_server = only_server
        options["secret_keys"] = find_secret_keys(options.get("secret_keys", ()), options.get("cluster"))
        self._state = gateway_state or _create_state(options["secret_keys"])
        self._mounted: dict[str, tuple[Upstream, Callable[[], None]]] = {}
        self._name_maps: dict[str, NameMap] = {}
        self._options = options
        self._has_instructions = options.get("instructions") is not None
        self._instructions_by_server: dict[str, str | None] = {}  # for servers that have run
        options.setdefault("version", VERSION)
        self.server = Server(name, lifespan=self._lifespan, search=mode == "search", **options)
        if gateway_state is None:  # Only the main gateway serves the additional paths.
            set_other_apps(self.server, self._create_paths)
        dispatcher = get_dispatcher(self.server)
        skills = GatewaySkills(parts, self._list_mounts, dispatcher.limits)
        tasks = GatewayTasks(parts, dispatcher, self._list_mounts, self._state.task_ids, self._state.task_reviews)
        # The gateway does not forward tasks if the user has added another extension for tasks.
        self._serves_tasks = tasks.extension.identifier not in _list_extensions(self.server)
        for extension in (skills.extension, tasks.extension):
            if extension.identifier not in _list_extensions(self.server):
                dispatcher.add_extension(extension)
        self.sync_mounts()
        for event in ("server.added", "server.removed"):
            parts.events.on(event, lambda _: self.sync_mounts())
        parts.events.on("server.state", self._update_description)
        get_dispatcher(self.server).set_description_source(self._start_new_servers)

    def _create_paths(self, options: Mapping[str, Any]) -> GatewayPaths:
        shared_options = {option: value for option, value in options.items() if option != "path"}

        def create_app(mode: GatewayMode, only_server: str | None, path: str) -> Any | None:
            if only_server is not None and self._parts.servers.find(only_server) is None:
                return None
            variant = Gateway(
                self._parts,
                self._host_lifespan,
                mode=mode,
                only_server=only_server,
                name=only_server or self.server.name,
                gateway_state=self._state,
                **(self._options | {"cluster": None}),
            )
            # The server of each path uses the same connection to the cluster.
            cluster = get_dispatcher(self.server).cluster
            if cluster is not None:
                get_dispatcher(variant.server).use_cluster(cluster, is_owner=False)
            return variant.server.asgi(path=path, **shared_options)

        return GatewayPaths(create_app)

    @asynccontextmanager
    async def _lifespan(self) -> AsyncGenerator[None]:
        async with self._host_lifespan():
            yield

    def sync_mounts(self) -> None:
        """Mount servers that were added to the host, and unmount servers that were removed."""
        servers = {
            server.name: server for server in self._parts.servers.list() if self._only_server in (None, server.name)
        }
        for name, (upstream, unmount) in tuple(self._mounted.items()):
            if servers.get(name) is not upstream.supervisor:
                unmount()
                del self._mounted[name]
                self._instructions_by_server.pop(name, None)
        for name, server in servers.items():
            if name not in self._mounted:
                server.shared = True
                task_ids = self._state.task_ids if self._serves_tasks else None
                upstream = Upstream(self._parts, server, self._state.consent_states, task_ids)
                names = GatewayNameMap(name, upstream.list_known) if self._only_server is None else IdentityNameMap()
                self._mounted[name] = upstream, self.server.mount(upstream, names)
                self._name_maps[name] = names
        self._update_description()

    def _list_mounts(self) -> list[tuple[Upstream, NameMap]]:
        return [(upstream, self._name_maps[name]) for name, (upstream, _) in self._mounted.items()]

    async def _start_new_servers(self) -> None:
        """Start the servers that have not run yet, because a new client needs their instructions."""
        if self._has_instructions:
            return
        new_servers = [
            upstream.supervisor
            for name, (upstream, _) in self._mounted.items()
            if name not in self._instructions_by_server and not self._parts.servers.has_caller_clients(name)
        ]
        await asyncio.gather(*(supervisor.ready() for supervisor in new_servers), return_exceptions=True)

    def _update_description(self, _event: HostEvent | None = None) -> None:
        """Update the gateway's instructions from its servers, unless the user has set instructions.

        On a path with only one server, copy its name and version, too.
        """
        if self._has_instructions:
            return
        implementation: Implementation | None = None
        for name, (upstream, _unmount) in self._mounted.items():
            if (client := upstream.supervisor.client) is not None:
                self._instructions_by_server[name] = client.instructions
                implementation = client.server_info if self._only_server else None
        texts_by_name = {name: text for name, text in sorted(self._instructions_by_server.items()) if text}
        texts = [text if self._only_server else f"{name}: {text}" for name, text in texts_by_name.items()]
        describe_as(self.server, implementation, "\n\n".join(texts) or None)


def _list_extensions(server: Server) -> Mapping[str, Any]:
    return get_dispatcher(server).registry.declared_capabilities.extensions or {}


def _create_state(secret_keys: Sequence[str | bytes]) -> GatewayState:
    return GatewayState(SingleUseStates(secret_keys), TaskIds(secret_keys), TaskReviews())
