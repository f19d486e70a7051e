"""Find the items of a registry that a caller may see and use, in lists and by name or URI.

Each result is based on one state of the registry and its access rules, even if another thread changes them meanwhile.
"""

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dovetail.error_context import check_type
from dovetail.errors import MethodNotFound, ResourceNotFound
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.principal import Principal
from dovetail.protocol.uri_key import uri_key
from dovetail.server.items.item_options import CacheHint
from dovetail.server.items.page_cache import CachedPages, PageCache
from dovetail.server.items.registry import Registry
from dovetail.server.items.resource import Resource, ResourceTemplate
from dovetail.wire.base import Result
from dovetail.wire.methods import METHODS
from dovetail.wire.prompts import ListPromptsResult
from dovetail.wire.resources import ListResourcesResult, ListResourceTemplatesResult
from dovetail.wire.tools import ListToolsResult

if TYPE_CHECKING:
    from dovetail.server.items.access_rules import AccessRules, VisibilitySnapshot

_EXPECTED_CACHE_HINTS: Final = "a CacheHint(...) or a dict of CacheHint(...) by method"


class Visibility:
    """Decides which items of a server each caller sees. Mounted servers have separate `Visibility` objects."""

    def __init__(
        self, registry: Registry, page_cache: PageCache, cache_hints: CacheHint | Mapping[str, CacheHint] | None
    ) -> None:
        self._registry = registry
        self._page_cache = page_cache
        self._cache_hints = _check_cache_hints(cache_hints)
        # The resources, and an index of them. The keys of the index are normalized URIs.
        # If several resources have the same normalized URI, the value in the index is None.
        self._resource_index: tuple[Mapping[str, Resource], dict[str, Resource | None]] = ({}, {})

    def list_visible(self, kind: "ItemKind", exchange: IncomingExchange) -> dict[str, Any]:
        """Return the items that this caller sees. The keys are names or URIs, and the values are definitions."""
        _, items, snapshot = self._get_view(kind)
        hidden = () if snapshot is None else snapshot.find_hidden(exchange.caller.principal)[1]
        return {name: item.declaration for name, item in items.items() if name not in hidden}

    def has_item(self, kind: "ItemKind", name: str, principal: Principal | None) -> bool:
        """Return whether this caller sees an item with this name, or a resource or template for this URI."""
        if kind == "resource template":
            name = self._registry.get_template_name(name)
        if kind != "resource":
            return self.is_listed(kind, name, principal)
        try:
            resource = self._find_fixed_resource(name)
        except ResourceNotFound:
            return False
        if resource is not None:
            # If a resource is hidden from this caller, a template for its URI must not make the resource visible.
            return self.is_listed(*get_item_key(resource), principal)
        access_rules = self._registry.access_rules
        if self._is_disabled(name) or not (
            access_rules is None or access_rules.is_listed_by_rule(access_rules.find_by_uri(name), name, principal)
        ):
            return False
        return any(
            template.template.match(name) is not None and self.is_listed(*get_item_key(template), principal)
            for template in self._registry.templates_by_specificity
        )

    def is_listed(self, kind: "ItemKind", name: str, principal: Principal | None) -> bool:
        """Return whether lists show the item with exactly this name to this caller."""
        access_rules = self._registry.access_rules
        return name in self._registry.get_items(kind) and (
            access_rules is None or access_rules.is_listed(kind, name, principal)
        )

    def _is_disabled(self, uri: str) -> bool:
        """Return whether a URI may refer to a disabled resource."""
        disabled_uris = self._registry.disabled_uris
        if not disabled_uris:
            return False
        # This import is here because few servers need the module.
        from dovetail.protocol.uri_readings import uri_readings

        return not disabled_uris.isdisjoint(uri_readings(uri))

    def check_scopes(self, kind: "ItemKind", name: str, principal: Principal | None) -> None:
        """Raise InsufficientScope if missing scopes are the only reason why this caller cannot use an item."""
        if self._registry.access_rules is None:
            return
        if kind == "resource":
            with contextlib.suppress(ResourceNotFound):
                self.find_resource(name, principal)
        else:
            if kind == "resource template":
                name = self._registry.get_template_name(name)
            if name in self._registry.get_items(kind):
                self._registry.access_rules.check(kind, name, principal)

    def _get_view(self, kind: "ItemKind") -> "tuple[CachedPages, Mapping[str, Any], VisibilitySnapshot | None]":
        """Return the cached pages, the enabled items and a snapshot of the rules, without changes in between."""
        registry = self._registry
        if registry.access_rules is not None and registry.access_rules.has_unchecked_names:
            registry.warn_unused_rules()
        while True:
            cached_pages = self._page_cache.current
            items = registry.get_items(kind)
            if registry.access_rules is not None and kind not in cached_pages.visibility_by_kind:
                cached_pages.visibility_by_kind[kind] = registry.access_rules.take_snapshot(kind, items)
            if cached_pages is self._page_cache.current:
                return cached_pages, items, cached_pages.visibility_by_kind.get(kind)

    def is_available(self, exchange: IncomingExchange, kind: "ItemKind", name: str) -> bool:
        """Return whether this caller may use an item. If only scopes are missing, raise InsufficientScope."""
        return self._registry.access_rules is None or self._is_permitted(
            self._registry.access_rules, kind, name, exchange.caller.principal
        )

    def _is_permitted(
        self, access_rules: "AccessRules", kind: "ItemKind", name: str, principal: Principal | None
    ) -> bool:
        if access_rules.has_unchecked_names:
            self._registry.warn_unused_rules()
        # `remove` deletes an item before its rule, so check the rule before the name.
        return access_rules.check(kind, name, principal) and name in self._registry.get_items(kind)

    def find_resource(
        self, uri: str, principal: Principal | None
    ) -> tuple[Resource | ResourceTemplate, dict[str, Any]]:
        """Find the resource or template that matches a URI. Also return the values of the template variables.

        Raises:
            ResourceNotFound: no resource or template matches the URI, or the match is hidden from this caller.
            InsufficientScope: this caller lacks scopes.
        """
        access_rules = self._registry.access_rules
        resource = self._find_fixed_resource(uri)
        if resource is not None:
            # If a resource is hidden from this caller, a matching template must not make the same URI readable.
            if access_rules is None or self._is_permitted(
                access_rules, "resource", resource.declaration.uri, principal
            ):
                return resource, {}
            raise ResourceNotFound(uri)
        if self._is_disabled(uri):
            raise ResourceNotFound(uri)
        if access_rules is not None and not access_rules.is_uri_allowed(uri, principal):
            raise ResourceNotFound(uri)
        for template in self._registry.templates_by_specificity:
            variables = template.template.match(uri)
            if access_rules is not None and not self._is_template_permitted(
                access_rules, template, uri, variables, principal
            ):
                continue
            if variables is not None:
                return template, variables
        raise ResourceNotFound(uri)

    def _find_fixed_resource(self, uri: str) -> Resource | None:
        """Return the resource with this URI or an equivalent URI.

        Raises:
            ResourceNotFound: several resources have equivalent URIs, and none has exactly this URI.
        """
        resources = self._registry.resources
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
        """Return whether this caller may use a template that matches a URI.

        Raises:
            InsufficientScope: scopes are all that this caller lacks.
        """
        item_key = get_item_key(template)
        if variables is None:
            from dovetail.protocol.uri_readings import uri_readings

            may_match = access_rules.has_rule(*item_key) and any(map(template.template.may_match, uri_readings(uri)))
            return may_match and self._is_permitted(access_rules, *item_key, principal)
        if not self._is_permitted(access_rules, *item_key, principal):
            return False
        # The expanded URI may differ from the requested URI, for example in the order of query parameters.
        expanded = template.template.expand(variables)
        return expanded == uri or access_rules.is_uri_allowed(expanded, principal)

    def is_restricted(self, resource: Resource | ResourceTemplate, uri: str, variables: dict[str, Any]) -> bool:
        """Return whether an access rule limits which callers may read a URI."""
        access_rules = self._registry.access_rules
        if access_rules is None:
            return False
        if access_rules.has_rule(*get_item_key(resource)):
            return True
        if isinstance(resource, Resource):
            return False
        return any(
            access_rules.find_by_uri(candidate_uri) is not None
            for candidate_uri in {uri, resource.template.expand(variables)}
        )

    async def list_tools(self, exchange: IncomingExchange) -> bytes:
        """Return one page of the tools that this caller sees."""
        self.check_supported(exchange, "tools", self._registry.tools)
        return self._list_page(exchange, "tool", "tools", ListToolsResult)

    async def list_resources(self, exchange: IncomingExchange) -> bytes:
        """Return one page of the resources that this caller sees."""
        self.check_supported(exchange, "resources", self._registry.resources or self._registry.templates)
        return self._list_page(exchange, "resource", "resources", ListResourcesResult)

    async def list_templates(self, exchange: IncomingExchange) -> bytes:
        """Return one page of the templates that this caller sees."""
        self.check_supported(exchange, "resources", self._registry.resources or self._registry.templates)
        return self._list_page(exchange, "resource template", "resource_templates", ListResourceTemplatesResult)

    async def list_prompts(self, exchange: IncomingExchange) -> bytes:
        """Return one page of the prompts that this caller sees."""
        self.check_supported(exchange, "prompts", self._registry.prompts)
        return self._list_page(exchange, "prompt", "prompts", ListPromptsResult)

    def _list_page(self, exchange: IncomingExchange, kind: "ItemKind", field: str, result_type: type[Result]) -> bytes:
        cached_pages, items, snapshot = self._get_view(kind)
        cache_hint = self.get_cache_hint(exchange.method)
        if snapshot is None:
            return self._page_cache.get_page(cached_pages, exchange, items, field, result_type, cache_hint)
        variant, hidden = snapshot.find_hidden(exchange.caller.principal)
        return self._page_cache.get_page(
            cached_pages, exchange, items, field, result_type, CacheHint(cache_hint.ttl_ms), variant, hidden
        )

    def build_page(
        self, exchange: IncomingExchange, items: Mapping[str, Any], field: str, result_type: type[Result]
    ) -> bytes:
        """Return one page of a list for this caller only. Shared caches must not store the page."""
        cache_hint = CacheHint(self.get_cache_hint(exchange.method).ttl_ms)
        return self._page_cache.build_uncached_page(exchange, items, field, result_type, cache_hint)

    def get_cache_hint(self, method: str) -> CacheHint:
        return self._cache_hints.get(method) or self._cache_hints[""]

    def check_supported(self, exchange: IncomingExchange, list_name: str, items: Mapping[str, Any]) -> None:
        """Raise MethodNotFound if the server has no items of this kind and does not declare the capability."""
        if not items and getattr(self._registry.declared_capabilities, list_name) is None:
            raise MethodNotFound(exchange.method)


def get_item_key(resource: Resource | ResourceTemplate) -> tuple["ItemKind", str]:
    if isinstance(resource, Resource):
        return "resource", resource.declaration.uri
    return "resource template", resource.declaration.uri_template


def _index_by_key(resources: Mapping[str, Resource]) -> dict[str, Resource | None]:
    """Return an index of resources by normalized URI. If several resources have the same key, the value is None."""
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
            f"clients cannot cache the results of {', '.join(unknown)}. The keys of cache_hints= must be some "
            f"of {', '.join(cacheable_methods)}"
        )
    return {"": CacheHint()} | dict(cache_hints or {})
