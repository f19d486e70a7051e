"""Check the claims of an access token. Every check fails closed.

RFC 7519, section 4.1; RFC 9068, section 4. spec: authorization#token-handling
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.protocol.principal import Principal

_MAX_TIMESTAMP_S: Final = 1e13  # seconds; numbers may be larger than any that can be reckoned with


class AuthenticationFailed(Exception):
    """Somebody is turned away; the text is safe to tell them, `why` is for the operator's log."""

    def __init__(self, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail


class TokenRejected(AuthenticationFailed):
    """The token is not one to be served."""


class VerificationUnavailable(AuthenticationFailed):
    """It cannot be found out at the moment whether the token is good, so it is not."""


def check_claims(
    claims: Mapping[str, Any], *, issuer: str | None, audience: Collection[str], now: float, leeway: float
) -> None:
    """Raise TokenRejected unless the token is from this issuer, for this audience, and for this time."""
    if issuer is not None and claims.get("iss") != issuer:
        actual_issuer = clip(str(claims.get("iss")))
        raise TokenRejected(
            "the token is from another issuer", f"it is from {actual_issuer}, taken are those of {issuer}"
        )
    check_audience(claims, audience)
    expires_at = parse_timestamp(claims, "exp")
    if expires_at is None:
        raise TokenRejected("the token does not say when it ends")
    if now >= expires_at + leeway:
        raise TokenRejected("the token has expired")
    for name in ("nbf", "iat"):
        valid_from = parse_timestamp(claims, name)
        if valid_from is not None and now < valid_from - leeway:
            raise TokenRejected("the token is not valid yet")


def check_audience(claims: Mapping[str, Any], audience: Collection[str]) -> None:
    """A token must be meant for this server: spec: authorization#token-handling"""
    audience_claim = claims.get("aud")
    token_audiences: list[Any] = (
        [audience_claim]
        if isinstance(audience_claim, str)
        else list(audience_claim)
        if isinstance(audience_claim, list | tuple)
        else []
    )
    # An address with and without a slash at its end is the same. spec: authorization#canonical-server-uri
    accepted = {uri.rstrip("/") for uri in audience}
    if not any(isinstance(name, str) and name.rstrip("/") in accepted for name in token_audiences):
        own_names = ", ".join(sorted(accepted))
        raise TokenRejected(
            "the token is for another audience", f"it is for {clip(str(audience_claim))}, this server is {own_names}"
        )


def parse_timestamp(claims: Mapping[str, Any], name: str) -> float | None:
    """The time a claim says, if it says one; TokenRejected if that is none."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_TIMESTAMP_S:
        raise TokenRejected(f"the token's {name} is no time")
    return float(value)


def build_principal(
    claims: Mapping[str, Any], issuer: str | None, scope_claims: Sequence[str], expires_at: float | None
) -> Principal:
    """The principal a token speaks for; TokenRejected if it speaks for nobody."""
    subject, client_id = claims.get("sub"), claims.get("client_id", claims.get("azp"))
    if subject is not None and not isinstance(subject, str):
        raise TokenRejected("the token's subject is no text")
    client_id = client_id if isinstance(client_id, str) and client_id else None
    if not subject and client_id is None:
        raise TokenRejected("the token names nobody")
    return Principal(
        subject or "",
        issuer=issuer,
        client_id=client_id,
        scopes=parse_scopes(claims, scope_claims),
        claims=claims,
        expires_at=expires_at,
    )


def parse_scopes(claims: Mapping[str, Any], claim_names: Sequence[str]) -> frozenset[str]:
    """The scopes a token carries, as one text or as a list, under any of these names."""
    scopes: set[str] = set()
    for name in claim_names:
        value = claims.get(name)
        if isinstance(value, str):
            scopes.update(value.split())
        elif isinstance(value, list):
            scopes.update(scope for scope in value if isinstance(scope, str) and scope.split() == [scope])
    return frozenset(scopes)
