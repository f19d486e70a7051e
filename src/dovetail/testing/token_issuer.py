"""Keys and tokens for tests of servers that check access tokens."""

import time
from collections.abc import Sequence
from typing import Any, Final

from dovetail.oauth.guard.verifiers import JWTVerifier, as_tuple
from dovetail.wire.base import JSONValue

_ALGORITHM: Final = "ES256"


class TokenIssuer:
    """Creates access tokens, and a verifier that accepts them. Each issuer has a new key.

    Args:
        issuer: The `iss` claim of the tokens.
        audience: The `aud` claim of the tokens.
    """

    def __init__(self, issuer: str = "https://issuer.example", *, audience: str = "https://server.example") -> None:
        from joserfc.jwk import ECKey  # This import is here because the library is slow to import.

        self.issuer = issuer
        self.audience = audience
        self._key = ECKey.generate_key("P-256", auto_kid=True)

    @property
    def public_keys(self) -> dict[str, Any]:
        """Return the public key as a JWK set, for `JWTVerifier(public_keys=...)` or for a `jwks_uri`."""
        return {"keys": [self._key.as_dict(private=False) | {"alg": _ALGORITHM, "use": "sig"}]}

    def create_verifier(self) -> JWTVerifier:
        """Return a verifier for the tokens of this issuer: `Server("name", auth=issuer.create_verifier())`."""
        return JWTVerifier(issuer=self.issuer, audience=self.audience, public_keys=self.public_keys)

    def create_token(
        self,
        subject: str = "alice",
        *,
        scopes: str | Sequence[str] = (),
        expires_in: float = 3600.0,
        **claims: JSONValue,
    ) -> str:
        """Return a signed access token.

        Args:
            subject: The `sub` claim, which becomes the principal.
            scopes: The scopes of the token.
            expires_in: Seconds until the token expires. A negative number creates an expired token.
            claims: Additional claims. They can replace the others, for example `aud="https://other.example"`.
        """
        from joserfc import jwt

        now = int(time.time())
        all_claims: dict[str, Any] = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": subject,
            "iat": now,
            "exp": now + int(expires_in),
            "scope": " ".join(as_tuple(scopes)),
        }
        header = {"alg": _ALGORITHM, "kid": self._key.kid, "typ": "at+jwt"}
        return jwt.encode(header, all_claims | claims, self._key, algorithms=[_ALGORITHM])
