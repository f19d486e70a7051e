"""What the claims of an access token must say before anyone believes them. Every check fails closed.

RFC 7519, section 4.1; RFC 9068, section 4. spec: authorization#token-handling
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from dovetail.errors import clip
from dovetail.protocol.principal import Principal

_FURTHEST: Final = 1e13  # seconds; numbers may be larger than any that can be reckoned with


class Turned(Exception):
    """Somebody is turned away; the text is safe to tell them, `why` is for the operator's log."""

    def __init__(self, words: str, why: str | None = None) -> None:
        super().__init__(words)
        self.why = why


class Rejected(Turned):
    """The token is not one to be served."""


class Unavailable(Turned):
    """It cannot be found out at the moment whether the token is good, so it is not."""


def check(
    claims: Mapping[str, Any], *, issuer: str | None, audience: Collection[str], now: float, leeway: float
) -> None:
    """Raise Rejected unless the token is from this issuer, for this audience, and for this time."""
    if issuer is not None and claims.get("iss") != issuer:
        said = clip(str(claims.get("iss")))
        raise Rejected("the token is from another issuer", f"it is from {said}, taken are those of {issuer}")
    check_audience(claims, audience)
    expires = moment(claims, "exp")
    if expires is None:
        raise Rejected("the token does not say when it ends")
    if now >= expires + leeway:
        raise Rejected("the token has expired")
    for name in ("nbf", "iat"):
        since = moment(claims, name)
        if since is not None and now < since - leeway:
            raise Rejected("the token is not valid yet")


def check_audience(claims: Mapping[str, Any], audience: Collection[str]) -> None:
    """A token must be meant for this server: spec: authorization#token-handling"""
    said = claims.get("aud")
    named: list[Any] = [said] if isinstance(said, str) else list(said) if isinstance(said, list | tuple) else []
    # An address with and without a slash at its end is the same. spec: authorization#canonical-server-uri
    wanted = {one.rstrip("/") for one in audience}
    if not any(isinstance(one, str) and one.rstrip("/") in wanted for one in named):
        mine = ", ".join(sorted(wanted))
        raise Rejected("the token is for another audience", f"it is for {clip(str(said))}, this server is {mine}")


def moment(claims: Mapping[str, Any], name: str) -> float | None:
    """The time a claim says, if it says one; Rejected if that is none."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _FURTHEST:
        raise Rejected(f"the token's {name} is no time")
    return float(value)


def principal_of(
    claims: Mapping[str, Any], issuer: str | None, scope_claims: Sequence[str], expires_at: float | None
) -> Principal:
    """The principal a token speaks for; Rejected if it speaks for nobody."""
    subject, client = claims.get("sub"), claims.get("client_id", claims.get("azp"))
    if subject is not None and not isinstance(subject, str):
        raise Rejected("the token's subject is no text")
    client = client if isinstance(client, str) and client else None
    if not subject and client is None:
        raise Rejected("the token names nobody")
    return Principal(
        subject or "",
        issuer=issuer,
        client_id=client,
        scopes=scopes_of(claims, scope_claims),
        claims=claims,
        expires_at=expires_at,
    )


def scopes_of(claims: Mapping[str, Any], names: Sequence[str]) -> frozenset[str]:
    """The scopes a token carries, as one text or as a list, under any of these names."""
    found: set[str] = set()
    for name in names:
        value = claims.get(name)
        if isinstance(value, str):
            found.update(value.split())
        elif isinstance(value, list):
            found.update(one for one in value if isinstance(one, str) and one.split() == [one])
    return frozenset(found)
