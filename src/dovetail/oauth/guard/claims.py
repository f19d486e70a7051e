"""Checks of the claims of an access token. If a claim cannot be checked, the token is rejected.

RFC 7519, section 4.1 and RFC 9068, section 4. spec: authorization#token-handling
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.protocol.principal import SCOPE_PATTERN, Principal

_MAX_TIMESTAMP_S: Final = 1e13  # Calculations with times above this limit would overflow.


class AuthenticationFailed(Exception):
    """Raised if authentication fails. The caller receives the message, and the server logs `detail`."""

    def __init__(self, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail


class TokenRejected(AuthenticationFailed):
    """Raised if a token is not accepted."""


class VerificationUnavailable(AuthenticationFailed):
    """Raised if a token cannot be verified at the moment, for example because the issuer's keys cannot be fetched."""


def check_claims(
    claims: Mapping[str, Any], *, issuer: str | None, audience: Collection[str], now: float, leeway: float
) -> None:
    """Raise TokenRejected if the token has expired, is not valid yet, or has the wrong issuer or audience."""
    if issuer is not None and claims.get("iss") != issuer:
        actual_issuer = clip(str(claims.get("iss")))
        raise TokenRejected("the token has a different issuer", f"its issuer is {actual_issuer}, expected {issuer}")
    check_audience(claims, audience)
    expires_at = parse_timestamp(claims, "exp")
    if expires_at is None:
        raise TokenRejected("the token has no expiry")
    if now >= expires_at + leeway:
        raise TokenRejected("the token has expired")
    for name in ("nbf", "iat"):
        valid_from = parse_timestamp(claims, name)
        if valid_from is not None and now < valid_from - leeway:
            raise TokenRejected("the token is not valid yet")


def check_audience(claims: Mapping[str, Any], audience: Collection[str]) -> None:
    """Raise TokenRejected if the token was issued for another server. spec: authorization#token-handling"""
    audience_claim = claims.get("aud")
    token_audiences: list[Any] = (
        [audience_claim]
        if isinstance(audience_claim, str)
        else list(audience_claim)
        if isinstance(audience_claim, list | tuple)
        else []
    )
    # A trailing slash of a URL is ignored. spec: authorization#canonical-server-uri
    accepted = {uri.rstrip("/") for uri in audience}
    if not any(isinstance(name, str) and name.rstrip("/") in accepted for name in token_audiences):
        own_names = ", ".join(sorted(accepted))
        raise TokenRejected(
            "the token is for another audience",
            f"the audience of the token is {clip(str(audience_claim))}, but the URL of this server is {own_names}",
        )


def parse_timestamp(claims: Mapping[str, Any], name: str) -> float | None:
    """Return the value of a claim for a time, or None without the claim. Raise TokenRejected if it is invalid."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_TIMESTAMP_S:
        raise TokenRejected(f"the {name} claim of the token is not a valid time")
    return float(value)


def build_principal(
    claims: Mapping[str, Any], issuer: str | None, scope_claims: Sequence[str], expires_at: float | None
) -> Principal:
    """Return the caller that a token identifies.

    Raise TokenRejected if the token names neither a subject nor a client.
    """
    subject, client_id = claims.get("sub"), claims.get("client_id", claims.get("azp"))
    if subject is not None and not isinstance(subject, str):
        raise TokenRejected("the subject of the token must be a string")
    client_id = client_id if isinstance(client_id, str) and client_id else None
    if not subject and client_id is None:
        raise TokenRejected("the token contains neither a subject nor a client ID")
    return Principal(
        subject or "",
        issuer=issuer,
        client_id=client_id,
        scopes=parse_scopes(claims, scope_claims),
        claims=claims,
        expires_at=expires_at,
    )


def parse_scopes(claims: Mapping[str, Any], claim_names: Sequence[str]) -> frozenset[str]:
    """Collect the valid scopes from several claims. Each claim can be a string or a list."""
    scopes: set[str] = set()
    for name in claim_names:
        value = claims.get(name)
        words: list[Any] = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        scopes.update(word for word in words if isinstance(word, str) and SCOPE_PATTERN.fullmatch(word))
    return frozenset(scopes)
