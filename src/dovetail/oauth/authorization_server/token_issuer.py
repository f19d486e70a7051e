"""Issue and verify tokens. Access tokens are signed JWTs (RFC 9068), and a refresh token can be used only once.

All tokens of one grant form a family. If a code or refresh token is used twice, it was probably stolen, so the
whole family is revoked. OAuth 2.1, section 4.3.1
"""

import secrets
from collections.abc import Collection, Sequence
from typing import Any, Final

from dovetail.oauth.authorization_server.responses import hash_secret, is_same_secret
from dovetail.oauth.authorization_server.store import (
    AuthorizationCode,
    AuthorizationStore,
    InMemoryStore,
    StoreUnavailable,
    TokenFamily,
    TokenGrant,
    UserIndex,
    decode_record,
    encode_record,
)
from dovetail.oauth.flow import Flow, Now, wait_for
from dovetail.oauth.guard import keys as signing
from dovetail.oauth.guard.claims import TokenRejected, VerificationUnavailable, check_audience
from dovetail.oauth.guard.verifiers import BuiltInVerifier, JWTVerifier
from dovetail.protocol.principal import Principal
from dovetail.protocol.sealer import Sealer, UnsealError
from dovetail.wire.base import replace
from dovetail.wire.codec import encode
from dovetail.wire.raw_message import to_plain

CODE_TTL_S: Final = 60.0
_TEN_YEARS_S: Final = 10 * 365 * 86400.0
_ALGORITHM: Final = "ES256"
_KEY_SEAL_CONTEXT: Final = b"signing key"


class WrongSecretKey(StoreUnavailable):
    """Raised if the stored signing key was encrypted with another secret key."""


