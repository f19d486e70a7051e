"""Views: what is offered as each caller is shown it: in lists, and when something is asked for by name.

Every answer is of one state of the registry and its rules, whatever other threads change meanwhile.
"""

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dovetail.errors import MethodNotFound, ResourceNotFound
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.principal import Principal
from dovetail.protocol.uri_key import uri_key, uri_readings
from dovetail.server.item_options import CacheHint, check_type
from dovetail.server.page_cache import CachedPages, PageCache
from dovetail.server.registry import Registry
from dovetail.server.resource import Resource, ResourceTemplate
from dovetail.wire.base import Result
from dovetail.wire.methods import METHODS
from dovetail.wire.prompts import ListPromptsResult
from dovetail.wire.resources import ListResourcesResult, ListResourceTemplatesResult
from dovetail.wire.tools import ListToolsResult

if TYPE_CHECKING:
    from dovetail.protocol.mountable import ItemKind
    from dovetail.server.access_rules import AccessRules, VisibilitySnapshot

_EXPECTED_CACHE_HINTS: Final = "a CacheHint(...), or a dict of them by method"


class Visibility(Registry):
    """The offers of one server, seen by its callers."""

    def __init__(
        self, page_cache: PageCache, *, cache_hints: CacheHint | Mapping[str, CacheHint] | None, **registry_options: Any
    ) -> None:
        super().__init__(page_cache, **registry_options)
        self._cache_hints = _check_cache_hints(cache_hints)
        # The resources last indexed by key, and the index. Its value is None where several resources have one key.
        self._resource_index: tuple[Mapping[str, Resource], dict[str, Resource | None]] = ({}, {})

    def own(self, kind: "ItemKind", exchange: Exchange) -> dict[str, Any]:
        """What is registered here, by name or URI, as this caller is shown it; nothing that is mounted."""
        _, items, snapshot = self._get_view(kind)
        hidden = () if snapshot is None else snapshot.find_hidden(exchange.caller.principal)[1]
        return {name: item.declaration for name, item in items.items() if name not in hidden}

    def declared(self, kind: "ItemKind") -> dict[str, Any]:
        """What is registered here, by name or URI, whoever asks and enabled or not."""
        return {name: item.declaration for name, item in self._registered[kind].copy().items()}

    def has(self, kind: "ItemKind", name: str, principal: Principal | None) -> bool:
        """Whether something registered here under a name is listed for this caller, or a URI leads to it."""
        access_rules = self._access_rules
        if kind != "resource":
            return name in self._get_enabled_items(kind) and (
                access_rules is None or access_rules.is_listed(kind, name, principal)
            )
        try:
            resource = self._find_fixed_resource(name)
        except ResourceNotFound:
            return False
        if resource is not None and (
            access_rules is None or access_rules.is_listed(*get_item_key(resource), principal)
        ):
            return True
        return any(
            template.template.match(name) is not None
            and (access_rules is None or access_rules.is_listed(*get_item_key(template), principal))
            for template in self._templates_by_specificity
        )

    def challenge(self, kind: "ItemKind", name: str, principal: Principal | None) -> None:
        """Raise InsufficientScope if something registered here would be there for this caller, with more scopes."""
        if self._access_rules is None:
            return
        if kind == "resource":
            with contextlib.suppress(ResourceNotFound):
                self._find_resource(name, principal)
        elif name in self._get_enabled_items(kind):
            self._access_rules.check(kind, name, principal)

    def _get_view(self, kind: "ItemKind") -> "tuple[CachedPages, Mapping[str, Any], VisibilitySnapshot | None]":
        """What is registered, who is shown which, and the pages made of just that, whatever other threads change."""
        if self._access_rules is not None and self._access_rules.has_unchecked_names:
            self._warn_unused_rules(self._access_rules)
        while True:
            cached_pages = self._page_cache.current
            items = self._get_enabled_items(kind)
            if self._access_rules is not None and kind not in cached_pages.visibility_by_kind:
                cached_pages.visibility_by_kind[kind] = self._access_rules.take_snapshot(kind, items)
            if cached_pages is self._page_cache.current:
                return cached_pages, items, cached_pages.visibility_by_kind.get(kind)

    def _warn_unused_rules(self, access_rules: "AccessRules") -> None:
        """Say once what rules are about nothing; whoever knows what is mounted does."""

    # Whether something is there

    def _is_available(self, exchange: Exchange, kind: "ItemKind", name: str) -> bool:
        """Whether something is there for this caller; InsufficientScope if it takes more scopes."""
        return self._access_rules is None or self._is_permitted(
            self._access_rules, kind, name, exchange.caller.principal
        )

    def _is_permitted(
        self, access_rules: "AccessRules", kind: "ItemKind", name: str, principal: Principal | None
    ) -> bool:
        if access_rules.has_unchecked_names:
            self._warn_unused_rules(access_rules)
        # What another thread has taken away meanwhile has no rule any more, and is not there any more.
        return access_rules.check(kind, name, principal) and name in self._get_enabled_items(kind)

    def _find_resource(
        self, uri: str, principal: Principal | None
    ) -> tuple[Resource | ResourceTemplate, dict[str, Any]]:
        access_rules = self._access_rules
        resource = self._find_fixed_resource(uri)
        if resource is not None:
            # Whom it is hidden from does not get at its address by a template either.
            if access_rules is None or self._is_permitted(
                access_rules, "resource", resource.declaration.uri, principal
            ):
                return resource, {}
            raise ResourceNotFound(uri)
        if access_rules is not None and not access_rules.is_uri_allowed(uri, principal):
            raise ResourceNotFound(uri)
        for template in self._templates_by_specificity:
            variables = template.template.match(uri)
            if access_rules is not None and not self._is_template_permitted(
                access_rules, template, uri, variables, principal
            ):
                continue
            if variables is not None:
                return template, variables
        raise ResourceNotFound(uri)

    def _find_fixed_resource(self, uri: str) -> Resource | None:
        """Return the resource that is registered under a URI, in this or another spelling.

        Raises:
            ResourceNotFound: several have another spelling of this URI.
        """
        resources = self._resources
        resource = resources.get(uri)
        if resource is not None or not resources:
            return resource
        indexed, index = self._resource_index
        if indexed is not resources:
            index = _index_by_key(resources)
            self._resource_index = resources, index
        key_of_uri = uri_key(uri)
        resource = index.get(key_of_uri)
        if resource is None and key_of_uri in index:
            raise ResourceNotFound(uri)
        return resource

    def _is_template_permitted(
        self,
        access_rules: "AccessRules",
        template: ResourceTemplate,
        uri: str,
        variables: dict[str, Any] | None,
        principal: Principal | None,
    ) -> bool:
        """Return whether a template that matches a URI, or may match another reading of it, is there for this caller.

        Raises:
            InsufficientScope: it would be, with more scopes.
        """
        item_key = get_item_key(template)
        if variables is None:
            may_match = access_rules.has_rule(*item_key) and any(map(template.template.may_match, uri_readings(uri)))
            return may_match and self._is_permitted(access_rules, *item_key, principal)
        if not self._is_permitted(access_rules, *item_key, principal):
            return False
        # The values may tell more than the text: {+path} decodes slashes, a query may have any order.
        expanded = template.template.expand(variables)
        return expanded == uri or access_rules.is_uri_allowed(expanded, principal)

    def _is_restricted(
        self, access_rules: "AccessRules", resource: Resource | ResourceTemplate, uri: str, variables: dict[str, Any]
    ) -> bool:
        """Return whether not everyone may read a URI, which leads to this resource with these variables."""
        if access_rules.has_rule(*get_item_key(resource)):
            return True
        if isinstance(resource, Resource):
            return False
        return any(
            access_rules.find_by_uri(candidate_uri) is not None
            for candidate_uri in {uri, resource.template.expand(variables)}
        )

    # Lists

    async def _list_tools(self, exchange: Exchange) -> bytes:
        self._check_supported(exchange, "tools", self._tools)
        return self._list_page(exchange, "tool", "tools", ListToolsResult)

    async def _list_resources(self, exchange: Exchange) -> bytes:
        self._check_supported(exchange, "resources", self._resources or self._templates)
        return self._list_page(exchange, "resource", "resources", ListResourcesResult)

    async def _list_templates(self, exchange: Exchange) -> bytes:
        self._check_supported(exchange, "resources", self._resources or self._templates)
        return self._list_page(exchange, "resource template", "resource_templates", ListResourceTemplatesResult)

    async def _list_prompts(self, exchange: Exchange) -> bytes:
        self._check_supported(exchange, "prompts", self._prompts)
        return self._list_page(exchange, "prompt", "prompts", ListPromptsResult)

    def _list_page(self, exchange: Exchange, kind: "ItemKind", field: str, result_type: type[Result]) -> bytes:
        cached_pages, items, snapshot = self._get_view(kind)
        cache_hint = self._get_cache_hint(exchange.method)
        if snapshot is None:
            return self._page_cache.get_page(cached_pages, exchange, items, field, result_type, cache_hint)
        variant, hidden = snapshot.find_hidden(exchange.caller.principal)
        return self._page_cache.get_page(
            cached_pages, exchange, items, field, result_type, CacheHint(cache_hint.ttl_ms), variant, hidden
        )

    def page_of(self, exchange: Exchange, items: Mapping[str, Any], field: str, result_type: type[Result]) -> Result:
        """One page of a list put together for one caller, and so not to be shared."""
        cache_hint = CacheHint(self._get_cache_hint(exchange.method).ttl_ms)
        return self._page_cache.build_uncached_page(exchange, items, field, result_type, cache_hint)

    def _get_cache_hint(self, method: str) -> CacheHint:
        return self._cache_hints.get(method) or self._cache_hints[""]

    def _check_supported(self, exchange: Exchange, list_name: str, items: Mapping[str, Any]) -> None:
        if not items and getattr(self._declared_capabilities, list_name) is None:
            raise MethodNotFound(exchange.method)


