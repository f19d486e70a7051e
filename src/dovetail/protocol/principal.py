"""The authenticated identity of a caller.

A principal is a string that is unique for each caller and never changes. Sessions, encrypted states and limits
compare principals as plain strings. A principal also has scopes, claims and an expiry time. Several requests can share
a principal, so it is read-only.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, Self, TypeAlias, TypeVar, cast

from dovetail.wire.base import Struct, field
from dovetail.wire.codec import encode

SCOPE_PATTERN: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # This is the syntax of a scope. RFC 6749, section 3.3


class _ReadOnlyDict(dict[str, Any]):
    """A dict that cannot be changed. Unlike a mapping proxy, it can be encoded as JSON. A copy is a plain dict."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class _ReadOnlyList(list[Any]):
    """A list that cannot be changed. A copy is a plain list."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def _refuse_change(*_args: Any, **_options: Any) -> NoReturn:
    raise TypeError("the claims of a principal cannot be changed. Change a copy: copy.deepcopy(principal.claims)")


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(_ReadOnlyDict, _name, _refuse_change)
for _name in ("__setitem__", "__delitem__", "__iadd__", "__imul__", "append", "clear", "extend", "insert", "pop"):
    setattr(_ReadOnlyList, _name, _refuse_change)
for _name in ("remove", "reverse", "sort"):
    setattr(_ReadOnlyList, _name, _refuse_change)


def _make_read_only(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return _ReadOnlyDict({name: _make_read_only(member) for name, member in members.items()})
    if isinstance(value, list):
        return _ReadOnlyList(map(_make_read_only, cast("list[Any]", value)))
    return value


_NO_CLAIMS: Final = _ReadOnlyDict()


class Principal(str):
    """The authenticated identity of a caller. It is a string that is unique for each issuer and subject.

    A principal is read-only, because several requests can share it. This includes its claims.

    With an issuer, the string contains the issuer, `#` and the subject. Without an issuer, the string is only the
    subject, which should then not contain `#`.

    Args:
        subject: The ID of the user. For a program without a user, the `client_id`.
        issuer: The URL of the issuer that authenticated the caller.
        client_id: The ID of the client that the user logged in with, or the ID of the program.
        scopes: The granted scopes, as a list or as a string with spaces between them.
        claims: All claims of the token.
        expires_at: When the credentials expire, in seconds since 1970. None means that the time is unknown.
    """

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
        """Create a principal. A program without a user has a client_id and no subject."""
        if not subject and not client_id:
            raise ValueError("a principal requires a subject or a client_id")
        if issuer is not None:
            check_issuer(issuer)
        return _create_principal(
            cls,
            _build_key(subject, issuer, client_id or ""),
            subject or client_id or "",
            issuer,
            client_id,
            _read_scopes(scopes),
            dict(claims) if claims else _NO_CLAIMS,
            expires_at,
        )

    def __setattr__(self, name: str, value: object) -> None:
        if name in Principal.__slots__:
            raise AttributeError(f"{name} of a principal cannot be changed. Create a new Principal(...)")
        super().__setattr__(name, value)

    def is_expired(self, now: float) -> bool:
        """Return whether the credentials have expired at the time `now`. Times are in seconds since 1970."""
        return self.expires_at is not None and self.expires_at <= now

    def __reduce__(self) -> tuple[Any, ...]:
        # `copy` and `pickle` need all fields, because they cannot be computed from the text of a principal.
        fields = self.subject, self.issuer, self.client_id, self.scopes, self.claims, self.expires_at
        return _create_principal, (type(self), str(self), *fields)

    def __repr__(self) -> str:
        return f"Principal({str(self)!r})"


_P = TypeVar("_P", bound=Principal)
_set_field: Final = object.__setattr__


def _create_principal(
    cls: type[_P],
    text: str,
    subject: str,
    issuer: str | None,
    client_id: str | None,
    scopes: frozenset[str],
    claims: Mapping[str, Any],
    expires_at: float | None,
) -> _P:
    principal = str.__new__(cls, text)
    _set_field(principal, "subject", subject)
    _set_field(principal, "issuer", issuer)
    _set_field(principal, "client_id", client_id)
    _set_field(principal, "scopes", scopes)
    _set_field(principal, "claims", claims if type(claims) is _ReadOnlyDict else _make_read_only(claims))
    _set_field(principal, "expires_at", expires_at)
    return principal


# A function that receives the headers of an HTTP request, with names in lower case.
# The function returns the caller, or None if the caller is unknown.
Authenticator: TypeAlias = Callable[[Mapping[bytes, bytes]], Awaitable[Principal | str | None]]


def replace_scopes(principal: Principal, scopes: Iterable[str]) -> Principal:
    """Return a copy of a principal with other scopes."""
    return _create_principal(
        type(principal),
        str(principal),
        principal.subject,
        principal.issuer,
        principal.client_id,
        _read_scopes(scopes),
        principal.claims,
        principal.expires_at,
    )


class SavedPrincipal(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A principal in a record or a message. It contains no access token."""

    subject: str
    issuer: str | None = None
    client_id: str | None = None
    scopes: tuple[str, ...] = ()
    claims: dict[str, Any] = field(default_factory=dict)
    expires_at: float | None = None


