"""Access rules decide which callers may see and use a tool, a resource or a prompt, in lists and in calls alike.

If the rules hide an item from a caller, the server answers as if the item did not exist. If a caller sees an item
but lacks scopes, the call fails with an error that lists the scopes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, cast

from dovetail.errors import InsufficientScope
from dovetail.log import log
from dovetail.protocol.principal import Principal, check_scope
from dovetail.protocol.uri_readings import rule_keys, uri_readings
from dovetail.server.items.uri_template import URITemplate, may_match_start, may_match_template
from dovetail.wire.base import Struct

Predicate = Callable[[Principal | None], bool]

_EMPTY_SET: Final = frozenset[str]()
_MAX_CACHED_SCOPE_SETS: Final = 64


class AccessRule(Struct, frozen=True):
    """The conditions for an item: the scopes that a caller needs, and a function that must return True."""

    scopes: tuple[str, ...] = ()
    predicate: Predicate | None = None


class AccessRules:
    """The access rules of one server. Items without a rule are open to all callers."""

    def __init__(self, *, show_locked: bool) -> None:
        self._item_rules: dict[tuple[str, str], AccessRule] = {}
        self._tag_rules: list[tuple[frozenset[str], AccessRule]] = []
        self._name_rules: dict[str, AccessRule] = {}
        self._name_templates: dict[str, URITemplate] = {}
        self._template_starts: tuple[str, ...] = ()
        # Two indexes by normalized URI.
        # The first index contains the names in rules, and the second the names of resources.
        self._names_by_key: dict[str, frozenset[str]] = {}
        self._resources_by_key: dict[str, frozenset[str]] = {}
        self.has_unchecked_names = False  # True if there are new names that `warn_unused` must check
        self._show_locked = show_locked  # True if lists also contain items for which the caller lacks scopes

    def add(self, kind: str, name: str, rule: AccessRule) -> None:
        """Add a rule for one item. If an item has several rules, all of them apply."""
        self._item_rules[kind, name] = _combine_rules(self._item_rules.get((kind, name)), rule)
        if kind == "resource":
            _add_to_index(self._resources_by_key, name)

    def add_for_tags(self, tags: Iterable[str], rule: AccessRule) -> None:
        """Add a rule for all current and later items with one of these tags."""
        self._tag_rules.append((frozenset(tags), rule))

    def add_for_name(self, name: str, rule: AccessRule) -> None:
        """Add an access rule for a name, a URI or a URI template.

        The rule also applies to items that are added or mounted later.
        """
        self._name_rules[name] = _combine_rules(self._name_rules.get(name), rule)
        self.has_unchecked_names = True
        _add_to_index(self._names_by_key, name)
        if "{" in name:
            # Other threads may be reading the old objects, so this code assigns new objects.
            name_templates = self._name_templates | {name: URITemplate(name)}
            self._template_starts = tuple(template.start for template in name_templates.values())
            self._name_templates = name_templates

    def warn_unused(
        self, server_name: str, item_names: Collection[str], may_exist_remotely: Callable[[str], bool]
    ) -> None:
        """Warn about each rule that matches no item. Do not warn about names that a remote server may have."""
        self.has_unchecked_names = False
        keys = frozenset(key for name in item_names for key in uri_readings(name))
        unused_names = [
            name
            for name in self._name_rules
            if keys.isdisjoint(rule_keys(name))
            and not (self._matches_item(name, item_names) or may_exist_remotely(name))
        ]
        if unused_names:
            # This import is here because only the warning needs the module.
            from dovetail.server.parameters.argument_errors import format_names

            log.warning(
                "restrict(): %s has no tool, resource or prompt named %s. The rule has no effect",
                server_name,
                format_names(unused_names, item_names),
            )

    def _matches_item(self, name: str, item_names: Collection[str]) -> bool:
        """Return whether a rule matches an item.

        The rule may be a template, or a URI that matches the item's template.
        """
        template = self._name_templates.get(name)
        if template is not None:
            return any(template.match(item_name) is not None for item_name in item_names)
        return any(may_match_template(item_name, name) for item_name in item_names if "{" in item_name)

    def find_by_name(self, kind: str, name: str) -> AccessRule | None:
        combined: AccessRule | None = None
        for rule_name in self.find_rule_names(kind, name):
            combined = _combine_rules(combined, self._name_rules[rule_name])
        return combined

    def find_rule_names(self, kind: str, name: str) -> list[str]:
        """Return the rules from `add_for_name` that match this name or URI."""
        own_names = [name] if name in self._name_rules else []
        if not self._name_rules or not kind.startswith("resource"):
            return own_names
        readings = uri_readings(name)
        other_names = set[str]()
        if not self._names_by_key.keys().isdisjoint(readings):
            other_names.update(*[self._names_by_key.get(reading, ()) for reading in readings])
        name_templates = self._name_templates
        candidate_uris = (
            [reading for reading in readings if may_match_start(reading, self._template_starts)]
            if name_templates
            else ()
        )
        if candidate_uris:
            other_names.update(
                pattern for pattern, template in name_templates.items() if any(map(template.may_match, candidate_uris))
            )
        return own_names + sorted(other_names - {name}) if other_names else own_names

    def find_by_uri(self, uri: str) -> AccessRule | None:
        """Return the access rule for reading a URI.

        The rule combines the rules of all resources that the URI may mean.
        """
        combined = self.find_by_name("resource", uri)
        if not self._resources_by_key or self._resources_by_key.keys().isdisjoint(uri_readings(uri)):
            return combined
        names = (name for reading in uri_readings(uri) for name in self._resources_by_key.get(reading, ()))
        for name in dict.fromkeys(names):
            rule = self._item_rules.get(("resource", name))
            combined = combined if rule is None else _combine_rules(combined, rule)
        return combined

    @property
    def scopes(self) -> tuple[str, ...]:
        rules = (*self._item_rules.values(), *(rule for _, rule in self._tag_rules), *self._name_rules.values())
        return tuple(dict.fromkeys(scope for rule in rules for scope in rule.scopes))

    @property
    def has_tag_rules(self) -> bool:
        return bool(self._tag_rules)

    def find_by_tags(self, tags: Iterable[str]) -> AccessRule | None:
        """Return the access rule that applies to an item with these tags, or None."""
        combined: AccessRule | None = None
        for rule_tags, rule in self._tag_rules:
            combined = combined if rule_tags.isdisjoint(tags) else _combine_rules(combined, rule)
        return combined

    def remove(self, kind: str, name: str) -> None:
        """Remove the rule of one item, but keep the rules from `add_for_name`."""
        self._item_rules.pop((kind, name), None)
        if kind == "resource":
            _remove_from_index(self._resources_by_key, name)

    def has_rule(self, kind: str, name: str) -> bool:
        return (kind, name) in self._item_rules

    def check(self, kind: str, name: str, principal: Principal | None) -> bool:
        """Return whether this caller may use an item. If only scopes are missing, raise InsufficientScope."""
        rule = self._item_rules.get((kind, name))
        return rule is None or is_accessible(rule, name, principal)

    def is_uri_allowed(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may read a URI. If only scopes are missing, raise InsufficientScope."""
        rule = self.find_by_uri(uri)
        return rule is None or is_accessible(rule, uri, principal)

    def take_snapshot(self, kind: str, item_names: Iterable[str]) -> "VisibilitySnapshot | None":
        """Return a snapshot of the access rules. Return None if no item has a rule."""
        rules_by_name = {name: rule for name in item_names if (rule := self._item_rules.get((kind, name))) is not None}
        return (
            VisibilitySnapshot(self, rules_by_name, filter_by_scopes=not self._show_locked) if rules_by_name else None
        )

    def is_listed(self, kind: str, name: str, principal: Principal | None) -> bool:
        return self.is_listed_by_rule(self._item_rules.get((kind, name)), name, principal)

    def is_listed_by_rule(self, rule: AccessRule | None, name: str, principal: Principal | None) -> bool:
        """Return whether lists for this caller contain items with this access rule."""
        if rule is None:
            return True
        granted = principal.scopes if principal is not None else frozenset[str]()
        return (self._show_locked or granted.issuperset(rule.scopes)) and is_visible_to(rule, name, principal)


