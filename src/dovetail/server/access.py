"""Access: who may see and use a tool, a resource or a prompt. The same rule for lists and for calls.

What a caller may not see does not exist for them. What they see but lack scopes for is refused with these scopes.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from dovetail.errors import InsufficientScope
from dovetail.protocol.principal import SCOPE, Principal
from dovetail.server.templates import Template
from dovetail.wire.shape import Struct

log = logging.getLogger("dovetail")

Predicate = Callable[[Principal | None], bool]
V = TypeVar("V")


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
        self._show_locked = show_locked  # whether what takes more scopes is listed all the same

    def add(self, kind: str, name: str, access: Access) -> None:
        """One more rule about a tool, a resource, a template or a prompt; all of them hold."""
        self._rules[kind, name] = _both(self._rules.get((kind, name)), access)

    def add_tagged(self, tags: Iterable[str], access: Access) -> None:
        """A rule about whatever has one of these tags, now or later."""
        self._tagged.append((frozenset(tags), access))

    def add_named(self, name: str, access: Access) -> None:
        """A rule about whatever has this name or URI, or fits this template, now or later, here or mounted."""
        if "{" in name:
            self._patterns[name] = Template(name)
        self._named[name] = _both(self._named.get(name), access)

    def named(self, name: str) -> Access | None:
        """The rule about something of this name or URI; None if there is none."""
        found = self._named.get(name)
        for pattern, template in self._patterns.items():
            if pattern != name and template.match(name) is not None:
                found = _both(found, self._named[pattern])
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

    def about(self, kind: str, name: str) -> bool:
        """Whether not everyone may use it."""
        return (kind, name) in self._rules

    def check(self, kind: str, name: str, principal: Principal | None) -> bool:
        """Whether it is there for this caller. Raises InsufficientScope if it would be, with more scopes."""
        access = self._rules.get((kind, name))
        return access is None or admitted(access, name, principal)

    def lets(self, uri: str, principal: Principal | None) -> bool:
        """Whether what is said of an address lets this caller by. Raises InsufficientScope if more scopes would."""
        access = self.named(uri)
        return access is None or admitted(access, uri, principal)

    def shown(self, kind: str, items: Mapping[str, V], principal: Principal | None) -> Mapping[str, V] | None:
        """Those of the items this caller is shown; None if no rule is about any of them."""
        rules = {name: access for name in items if (access := self._rules.get((kind, name))) is not None}
        if not rules:
            return None
        return {name: item for name, item in items.items() if self.lists(rules.get(name), name, principal)}

    def shows(self, kind: str, name: str, principal: Principal | None) -> bool:
        """Whether it is listed for this caller."""
        return self.lists(self._rules.get((kind, name)), name, principal)

    def lists(self, access: Access | None, name: str, principal: Principal | None) -> bool:
        """Whether something with this rule is listed for this caller."""
        if access is None:
            return True
        held = principal.scopes if principal is not None else frozenset[str]()
        return (self._show_locked or held.issuperset(access.scopes)) and visible_to(access, name, principal)


def admitted(access: Access, name: str, principal: Principal | None) -> bool:
    """Whether something with this rule is there for this caller; InsufficientScope if only scopes are missing."""
    if not visible_to(access, name, principal):
        return False
    held = principal.scopes if principal is not None else frozenset[str]()
    if not held.issuperset(access.scopes):
        raise InsufficientScope(access.scopes)
    return True


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