class OAuthTokenIssuer:
    """Creates, verifies and revokes tokens."""

    def __init__(
        self,
        issuer: str,
        store: AuthorizationStore,
        sealer: Sealer,
        *,
        access_token_ttl: float,
        refresh_token_ttl: float,
        login_ttl: float = _TEN_YEARS_S,
    ) -> None:
        self.issuer = issuer
        self._store = store
        self._sealer = sealer
        self.access_token_ttl = access_token_ttl
        self._refresh_token_ttl = refresh_token_ttl
        self._login_ttl = login_ttl
        self._signing_key: Any = None

    @property
    def is_local(self) -> bool:
        """Return whether the tokens are stored only in the memory of this process."""
        return isinstance(self._store, InMemoryStore)

    def get_signing_key(self, now: float) -> Flow[Any]:
        """Return the stored signing key. If the store has none, create a signing key."""
        if self._signing_key is None:
            from joserfc.jwk import ECKey

            stored_key = yield from self.load_key(now)
            self._signing_key = ECKey.import_key(stored_key or (yield from self._create_key(now)))
        return self._signing_key

    def load_key(self, now: float) -> Flow[dict[str, Any] | None]:
        """Return the stored signing key as a JWK, or None. Raise WrongSecretKey if the key cannot be read."""
        stored = yield from wait_for(self._store.get("key", "signing", now))
        if stored is None:
            return None
        try:
            return to_plain(self._sealer.open_text(stored.decode(), _KEY_SEAL_CONTEXT, now))
        except UnsealError as exc:
            # The key stays in the store, because other workers may have the right secret key.
            raise WrongSecretKey(
                f"the signing key in the store cannot be read with this secret_key ({exc}). Pass the secret_key with "
                "which the store was created. If it is lost, pass a new store, so that all users log in again"
            ) from exc

    def _create_key(self, now: float) -> Flow[dict[str, Any]]:
        """Create a signing key. If another process has just created a key, return that key."""
        from joserfc.jwk import ECKey

        new_key = ECKey.generate_key("P-256")
        jwk = {**new_key.as_dict(private=True), "kid": new_key.thumbprint(), "alg": _ALGORITHM, "use": "sig"}
        sealed = self._sealer.seal_text(encode(jwk), _KEY_SEAL_CONTEXT).encode()
        if (yield from wait_for(self._store.add("key", "signing", sealed, now + _TEN_YEARS_S, now))) is None:
            return jwk
        stored_key = yield from self.load_key(now)
        return stored_key or (yield from self._create_key(now))

    def build_jwks(self, now: float) -> Flow[dict[str, Any]]:
        """Return the public keys as a JWK set."""
        key = yield from self.get_signing_key(now)
        return {"keys": [key.as_dict(private=False)]}

    def issue_code(self, code: AuthorizationCode, now: float) -> Flow[str]:
        """Issue an authorization code for a grant."""
        text, until = f"{code.grant.family}.{secrets.token_urlsafe(32)}", now + CODE_TTL_S
        yield from self._add_to_index(code.grant.subject, "code", hash_secret(text), until, now)
        yield from wait_for(self._store.put("code", hash_secret(text), encode_record(code), until, now))
        return text

    def _add_to_index(self, subject: str, kind: str, key: str, until: float, now: float) -> Flow[None]:
        """Add a record to the index of a user. Call this before the record is stored, so that no record is missing."""
        if not subject:  # The grant of a program without a user is not in the index of any user.
            return
        name, entry = hash_secret(subject), f"{kind} {key}"
        while True:
            stored = yield from wait_for(self._store.get("user", name, now))
            index = decode_record(stored, UserIndex) or UserIndex()
            if index.entries.get(entry, 0.0) >= until:
                return
            entries = {old: expiry for old, expiry in index.entries.items() if expiry > now} | {entry: until}
            value, last_until = encode_record(UserIndex(entries=entries), stored), max(entries.values())
            if stored is None:
                is_stored = (yield from wait_for(self._store.add("user", name, value, last_until, now))) is None
            else:
                is_stored = yield from wait_for(self._store.swap("user", name, stored, value, last_until, now))
            if is_stored:
                return

    def _index_family(self, family: TokenFamily, now: float) -> Flow[TokenFamily]:
        """Add a token family to the index of its user, unless the index contains the family for long enough."""
        until = self._family_expires_at(family, now)
        if until <= family.indexed_until:
            return family
        # With more time than needed, most renewals do not have to write the index.
        indexed_until = until + self._refresh_token_ttl
        yield from self._add_to_index(family.grant.subject, "family", family.grant.family, indexed_until, now)
        return replace(family, indexed_until=indexed_until)

    def redeem_code(self, code_text: str, now: float) -> Flow[AuthorizationCode | None]:
        """Exchange an authorization code for its grant. If the code was used before, revoke its tokens."""
        yield from self.get_signing_key(now)  # If the key cannot be read, the code stays valid.
        stored = yield from wait_for(self._store.take("code", hash_secret(code_text), now))
        code = decode_record(stored, AuthorizationCode)
        if code is None:
            family = yield from self._load_family(code_text.partition(".")[0], now)
            if family is not None and is_same_secret(family.code, hash_secret(code_text)):
                yield from self.revoke_family(family.grant.family, now)
        return code

    def issue_tokens(self, grant: TokenGrant, now: float, *, refreshable: bool, code: str = "") -> Flow[dict[str, Any]]:
        """Create the first tokens of a grant and return the token response."""
        root = secrets.token_urlsafe(16)
        current, refresh_token = self._create_refresh_token(grant.family, root)
        family = TokenFamily(grant=grant, since=now, code=hash_secret(code))
        if refreshable:
            family = replace(family, root=hash_secret(root), current=current, renewable=self._renewable_until(now, now))
        family = yield from self._index_family(family, now)
        until = self._family_expires_at(family, now)
        yield from wait_for(self._store.put("family", grant.family, encode_record(family), until, now))
        return (yield from self._build_response(grant, grant.scopes, now, refresh_token if refreshable else None))

    def renew_tokens(
        self, old_token: str, now: float, scopes: Sequence[str] | None = None
    ) -> Flow[dict[str, Any] | None]:
        """Exchange a refresh token for new tokens. If the refresh token was used before, revoke its grant and return
        None.

        The stored family contains the hash of the valid refresh token, so rotation needs no extra space and cannot fail
        halfway.
        """
        yield from self.get_signing_key(now)  # If the key cannot be read, the refresh token stays valid.
        while (stored := (yield from self._find_family(old_token, now))) is not None:
            stored_family, family = stored
            family_id, root, secret = old_token.split(".")
            if not is_same_secret(hash_secret(secret), family.current):
                yield from self.revoke_family(family_id, now)
                return None
            current, refresh_token = self._create_refresh_token(family_id, root)
            rotated = replace(family, current=current, renewable=self._renewable_until(family.since, now))
            rotated = yield from self._index_family(rotated, now)
            until, value = self._family_expires_at(rotated, now), encode_record(rotated, stored_family)
            if (yield from wait_for(self._store.swap("family", family_id, stored_family, value, until, now))):
                granted_scopes = family.grant.scopes if scopes is None else tuple(scopes)
                return (yield from self._build_response(family.grant, granted_scopes, now, refresh_token))
        return None

    def find_grant(self, refresh_token: str, now: float) -> Flow[TokenGrant | None]:
        """Return the grant of a refresh token, without marking the token as used.

        Earlier tokens of the grant also work.
        """
        match = yield from self._find_family(refresh_token, now)
        return None if match is None else match[1].grant

    def _find_family(self, refresh_token: str, now: float) -> Flow[tuple[bytes, TokenFamily] | None]:
        family_id, _, rest = refresh_token.partition(".")
        root, _, secret = rest.partition(".")
        stored = yield from wait_for(self._store.get("family", family_id, now))
        family = decode_record(stored, TokenFamily)
        # The grant ID is not secret, because access tokens contain it. The secret part of the refresh token must match.
        if (
            stored is None
            or family is None
            or "." in secret
            or not family.root
            or not is_same_secret(hash_secret(root), family.root)
        ):
            return None
        return (stored, family) if now < family.renewable else None

    def _create_refresh_token(self, family: str, root: str) -> tuple[str, str]:
        secret = secrets.token_urlsafe(32)
        return hash_secret(secret), f"{family}.{root}.{secret}"

    def _renewable_until(self, since: float, now: float) -> float:
        return min(now + self._refresh_token_ttl, since + self._login_ttl)

    def _family_expires_at(self, family: TokenFamily, now: float) -> float:
        return max(now, family.renewable) + self.access_token_ttl

    def _build_response(
        self, grant: TokenGrant, scopes: Sequence[str], now: float, refresh_token: str | None
    ) -> Flow[dict[str, Any]]:
        response: dict[str, Any] = {
            "access_token": (yield from self._sign_access_token(grant, scopes, now)),
            "token_type": "Bearer" if grant.jkt is None else "DPoP",
            "expires_in": int(self.access_token_ttl),
            "scope": " ".join(scopes),
        }
        return response if refresh_token is None else response | {"refresh_token": refresh_token}

    def _sign_access_token(self, grant: TokenGrant, scopes: Sequence[str], now: float) -> Flow[str]:
        from joserfc import jwt

        key = yield from self.get_signing_key(now)
        claims = grant.claims | {
            "iss": self.issuer,
            "aud": grant.resource,
            "client_id": grant.client_id,
            "scope": " ".join(scopes),
            "iat": int(now),
            "exp": int(now + self.access_token_ttl),
            "jti": secrets.token_urlsafe(16),
            "sid": grant.family,
        }
        if grant.subject:
            claims["sub"] = grant.subject
        if grant.jkt is not None:
            claims["cnf"] = {"jkt": grant.jkt}
        header = {"alg": _ALGORITHM, "typ": "at+jwt", "kid": key.kid}
        return jwt.encode(header, claims, key, algorithms=[_ALGORITHM])

    def _load_family(self, family_id: str, now: float) -> Flow[TokenFamily | None]:
        return decode_record((yield from wait_for(self._store.get("family", family_id, now))), TokenFamily)

    def find_active_grant(self, family: str, now: float) -> Flow[TokenGrant | None]:
        """Return the grant with this ID if it is active."""
        record = yield from self._load_family(family, now)
        return None if record is None else record.grant

    def update_grant(self, grant: TokenGrant, now: float) -> Flow[bool]:
        """Store a changed grant and return True. If the grant was revoked, return False."""
        while (stored := (yield from wait_for(self._store.get("family", grant.family, now)))) is not None:
            family = decode_record(stored, TokenFamily)
            if family is None:
                return False
            value = encode_record(replace(family, grant=grant), stored)
            until = self._family_expires_at(family, now)
            if (yield from wait_for(self._store.swap("family", grant.family, stored, value, until, now))):
                return True
        return False

    def revoke_family(self, family: str, now: float) -> Flow[None]:
        """Revoke all tokens of a grant."""
        yield from wait_for(self._store.take("family", family, now))

    def revoke_user(self, subject: str) -> Flow[int]:
        """Revoke all tokens and codes of a user. Return the number of grants."""
        now: float = yield Now()
        revoked_count = 0
        index = decode_record((yield from wait_for(self._store.take("user", hash_secret(subject), now))), UserIndex)
        for entry in () if index is None else index.entries:
            kind, _, key = entry.partition(" ")
            revoked_count += (yield from wait_for(self._store.take(kind, key, now))) is not None
        return revoked_count

    def verify_access_token(self, token: str, now: float) -> Flow[dict[str, Any] | None]:
        """Return the claims of an access token from this issuer, or None if the token is invalid."""
        try:
            header = signing.read_header(token)
            keys = signing.load_keys((yield from self.build_jwks(now)))
            claims = signing.verify_signature(token, signing.select_keys(keys, header, (_ALGORITHM,)), _ALGORITHM)
        except TokenRejected:
            return None
        is_valid = claims.get("exp", 0) > now and header.get("typ") == "at+jwt" and claims.get("iss") == self.issuer
        if not is_valid:
            return None
        grant = yield from self.find_active_grant(str(claims.get("sid")), now)
        return None if grant is None else claims