class VisibilitySnapshot:
    """A snapshot of access rules. It finds the items that are hidden from a caller."""

    def __init__(
        self, access_rules: AccessRules, rules_by_name: Mapping[str, AccessRule], *, filter_by_scopes: bool
    ) -> None:
        self._access_rules = access_rules
        self._rules_by_name = rules_by_name
        # A predicate can check any part of the principal, so the scopes are not enough as a cache key.
        self._has_predicates = any(rule.predicate is not None for rule in rules_by_name.values())
        self._relevant_scopes = (
            frozenset(scope for rule in rules_by_name.values() for scope in rule.scopes)
            if filter_by_scopes
            else _EMPTY_SET
        )
        self._hidden_by_scopes: dict[frozenset[str], frozenset[str]] = {}

    def find_hidden(self, principal: Principal | None) -> tuple[frozenset[str], frozenset[str]]:
        """Return a key for caching lists, and the names of the items that are hidden from this caller.

        Callers with the same key see the same items.
        """
        if self._has_predicates:
            hidden = self._compute_hidden(principal)
            return hidden, hidden
        granted = self._relevant_scopes & principal.scopes if principal is not None else _EMPTY_SET
        cached = self._hidden_by_scopes.get(granted)
        if cached is None:
            cached = self._compute_hidden(principal)
            if len(self._hidden_by_scopes) < _MAX_CACHED_SCOPE_SETS:
                self._hidden_by_scopes[granted] = cached
        return granted, cached

    def _compute_hidden(self, principal: Principal | None) -> frozenset[str]:
        is_listed = self._access_rules.is_listed_by_rule
        return frozenset(name for name, rule in self._rules_by_name.items() if not is_listed(rule, name, principal))


