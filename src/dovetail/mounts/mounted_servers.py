"""Mounts make other servers part of this server, optionally under a prefix.

A server uses this module only if it has mounts. The items of the server itself precede mounted items. Only this module
translates names and URIs between the servers, in requests, lists and the links of results.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dovetail.error_context import clip
from dovetail.errors import (
    InvalidParams,
    MCPError,
    MethodNotFound,
    PromptNotFound,
    ResourceNotFound,
    ToolError,
    ToolNotFound,
)
from dovetail.keys import build_key
from dovetail.log import log
from dovetail.mounts.forwarding import check_headers, finish_result
from dovetail.mounts.local_server import LocalServer, MountingServer, list_all_items
from dovetail.mounts.mountable import Mountable
from dovetail.mounts.name_map import NameMap, restore_uri
from dovetail.mounts.remote_subscriptions import RemoteSubscription, RemoteSubscriptions
from dovetail.mounts.resolver import LIST_TIMEOUT_S, Mount, MountResolver, format_failure
from dovetail.mounts.transforms import (
    Transform,
    get_inner_argument,
    get_outer_argument,
    is_outer_argument,
    rename_header_paths,
    restore_arguments,
)
from dovetail.protocol.exchange import (
    ChangeCallback,
    ForwardedResult,
    IncomingExchange,
    convert_params,
    make_type_error,
)
from dovetail.protocol.headers import HeaderPath
from dovetail.protocol.item_kinds import ITEM_KINDS, ItemKind
from dovetail.protocol.middleware import Handler
from dovetail.protocol.principal import Principal
from dovetail.protocol.subscription_filter import RESOURCE_UPDATED, read_filter
from dovetail.server.dispatch.listening import list_receivable
from dovetail.server.dispatch.parts import Handlers, Position, ServerPart
from dovetail.server.items.tool import build_error_result
from dovetail.server.parameters.signature import InvalidArguments
from dovetail.wire.base import UNSET, Result, replace
from dovetail.wire.codec import encode
from dovetail.wire.completion import CompleteParams, PromptReference
from dovetail.wire.lifecycle import ServerCapabilities
from dovetail.wire.prompts import ListPromptsResult
from dovetail.wire.resources import ListResourcesResult, ListResourceTemplatesResult
from dovetail.wire.tools import CallToolResult, ListToolsResult

if TYPE_CHECKING:  # Few servers have access rules or a cluster, so only type checkers import these modules.
    from dovetail.protocol.interfaces.shared_state import SharedWorker
    from dovetail.server.items.access_rules import AccessRule, AccessRules
    from dovetail.server.routes import RouteMatch

# A list request waits at most this many seconds for a server that was not available before.
_RETRY_WAIT_S: Final = 1.0
_MAX_KNOWN_TOOLS: Final = 1024
_MAX_KNOWN_NAME_CHARS: Final = 256

_LIST_METHODS: Final[dict[str, tuple[ItemKind, str, Any]]] = {
    "tools/list": ("tool", "tools", ListToolsResult),
    "resources/list": ("resource", "resources", ListResourcesResult),
    "resources/templates/list": ("resource template", "resource_templates", ListResourceTemplatesResult),
    "prompts/list": ("prompt", "prompts", ListPromptsResult),
}


class ListedItem:
    """A mounted item. It has the same interface as a registered item."""

    __slots__ = ("declaration",)

    def __init__(self, declaration: Any) -> None:
        self.declaration = declaration


class MountedTool(NamedTuple):
    """The mounted server that has a tool, and the name of the tool on that server."""

    name: str
    mount: Mount
    inner_name: str
    transform: Transform


class MountedServers(ServerPart):
    """All servers mounted on one server. This class handles the requests for their items."""

    position = Position.ITEMS

    def __init__(self, server: MountingServer) -> None:
        self._server = server
        self._registry = server.registry
        self._visibility = server.visibility
        self._own_handlers: Handlers = {}  # the handlers that this object replaces
        self._mounts: list[Mount] = []
        self.resolver = MountResolver(server, self._mounts)
        self._removed_mounts: list[Mount] = []  # unmounted servers that are not stopped yet
        self._known_tools: dict[str, MountedTool] = {}  # tools that only one mounted server can have
        self._remote_subscriptions = RemoteSubscriptions(
            self._mounts, self.resolver, partial(self._registry.on_mounted_change, RESOURCE_UPDATED)
        )
        self._stop_tasks: set[asyncio.Task[None]] = set()
        self._background_tasks: set[asyncio.Task[None]] = set()

    def wrap(self, handlers: Handlers) -> Handlers:
        self._own_handlers = handlers
        return {
            **handlers,
            **dict.fromkeys(_LIST_METHODS, self._list_page),
            "tools/call": self._call_tool,
            "prompts/get": self._get_prompt,
            "resources/read": self._read_resource,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
        }

    def add(self, target: Mountable, name_map: NameMap, access_rule: "AccessRule | None" = None) -> Callable[[], None]:
        """Mount a server. Return a function that unmounts it."""
        needs_check = name_map.has_transforms and not _validate_transforms(target, name_map)
        mount = Mount(target, name_map, target.watch_changes(self._make_change_handler(name_map)), access_rule)
        mount.needs_transform_check = needs_check
        self._mounts.append(mount)
        self._known_tools.clear()

        def unmount() -> None:
            if mount in self._mounts:
                self._mounts.remove(mount)
                self._known_tools.clear()
                self._removed_mounts.append(mount)
                mount.stop_following()
                self._stop_if_unused(mount)
                self._registry.notify_all_lists_changed()

        self._registry.notify_all_lists_changed()
        self._remote_subscriptions.add_mount(mount)
        return unmount

    def _stop_if_unused(self, mount: Mount) -> None:
        if mount not in self._removed_mounts or mount.active_exchanges:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # The `stop` method will stop this server.
        self._removed_mounts.remove(mount)
        task = loop.create_task(mount.target.stop())
        self._stop_tasks.add(task)
        task.add_done_callback(self._stop_tasks.discard)

    def list_local_servers(self) -> list[MountingServer]:
        return [mount.target.server for mount in self._mounts if isinstance(mount.target, LocalServer)]

    def share_limits(self, cluster: "SharedWorker", path: str) -> None:
        """Let the mounted servers share their limits and open calls with all workers."""
        for mount in self._mounts:
            mount_path, target = build_key(path, mount.name_map.prefix, mount.target.name), mount.target
            if isinstance(target, LocalServer):
                target.server.handler_table.share_limits(cluster, mount_path)
            elif callable(join_cluster := getattr(target, "join_cluster", None)):
                join_cluster(cluster, mount_path)

    def receive_notification(self, exchange: IncomingExchange) -> None:
        """Pass a notification from a client to all mounted servers in this process."""
        for mount in tuple(self._mounts):
            if isinstance(mount.target, LocalServer):
                mount_path = (*exchange.mount_path, self._server.name, mount.name_map.prefix)
                mount.target.server.receive_notification(replace(exchange, task=None, mount_path=mount_path))

    def list_used_scopes(self) -> list[str]:
        """Return the scopes that mounted items require. Unknown items of remote servers are left out."""
        mount_scopes = [
            scope for mount in self._mounts if mount.access_rule is not None for scope in mount.access_rule.scopes
        ]
        return [*mount_scopes, *(scope for server in self.list_local_servers() for scope in server.list_used_scopes())]

    def find_route(self, path: str, method: str) -> "RouteMatch | None":
        """Return the route of a path on a mounted server in this process. The prefix is the first part of the path."""
        for mount in self._mounts:
            prefix = f"/{mount.name_map.prefix}" if mount.name_map.prefix else ""
            # Routes have no tags, so a mount with a filter for tags has no routes.
            if not isinstance(mount.target, LocalServer) or mount.name_map.has_tag_filter:
                continue
            if not path.startswith(f"{prefix}/"):
                continue
            match = mount.target.server.find_route(path[len(prefix) :], method)
            if match is not None:
                rules = () if mount.access_rule is None else (mount.access_rule,)
                handle = partial(self._run_route, mount, match.handle)
                return replace(match, handle=handle, mount_rules=(*match.mount_rules, *rules))
        return None

    async def _run_route(self, mount: Mount, handle: Handler, exchange: IncomingExchange) -> Any:
        """Run a route at a mounted server, with the limits of that server."""
        await mount.target.start()
        exchange.mount_path += (self._server.name, mount.name_map.prefix)
        mount.active_exchanges += 1
        try:
            return await handle(exchange)
        finally:
            self._end_forwarding(mount, exchange, exchange.params)

    def _make_change_handler(self, name_map: NameMap) -> ChangeCallback:
        def on_change(method: str, uri: str | None) -> None:
            outer_uri = None if uri is None else name_map.to_outer("resource", uri)
            self._registry.on_mounted_change(method, outer_uri)

        return on_change

    async def start(self) -> None:
        """Start all mounted servers. If one of them fails, continue with the others."""
        for mount in tuple(self._mounts):
            if not mount.target.is_remote:
                await self._start_mount(mount)
        await asyncio.gather(*(self._start_mount(mount) for mount in tuple(self._mounts) if mount.target.is_remote))

    async def _start_mount(self, mount: Mount) -> None:
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S if mount.target.is_remote else None):
                await mount.target.start()
        except (MCPError, TimeoutError) as exc:
            mount.mark_unavailable(exc)
            mount.log_unavailable("%s, mounted on %s, is not available: %s", self._server.name, format_failure(exc))

    async def stop(self) -> None:
        self._remote_subscriptions.end_watched()
        removed_mounts, self._removed_mounts = self._removed_mounts, []
        for mount in (*self._mounts, *removed_mounts):
            await mount.target.stop()
        loop = asyncio.get_running_loop()
        stop_tasks = [task for task in self._stop_tasks if task.get_loop() is loop]
        if stop_tasks:
            await asyncio.wait(stop_tasks, timeout=LIST_TIMEOUT_S)

    def add_capabilities(self, combined: ServerCapabilities) -> ServerCapabilities:
        """Add the capabilities of the mounted servers to `combined`, and return the result."""
        for mount in self._mounts:
            mounted = mount.target.capabilities()
            combined = replace(
                combined,
                tools=combined.tools or mounted.tools,
                resources=combined.resources or mounted.resources,
                prompts=combined.prompts or mounted.prompts,
                completions=combined.completions if mounted.completions is None else combined.completions or {},
            )
        return combined

    async def _list_page(self, exchange: IncomingExchange) -> bytes:
        kind, field, result_type = _LIST_METHODS[exchange.method]
        access_rules = self._registry.access_rules
        if access_rules is not None and access_rules.has_unchecked_names:
            access_rules.has_unchecked_names = False
            await self._warn_unused_rules(access_rules, exchange)
        items = {name: ListedItem(declaration) for name, declaration in (await self.list_items(kind, exchange)).items()}
        if not items and getattr(self._server.capabilities(), exchange.method.partition("/")[0]) is None:
            raise MethodNotFound(exchange.method)
        return self._visibility.build_page(exchange, items, field, result_type)

    async def list_items(self, kind: ItemKind, exchange: IncomingExchange) -> dict[str, Any]:
        """Return all items that this caller sees. If two items have the same name, the first one is used."""
        items = self._visibility.list_visible(kind, exchange)
        principal = exchange.caller.principal
        mounts = [
            mount for mount in self._mounts if self.resolver.is_listed(mount.access_rule, mount.target.name, principal)
        ]
        for mounted_items in await asyncio.gather(
            *(self._list_mounted_items(mount, kind, exchange) for mount in mounts)
        ):
            for name, declaration in mounted_items.items():
                rules = (self.resolver.find_rule_by_tags(declaration), self.resolver.find_rule_by_name(kind, name))
                is_enabled = not self.resolver.is_disabled(kind, name) and self.resolver.is_enabled(declaration)
                if is_enabled and all(self.resolver.is_listed(rule, name, principal) for rule in rules):
                    items.setdefault(name, declaration)
        return items

    async def _warn_unused_rules(self, access_rules: "AccessRules", exchange: IncomingExchange) -> None:
        """Warn about access rules that match no item. Do nothing until all remote servers have listed their items."""
        item_names = [name for kind in ITEM_KINDS for name in self._registry.list_registered(kind)]
        unavailable: list[Mount] = []
        for mount in tuple(self._mounts):
            try:
                for kind in ITEM_KINDS:
                    item_names += [
                        mount.name_map.to_outer(kind, inner_name)
                        for inner_name in await _list_all_names(mount, kind, exchange)
                    ]
            except (MCPError, TimeoutError):
                unavailable.append(mount)
        name_maps = [mount.name_map for mount in unavailable]
        access_rules.warn_unused(
            self._server.name, item_names, lambda name: any(_may_contain(name_map, name) for name_map in name_maps)
        )

    def list_names(self) -> list[str] | None:
        items_by_kind = [self.list_registered_items(kind) for kind in ITEM_KINDS]
        return None if None in items_by_kind else [name for items in items_by_kind for name in items or ()]

    def may_have_item(self, name: str) -> bool:
        """Return whether a mounted server may have an item with this name or URI.

        A remote server may have any name with its prefix.
        """
        for mount in self._mounts:
            for kind in ITEM_KINDS:
                mounted_items, inner_name = list_all_items(mount.target, kind), mount.name_map.to_inner(kind, name)
                if inner_name is not None and (mounted_items is None or inner_name in mounted_items):
                    return True
        return False

    async def _list_mounted_items(self, mount: Mount, kind: ItemKind, exchange: IncomingExchange) -> Mapping[str, Any]:
        target = mount.target
        if not target.is_remote:
            await target.start()
            await self._check_transforms(mount, exchange)
            return mount.name_map.rename_declarations(kind, await target.list_items(kind, exchange))
        if not mount.is_unavailable:
            await self._refresh_items(mount, kind, exchange)
        elif mount.can_retry:
            # The retry runs in the background, because a hanging server must not delay every list.
            task = asyncio.get_running_loop().create_task(self._retry(mount, kind, exchange))
            self._background_tasks.add(task)
            task.add_done_callback(self._background_tasks.discard)
            await asyncio.wait([task], timeout=_RETRY_WAIT_S)
        return mount.get_stored_items(kind, exchange)

    async def _refresh_items(self, mount: Mount, kind: ItemKind, exchange: IncomingExchange) -> None:
        """Store the current items of a remote server. If the server does not respond in time, keep the old items."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                await mount.target.start()
                items = await mount.target.list_items(kind, exchange)
                mount.store_items(kind, exchange, mount.name_map.rename_declarations(kind, items))
                await self._check_transforms(mount, exchange)
                mount.mark_available()
        except (MCPError, TimeoutError) as exc:
            mount.mark_unavailable(exc)
            mount.log_unavailable("%s could not list its items: %s", format_failure(exc))

    async def _retry(self, mount: Mount, kind: ItemKind, exchange: IncomingExchange) -> None:
        """List the items of a server that was unavailable. If the server responds now, notify the clients."""
        # The delay prevents another retry while this one is running.
        mount.delay_retry(LIST_TIMEOUT_S)
        await self._refresh_items(mount, kind, exchange)
        if not mount.is_unavailable:
            self._registry.notify_all_lists_changed()

    async def _check_transforms(self, mount: Mount, exchange: IncomingExchange) -> None:
        if not mount.needs_transform_check:
            return
        mount.needs_transform_check = False
        declarations: dict[ItemKind, Mapping[str, Any]] = {
            kind: await mount.target.list_items(kind, exchange) for kind in ITEM_KINDS
        }
        for problem in mount.name_map.find_problems(declarations):
            log.warning("%s, mounted on %s: %s", mount.target.name, self._server.name, problem)

    def list_registered_items(self, kind: ItemKind) -> dict[str, Any] | None:
        """Return all mounted items, even those that are hidden from callers.

        Return None if a mounted server is remote.
        """
        items: dict[str, Any] = {}
        for mount in self._mounts:
            mounted_items = list_all_items(mount.target, kind)
            if mounted_items is None:
                return None
            items |= mount.name_map.rename_declarations(kind, mounted_items)
        return items

    def _has_own(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        return self._visibility.has_item(kind, name, exchange.caller.principal)

    async def _call_tool(self, exchange: IncomingExchange) -> Result | bytes:
        original_params = exchange.params
        name, arguments = original_params.get("name"), original_params.get("arguments")
        tool = self._known_tools.get(name) if type(name) is str else None
        registry = self._registry
        if (
            tool is None
            or registry.access_rules is not None
            or registry.disabled_tags
            or name in registry.disabled_names
            or name in registry.tools
        ):
            # The tool is unknown, or this server may have a tool or an access rule with the same name.
            tool = await self._find_tool(name, exchange)
            if tool is None:
                return await self._own_handlers["tools/call"](exchange)
        if arguments is not None and type(arguments) is not dict:
            raise make_type_error("arguments", "an object")
        arguments = arguments or {}
        mount, transform = tool.mount, tool.transform
        skips_param_headers = exchange.skips_param_headers
        if exchange.headers is not None and exchange.caller.is_stateless and not skips_param_headers:
            await _check_param_headers(tool, arguments, exchange)
        try:
            inner_arguments = restore_arguments(transform, arguments) if transform.arguments else arguments
        except MCPError as exc:
            return build_error_result(str(exc))
        if not mount.target.is_remote:
            await mount.target.start()
            exchange.mount_path += (self._server.name, mount.name_map.prefix)
        exchange.params = original_params | {"name": tool.inner_name, "arguments": inner_arguments}
        if transform.arguments:
            exchange.skips_param_headers = True
        mount.active_exchanges += 1
        try:
            result = await mount.target.handle(exchange)
        finally:
            exchange.skips_param_headers = skips_param_headers
            self._end_forwarding(mount, exchange, original_params)
        result = finish_result(result, exchange, mount, self._server)
        return result if type(result) is ForwardedResult else await self._adapt_result(result, tool, exchange)

    async def _adapt_result(
        self, result: Result | bytes, tool: MountedTool, exchange: IncomingExchange
    ) -> Result | bytes:
        """Name arguments as this server names them in an error, and store the large parts of a result."""
        transform = tool.transform
        if transform.arguments and isinstance(error := exchange.exception, InvalidArguments):
            exchange.exception = translated = _translate_error(error, transform, tool.name)
            if result == build_error_result(str(error)):
                return build_error_result(str(translated))
        store = self._registry.result_store
        if store is None or not isinstance(result, CallToolResult):
            return result
        has_structured_content = result.structured_content is not UNSET
        output_schema = (
            await self._find_output_schema(tool.mount, tool.inner_name, exchange) if has_structured_content else {}
        )
        return await store.store_large_parts(result, exchange.caller.principal, output_schema)

    async def _find_tool(self, name: Any, exchange: IncomingExchange) -> MountedTool | None:
        """Find the mounted server that has a tool. Return None if this server itself has the tool.

        Raise ToolNotFound if no server has it.
        """
        if type(name) is not str or self._has_own("tool", name, exchange):
            return None
        resolved = await self.resolver.find("tool", name, exchange)
        if resolved is None:
            raise MethodNotFound(exchange.method) if self._server.capabilities().tools is None else ToolNotFound(name)
        mount, inner_name = resolved
        tool = MountedTool(name, mount, inner_name, mount.name_map.get_transform(inner_name))
        if (
            mount.target.is_remote
            and self.resolver.is_certain(mount, inner_name, "tool")
            and len(name) <= _MAX_KNOWN_NAME_CHARS
        ):
            if len(self._known_tools) >= _MAX_KNOWN_TOOLS:
                self._known_tools.clear()
            self._known_tools[name] = tool
        return tool

    async def find_header_paths(self, name: str, exchange: IncomingExchange) -> Sequence[HeaderPath]:
        """Return the headers that repeat arguments of a tool of this server or of a mounted server."""
        tool = await self._find_tool(name, exchange)
        if tool is None:
            return self._registry.tools[name].headers
        paths = await tool.mount.target.find_header_paths(tool.inner_name, exchange)
        return rename_header_paths(tool.transform, paths)

    async def _find_output_schema(
        self, mount: Mount, tool_name: str, exchange: IncomingExchange
    ) -> Mapping[str, Any] | None:
        """Return the output schema of a tool, or None if it has none.

        If the schema is unknown, return an empty schema, which allows every result.
        """
        try:
            declaration = (await mount.target.list_items("tool", exchange)).get(tool_name)
        except MCPError:
            return {}
        return {} if declaration is None else declaration.output_schema

    async def _get_prompt(self, exchange: IncomingExchange) -> Result | bytes:
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        if type(name) is not str or self._has_own("prompt", name, exchange):
            return await self._own_handlers["prompts/get"](exchange)
        resolved = await self.resolver.find("prompt", name, exchange)
        if resolved is None:
            raise PromptNotFound(name)
        mount, inner_name = resolved
        inner_params: dict[str, Any] = {"name": inner_name}
        transform = mount.name_map.get_transform(inner_name)
        if type(arguments) is dict or transform.arguments:
            inner_params["arguments"] = restore_arguments(transform, arguments if type(arguments) is dict else {})
        try:
            return await self._forward(mount, exchange, inner_params)
        except InvalidArguments as exc:
            raise (_translate_error(exc, transform, name) if transform.arguments else exc) from None

    async def _read_resource(self, exchange: IncomingExchange) -> Result | bytes:
        uri = exchange.params.get("uri")
        if (
            type(uri) is not str
            or len(uri) > self._server.limits.max_uri_bytes
            or self._has_own("resource", uri, exchange)
        ):
            return await self._own_handlers["resources/read"](exchange)
        resolved = await self.resolver.find("resource", uri, exchange)
        if resolved is None:
            raise ResourceNotFound(uri)
        mount, inner_uri = resolved
        return restore_uri(await self._forward(mount, exchange, {"uri": inner_uri}), mount.name_map, inner_uri, uri)

    async def _complete(self, exchange: IncomingExchange) -> Result | bytes:
        params = convert_params(exchange, CompleteParams)
        is_prompt = isinstance(params.ref, PromptReference)
        kind: ItemKind = "prompt" if is_prompt else "resource template"
        ref_name = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        if self._has_own(kind, ref_name, exchange):
            return await self._own_handlers["completion/complete"](exchange)
        resolved = await self.resolver.find(kind, ref_name, exchange)
        if resolved is None:
            raise InvalidParams(f"Invalid params: unknown {kind} {clip(ref_name)}", {"field": "ref"})
        mount, inner_name = resolved
        # Forward only the field that was checked. The mounted server must not use an unchecked field.
        inner_params: dict[str, Any] = {"ref": {"type": params.ref.type, "name" if is_prompt else "uri": inner_name}}
        transform = mount.name_map.get_transform(inner_name)
        if transform.arguments:
            inner_params |= _restore_completion(transform, ref_name, params)
        return await self._forward(mount, exchange, inner_params)

    async def _forward(self, mount: Mount, exchange: IncomingExchange, param_changes: dict[str, Any]) -> Result | bytes:
        original_params = exchange.params
        if not mount.target.is_remote:
            await mount.target.start()
            exchange.mount_path += (self._server.name, mount.name_map.prefix)
        exchange.params = original_params | param_changes
        mount.active_exchanges += 1
        try:
            result = await mount.target.handle(exchange)
        finally:
            self._end_forwarding(mount, exchange, original_params)
        return finish_result(result, exchange, mount, self._server)

    def _end_forwarding(self, mount: Mount, exchange: IncomingExchange, original_params: dict[str, Any]) -> None:
        exchange.params = original_params
        if not mount.target.is_remote:
            exchange.mount_path = exchange.mount_path[:-2]
        mount.active_exchanges -= 1
        if self._removed_mounts:
            self._stop_if_unused(mount)

    def watch_resource(self, uri: str, principal: Principal | None, origin: str | None) -> Callable[[], None] | None:
        """Subscribe a client to a resource, and return a function that ends the subscription.

        Return None if the resource cannot belong to a remote server.
        """
        return self._remote_subscriptions.watch(uri, principal, origin)

    async def _listen(self, exchange: IncomingExchange) -> Result | bytes:
        """Run a `subscriptions/listen` request, and subscribe to the resources of remote servers.

        Resources that a remote server refuses are removed from the subscription.
        """
        original_params = exchange.params
        requested_filter = read_filter(exchange.params, self._server.limits.max_uri_bytes)
        requested_uris = requested_filter.resource_subscriptions
        if not requested_uris:
            return await self._own_handlers["subscriptions/listen"](exchange)
        principal = exchange.caller.principal
        # Remote servers must only learn the URIs that the caller may use.
        uris = await list_receivable(self._server.items, requested_uris, principal)
        subscription = RemoteSubscription(uris, principal)
        try:
            accepted_uris = await self._remote_subscriptions.open(subscription)
            uris = [uri for uri in requested_uris if uri in accepted_uris or not self._is_only_remote(uri, exchange)]
            # The filter may have fields of extensions.
            notifications = original_params["notifications"] | {"resourceSubscriptions": uris}
            exchange.params = original_params | {"notifications": notifications}
            return await self._own_handlers["subscriptions/listen"](exchange)
        finally:
            exchange.params = original_params
            self._remote_subscriptions.end(subscription)

    def _is_only_remote(self, uri: str, exchange: IncomingExchange) -> bool:
        candidates = self.resolver.find_candidates("resource", uri)
        return (
            bool(candidates)
            and all(mount.target.is_remote for mount, _ in candidates)
            and not self._has_own("resource", uri, exchange)
        )


def _restore_completion(transform: Transform, ref_name: str, params: CompleteParams) -> dict[str, Any]:
    """Translate argument names for the mounted server. Raise InvalidParams if the transform hides the argument."""
    argument, context = params.argument, (params.context.arguments if params.context is not None else None) or {}
    for name in (argument.name, *context):
        if not is_outer_argument(transform, name):
            raise InvalidParams(
                f"Invalid params: {clip(ref_name)} has no argument {clip(name)}", {"field": "argument.name"}
            )
    restored = restore_arguments(transform, context)
    inner_arguments = {
        name: value if isinstance(value, str) else encode(value).decode() for name, value in restored.items()
    }
    return {
        "argument": {"name": get_inner_argument(transform, argument.name), "value": argument.value},
        "context": {"arguments": inner_arguments},
    }


async def _check_param_headers(tool: MountedTool, arguments: dict[str, Any], exchange: IncomingExchange) -> None:
    """Check the headers that repeat arguments. A server in this process checks them itself, unless they are renamed."""
    target, transform = tool.mount.target, tool.transform
    if (target.is_remote or transform.arguments) and (
        paths := await target.find_header_paths(tool.inner_name, exchange)
    ):
        check_headers(paths, transform, arguments, exchange)


def _translate_error(error: InvalidArguments, transform: Transform, name: str) -> ToolError:
    translated = error.rename_arguments(lambda name: get_outer_argument(transform, name))
    if str(translated):
        return translated
    log.error("%s cannot be called, because a fixed value in its Transform is invalid: %s", clip(name), error)
    return ToolError(f"{clip(name)} cannot be called, because the server sets an invalid argument")


async def _list_all_names(mount: Mount, kind: ItemKind, exchange: IncomingExchange) -> Iterable[str]:
    items = list_all_items(mount.target, kind)
    if items is not None:
        return items
    async with asyncio.timeout(LIST_TIMEOUT_S):
        await mount.target.start()
        return await mount.target.list_items(kind, exchange)


def _may_contain(name_map: NameMap, name: str) -> bool:
    return any(name_map.to_inner(kind, name) is not None for kind in ITEM_KINDS)


def _validate_transforms(target: Mountable, name_map: NameMap) -> bool:
    """Check transforms against the items of a server. Return False if the items are not known yet.

    Raises:
        ValueError: a transform does not match the items of the server.
    """
    declarations: dict[ItemKind, Mapping[str, Any]] = {}
    for kind in ITEM_KINDS:
        items = list_all_items(target, kind)
        if items is None:
            return False
        declarations[kind] = items
    for problem in name_map.find_problems(declarations):
        raise ValueError(f"cannot mount {target.name}: {problem}")
    return True
