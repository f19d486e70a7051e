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
from dovetail.auth.server.store import Code, Family, Grant, Shelf, Store, pack, unpack
from dovetail.auth.server.upstream import Vault
from dovetail.auth.server.web import mark, same
from dovetail.auth.verify import JwtVerifier
from dovetail.protocol.principal import Principal
from dovetail.wire.incoming import plain
from dovetail.wire.shape import replace

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
        login_time: float = _FAR,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.issuer = issuer
        self._warn = warn
        self._store = store
        self._vault = vault
        self.access_time = access_time
        self._refresh_time = refresh_time
        self._login_time = login_time
        self._key: Any = None

    @property
    def alone(self) -> bool:
        """Whether what it knows is this process's alone."""
        return isinstance(self._store, Shelf)

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
        text = f"{code.grant.family}.{secrets.token_urlsafe(32)}"
        self._store.put("code", mark(text), pack(code), now + CODE_TIME, now)
        return text

    def redeem(self, text: str, now: float) -> Code | None:
        """What a code stands for, once; shown again, it ends what came of it."""
        found = unpack(self._store.take("code", mark(text), now), Code)
        if found is None:
            family = self._family(text.partition(".")[0], now)
            if family is not None and same(family.code, mark(text)):
                self.end(family.grant.family, now)
        return found

    # Tokens

    def tokens(self, grant: Grant, now: float, *, refreshable: bool, code: str = "") -> dict[str, Any]:
        """A token response for a grant, which is a living family from now on."""
        root = secrets.token_urlsafe(16)
        current, refresh_token = self._turned(grant.family, root)
        family = Family(grant=grant, since=now, code=mark(code))
        if refreshable:
            family = replace(family, root=mark(root), current=current, renewable=self._renewable(now, now))
        self._store.put("family", grant.family, pack(family), self._until(family, now), now)
        return self._said(grant, grant.scopes, now, refresh_token if refreshable else None)

    def renew(self, text: str, now: float, scopes: Sequence[str] | None = None) -> dict[str, Any] | None:
        """A token response for a refresh token, once; shown again, it ends the family: None.

        The family's own row says which token is good, so turning it needs no room, and cannot fail half way.
        """
        while (stored := self._shown(text, now)) is not None:
            old, family = stored
            name, root, fresh = text.split(".")
            if not same(mark(fresh), family.current):
                self.end(name, now)
                return None
            current, refresh_token = self._turned(name, root)
            turned = replace(family, current=current, renewable=self._renewable(family.since, now))
            if self._store.swap("family", name, old, pack(turned), self._until(turned, now), now):
                granted = family.grant.scopes if scopes is None else tuple(scopes)
                return self._said(family.grant, granted, now, refresh_token)
        return None

    def known(self, text: str, now: float) -> Grant | None:
        """What a refresh token stands for, without using it, whether it is the newest of its family or not."""
        found = self._shown(text, now)
        return None if found is None else found[1].grant

    def _shown(self, text: str, now: float) -> tuple[bytes, Family] | None:
        """The family, as it is stored, of which somebody has, or had, this refresh token."""
        name, _, rest = text.partition(".")
        root, _, fresh = rest.partition(".")
        stored = self._store.get("family", name, now)
        family = unpack(stored, Family)
        # Who saw an access token knows the family's name: only who was given a refresh token knows its root.
        if stored is None or family is None or "." in fresh or not family.root or not same(mark(root), family.root):
            return None
        return (stored, family) if now < family.renewable else None

    def _turned(self, family: str, root: str) -> tuple[str, str]:
        """The mark of a new refresh token, and the token."""
        fresh = secrets.token_urlsafe(32)
        return mark(fresh), f"{family}.{root}.{fresh}"

    def _renewable(self, since: float, now: float) -> float:
        return min(now + self._refresh_time, since + self._login_time)

    def _until(self, family: Family, now: float) -> float:
        return max(now, family.renewable) + self.access_time

    def _said(self, grant: Grant, scopes: Sequence[str], now: float, refresh_token: str | None) -> dict[str, Any]:
        said: dict[str, Any] = {
            "access_token": self._access(grant, scopes, now),
            "token_type": "Bearer" if grant.jkt is None else "DPoP",
            "expires_in": int(self.access_time),
            "scope": " ".join(scopes),
        }
        return said if refresh_token is None else said | {"refresh_token": refresh_token}

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

    # Families

    def _family(self, name: str, now: float) -> Family | None:
        return unpack(self._store.get("family", name, now), Family)

    def living(self, family: str, now: float) -> Grant | None:
        """The grant of a family that has not ended."""
        found = self._family(family, now)
        return None if found is None else found.grant

    def keep(self, grant: Grant, now: float) -> bool:
        """Remember a grant anew, if its family still lives."""
        while (stored := self._store.get("family", grant.family, now)) is not None:
            family = unpack(stored, Family)
            if family is None:
                return False
            value = pack(replace(family, grant=grant))
            if self._store.swap("family", grant.family, stored, value, self._until(family, now), now):
                return True
        return False

    def end(self, family: str, now: float) -> None:
        """No token of this family is good any more."""
        self._store.take("family", family, now)

    def end_all(self, subject: str) -> Flow[int]:
        """No token of this user's is good any more, nor a code; how many grants ended."""
        now: float = yield Now()
        ended = 0
        for name, value in self._store.all("code", now):
            code = unpack(value, Code)
            if code is not None and code.grant.subject == subject:
                ended += self._store.take("code", name, now) is not None
        for name, value in self._store.all("family", now):
            family = unpack(value, Family)
            if family is not None and family.grant.subject == subject:
                ended += self._store.take("family", name, now) is not None
        return ended

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

    @property
    def alone(self) -> bool:
        """Whether no other process knows the keys."""
        return self._issuing.alone

    def speaks_of(self, token: str) -> bool:
        """Whether it says that this issuer made it."""
        return signing.names_issuer(token, self.issuer)

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
