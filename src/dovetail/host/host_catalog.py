"""The catalog of a host, which combines the lists of all its servers.

A slow or failed server does not affect the other servers. A list waits at most `ready_timeout` for each server.
"""

import asyncio
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary

from dovetail.error_context import add_context, clip, find_similar, suggest_match
from dovetail.errors import InvalidParams, NotFound, PolicyError, ProcessStartError
from dovetail.host.authorization import RequestAuthorizer, ToolRecord
from dovetail.host.catalog import Catalog, explain_unknown_tool
from dovetail.host.catalog_item import ServerDefinitions
from dovetail.host.policy.policy import Policy
from dovetail.host.server_settings import ServerSettings
from dovetail.host.servers import HOST_NOT_OPEN, ManagedServers
from dovetail.host.supervisor import ServerSupervisor
from dovetail.protocol.item_kinds import ITEM_KINDS, ItemKind

_NO_ITEMS: Final[dict[str, Any]] = {}
_ITEMS_PER_SLICE: Final = 50  # After this many items, other tasks of the event loop can run.
_ITEM_FIELDS: Final[Mapping[ItemKind, str]] = {
    "tool": "tools",
    "resource": "resources",
    "resource template": "resource_templates",
    "prompt": "prompts",
}
_REQUEST_KINDS: Final[Mapping[ItemKind, str]] = {"tool": "tool.call", "prompt": "prompt.get"}


class ToolRecords:
    """The tool records of one server. A new tool list or a new policy replaces them."""

    __slots__ = ("by_name", "policy", "tools")

    def __init__(self, tools: Mapping[str, Any], policy: Policy) -> None:
        self.tools = tools
        self.policy = policy
        self.by_name: dict[str, ToolRecord] = {}


class VisibleItems:
    """The items of one list, without hidden items. Create a new object when the list or the policy changes."""

    __slots__ = ("_items", "_policy", "task")

    def __init__(self, items: Mapping[str, Any], policy: Policy, task: "asyncio.Task[Mapping[str, Any]]") -> None:
        self._items = items
        self._policy = policy
        self.task = task

    def is_current(self, items: Mapping[str, Any], policy: Policy) -> bool:
        """Return whether this object belongs to the current list and the current policy.

        Return False if the task of the result can no longer finish.
        """
        is_usable = not self.task.cancelled() and (self.task.done() or not self.task.get_loop().is_closed())
        return is_usable and self._items is items and self._policy is policy


