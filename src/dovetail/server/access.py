"""Access: who may see and use a tool, a resource or a prompt. The same rule for lists and for calls.

What a caller may not see does not exist for them. What they see but lack scopes for is refused with these scopes.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, cast

from dovetail.errors import InsufficientScope
from dovetail.protocol.principal import SCOPE, Principal
from dovetail.protocol.uri_key import rule_keys, uri_readings
from dovetail.server.templates import Template, may_stand_for, may_start
from dovetail.wire.shape import Struct

log = logging.getLogger("dovetail")

Predicate = Callable[[Principal | None], bool]

_NONE: Final = frozenset[str]()
_KINDS_OF_CALLERS: Final = 64  # told apart by their scopes, and remembered


class Access(Struct, frozen=True):
    """The rule of one of them."""

    scopes: tuple[str, ...] = ()
    visible: Predicate | None = None


class Rules:
    """The rules of one server; there are none where everything is for everyone."""

    def __init__(self, *, show_locked: bool) -> None:
        self._rules: dict[tuple[str, str], Access] = {}
        self._tagged: list[tuple[frozenset[str], Access]] = []
        self._named: dict[str, Access] = {}  # whatever comes and goes under a name
        self._patterns: dict[str, Template] = {}
        self._starts: tuple[str, ...] = ()  # of the patterns
        # The names in `_named`, and the resources in `_rules`, by each key under which a rule finds them.
        self._named_at: dict[str, frozenset[str]] = {}
        self._resources_at: dict[str, frozenset[str]] = {}
        self.unproven = False  # whether nobody has looked yet if there is something of every name
        self._show_locked = show_locked  # whether what takes more scopes is listed all the same

    def add(self, kind: str, name: str, access: Access) -> None:
        """One more rule about a tool, a resource, a template or a prompt; all of them hold."""
        self._rules[kind, name] = _both(self._rules.get((kind, name)), access)
        if kind == "resource":
            _index(self._resources_at, name)

    def add_tagged(self, tags: Iterable[str], access: Access) -> None:
        """A rule about whatever has one of these tags, now or later."""
        self._tagged.append((frozenset(tags), access))

    def add_named(self, name: str, access: Access) -> None:
        """A rule about whatever has this name or URI, or fits this template, now or later, here or mounted."""
        self._named[name] = _both(self._named.get(name), access)
        self.unproven = True
        _index(self._named_at, name)
        if "{" in name:
            # Requests of other threads may be reading both.
            patterns = self._patterns | {name: Template(name)}
            self._starts = tuple(template.start for template in patterns.values())
            self._patterns = patterns

    def tell_idle(self, server: str, there: Collection[str], elsewhere: Callable[[str], bool]) -> None:
        """Say which names of rules nothing has, so that they protect nothing; of those elsewhere nobody knows."""
        self.unproven = False
        keys = frozenset(key for name in there for key in uri_readings(name))
        idle = [
            name
            for name in self._named
            if keys.isdisjoint(rule_keys(name)) and not (self._stands_for(name, there) or elsewhere(name))
        ]
        if idle:
            from dovetail.server.arguments import listed  # only the mistaken pay for it

            log.warning(
                "%s has nothing called %s: what restrict says of it protects nothing", server, listed(idle, there)
            )

    def _stands_for(self, name: str, there: Collection[str]) -> bool:
        """Whether a name is a template of something there, or one of the addresses of a template that is there."""
        pattern = self._patterns.get(name)
        if pattern is not None:
            return any(pattern.match(one) is not None for one in there)
        return any(may_stand_for(one, name) for one in there if "{" in one)

    def named(self, kind: str, name: str) -> Access | None:
        """Return the rule about something of this name, or of this URI in any spelling. None if there is none."""
        found: Access | None = None
        for rule_name in self.names_about(kind, name):
            found = _both(found, self._named[rule_name])
        return found

    def names_about(self, kind: str, name: str) -> list[str]:
        """Return the names, URIs and templates given to `add_named` that apply to something of this name or URI."""
        own = [name] if name in self._named else []
        if not self._named or not kind.startswith("resource"):
            return own
        readings = uri_readings(name)
        others = set[str]()
        if not self._named_at.keys().isdisjoint(readings):
            others.update(*[self._named_at.get(reading, ()) for reading in readings])
        patterns = self._patterns
        texts = [reading for reading in readings if may_start(reading, self._starts)] if patterns else ()
        if texts:
            others.update(pattern for pattern, template in patterns.items() if any(map(template.may_match, texts)))
        return own + sorted(others - {name}) if others else own

    def at(self, uri: str) -> Access | None:
        """Return the rule about whatever is read at a URI: by its name, and by those of the resources it may mean."""
        found = self.named("resource", uri)
        if not self._resources_at or self._resources_at.keys().isdisjoint(uri_readings(uri)):
            return found
        names = (name for reading in uri_readings(uri) for name in self._resources_at.get(reading, ()))
        for name in dict.fromkeys(names):
            rule = self._rules.get(("resource", name))
            found = found if rule is None else _both(found, rule)
        return found

    @property
    def scopes(self) -> tuple[str, ...]:
        """Every scope a rule names, in order."""
        rules = (*self._rules.values(), *(access for _, access in self._tagged), *self._named.values())
        return tuple(dict.fromkeys(scope for access in rules for scope in access.scopes))

    @property
    def by_tag(self) -> bool:
        """Whether there are rules about tags."""
        return bool(self._tagged)

    def tagged(self, tags: Iterable[str]) -> Access | None:
        """The rule about something with these tags; None if there is none."""
        found: Access | None = None
        for wanted, access in self._tagged:
            found = found if wanted.isdisjoint(tags) else _both(found, access)
        return found

    def drop(self, kind: str, name: str) -> None:
        """It is not there any more; what was said of its name stays said."""
        self._rules.pop((kind, name), None)
        if kind == "resource":
            _remove_from_index(self._resources_at, name)

    def about(self, kind: str, name: str) -> bool:
        """Whether not everyone may use it."""
        return (kind, name) in self._rules

    def check(self, kind: str, name: str, principal: Principal | None) -> bool:
        """Whether it is there for this caller. Raises InsufficientScope if it would be, with more scopes."""
        access = self._rules.get((kind, name))
        return access is None or admitted(access, name, principal)

    def lets(self, uri: str, principal: Principal | None) -> bool:
        """Whether what is said of an address lets this caller by. Raises InsufficientScope if more scopes would."""
        access = self.at(uri)
        return access is None or admitted(access, uri, principal)

    def sight(self, kind: str, items: Iterable[str]) -> "Sight | None":
        """Who is shown which of these; None if no rule is about any of them."""
        found = {name: access for name in items if (access := self._rules.get((kind, name))) is not None}
        return Sight(self, found, scopes=not self._show_locked) if found else None

    def shows(self, kind: str, name: str, principal: Principal | None) -> bool:
        """Whether it is listed for this caller."""
        return self.lists(self._rules.get((kind, name)), name, principal)

    def lists(self, access: Access | None, name: str, principal: Principal | None) -> bool:
        """Whether something with this rule is listed for this caller."""
        if access is None:
            return True
        held = principal.scopes if principal is not None else frozenset[str]()
        return (self._show_locked or held.issuperset(access.scopes)) and visible_to(access, name, principal)


class Sight:
    """Who is shown which of some things, as their rules were when it was made."""

    def __init__(self, rules: Rules, ruled: Mapping[str, Access], *, scopes: bool) -> None:
        self._rules = rules
        self._ruled = ruled
        self._judged = any(access.visible is not None for access in ruled.values())  # by functions of the principal
        self._scopes = frozenset(scope for access in ruled.values() for scope in access.scopes) if scopes else _NONE
        self._known: dict[frozenset[str], frozenset[str]] = {}

    def hidden(self, principal: Principal | None) -> tuple[frozenset[str], frozenset[str]]:
        """What tells this caller from those who are shown something else, and the names hidden from it."""
        if self._judged:
            found = self._hidden(principal)
            return found, found
        held = self._scopes & principal.scopes if principal is not None else _NONE
        known = self._known.get(held)
        if known is None:
            known = self._hidden(principal)
            if len(self._known) < _KINDS_OF_CALLERS:
                self._known[held] = known
        return held, known

    def _hidden(self, principal: Principal | None) -> frozenset[str]:
        lists = self._rules.lists
        return frozenset(name for name, access in self._ruled.items() if not lists(access, name, principal))


def admitted(access: Access, name: str, principal: Principal | None) -> bool:
    """Whether something with this rule is there for this caller; InsufficientScope if only scopes are missing."""
    if not visible_to(access, name, principal):
        return False
    held = principal.scopes if principal is not None else frozenset[str]()
    if not held.issuperset(access.scopes):
        raise InsufficientScope(access.scopes)
    return True


def _index(names: dict[str, frozenset[str]], uri: str) -> None:
    """Add a URI under each of its keys. Requests of other threads may be reading the old values."""
    for key in rule_keys(uri):
        names[key] = names.get(key, _NONE) | {uri}


def _remove_from_index(names: dict[str, frozenset[str]], uri: str) -> None:
    for key in rule_keys(uri):
        if others := names.get(key, _NONE) - {uri}:
            names[key] = others
        else:
            names.pop(key, None)


def _both(one: Access | None, other: Access) -> Access:
    if one is None:
        return other
    rules = [rule for rule in (one.visible, other.visible) if rule is not None]
    scopes = tuple(dict.fromkeys((*one.scopes, *other.scopes)))
    return Access(scopes, (lambda principal: all(rule(principal) for rule in rules)) if rules else None)


def visible_to(access: Access, name: str, principal: Principal | None) -> bool:
    """Whether this caller may know of something with this rule, whatever its scopes."""
    if access.visible is None:
        return True
    try:
        return bool(access.visible(principal))
    except Exception as exc:
        log.error(
            "whether %s is visible could not be decided, so it is not: %s", name, type(exc).__name__, exc_info=exc
        )
        return False


def access(scopes: str | Iterable[str], visible: Any) -> Access:
    """The rule an author means."""
    found = (scopes,) if isinstance(scopes, str) else tuple(dict.fromkeys(scopes))
    for one in found:
        if not SCOPE.fullmatch(one):
            raise ValueError(f"{one!r} is not a scope: one word, without quotes or backslashes")
    if not (visible is None or callable(visible)):
        raise TypeError("visible must be a function of the principal that returns whether it is shown")
    return Access(found, cast("Predicate | None", visible))
