"""Proofs that a client signs: DPoP (RFC 9449) and client assertions (RFC 7523).

On the client side, only this module imports joserfc, and only for signatures.
"""

import hashlib
import secrets
from base64 import urlsafe_b64encode
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from dovetail.error_context import add_context
from dovetail.errors import LoginFailed
from dovetail.oauth.login.login_settings import Signer

DPOP_ALGORITHM = "ES256"

_ALGORITHM_BY_CURVE = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "Ed25519"}


def generate_key() -> dict[str, Any]:
    """Generate a private key for DPoP in JWK format."""
    from joserfc.jwk import ECKey

    return dict(ECKey.generate_key("P-256").as_dict(private=True))


def create_dpop_proof(
    key: dict[str, Any], method: str, url: str, now: float, *, nonce: str | None = None, token: str | None = None
) -> str:
    """Create a DPoP proof for one request. It proves that the client has the private key. RFC 9449, section 4.2"""
    from joserfc import jwt
    from joserfc.jwk import ECKey

    signer = ECKey.import_key(key)
    header = {"typ": "dpop+jwt", "alg": DPOP_ALGORITHM, "jwk": signer.as_dict(private=False)}
    claims: dict[str, Any] = {
        "jti": secrets.token_urlsafe(16),
        "htm": method,
        "htu": urlunsplit(urlsplit(url)._replace(query="", fragment="")),
        "iat": int(now),
    }
    if nonce is not None:
        claims["nonce"] = nonce
    if token is not None:
        claims["ath"] = sha256_base64url(token)
    return jwt.encode(header, claims, signer, algorithms=[DPOP_ALGORITHM])


def create_client_assertion(signer: Signer, client_id: str, audience: str, now: float) -> str:
    """Create an assertion that proves the client's identity with its private key.

    Raise LoginFailed if the key cannot be used.
    """
    from joserfc import jwt
    from joserfc.errors import JoseError

    key, suggested = _load_private_key(signer.private_key)
    algorithm = signer.algorithm or suggested
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "jti": secrets.token_urlsafe(16),
        "iat": int(now),
        "exp": int(now) + 300,
    }
    try:
        return jwt.encode({"alg": algorithm, "typ": "JWT"}, claims, key, algorithms=[algorithm])
    except (JoseError, ValueError, TypeError):
        raise add_context(
            LoginFailed(f"the private key cannot sign with {algorithm}"), hint="remove signing_algorithm="
        ) from None


def _load_private_key(pem: str) -> tuple[Any, str]:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    for key_class in (ECKey, RSAKey, OKPKey):
        try:
            key = key_class.import_key(pem)
        except (JoseError, ValueError, TypeError):
            continue
        if key.is_private:
            return key, "RS256" if key_class is RSAKey else _ALGORITHM_BY_CURVE.get(str(key.get("crv")), "ES256")
    raise add_context(
        LoginFailed("the private key cannot be read"), hint="pass a private key in PEM format: EC, RSA or Ed25519"
    )


def sha256_base64url(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode("ascii")
