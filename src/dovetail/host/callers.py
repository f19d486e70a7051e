"""Callers of a gateway with credentials of their own: one client of a server for each, never shared.

What one of them may see, or holds at the server, is nobody else's business.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from dovetail.errors import PolicyError
from dovetail.host.member import Member
from dovetail.protocol.principal import Principal
from dovetail.wire.shape import replace

_REST: Final = 900.0  # seconds after which an unused client is closed
_MOST: Final = 256

# The options of a client that make it this caller's: headers, auth, env. None: this caller has no credentials.
Credentials = Callable[[Principal], Mapping[str, Any] | None]


class PerCaller:
    """The members of one server, by caller."""

    def __init__(self, first: Member, make: Callable[..., Any], credentials: Credentials) -> None:
        self._first = first
        self._make = make
        self._credentials = credentials
        self._members: dict[str, Member] = {}

    @property
    def members(self) -> tuple[Member, ...]:
        """All of them."""
        return tuple(self._members.values())

    def of(self, principal: Any) -> Member:
        """The member of one caller; PolicyError for one nobody knows."""
        if principal is None:
            raise PolicyError(f"{self._first.name} is only for callers who are logged in").at(server=self._first.name)
        found = self._members.pop(str(principal), None) or self._made(principal)
        self._members[str(principal)] = found  # the last used stands last
        return found

    def _made(self, principal: Any) -> Member:
        given = self._credentials(principal)
        if given is None:
            raise PolicyError(f"{self._first.name} is not for this caller").at(server=self._first.name)
        self._make_room()
        settings = replace(self._first.settings, idle_stop=self._first.settings.idle_stop or _REST)
        member = self._first.sibling(lambda: self._make(**given), settings)
        member.shared = True
        return member

    def _make_room(self) -> None:
        for name, member in tuple(self._members.items()):
            if len(self._members) < _MOST:
                return
            if member.asleep:
                del self._members[name]
