"""Find the mounted server that has a name or a URI, for one caller.

Lists, calls and subscriptions all use this module, so that they find the same server.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dovetail.error_context import clip
from dovetail.errors import InternalError, MCPError
from dovetail.log import log
from dovetail.mounts.local_server import LocalServer, MountingServer, list_all_items
from dovetail.mounts.mountable import Mountable
from dovetail.mounts.name_map import NameMap, get_tags
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.item_kinds import NOT_FOUND_ERRORS, ItemKind
from dovetail.protocol.principal import Principal
from dovetail.protocol.uri_key import template_key, uri_key
from dovetail.protocol.uri_readings import rule_keys, uri_readings
from dovetail.server.items.uri_template import may_match_template

if TYPE_CHECKING:  # Few servers have access rules, so only type checkers import this module.
    from dovetail.server.items.access_rules import AccessRule

# If a mounted server does not list its items within this time, it is left out.
LIST_TIMEOUT_S: Final = 10.0
_RETRY_DELAY_S: Final = 1.0  # the delay after a server refused a request

_MAX_STORED_LISTS: Final = 1024
_MAX_FORGOTTEN_URIS: Final = 4096  # the maximum number of deleted URIs that an index keeps


class Mount:
    """A server that is mounted on another server."""

    def __init__(
        self,
        target: Mountable,
        name_map: NameMap,
        stop_following: Callable[[], None],
        access_rule: "AccessRule | None" = None,
    ) -> None:
        self.target = target
        self.name_map = name_map
        self.access_rule = access_rule  # None means that all callers have access.
        self.stop_following = stop_following
        self.needs_transform_check = False
        # The last known lists, for times when the server is not available.
        # Each key consists of the kind of the items and the caller.
        self._stored_items: dict[tuple[ItemKind, Hashable], dict[str, Any]] = {}
        self.active_exchanges = 0
        self.retry_at = 0.0  # the earliest time for the next request after a failure
        self.resource_index = ResourceIndex()
        self.is_unavailable = False
        self._is_logged = False

    def store_items(self, kind: ItemKind, exchange: IncomingExchange, items: dict[str, Any]) -> dict[str, Any]:
        """Store and return a list of the server's items. Each caller may have a different list."""
        key = (kind, _get_list_key(exchange.caller.principal))
        self._stored_items.pop(key, None)
        self._stored_items[key] = items
        if len(self._stored_items) > _MAX_STORED_LISTS:
            del self._stored_items[next(iter(self._stored_items))]
        return items

    def has_stored_items(self, kind: ItemKind, principal: Principal | None) -> bool:
        """Return whether a list of the server's items is stored for this caller."""
        return (kind, _get_list_key(principal)) in self._stored_items

    def get_stored_items(self, kind: ItemKind, exchange: IncomingExchange) -> dict[str, Any]:
        """Return the list that is stored for this caller, or an empty list."""
        return self._stored_items.get((kind, _get_list_key(exchange.caller.principal)), {})

    def mark_available(self) -> None:
        self.retry_at = 0.0
        self.is_unavailable = self._is_logged = False

    def mark_unavailable(self, exc: Exception) -> None:
        """Record that the server did not respond, and delay the next request.

        The delay is longer for a server that hangs, because each attempt takes longer.
        """
        self.is_unavailable = True
        self.delay_retry(LIST_TIMEOUT_S if isinstance(exc, TimeoutError) else _RETRY_DELAY_S)

    @property
    def can_retry(self) -> bool:
        return _now() >= self.retry_at

    def delay_retry(self, delay: float) -> None:
        self.retry_at = _now() + delay

    def log_unavailable(self, message: str, *args: Any) -> None:
        """Log that the server is not available. Until the server responds again, later messages have debug level."""
        log.log(logging.DEBUG if self._is_logged else logging.WARNING, message, self.target.name, *args)
        self._is_logged = True


def _get_list_key(principal: Principal | None) -> Hashable:
    return None if principal is None else (str(principal), principal.scopes)


