"""Access: who may see and use a tool, a resource or a prompt. The same rule for lists and for calls.

What a caller may not see does not exist for them. What they see but lack scopes for is refused with these scopes.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, cast

from dovetail.errors import InsufficientScope
from dovetail.protocol.principal import SCOPE, Principal
from dovetail.protocol.uri_key import rule_keys, uri_readings
from dovetail.server.templates import Template, may_stand_for
from dovetail.wire.shape import Struct

log = logging.getLogger("dovetail")

Predicate = Callable[[Principal | None], bool]

_NONE: Final = frozenset[str]()
_KINDS_OF_CALLERS: Final = 64  # told apart by their scopes, and remembered
_MAX_CACHED_URIS: Final = 4096
_MAX_CACHED_CHARS: Final = 512  # so that long URIs of strangers do not fill the memory


class Access(Struct, frozen=True):
    """The rule of one of them."""

    scopes: tuple[str, ...] = ()
    visible: Predicate | None = None


_NOT_CACHED: Final = Access()


class Rules:
    """The rules of one server; there are none where everything is for everyone."""

    def __init__(self, *, show_locked: bool) -> None:
        self._rules: dict[tuple[str, str], Access] = {}
        self._tagged: list[tuple[frozenset[str], Access]] = []
        self._named: dict[str, Access] = {}  # whatever comes and goes under a name
        self._patterns: dict[str, Template] = {}
        # The names in `_named`, and the resources in `_rules`, by each key under which a rule finds them.
        self._named_at: dict[str, frozenset[str]] = {}
        self._resources_at: dict[str, frozenset[str]] = {}
        self._cache: dict[tuple[str, str], Access | None] = {}  # of `named` and `at`; replaced when a rule changes
        self.unproven = False  # whether nobody has looked yet if there is something of every name
        self._show_locked = show_locked  # whether what takes more scopes is listed all the same

    def add(self, kind: str, name: str, access: Access) -> None:
        """One more rule about a tool, a resource, a template or a prompt; all of them hold."""
        self._rules[kind, name] = _both(self._rules.get((kind, name)), access)
        if kind == "resource":
            _index(self._resources_at, name)
        self._cache = {}

    def add_tagged(self, tags: Iterable[str], access: Access) -> None:
        """A rule about whatever has one of these tags, now or later."""
        self._tagged.append((frozenset(tags), access))

    def add_named(self, name: str, access: Access) -> None:
        """A rule about whatever has this name or URI, or fits this template, now or later, here or mounted."""
        self._named[name] = _both(self._named.get(name), access)
        self.unproven = True
        _index(self._named_at, name)
        if "{" in name:
            self._patterns = self._patterns | {name: Template(name)}  # requests of other threads may be reading it
        self._cache = {}

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
        """Return the rule about something of this name, or of this URI in any spelling; None if there is none."""
        if not kind.startswith("resource"):
            return self._named.get(name)
        return self._cached("named", name, self._named_uri) if self._named else None

    def at(self, uri: str) -> Access | None:
        """Return the rule about whatever is read at a URI: by its name, and by those of the resources it may mean."""
        return self._cached("at", uri, self._at) if self._named or self._resources_at else None

    def _cached(self, kind: str, uri: str, find: Callable[[str], Access | None]) -> Access | None:
        cache = self._cache
        found = cache.get((kind, uri), _NOT_CACHED)
        if found is not _NOT_CACHED:
            return found
        found = find(uri)
        if len(cache) >= _MAX_CACHED_URIS:
            cache.clear()
        if len(uri) <= _MAX_CACHED_CHARS:
            cache[kind, uri] = found
        return found

    def _named_uri(self, uri: str) -> Access | None:
        found = self._named.get(uri)
        readings = uri_readings(uri)
        others = frozenset[str]().union(*(self._named_at[one] for one in readings if one in self._named_at))
        for other in sorted(others - {uri}):
            found = _both(found, self._named[other])
        for pattern, template in self._patterns.items():
            if pattern != uri and any(template.may_match(one) for one in readings):
                found = _both(found, self._named[pattern])
        return found

    def _at(self, uri: str) -> Access | None:
        found = self.named("resource", uri)
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
            for key in rule_keys(name):
                self._resources_at[key] = self._resources_at.get(key, frozenset()) - {name}
        self._cache = {}

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
    """Add a URI under each of its keys; requests of other threads may be reading the old value."""
    for key in rule_keys(uri):
        names[key] = names.get(key, frozenset()) | {uri}


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