class LocalTokenVerifier(BuiltInVerifier):
    """Verifies tokens of an authorization server in the same process. Revoked tokens are rejected immediately."""

    def __init__(self, token_issuer: OAuthTokenIssuer, audience: Sequence[str]) -> None:
        self.issuer = token_issuer.issuer
        self._token_issuer = token_issuer
        self._audience = tuple(audience)
        self._jwt_verifier: JWTVerifier | None = None

    def _is_local(self) -> bool:
        return self._token_issuer.is_local

    def _may_accept(self, token: str) -> bool:
        return signing.has_issuer(token, self.issuer)

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Return the caller to whom the token was issued."""
        now: float = yield Now()
        try:
            if self._jwt_verifier is None:
                public_keys = yield from self._token_issuer.build_jwks(now)
                self._jwt_verifier = JWTVerifier(
                    issuer=self.issuer, public_keys=public_keys, audience=self._audience or None
                )
            principal = yield from self._jwt_verifier.verify(token, resource)
            check_audience(principal.claims, self._audience or resource)
            grant = yield from self._token_issuer.find_active_grant(str(principal.claims.get("sid")), now)
        except StoreUnavailable as exc:
            raise VerificationUnavailable("the store of the authorization server cannot be used", str(exc)) from exc
        if grant is None:
            raise TokenRejected("the token was revoked")
        return principal