class ResourceIndex:
    """Finds a resource by any equivalent form of its URI, without searching the whole list.

    Each lookup adds the URIs of its list to the index, because lists differ between callers. Threads may share an
    index, because its state is replaced and never changed.
    """

    def __init__(self) -> None:
        self._state: tuple[frozenset[str], dict[str, tuple[str, ...]]] = (frozenset(), {})

    def find(self, uri: str, declarations: Mapping[str, Any]) -> list[str]:
        """Return the listed URIs that are equivalent to `uri`."""
        uris_by_key = self._index_uris(declarations)
        uris = dict.fromkeys(candidate for reading in uri_readings(uri) for candidate in uris_by_key.get(reading, ()))
        return [candidate for candidate in uris if candidate in declarations]

    def has(self, uri: str, declarations: Mapping[str, Any]) -> bool:
        key = uri_key(uri)
        return uri in declarations or any(
            candidate in declarations and uri_key(candidate) == key
            for candidate in self._index_uris(declarations).get(key, ())
        )

    def _index_uris(self, declarations: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        indexed_uris, uris_by_key = self._state
        if indexed_uris.issuperset(declarations):
            return uris_by_key
        if len(indexed_uris) > _MAX_FORGOTTEN_URIS + 2 * len(declarations):
            indexed_uris, uris_by_key = frozenset(), {}
        uris_by_key = uris_by_key.copy()
        for uri in declarations.keys() - indexed_uris:
            for key in rule_keys(uri):
                uris_by_key[key] = (*uris_by_key.get(key, ()), uri)
        self._state = indexed_uris.union(declarations), uris_by_key
        return uris_by_key


class MountResolver:
    """Finds items on mounted servers, in the order of the mounts."""

    def __init__(self, server: MountingServer, mounts: list[Mount]) -> None:
        self._server = server
        self._registry = server.registry
        self._mounts = mounts

    async def has_item(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        return await self._find(kind, name, exchange) is not None

    async def find(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> tuple[Mount, str] | None:
        """Find the first mount that lists the item for this caller. Also return the item's name on that mount.

        If only one mount can have the name, its server is not asked whether it has the item.

        Raises:
            InsufficientScope: no mount lists the item for this caller, but one mount lists it for a caller with more
                scopes.
            InternalError: a server that may have the item is not available, and its items are unknown.
        """
        resolved = await self._find(kind, name, exchange)
        if (
            resolved is None
            and (server_name := self.find_unavailable(kind, name, exchange.caller.principal)) is not None
        ):
            raise InternalError(f"{server_name} is not available. It may have {clip(name)}. Try again later")
        return resolved

    async def _find(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> tuple[Mount, str] | None:
        if self.is_disabled(kind, name) or not _is_accessible(self.find_rule_by_name(kind, name), name, exchange):
            return None
        await self._load_names(kind, name, exchange)
        candidates = [
            pair
            for pair in self.find_candidates(kind, name)
            if self.is_listed(pair[0].access_rule, name, exchange.caller.principal)
        ]
        if len(candidates) == 1 and candidates[0][0].target.is_remote and self.is_certain(*candidates[0], kind):
            return await self._check_resolved(*candidates[0], kind, exchange)
        for mount, inner_name in candidates:
            if await self._mount_has_item(mount, kind, inner_name, exchange):
                return await self._check_resolved(mount, inner_name, kind, exchange)
        for mount, inner_name in candidates if kind == "resource" else ():
            if self._may_match_template(mount, inner_name) and await mount.target.has_item(kind, inner_name, exchange):
                # Only the mounted server can check which URIs match its templates.
                return await self._check_resolved(mount, inner_name, kind, exchange)
        await self.check_scopes(kind, name, exchange)
        return None

    def find_unavailable(self, kind: ItemKind, name: str, principal: Principal | None) -> str | None:
        """Return the name of an unavailable server that may have this item, or None."""
        if self.is_disabled(kind, name) or not self.is_listed(self.find_rule_by_name(kind, name), name, principal):
            return None
        for mount, inner_name in self.find_candidates(kind, name):
            target = mount.target
            if not self.is_listed(mount.access_rule, name, principal):
                continue
            if mount.is_unavailable and not mount.has_stored_items(kind, principal):
                return target.name
            if isinstance(target, LocalServer) and (
                server_name := target.server.items.find_unavailable(kind, inner_name, principal)
            ):
                return server_name
        return None

    async def _load_names(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> None:
        mounts = [mount for mount in self._mounts if mount.name_map.needs_items(kind, name)]
        if mounts and not self.find_candidates(kind, name):
            await asyncio.gather(*(mount.target.list_items(kind, exchange) for mount in mounts))

    async def _check_resolved(
        self, mount: Mount, inner_name: str, kind: ItemKind, exchange: IncomingExchange
    ) -> tuple[Mount, str]:
        _is_accessible(mount.access_rule, inner_name, exchange)
        for declaration in await self._list_offered(mount, kind, inner_name, exchange) if self._has_tag_rules else ():
            _is_accessible(self.find_rule_by_tags(declaration), inner_name, exchange)
        return mount, inner_name

    async def check_access(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> None:
        """Raise a not-found error if this caller cannot see the item."""
        resolved = await self.find(kind, name, exchange)
        if resolved is None:
            raise NOT_FOUND_ERRORS[kind](name)
        if isinstance(resolved[0].target, LocalServer):
            await resolved[0].target.server.items.check_access(kind, resolved[1], exchange)

    def find_candidates(self, kind: ItemKind, name: str) -> list[tuple[Mount, str]]:
        pairs = ((mount, mount.name_map.to_inner(kind, name)) for mount in self._mounts)
        candidates = [(mount, inner_name) for mount, inner_name in pairs if inner_name is not None]
        if kind == "resource" and len(candidates) > 1:
            candidates.sort(key=lambda pair: not pair[0].name_map.has_exact_prefix(kind, name))
        return candidates

    def is_certain(self, mount: Mount, inner_name: str, kind: ItemKind) -> bool:
        """Return whether the item can only be on this mount."""
        return (
            mount.name_map.is_unambiguous
            and not self._needs_tags
            and not (kind == "resource" and self._matches_hidden_template(mount, inner_name))
        )

    def _matches_hidden_template(self, mount: Mount, inner_uri: str) -> bool:
        """Return whether a URI matches a hidden or disabled template.

        If so, callers can use the URI only if a resource has exactly this URI.
        """
        disabled = self._registry.disabled_names
        uri = mount.name_map.to_outer("resource", inner_uri) if disabled else ""
        return mount.name_map.matches_hidden_template(inner_uri) or any(
            may_match_template(template, uri) for template in disabled if "{" in template
        )

    def _may_match_template(self, mount: Mount, inner_uri: str) -> bool:
        needs_tags = (
            mount.name_map.has_tag_filter or self._needs_tags or self._matches_hidden_template(mount, inner_uri)
        )
        return mount.target.is_remote and not needs_tags and mount.can_retry

    async def check_scopes(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> None:
        """Raise InsufficientScope if the caller needs more scopes to see the item."""
        principal = exchange.caller.principal
        self._server.visibility.check_scopes(kind, name, principal)
        has_local_mounts = any(isinstance(mount.target, LocalServer) for mount in self._mounts)
        if self._registry.access_rules is None and not has_local_mounts:
            return
        for mount, inner_name in self.find_candidates(kind, name):
            for declaration in await self._list_offered(mount, kind, inner_name, exchange):
                if _is_accessible(mount.access_rule, name, exchange):
                    _is_accessible(self.find_rule_by_tags(declaration), name, exchange)
            if isinstance(mount.target, LocalServer) and _is_visible(mount.access_rule, name, principal):
                await mount.target.check_scopes(kind, inner_name, exchange)

    async def _mount_has_item(self, mount: Mount, kind: ItemKind, inner_name: str, exchange: IncomingExchange) -> bool:
        if not mount.target.is_remote:
            if not await mount.target.has_item(kind, inner_name, exchange):
                return False
            if (
                not mount.name_map.has_tag_filter
                and not self._needs_tags
                and not (kind == "resource" and self._matches_hidden_template(mount, inner_name))
            ):
                return True
        declarations = await self._list_offered(mount, kind, inner_name, exchange)
        return any(
            self.is_listed(self.find_rule_by_tags(declaration), inner_name, exchange.caller.principal)
            for declaration in declarations
        )

    async def _list_offered(
        self, mount: Mount, kind: ItemKind, inner_name: str, exchange: IncomingExchange
    ) -> list[Any]:
        """Return the items that the name may refer to. If a remote server is too slow, use its last known lists."""
        if not mount.target.is_remote:
            return await self._find_declarations(mount, kind, inner_name, exchange)
        if mount.can_retry:
            try:
                async with asyncio.timeout(LIST_TIMEOUT_S):
                    await mount.target.start()
                    declarations = await self._find_declarations(mount, kind, inner_name, exchange)
                    if not mount.has_stored_items(kind, exchange.caller.principal):
                        items = await mount.target.list_items(kind, exchange)
                        mount.store_items(kind, exchange, mount.name_map.rename_declarations(kind, items))
                mount.mark_available()
                return declarations
            except (MCPError, TimeoutError) as exc:
                mount.mark_unavailable(exc)
                mount.log_unavailable("%s did not report whether it has %s: %s", clip(inner_name), format_failure(exc))
        cached_items = _find_declared(
            mount, mount.get_stored_items(kind, exchange), kind, mount.name_map.to_outer(kind, inner_name)
        )
        return [item for item in cached_items if self.is_enabled(item)]

    async def _find_declarations(
        self, mount: Mount, kind: ItemKind, inner_name: str, exchange: IncomingExchange
    ) -> list[Any]:
        target = mount.target
        candidates = _find_declared(mount, await target.list_items(kind, exchange), kind, inner_name)
        if not candidates and kind == "resource" and not self._matches_hidden_template(mount, inner_name):
            templates = await target.list_items("resource template", exchange)
            candidates = [candidate for uri, candidate in templates.items() if may_match_template(uri, inner_name)]
        return [
            candidate for candidate in candidates if mount.name_map.is_allowed(candidate) and self.is_enabled(candidate)
        ]

    @property
    def _needs_tags(self) -> bool:
        return bool(self._registry.disabled_tags) or self._has_tag_rules

    @property
    def _has_tag_rules(self) -> bool:
        return self._registry.access_rules is not None and self._registry.access_rules.has_tag_rules

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether a caller may receive updates of a mounted resource.

        Return False if this server has access rules for tags, because the tags of the resource are unknown.
        """
        if self.is_disabled("resource", uri) or not self.is_listed(
            self.find_rule_by_name("resource", uri), uri, principal
        ):
            return False
        candidates = self.find_candidates("resource", uri)
        for mount, inner_uri in candidates:
            target = mount.target
            if self._has_tag_rules or not self.is_listed(mount.access_rule, uri, principal):
                continue
            if self._matches_hidden_template(mount, inner_uri) and not (
                isinstance(target, LocalServer)
                and mount.resource_index.has(inner_uri, list_all_items(target, "resource") or {})
            ):
                continue
            if target.can_receive_updates(inner_uri, principal):
                return True
        return not candidates and self._registry.access_rules is None and not self._is_hidden(uri)

    def _is_hidden(self, uri: str) -> bool:
        return any(mount.name_map.is_hidden(uri) for mount in self._mounts)

    def is_listed(self, access_rule: "AccessRule | None", name: str, principal: Principal | None) -> bool:
        return (
            access_rule is None
            or self._registry.access_rules is None
            or self._registry.access_rules.is_listed_by_rule(access_rule, name, principal)
        )

    def is_enabled(self, declaration: Any) -> bool:
        """Return whether an item is enabled. An item with a disabled tag is disabled."""
        return self._registry.disabled_tags.isdisjoint(get_tags(declaration))

    def find_rule_by_tags(self, declaration: Any) -> "AccessRule | None":
        """Return this server's access rule for an item with these tags."""
        access_rules = self._registry.access_rules
        return None if access_rules is None else access_rules.find_by_tags(get_tags(declaration))

    def find_rule_by_name(self, kind: ItemKind, name: str) -> "AccessRule | None":
        access_rules = self._registry.access_rules
        return None if access_rules is None else access_rules.find_by_name(kind, name)

    def is_disabled(self, kind: ItemKind, name: str) -> bool:
        names = self._registry.disabled_names
        if kind != "resource" or not names:
            return name in names
        return not _collect_rule_keys(names).isdisjoint(uri_readings(name))


@lru_cache(16)
def _collect_rule_keys(names: frozenset[str]) -> frozenset[str]:
    return frozenset(key for name in names for key in rule_keys(name))


def _find_declared(mount: Mount, declarations: Mapping[str, Any], kind: ItemKind, name: str) -> list[Any]:
    declaration = declarations.get(name)
    if declaration is not None or kind not in ("resource", "resource template"):
        return [] if declaration is None else [declaration]
    if kind == "resource template":
        key = template_key(name)
        return [declaration for template, declaration in declarations.items() if template_key(template) == key]
    return [declarations[uri] for uri in mount.resource_index.find(name, declarations)]


def _now() -> float:
    return asyncio.get_running_loop().time()


def format_failure(exc: MCPError | TimeoutError) -> str:
    """Return the reason why a server did not respond."""
    return str(exc) or f"no response within {LIST_TIMEOUT_S:g} s"


def _is_accessible(access_rule: "AccessRule | None", name: str, exchange: IncomingExchange) -> bool:
    if access_rule is None:
        return True
    from dovetail.server.items.access_rules import is_accessible

    return is_accessible(access_rule, name, exchange.caller.principal)


def _is_visible(access_rule: "AccessRule | None", name: str, principal: Principal | None) -> bool:
    if access_rule is None:
        return True
    from dovetail.server.items.access_rules import is_visible_to

    return is_visible_to(access_rule, name, principal)