class HostCatalog:
    """All items of a host's servers, except the items that the policy hides."""

    def __init__(self, servers: ManagedServers, authorizer: RequestAuthorizer, ready_timeout: float) -> None:
        self.ready_timeout = ready_timeout  # how many seconds to wait for a server that is starting
        self._servers = servers
        self._authorizer = authorizer
        self._snapshots: dict[tuple[ItemKind, ...], tuple[list[Any], Catalog]] = {}
        self._tool_records: WeakKeyDictionary[ServerSupervisor, ToolRecords] = WeakKeyDictionary()
        self._visible_items: WeakKeyDictionary[ServerSupervisor, dict[ItemKind, VisibleItems]] = WeakKeyDictionary()

    async def fetch(self, *kinds: ItemKind) -> Catalog:
        """Fetch the lists of these kinds from all servers, and return a catalog of them.

        The items of a slow server appear in a later catalog. Raise ProcessStartError if the host is not open.
        """
        if not self._servers.is_open:
            raise ProcessStartError(HOST_NOT_OPEN)
        await asyncio.gather(*(self._fetch_lists(supervisor, kinds) for supervisor in self._list_enabled_servers()))
        return self.get_cached(*kinds)

    async def _fetch_lists(self, supervisor: ServerSupervisor, kinds: Sequence[ItemKind]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.ready_timeout
        for kind in kinds:
            await supervisor.list_within(kind, max(0.0, deadline - loop.time()))
        for kind in kinds:
            await self.filter_visible(supervisor, kind, supervisor.known.get(kind, _NO_ITEMS))

    def get_cached(self, *kinds: ItemKind) -> Catalog:
        """Return a catalog of the cached lists, without requests to servers."""
        requested_kinds: Sequence[ItemKind] = kinds or ITEM_KINDS
        snapshot: list[tuple[ServerSupervisor, ItemKind, dict[str, Any]]] = [
            (supervisor, kind, supervisor.known.get(kind, _NO_ITEMS))
            for supervisor in self._list_enabled_servers()
            for kind in requested_kinds
        ]
        cached = self._snapshots.get(kinds)
        if cached is not None and len(cached[0]) == len(snapshot) and all(map(_is_same_snapshot, cached[0], snapshot)):
            return cached[1]
        items_by_server: dict[str, dict[str, Any]] = {}
        for supervisor, kind, items in snapshot:
            items_by_server.setdefault(supervisor.name, {})[_ITEM_FIELDS[kind]] = self._list_visible(
                supervisor, kind, items
            )
        catalog = Catalog.from_servers({name: ServerDefinitions(**fields) for name, fields in items_by_server.items()})
        self._snapshots[kinds] = snapshot, catalog
        return catalog

    def _list_enabled_servers(self) -> list[ServerSupervisor]:
        return [supervisor for supervisor in self._servers.list() if supervisor.state != "disabled"]

    def is_visible(self, supervisor: ServerSupervisor, kind: ItemKind, name: str, definition: Any) -> bool:
        """Return whether the server settings and the policy allow an item to be listed."""
        if kind == "tool" and not _is_included(name, supervisor.settings):
            return False
        request_kind = _REQUEST_KINDS.get(kind, "resource.read")
        request = self._authorizer.create_request(supervisor, request_kind, name, None, definition)
        return self._authorizer.policy.decide(request).action != "hide"

    async def filter_visible(
        self, supervisor: ServerSupervisor, kind: ItemKind, items: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the items that the policy does not hide. During a long list, let other tasks of the event loop run."""
        if len(items) <= _ITEMS_PER_SLICE:
            return self._select_visible(supervisor, kind, items)
        policy = self._authorizer.policy
        evaluated_lists = self._visible_items.setdefault(supervisor, {})
        evaluated = evaluated_lists.get(kind)
        if evaluated is None or not evaluated.is_current(items, policy):
            task = asyncio.get_running_loop().create_task(self._evaluate_slices(supervisor, kind, items))
            evaluated = evaluated_lists[kind] = VisibleItems(items, policy, task)
        return await asyncio.shield(evaluated.task)

    async def _evaluate_slices(
        self, supervisor: ServerSupervisor, kind: ItemKind, items: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        visible: dict[str, Any] = {}
        pairs = iter(items.items())
        while part := dict(islice(pairs, _ITEMS_PER_SLICE)):
            visible |= self._select_visible(supervisor, kind, part)
            await asyncio.sleep(0)
        return visible

    def _select_visible(
        self, supervisor: ServerSupervisor, kind: ItemKind, items: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return {name: item for name, item in items.items() if self.is_visible(supervisor, kind, name, item)}

    def _list_visible(self, supervisor: ServerSupervisor, kind: ItemKind, items: Mapping[str, Any]) -> list[Any]:
        evaluated = self._visible_items.get(supervisor, {}).get(kind)
        if evaluated is not None and evaluated.is_current(items, self._authorizer.policy) and evaluated.task.done():
            return [*evaluated.task.result().values()]
        return [*self._select_visible(supervisor, kind, items).values()]

    async def find_tool(self, name: str) -> tuple[ServerSupervisor, str]:
        """Return the server and the tool with this name. Raise NotFound if the name is unknown."""
        server_name, dot, tool = name.partition(".")
        if dot and (supervisor := self._servers.find(server_name)) is not None:
            return supervisor, tool
        entry = self.get_cached("tool").find(name) or (await self.fetch("tool")).find(name)
        if entry is None:
            text = explain_unknown_tool(
                name, self.get_cached("tool"), self._servers.list(), self._servers.config_problems
            )
            raise NotFound(InvalidParams.code, text)
        return self._servers.get(entry.server), entry.name

    async def get_record(self, supervisor: ServerSupervisor, tool: str) -> ToolRecord:
        """Return the record of a tool, with its current definition.

        Raise NotFound if the tool is unknown or hidden.
        """
        tools = supervisor.get_fresh("tool")
        if tools is None:
            tools = await supervisor.current("tool")
        policy = self._authorizer.policy
        records = self._tool_records.get(supervisor)
        if records is None or records.tools is not tools or records.policy is not policy:
            records = self._tool_records[supervisor] = ToolRecords(tools, policy)
        record = records.by_name.get(tool)
        if record is not None:
            return record
        definition = tools.get(tool)
        if definition is None or not self.is_visible(supervisor, "tool", tool, definition):
            similar = (
                name for name in find_similar(tool, tools) if self.is_visible(supervisor, "tool", name, tools[name])
            )
            raise add_context(
                NotFound(InvalidParams.code, f"unknown tool {clip(tool)!r}{suggest_match(tool, similar)}"),
                server=supervisor.name,
            )
        record = records.by_name[tool] = self._authorizer.create_record(supervisor, definition)
        return record

    async def check_unchanged(self, supervisor: ServerSupervisor, record: ToolRecord) -> None:
        """Raise PolicyError if a tool definition changed while the user was asked."""
        current_record = await self.get_record(supervisor, record.definition.name)
        if current_record is not record and current_record.fingerprint != record.fingerprint:
            name = f"{supervisor.name}.{record.definition.name}"
            text = f"{name}: its definition changed while the user was asked. Call the tool again"
            raise add_context(PolicyError(text), server=supervisor.name)


def _is_same_snapshot(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return all(a is b for a, b in zip(left, right, strict=True))


def _is_included(tool: str, settings: ServerSettings) -> bool:
    return any(fnmatchcase(tool, glob) for glob in settings.include_tools) and not any(
        fnmatchcase(tool, glob) for glob in settings.exclude_tools
    )