def get_item_key(resource: Resource | ResourceTemplate) -> tuple["ItemKind", str]:
    if isinstance(resource, Resource):
        return "resource", resource.declaration.uri
    return "resource template", resource.declaration.uri_template


def _index_by_key(resources: Mapping[str, Resource]) -> dict[str, Resource | None]:
    """Index resources by key. Where several have one key, each is found by its exact URI only."""
    index: dict[str, Resource | None] = {}
    for resource in resources.values():
        index[resource.key] = None if resource.key in index else resource
    return index


def _check_cache_hints(cache_hints: CacheHint | Mapping[str, CacheHint] | None) -> dict[str, CacheHint]:
    if isinstance(cache_hints, CacheHint):
        return {"": cache_hints}
    check_type("cache_hints=", cache_hints, Mapping, _EXPECTED_CACHE_HINTS)
    for cache_hint in (cache_hints or {}).values():
        check_type("cache_hints=", cache_hint, CacheHint, _EXPECTED_CACHE_HINTS)
    cacheable_methods = [name for name, row in METHODS.items() if row.is_cacheable]
    if unknown := [name for name in cache_hints or () if name and name not in cacheable_methods]:
        raise ValueError(
            f"cache_hints= has methods whose results clients cannot cache: {', '.join(unknown)}. "
            f"Use some of {', '.join(cacheable_methods)}"
        )
    return {"": CacheHint()} | dict(cache_hints or {})
