"""The last known lists of one server, with callbacks for changes."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from dovetail.callbacks import call_all
from dovetail.client.client import Client
from dovetail.client.item_lists import KEY_ATTRIBUTES, list_by_kind
from dovetail.client.subscription import CHANGE_METHODS, ChangeKind
from dovetail.host.events import EventKind, HostEvent
from dovetail.log import log
from dovetail.protocol.exchange import ChangeCallback
from dovetail.protocol.item_kinds import ITEM_KINDS, ItemKind
from dovetail.protocol.subscription_filter import LIST_BY_KIND

# The first number counts the changes of all lists, the second number the changes of this list.
ListVersion: TypeAlias = tuple[int, int]

_EVENT_BY_CHANGE: Final[Mapping[ChangeKind, EventKind]] = {
    "tools": "tools.changed",
    "prompts": "prompts.changed",
    "resources": "resources.changed",
    "resource": "resource.updated",
}


class ListCache:
    """The last known lists of one server. When a list changes, an event is emitted and the callbacks are called."""

    def __init__(
        self, server_name: str, emit: Callable[[HostEvent], None], callbacks: Mapping[object, ChangeCallback]
    ) -> None:
        self.items_by_kind: dict[ItemKind, dict[str, Any]] = {}
        self.fetched_at: dict[ItemKind, float] = {}
        self._server_name = server_name
        self._emit = emit
        self._callbacks = callbacks
        self._invalidation_count = 0
        self._change_counts: Counter[ItemKind] = Counter()
        self._seen_change_counts: dict[ItemKind, int] = {}
        self._awaited_kinds: set[ItemKind] = set()
        self._ambiguous_names: dict[ItemKind, frozenset[str]] = {}

    def invalidate(self) -> None:
        """Mark all lists as outdated, even the lists that are being fetched now."""
        self._invalidation_count += 1
        self.fetched_at.clear()

    def handle_change(self, change_kind: ChangeKind, uri: str | None = None, details: Any = None) -> None:
        """Mark a list as outdated and call the callbacks."""
        for kind in ITEM_KINDS:
            if LIST_BY_KIND[kind] == change_kind:
                self.fetched_at.pop(kind, None)
                self._change_counts[kind] += 1
        self._notify(change_kind, uri, details)

    def mark_awaited(self, kind: ItemKind) -> None:
        """Record that a caller got an outdated list or no list.

        The next update of the list then calls the callbacks.
        """
        self._awaited_kinds.add(kind)

    def get_version(self, kind: ItemKind) -> ListVersion:
        """Return the version of a list. Call this before requesting the list, and pass the version to `update`."""
        return self._invalidation_count, self._change_counts[kind]

    def update(self, kind: ItemKind, items: dict[str, Any], fetched_at: float, version: ListVersion) -> None:
        """Store a list. `fetched_at` and `version` are the time and the list version before the request."""
        previous, self.items_by_kind[kind] = self.items_by_kind.get(kind), items
        if version == self.get_version(kind):  # The list is current only if no change was reported during the request.
            self.fetched_at[kind] = fetched_at
        change_count = version[1]
        is_unannounced = previous is not None and self._seen_change_counts.get(kind) == change_count
        self._seen_change_counts[kind] = change_count
        if kind in self._awaited_kinds or is_unannounced:
            self._awaited_kinds.discard(kind)
            if (previous or {}) != items:
                self._notify(LIST_BY_KIND[kind], None, None)
        if previous is not None and previous != items:
            self._emit(
                HostEvent(kind="definitions.changed", server=self._server_name, message=kind, details=(previous, items))
            )

    def report_ambiguous(self, kind: ItemKind, names: frozenset[str]) -> None:
        """Log which names have several definitions. Do not log the same names twice in a row."""
        if names and names != self._ambiguous_names.get(kind):
            log.warning(
                "%s has several definitions of the same %s, which are left out: %s",
                self._server_name,
                kind,
                ", ".join(sorted(names)),
            )
        self._ambiguous_names[kind] = names

    def _notify(self, change_kind: ChangeKind, uri: str | None, details: Any) -> None:
        self._emit(HostEvent(kind=_EVENT_BY_CHANGE[change_kind], server=self._server_name, details=details))
        call_all(self._callbacks, CHANGE_METHODS[change_kind], uri)


def get_announced_kinds(client: Client) -> frozenset[ItemKind]:
    """Return the kinds of items for which the server promises change notifications."""
    capabilities = client.server_capabilities
    return frozenset(
        kind
        for kind in ITEM_KINDS
        if (capability := getattr(capabilities, LIST_BY_KIND[kind])) is not None and capability.list_changed
    )


async def fetch_definitions(client: Client, kind: ItemKind) -> tuple[dict[str, Any], frozenset[str]]:
    """Fetch all items of a kind from a server. Return a dict with names or URIs as keys.

    Also return the names with several different definitions, which are left out.
    """
    by_key: dict[str, Any] = {}
    ambiguous_names: set[str] = set()
    for definition in await list_by_kind(client, kind, client.server_capabilities):
        key = getattr(definition, KEY_ATTRIBUTES[kind])
        if by_key.setdefault(key, definition) != definition:
            ambiguous_names.add(key)
    items = {key: definition for key, definition in by_key.items() if key not in ambiguous_names}
    return items, frozenset(ambiguous_names)