def save_principal(principal: Principal) -> SavedPrincipal:
    """Convert a principal for a record. Claims that are not JSON are left out."""
    return SavedPrincipal(
        subject=principal.subject,
        issuer=principal.issuer,
        client_id=principal.client_id,
        scopes=tuple(sorted(principal.scopes)),
        claims={name: value for name, value in principal.claims.items() if _is_json(value)},
        expires_at=principal.expires_at,
    )


def restore_principal(saved: SavedPrincipal, owner: str | None) -> Principal:
    """Return the principal that was saved. `owner` is its text."""

    def create(subject: str) -> Principal:
        return Principal(
            subject,
            issuer=saved.issuer,
            client_id=saved.client_id,
            scopes=saved.scopes,
            claims=saved.claims,
            expires_at=saved.expires_at,
        )

    principal = create(saved.subject)
    # If a program logs in without a user, the saved subject is its client ID.
    return principal if str(principal) == owner or not saved.client_id else create("")


def _is_json(value: Any) -> bool:
    try:
        encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def get_remaining_seconds(principal: Principal | None, now: float) -> float | None:
    """Return the number of seconds until a caller's credentials expire.

    Return None if they do not expire or the time is unknown.
    """
    if principal is None or principal.expires_at is None:
        return None
    return max(0.0, principal.expires_at - now)


def as_principal(principal: Any) -> Principal:
    """Return a principal unchanged, or create one from a name. Raise TypeError for another value."""
    if not isinstance(principal, str):
        raise TypeError(f"the caller must be a name or a Principal(...), not {type(principal).__name__}")
    return principal if isinstance(principal, Principal) else Principal(principal)


def check_issuer(issuer: str) -> None:
    """Raise ValueError if an issuer is empty or has a fragment. RFC 8414, section 2"""
    if not issuer or "#" in issuer:
        raise ValueError(f"invalid issuer {issuer!r}: an issuer must not be empty or contain #")


def check_scope(scope: str) -> None:
    """Raise ValueError if a scope contains invalid characters."""
    if not SCOPE_PATTERN.fullmatch(scope):
        raise ValueError(f"invalid scope {scope!r}: a scope must be one word without quotes or backslashes")


def _read_scopes(scopes: Iterable[str]) -> frozenset[str]:
    scope_set = frozenset(scopes.split() if isinstance(scopes, str) else scopes)
    for scope in scope_set:
        check_scope(scope)
    return scope_set


def _build_key(subject: str, issuer: str | None, client_id: str) -> str:
    """Build a key that is unique for each issuer and client.

    Subjects are unique only within their issuer, and a client ID may equal a user's name. An issuer has no `#`, so the
    first `#` ends the issuer. A subject without an issuer is the key itself, unless it contains `#`.
    """
    if issuer is None and subject and "#" not in subject:
        return subject
    from urllib.parse import quote  # This import is here because few servers need the module.

    name = quote(subject, safe="") if subject else f"#{quote(client_id, safe='')}"
    return f"{issuer or ''}#{name}"
