"""The last known lists of one server, with callbacks for changes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dovetail.client.client import Client
from dovetail.host.events import EventKind, HostEvent
from dovetail.protocol.mountable import ChangeCallback, ItemKind
from dovetail.protocol.subscription_filter import (
    PROMPTS_LIST_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_LIST_CHANGED,
    TOOLS_LIST_CHANGED,
)

_NOTIFICATION_BY_LIST: Final = {
    "tools": TOOLS_LIST_CHANGED,
    "prompts": PROMPTS_LIST_CHANGED,
    "resources": RESOURCES_LIST_CHANGED,
    "resource": RESOURCE_UPDATED,
}
_EVENT_BY_LIST: Final[Mapping[str, EventKind]] = {
    "tools": "tools.changed",
    "prompts": "prompts.changed",
    "resources": "resources.changed",
    "resource": "resource.updated",
}
_KINDS_BY_LIST: Final[Mapping[str, tuple[ItemKind, ...]]] = {
    "tools": ("tool",),
    "prompts": ("prompt",),
    "resources": ("resource", "resource template"),
}
_LIST_BY_KIND: Final[Mapping[ItemKind, str]] = {kind: name for name, kinds in _KINDS_BY_LIST.items() for kind in kinds}


class ListCache:
    """The last known lists of one server."""

    def __init__(self, server_name: str, emit: Callable[[HostEvent], None]) -> None:
        self.items_by_kind: dict[ItemKind, dict[str, Any]] = {}
        self.fetched_at: dict[ItemKind, float] = {}
        self.change_callbacks: list[ChangeCallback] = []
        self._server_name = server_name
        self._emit = emit
        self._change_counts: Counter[ItemKind] = Counter()
        self._seen_change_counts: dict[ItemKind, int] = {}
        self._awaited_kinds: set[ItemKind] = set()

    def invalidate(self) -> None:
        """Mark all lists as outdated."""
        self.fetched_at.clear()

    def handle_change(self, list_name: str, uri: str | None = None, details: Any = None) -> None:
        """Mark a list as outdated and call the callbacks."""
        for kind in _KINDS_BY_LIST.get(list_name, ()):
            self.fetched_at.pop(kind, None)
            self._change_counts[kind] += 1
        self._notify(list_name, uri, details)

    def mark_awaited(self, kind: ItemKind) -> None:
        """Remember that a caller got an incomplete list, so that the next update calls the callbacks."""
        self._awaited_kinds.add(kind)

    def get_change_count(self, kind: ItemKind) -> int:
        """Return the number of change notifications for a list.

        Call this before requesting the list, and pass the number to `update`.
        """
        return self._change_counts[kind]

    def update(self, kind: ItemKind, items: dict[str, Any], fetched_at: float, change_count: int) -> None:
        """Store a list. `fetched_at` and `change_count` are from the moment when the list was requested."""
        previous, self.items_by_kind[kind] = self.items_by_kind.get(kind), items
        if change_count == self._change_counts[kind]:  # A list is only current if it did not change during the request.
            self.fetched_at[kind] = fetched_at
        is_unannounced = previous is not None and self._seen_change_counts.get(kind) == change_count
        self._seen_change_counts[kind] = change_count
        if kind in self._awaited_kinds or is_unannounced:
            self._awaited_kinds.discard(kind)
            if (previous or {}) != items:
                self._notify(_LIST_BY_KIND[kind], None, None)
        if previous is not None and previous != items:
            self._emit(
                HostEvent(kind="definitions.changed", server=self._server_name, message=kind, details=(previous, items))
            )

    def _notify(self, list_name: str, uri: str | None, details: Any) -> None:
        self._emit(HostEvent(kind=_EVENT_BY_LIST[list_name], server=self._server_name, details=details))
        for callback in tuple(self.change_callbacks):
            callback(_NOTIFICATION_BY_LIST[list_name], uri)

    def add_callback(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call a function for each change of a list. The returned function removes the callback."""
        self.change_callbacks.append(callback)

        def stop() -> None:
            if callback in self.change_callbacks:
                self.change_callbacks.remove(callback)

        return stop


def get_announced_kinds(client: Client) -> frozenset[ItemKind]:
    """Return the kinds of items for which the server promises change notifications."""
    capabilities = client.server_capabilities
    capability_by_list = {
        "tools": capabilities.tools,
        "prompts": capabilities.prompts,
        "resources": capabilities.resources,
    }
    return frozenset(
        kind
        for list_name, capability in capability_by_list.items()
        if capability is not None and capability.list_changed
        for kind in _KINDS_BY_LIST[list_name]
    )


async def fetch_definitions(client: Client, kind: ItemKind) -> dict[str, Any]:
    """Fetch all items of a kind from a server. Return them by name or URI."""
    capabilities = client.server_capabilities
    match kind:
        case "tool":
            return _index_definitions(await client.list_tools() if capabilities.tools is not None else (), "name")
        case "prompt":
            return _index_definitions(await client.list_prompts() if capabilities.prompts is not None else (), "name")
        case "resource":
            return _index_definitions(
                await client.list_resources() if capabilities.resources is not None else (), "uri"
            )
        case _:
            templates = await client.list_resource_templates() if capabilities.resources is not None else ()
            return _index_definitions(templates, "uri_template")


def _index_definitions(definitions: Sequence[Any], key_attribute: str) -> dict[str, Any]:
    """Return the definitions by name or URI. Leave out names with several different definitions."""
    by_key: dict[str, Any] = {}
    ambiguous: set[str] = set()
    for definition in definitions:
        key = getattr(definition, key_attribute)
        if by_key.setdefault(key, definition) != definition:
            ambiguous.add(key)
    return {key: definition for key, definition in by_key.items() if key not in ambiguous}
