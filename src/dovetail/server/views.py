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
from dovetail.server.offers import Offers
from dovetail.server.options import Lifetime, expect
from dovetail.server.paging import Kept, Pages
from dovetail.server.resource import Resource, ResourceTemplate
from dovetail.wire.methods import METHODS
from dovetail.wire.prompts import ListPromptsResult
from dovetail.wire.resources import ListResourcesResult, ListResourceTemplatesResult
from dovetail.wire.shape import Result
from dovetail.wire.tools import ListToolsResult

if TYPE_CHECKING:
    from dovetail.protocol.mounting import Kind
    from dovetail.server.access import Rules, Sight

_LIFETIMES: Final = "a Lifetime(...), in milliseconds, or a dict of them by method"


class Views(Offers):
    """The offers of one server, seen by its callers."""

    def __init__(self, pages: Pages, *, cache: Lifetime | Mapping[str, Lifetime] | None, **offers: Any) -> None:
        super().__init__(pages, **offers)
        self._lifetimes = _lifetimes(cache)
        # The resources last indexed by key, and the index. Its value is None where several resources have one key.
        self._keyed: tuple[Mapping[str, Resource], dict[str, Resource | None]] = ({}, {})

    def own(self, kind: "Kind", exchange: Exchange) -> dict[str, Any]:
        """What is registered here, by name or URI, as this caller is shown it; nothing that is mounted."""
        _, items, sight = self._view(kind)
        hidden = () if sight is None else sight.hidden(exchange.caller.principal)[1]
        return {name: one.declaration for name, one in items.items() if name not in hidden}

    def declared(self, kind: "Kind") -> dict[str, Any]:
        """What is registered here, by name or URI, whoever asks and enabled or not."""
        return {name: one.declaration for name, one in self._all[kind].copy().items()}

    def has(self, kind: "Kind", name: str, principal: Principal | None) -> bool:
        """Whether something registered here under a name is listed for this caller, or a URI leads to it."""
        rules = self._rules
        if kind != "resource":
            return name in self._registry(kind) and (rules is None or rules.shows(kind, name, principal))
        try:
            fixed = self._fixed(name)
        except ResourceNotFound:
            return False
        if fixed is not None and (rules is None or rules.shows(*key(fixed), principal)):
            return True
        return any(
            one.template.match(name) is not None and (rules is None or rules.shows(*key(one), principal))
            for one in self._templates_by_precision
        )

    def challenge(self, kind: "Kind", name: str, principal: Principal | None) -> None:
        """Raise InsufficientScope if something registered here would be there for this caller, with more scopes."""
        if self._rules is None:
            return
        if kind == "resource":
            with contextlib.suppress(ResourceNotFound):
                self._resource_at(name, principal)
        elif name in self._registry(kind):
            self._rules.check(kind, name, principal)

    def _view(self, kind: "Kind") -> "tuple[Kept, Mapping[str, Any], Sight | None]":
        """What is registered, who is shown which, and the pages made of just that, whatever other threads change."""
        if self._rules is not None and self._rules.unproven:
            self._prove(self._rules)
        while True:
            kept = self._pages.kept
            items = self._registry(kind)
            if self._rules is not None and kind not in kept.sights:
                kept.sights[kind] = self._rules.sight(kind, items)
            if kept is self._pages.kept:
                return kept, items, kept.sights.get(kind)

    def _prove(self, rules: "Rules") -> None:
        """Say once what rules are about nothing; whoever knows what is mounted does."""

    # Whether something is there

    def _there(self, exchange: Exchange, kind: "Kind", name: str) -> bool:
        """Whether something is there for this caller; InsufficientScope if it takes more scopes."""
        return self._rules is None or self._permits(self._rules, kind, name, exchange.caller.principal)

    def _permits(self, rules: "Rules", kind: "Kind", name: str, principal: Principal | None) -> bool:
        if rules.unproven:
            self._prove(rules)
        # What another thread has taken away meanwhile has no rule any more, and is not there any more.
        return rules.check(kind, name, principal) and name in self._registry(kind)

    def _resource_at(self, uri: str, principal: Principal | None) -> tuple[Resource | ResourceTemplate, dict[str, Any]]:
        rules = self._rules
        fixed = self._fixed(uri)
        if fixed is not None:
            # Whom it is hidden from does not get at its address by a template either.
            if rules is None or self._permits(rules, "resource", fixed.declaration.uri, principal):
                return fixed, {}
            raise ResourceNotFound(uri)
        if rules is not None and not rules.lets(uri, principal):
            raise ResourceNotFound(uri)
        for template in self._templates_by_precision:
            found = template.template.match(uri)
            if rules is not None and not self._permits_template(rules, template, uri, found, principal):
                continue
            if found is not None:
                return template, found
        raise ResourceNotFound(uri)

    def _fixed(self, uri: str) -> Resource | None:
        """Return the resource that is registered under a URI, in this or another spelling.

        Raises:
            ResourceNotFound: several have another spelling of this URI.
        """
        resources = self._resources
        found = resources.get(uri)
        if found is not None or not resources:
            return found
        known, index = self._keyed
        if known is not resources:
            index = _by_key(resources)
            self._keyed = resources, index
        canonical = uri_key(uri)
        found = index.get(canonical)
        if found is None and canonical in index:
            raise ResourceNotFound(uri)
        return found

    def _permits_template(
        self,
        rules: "Rules",
        template: ResourceTemplate,
        uri: str,
        variables: dict[str, Any] | None,
        principal: Principal | None,
    ) -> bool:
        """Return whether a template that matches a URI, or may match another reading of it, is there for this caller.

        Raises:
            InsufficientScope: it would be, with more scopes.
        """
        name = key(template)
        if variables is None:
            may_match = rules.about(*name) and any(map(template.template.may_match, uri_readings(uri)))
            return may_match and self._permits(rules, *name, principal)
        if not self._permits(rules, *name, principal):
            return False
        # The values may tell more than the text: {+path} decodes slashes, a query may have any order.
        expanded = template.template.expand(variables)
        return expanded == uri or rules.lets(expanded, principal)

    def _is_ruled(
        self, rules: "Rules", resource: Resource | ResourceTemplate, uri: str, variables: dict[str, Any]
    ) -> bool:
        """Return whether not everyone may read a URI, which leads to this resource with these variables."""
        if rules.about(*key(resource)):
            return True
        if isinstance(resource, Resource):
            return False
        return any(rules.at(one) is not None for one in {uri, resource.template.expand(variables)})

    # Lists

    async def _list_tools(self, exchange: Exchange) -> bytes:
        self._check_offered(exchange, "tools", self._tools)
        return self._page(exchange, "tool", "tools", ListToolsResult)

    async def _list_resources(self, exchange: Exchange) -> bytes:
        self._check_offered(exchange, "resources", self._resources or self._templates)
        return self._page(exchange, "resource", "resources", ListResourcesResult)

    async def _list_templates(self, exchange: Exchange) -> bytes:
        self._check_offered(exchange, "resources", self._resources or self._templates)
        return self._page(exchange, "resource template", "resource_templates", ListResourceTemplatesResult)

    async def _list_prompts(self, exchange: Exchange) -> bytes:
        self._check_offered(exchange, "prompts", self._prompts)
        return self._page(exchange, "prompt", "prompts", ListPromptsResult)

    def _page(self, exchange: Exchange, kind: "Kind", field: str, shape: type[Result]) -> bytes:
        kept, items, sight = self._view(kind)
        life = self._lifetime(exchange.method)
        if sight is None:
            return self._pages.page(kept, exchange, items, field, shape, life)
        seen, hidden = sight.hidden(exchange.caller.principal)
        return self._pages.page(kept, exchange, items, field, shape, Lifetime(life.ttl_ms), seen, hidden)

    def page_of(self, exchange: Exchange, items: Mapping[str, Any], field: str, shape: type[Result]) -> Result:
        """One page of a list put together for one caller, and so not to be shared."""
        life = Lifetime(self._lifetime(exchange.method).ttl_ms)
        return self._pages.made(exchange, items, field, shape, life)

    def _lifetime(self, method: str) -> Lifetime:
        return self._lifetimes.get(method) or self._lifetimes[""]

    def _check_offered(self, exchange: Exchange, name: str, registered: Mapping[str, Any]) -> None:
        if not registered and name not in self._always:
            raise MethodNotFound(exchange.method)


def key(resource: Resource | ResourceTemplate) -> tuple["Kind", str]:
    if isinstance(resource, Resource):
        return "resource", resource.declaration.uri
    return "resource template", resource.declaration.uri_template


def _by_key(resources: Mapping[str, Resource]) -> dict[str, Resource | None]:
    """Index resources by key. Where several have one key, each is found by its exact URI only."""
    found: dict[str, Resource | None] = {}
    for resource in resources.values():
        found[resource.key] = None if resource.key in found else resource
    return found


def _lifetimes(cache: Lifetime | Mapping[str, Lifetime] | None) -> dict[str, Lifetime]:
    if isinstance(cache, Lifetime):
        return {"": cache}
    expect("cache=", cache, Mapping, _LIFETIMES)
    for one in (cache or {}).values():
        expect("cache=", one, Lifetime, _LIFETIMES)
    known = [name for name, row in METHODS.items() if row.cacheable]
    if unknown := [name for name in cache or () if name and name not in known]:
        raise ValueError(
            f"nothing of {', '.join(unknown)} is kept; cache= has Lifetimes for some of {', '.join(known)}"
        )
    return {"": Lifetime()} | dict(cache or {})
