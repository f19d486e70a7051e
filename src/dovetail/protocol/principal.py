"""Principal: the authenticated identity of a caller.

It is the text that tells this caller from every other, always the same for the same one: sessions, sealed states and
shares of the limits are bound to it by plain comparison. Beside that text it carries what was learned on the way.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Self, TypeAlias

SCOPE_PATTERN: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749, section 3.3


class Principal(str):
    """Who is calling, and what they may do."""

    __slots__ = ("claims", "client_id", "expires_at", "issuer", "scopes", "subject")

    subject: str
    issuer: str | None
    client_id: str | None
    scopes: frozenset[str]
    claims: Mapping[str, Any]
    expires_at: float | None

    def __new__(
        cls,
        subject: str,
        *,
        issuer: str | None = None,
        client_id: str | None = None,
        scopes: Iterable[str] = (),
        claims: Mapping[str, Any] | None = None,
        expires_at: float | None = None,
    ) -> Self:
        """A program that acts for itself has a client_id and an empty subject.

        expires_at: when what it was proved by ends, in seconds since the epoch; None if that is not known.
        """
        if not subject and not client_id:
            raise ValueError("a principal needs a subject, or the client_id of a program")
        scope_set = frozenset(scopes.split() if isinstance(scopes, str) else scopes)
        for scope in scope_set:
            if scope.split() != [scope]:
                raise ValueError(f"{scope!r} is not a scope: each is one word, without spaces")
        principal = super().__new__(cls, _build_key(subject, issuer, client_id or ""))
        principal.subject = subject or client_id or ""
        principal.issuer = issuer
        principal.client_id = client_id
        principal.scopes = scope_set
        principal.claims = dict(claims or {})
        principal.expires_at = expires_at
        return principal

    def is_expired(self, now: float) -> bool:
        """Return whether the credentials have ended at `now`, in seconds since the epoch."""
        return self.expires_at is not None and self.expires_at <= now

    def __repr__(self) -> str:
        return f"Principal({str(self)!r})"


# A function of the headers of an HTTP request (lower-case names) that returns the caller, or None.
Authenticator: TypeAlias = Callable[[Mapping[bytes, bytes]], Awaitable[Principal | str | None]]


def replace_scopes(principal: Principal, scopes: Iterable[str]) -> Principal:
    """Return the same principal with other scopes."""
    copy = str.__new__(type(principal), str(principal))
    copy.subject, copy.issuer, copy.client_id = principal.subject, principal.issuer, principal.client_id
    copy.scopes, copy.claims, copy.expires_at = frozenset(scopes), principal.claims, principal.expires_at
    return copy


def get_remaining_seconds(principal: Principal | None, now: float) -> float | None:
    """Return the seconds until the credentials of a caller end. None if they do not, or if that is not known."""
    if principal is None or principal.expires_at is None:
        return None
    return max(0.0, principal.expires_at - now)


def as_principal(principal: str | None) -> Principal | None:
    """A principal of whom only the name is known, unless it is one already."""
    return principal if principal is None or isinstance(principal, Principal) else Principal(principal)


def _build_key(subject: str, issuer: str | None, client_id: str) -> str:
    """Subjects are unique within their issuer, and a program's id may be somebody's name: no two keys may meet.

    An issuer has no fragment (RFC 8414, section 2), so the first `#` ends it.
    """
    if issuer is None:
        return subject or f"#{client_id}"
    from urllib.parse import quote  # only servers with issuers pay for it

    return f"{issuer}#{quote(subject, safe='')}" if subject else f"{issuer}##{quote(client_id, safe='')}"