def is_accessible(rule: AccessRule, name: str, principal: Principal | None) -> bool:
    """Return whether a rule lets this caller use an item.

    If only scopes are missing, raise InsufficientScope.
    """
    if not is_visible_to(rule, name, principal):
        return False
    granted = principal.scopes if principal is not None else frozenset[str]()
    if not granted.issuperset(rule.scopes):
        raise InsufficientScope(rule.scopes)
    return True


def _add_to_index(index: dict[str, frozenset[str]], uri: str) -> None:
    """Add a URI to the index under all its normalized forms.

    Other threads may be reading the sets, so they are replaced and not changed.
    """
    for key in rule_keys(uri):
        index[key] = index.get(key, _EMPTY_SET) | {uri}


def _remove_from_index(index: dict[str, frozenset[str]], uri: str) -> None:
    for key in rule_keys(uri):
        if remaining := index.get(key, _EMPTY_SET) - {uri}:
            index[key] = remaining
        else:
            index.pop(key, None)


def _combine_rules(first: AccessRule | None, second: AccessRule) -> AccessRule:
    if first is None:
        return second
    predicates = [predicate for predicate in (first.predicate, second.predicate) if predicate is not None]
    scopes = tuple(dict.fromkeys((*first.scopes, *second.scopes)))
    return AccessRule(
        scopes, (lambda principal: all(predicate(principal) for predicate in predicates)) if predicates else None
    )


def is_visible_to(rule: AccessRule, name: str, principal: Principal | None) -> bool:
    """Return whether the `visible_to` function of a rule accepts this caller. Scopes are not checked."""
    if rule.predicate is None:
        return True
    try:
        return bool(rule.predicate(principal))
    except Exception as exc:
        log.error(
            "visible_to= of %s raised an error, so the item is hidden: %s", name, type(exc).__name__, exc_info=exc
        )
        return False


def build_access_rule(scopes: str | Iterable[str], visible_to: Any) -> AccessRule:
    """Create an access rule from the `scopes=` and `visible_to=` options of an item."""
    unique_scopes = (scopes,) if isinstance(scopes, str) else tuple(dict.fromkeys(scopes))
    for scope in unique_scopes:
        check_scope(scope)
    if not (visible_to is None or callable(visible_to)):
        raise TypeError(
            f"visible_to must be a function that takes the principal and returns a bool, not {visible_to!r}"
        )
    return AccessRule(unique_scopes, cast("Predicate | None", visible_to))
