"""Issuing: tokens out of grants, and back. Access tokens are signed JWTs (RFC 9068); refresh tokens turn once.

Everything of one grant is a family: a code or refresh token shown twice ends all of it, for one of the two who showed
it has stolen it. OAuth 2.1, section 4.3.1
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

from dovetail.auth import keys as signing
from dovetail.auth.claims import Rejected, check_audience
from dovetail.auth.flow import Flow, Now
from dovetail.auth.server.store import Code, Grant, Store, pack, unpack
from dovetail.auth.server.upstream import Vault
from dovetail.auth.server.web import mark
from dovetail.auth.verify import JwtVerifier
from dovetail.protocol.principal import Principal
from dovetail.wire.incoming import plain

CODE_TIME: Final = 60.0
_FAR: Final = 10 * 365 * 86400.0
_ALGORITHM: Final = "ES256"
_ABOUT_KEY: Final = "signing key"


class Issuing:
    """The tokens of one issuer."""

    def __init__(
        self,
        issuer: str,
        store: Store,
        vault: Vault,
        *,
        access_time: float,
        refresh_time: float,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.issuer = issuer
        self._warn = warn
        self._store = store
        self._vault = vault
        self.access_time = access_time
        self._refresh_time = refresh_time
        self._key: Any = None

    @property
    def family_time(self) -> float:
        """How long a family may live after it was last used."""
        return self._refresh_time + self.access_time

    # Keys

    def key(self, now: float) -> Any:
        """The key that signs: the one stored, or a new one."""
        if self._key is None:
            from joserfc.jwk import ECKey

            self._key = ECKey.import_key(self._stored_key(now) or self._new_key(now))
        return self._key

    def _stored_key(self, now: float) -> dict[str, Any] | None:
        stored = self._store.get("key", "signing", now)
        opened = None if stored is None else self._vault.open(stored.decode(), _ABOUT_KEY)
        if stored is not None and opened is None:
            self._store.take("key", "signing", now)
            if self._warn is not None:
                self._warn(
                    "the store was sealed with another secret: there is a new signing key, tokens issued before are "
                    "refused and clients renew theirs, and the provider's tokens in it cannot be read"
                )
        return None if opened is None else plain(opened)

    def _new_key(self, now: float) -> dict[str, Any]:
        """A new key; or that of another process, which was faster."""
        from joserfc.jwk import ECKey

        made = ECKey.generate_key("P-256")
        jwk = {**made.as_dict(private=True), "kid": made.thumbprint(), "alg": _ALGORITHM, "use": "sig"}
        sealed = self._vault.seal(jwk, _ABOUT_KEY).encode()
        if self._store.add("key", "signing", sealed, now + _FAR, now) is None:
            return jwk
        return self._stored_key(now) or self._new_key(now)

    def jwks(self, now: float) -> dict[str, Any]:
        """The public keys, for everyone."""
        return {"keys": [self.key(now).as_dict(private=False)]}

    # Codes

    def code(self, code: Code, now: float) -> str:
        """A new code for a grant."""
        text = secrets.token_urlsafe(32)
        self._store.put("code", mark(text), pack(code), now + CODE_TIME, now)
        return text

    def redeem(self, text: str, now: float) -> Code | None:
        """What a code stands for, once; shown again, it ends what came of it."""
        return self._once("code", text, Code, now)

    # Tokens

    def tokens(
        self, grant: Grant, now: float, *, refreshable: bool, scopes: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """A token response for a grant, which is a living family from now on."""
        lifetime = self.family_time if refreshable else self.access_time
        self.keep(grant, now + lifetime, now)
        granted = grant.scopes if scopes is None else tuple(scopes)
        said: dict[str, Any] = {
            "access_token": self._access(grant, granted, now),
            "token_type": "Bearer" if grant.jkt is None else "DPoP",
            "expires_in": int(self.access_time),
            "scope": " ".join(granted),
        }
        if refreshable:
            said["refresh_token"] = text = secrets.token_urlsafe(32)
            self._store.put("refresh", mark(text), pack(grant), now + self._refresh_time, now)
        return said

    def _access(self, grant: Grant, scopes: Sequence[str], now: float) -> str:
        from joserfc import jwt

        key = self.key(now)
        claims = grant.claims | {
            "iss": self.issuer,
            "aud": grant.resource,
            "client_id": grant.client_id,
            "scope": " ".join(scopes),
            "iat": int(now),
            "exp": int(now + self.access_time),
            "jti": secrets.token_urlsafe(16),
            "sid": grant.family,
        }
        if grant.subject:
            claims["sub"] = grant.subject
        if grant.jkt is not None:
            claims["cnf"] = {"jkt": grant.jkt}
        header = {"alg": _ALGORITHM, "typ": "at+jwt", "kid": key.kid}
        return jwt.encode(header, claims, key, algorithms=[_ALGORITHM])

    def refresh(self, text: str, now: float) -> Grant | None:
        """What a refresh token stands for, once; shown again, it ends the family."""
        found = self._once("refresh", text, Grant, now)
        return found if found is not None and self.living(found.family, now) is not None else None

    def known(self, text: str, now: float) -> Grant | None:
        """What a refresh token stands for, without using it."""
        return unpack(self._store.get("refresh", mark(text), now), Grant)

    def _once(self, kind: str, text: str, type_: Any, now: float) -> Any:
        name = mark(text)
        found: Any = unpack(self._store.take(kind, name, now), type_)
        if found is not None:
            family = found.grant.family if isinstance(found, Code) else found.family
            self._store.put("spent", name, family.encode(), now + self._refresh_time, now)
            return found
        spent = self._store.get("spent", name, now)
        if spent is not None:
            self.end(spent.decode(), now)
        return None

    # Families

    def living(self, family: str, now: float) -> Grant | None:
        """The grant of a family that has not ended."""
        return unpack(self._store.get("family", family, now), Grant)

    def keep(self, grant: Grant, until: float, now: float) -> None:
        """Remember a grant anew."""
        self._store.put("family", grant.family, pack(grant), until, now)

    def end(self, family: str, now: float) -> None:
        """No token of this family is good any more."""
        self._store.take("family", family, now)

    def claims(self, token: str, now: float) -> dict[str, Any] | None:
        """The claims of an access token of ours that is still good."""
        try:
            header = signing.head(token)
            found = signing.given(self.jwks(now))
            claims = signing.verified(token, signing.fitting(found, header, (_ALGORITHM,)), _ALGORITHM)
        except Rejected:
            return None
        good = claims.get("exp", 0) > now and header.get("typ") == "at+jwt" and claims.get("iss") == self.issuer
        return claims if good and self.living(str(claims.get("sid")), now) is not None else None


class OwnTokens:
    """Verifies the tokens of an authorization server of the same process: revoked ones end at once."""

    def __init__(self, issuing: Issuing, audience: Sequence[str]) -> None:
        self.issuer = issuing.issuer
        self._issuing = issuing
        self._audience = tuple(audience)
        self._signed: JwtVerifier | None = None

    def speaks_of(self, token: str) -> bool:
        """Whether it says that this issuer made it."""
        try:
            return signing.unverified(token).get("iss") == self.issuer
        except Rejected:
            return False

    def verify(self, token: str, resource: Any) -> Flow[Principal]:
        """Who the token speaks for."""
        now: float = yield Now()
        if self._signed is None:
            self._signed = JwtVerifier(
                issuer=self.issuer, keys=self._issuing.jwks(now), audience=self._audience or None
            )
        principal = yield from self._signed.verify(token, resource)
        check_audience(principal.claims, self._audience or resource)
        if self._issuing.living(str(principal.claims.get("sid")), now) is None:
            raise Rejected("the token was revoked")
        return principal
