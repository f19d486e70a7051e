"""Public keys, and verification of token signatures. The cryptography is in the joserfc package.

The key and a list of allowed algorithms decide which algorithm is used, never the token. A token with the algorithm
`none` therefore matches no key, and neither does a token that was signed with a public key as a shared secret.
"""

import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from dovetail.errors import ParseError
from dovetail.oauth.guard.claims import TokenRejected
from dovetail.wire.base64url import decode_base64url
from dovetail.wire.codec import decode
from dovetail.wire.raw_message import to_plain

ASYMMETRIC_ALGORITHMS: Final = (
    "ES256",
    "ES384",
    "ES512",
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "EdDSA",
    "Ed25519",
)

_KEY_TYPES: Final = {"ES": "EC", "RS": "RSA", "PS": "RSA", "Ed": "OKP"}
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_PRIVATE_FIELDS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_MIN_RSA_MODULUS_CHARS: Final = 340  # 340 base64 characters are about 2048 bits.
_MAX_KEYS: Final = 64  # A document may contain at most this many keys.
_MAX_TRIED_KEYS: Final = 4  # If a token has no key ID, at most this many keys are tried.
_INVALID_KEYS_MESSAGE: Final = "keys must be a JWK set, a list of JWKs, or public keys in PEM format"
MAX_TOKEN_CHARS: Final = 16 * 1024


class PublicKey:
    """A public key. It is parsed when it is used for the first time."""

    __slots__ = ("_imported_key", "jwk")

    def __init__(self, jwk: Mapping[str, Any]) -> None:
        self.jwk = {name: value for name, value in jwk.items() if name not in _PRIVATE_FIELDS}
        self._imported_key: Any = None

    @property
    def is_strong(self) -> bool:
        """Return whether the key is long enough and can verify signatures. RSA keys need 2048 bits."""
        modulus = self.jwk.get("n")
        return self.jwk.get("kty") in ("EC", "OKP") or (
            isinstance(modulus, str) and len(modulus) >= _MIN_RSA_MODULUS_CHARS
        )

    def can_verify(self, algorithm: str, key_id: Any) -> bool:
        jwk, curve = self.jwk, _CURVES.get(algorithm)
        return (
            jwk.get("kty") == _KEY_TYPES[algorithm[:2]]
            and (curve is None or jwk.get("crv") == curve)
            and jwk.get("alg", algorithm) == algorithm
            and (key_id is None or jwk.get("kid") == key_id)
        )

    def verify_token(self, token: str, algorithm: str) -> dict[str, Any]:
        """Verify a token with this key and return its claims.

        If the signature is wrong, raise an error of joserfc, ValueError or TypeError.
        """
        from joserfc import jwk, jws

        with _suppress_warnings(algorithm):
            if self._imported_key is None:
                self._imported_key = jwk.import_key(
                    {name: value for name, value in self.jwk.items() if name != "key_ops"}
                )
            registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
            signed_token = jws.deserialize_compact(token, self._imported_key, algorithms=[algorithm], registry=registry)
        return _decode_claims(signed_token.payload)

    def thumbprint(self) -> str:
        """Return the thumbprint of the key. RFC 7638"""
        from joserfc import jwk

        return jwk.import_key(self.jwk).thumbprint()


def _decode_claims(payload: bytes | None) -> dict[str, Any]:
    try:
        claims = decode(payload or b"")
    except ParseError as exc:
        raise TokenRejected("the token's claims are invalid", str(exc)) from None
    if not isinstance(claims, dict):
        raise TokenRejected("the token has no claims")
    return claims


PublicKeys = list[PublicKey]


@contextmanager
def _suppress_warnings(algorithm: str) -> Generator[None]:
    if algorithm != "EdDSA":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_algorithms(algorithms: Collection[str]) -> tuple[str, ...]:
    """Return the algorithms as a tuple. Raise ValueError if one of the algorithms is not asymmetric."""
    names = (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
    unsupported = [algorithm for algorithm in names if algorithm not in ASYMMETRIC_ALGORITHMS]
    if unsupported or not names:
        raise ValueError(
            f"algorithms must be some of {', '.join(ASYMMETRIC_ALGORITHMS)}, not {', '.join(unsupported) or 'none'}"
        )
    return names


def parse_jwks(document: Mapping[str, Any]) -> PublicKeys:
    """Return the public signature keys in a JWK set. Shared secrets are ignored."""
    entries = document.get("keys")
    if not isinstance(entries, list):
        raise ValueError("invalid JWK set: `keys` must be a list")
    signing_entries = [
        entry for entry in entries[:_MAX_KEYS] if isinstance(entry, dict) and entry.get("use", "sig") == "sig"
    ]
    return [key for key in map(PublicKey, signing_entries) if key.is_strong]


def load_keys(keys: "Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str]") -> PublicKeys:
    """Load keys from a JWK set, a JWK or a PEM string."""
    if isinstance(keys, Mapping):
        return parse_jwks(keys if "keys" in keys else {"keys": [dict(keys)]})
    if isinstance(keys, str):
        return [_load_pem(keys)]
    if not isinstance(keys, list | tuple):
        raise ValueError(_INVALID_KEYS_MESSAGE)
    return [key for item in keys for key in load_keys(item)]


def _load_pem(text: str) -> PublicKey:
    from joserfc import jwk
    from joserfc.errors import JoseError

    for key_type in ("EC", "RSA", "OKP"):
        try:
            return PublicKey(jwk.import_key(text, key_type).as_dict(private=False))
        except (JoseError, ValueError, TypeError):
            continue
    raise ValueError(_INVALID_KEYS_MESSAGE)


def read_header(token: str) -> dict[str, Any]:
    """Return the header of a token without verifying it."""
    return _decode_part(token, 0)


def read_unverified_claims(token: str) -> dict[str, Any]:
    """Return the claims of a token without verifying the token. Do not use the claims to grant access."""
    return _decode_part(token, 1)


def has_issuer(token: str, issuer: str) -> bool:
    """Return whether a token contains this issuer. The token is not verified."""
    try:
        return read_unverified_claims(token).get("iss") == issuer
    except TokenRejected:
        return False


def _decode_part(token: str, index: int) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3 or len(token) > MAX_TOKEN_CHARS:
        raise TokenRejected("the token is not a signed JWT")
    try:
        value = to_plain(decode_base64url(parts[index]))
    except Exception:
        raise TokenRejected("the token is not a signed JWT") from None
    if not isinstance(value, dict):
        raise TokenRejected("the token is not a signed JWT")
    return value


def select_keys(keys: PublicKeys, header: Mapping[str, Any], algorithms: Collection[str]) -> PublicKeys:
    """Return the keys that may have signed a token. Raise TokenRejected if the algorithm of the token is not
    allowed.
    """
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise TokenRejected("the token's signature algorithm is not accepted")
    return [key for key in keys if key.can_verify(algorithm, key_id)][:_MAX_TRIED_KEYS]


def verify_signature(token: str, keys: PublicKeys, algorithm: str) -> dict[str, Any]:
    """Verify a token with these keys and return its claims. Raise TokenRejected if none of the keys signed it."""
    from joserfc.errors import JoseError

    for key in keys:
        try:
            return key.verify_token(token, algorithm)
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
    raise TokenRejected("the token's signature is invalid")
