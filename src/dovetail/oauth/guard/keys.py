"""Public keys, and the check of a token's signature with them. joserfc does the cryptography.

Which algorithm is used is decided by the key and an allow-list, never by the token: a token that says `none`, or that
was signed with a public key as if it were a secret, finds no key.
"""

import warnings
from base64 import urlsafe_b64decode
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from dovetail.errors import ParseError
from dovetail.oauth.guard.claims import TokenRejected
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
_MIN_RSA_MODULUS_CHARS: Final = 340  # characters of its modulus, nearly
_MAX_KEYS: Final = 64  # of one document
_MAX_TRIED_KEYS: Final = 4  # for one token that does not say which
_INVALID_KEYS_MESSAGE: Final = "keys must be a JWK set, JWKs, or PEM texts of public keys"
MAX_TOKEN_CHARS: Final = 16 * 1024  # characters of a token


class PublicKey:
    """One public key, made ready when it is first used."""

    __slots__ = ("_imported_key", "jwk")

    def __init__(self, jwk: Mapping[str, Any]) -> None:
        self.jwk = {name: value for name, value in jwk.items() if name not in _PRIVATE_FIELDS}
        self._imported_key: Any = None

    @property
    def is_strong(self) -> bool:
        """Whether it is of a kind that signs, and an RSA key of at least 2048 bits."""
        modulus = self.jwk.get("n")
        return self.jwk.get("kty") in ("EC", "OKP") or (
            isinstance(modulus, str) and len(modulus) >= _MIN_RSA_MODULUS_CHARS
        )

    def can_verify(self, algorithm: str, key_id: Any) -> bool:
        """Whether it may have signed something with this algorithm, under this name."""
        jwk, curve = self.jwk, _CURVES.get(algorithm)
        return (
            jwk.get("kty") == _KEY_TYPES[algorithm[:2]]
            and (curve is None or jwk.get("crv") == curve)
            and jwk.get("alg", algorithm) == algorithm
            and (key_id is None or jwk.get("kid") == key_id)
        )

    def verify_token(self, token: str, algorithm: str) -> dict[str, Any]:
        """The claims of a token it signed; an error of joserfc's, ValueError or TypeError if it did not."""
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
        """RFC 7638."""
        from joserfc import jwk

        return jwk.import_key(self.jwk).thumbprint()


def _decode_claims(payload: bytes | None) -> dict[str, Any]:
    """What was signed, by whomever that was: read as strictly as what anyone sends."""
    try:
        claims = decode(payload or b"")
    except ParseError as exc:
        raise TokenRejected("the token's claims cannot be read", str(exc)) from None
    if not isinstance(claims, dict):
        raise TokenRejected("the token has no claims")
    return claims


PublicKeys = list[PublicKey]


@contextmanager
def _suppress_warnings(algorithm: str) -> Generator[None]:
    """joserfc warns of the older name of the same signature."""
    if algorithm != "EdDSA":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_algorithms(algorithms: Collection[str]) -> tuple[str, ...]:
    """The allow-list, if everything in it is a signature by a private key."""
    names = (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
    unsupported = [algorithm for algorithm in names if algorithm not in ASYMMETRIC_ALGORITHMS]
    if unsupported or not names:
        raise ValueError(
            f"algorithms must be some of {', '.join(ASYMMETRIC_ALGORITHMS)}, not {', '.join(unsupported) or 'none'}"
        )
    return names


def parse_jwks(document: Mapping[str, Any]) -> PublicKeys:
    """The keys in a JWK set that can check signatures: public ones, never a shared secret."""
    entries = document.get("keys")
    if not isinstance(entries, list):
        raise ValueError("no JWK set: it has no list of keys")
    signing_entries = [
        entry for entry in entries[:_MAX_KEYS] if isinstance(entry, dict) and entry.get("use", "sig") == "sig"
    ]
    return [key for key in map(PublicKey, signing_entries) if key.is_strong]


def load_keys(keys: "Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str]") -> PublicKeys:
    """Keys as an author gives them: a JWK set, JWKs, or PEM texts."""
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
    """The header of a token, not yet believed."""
    return _decode_part(token, 0)


def read_unverified_claims(token: str) -> dict[str, Any]:
    """The claims of a token, not yet believed: only to find out who should be asked about it."""
    return _decode_part(token, 1)


def has_issuer(token: str, issuer: str) -> bool:
    """Whether a token says that this issuer made it, not yet believed."""
    try:
        return read_unverified_claims(token).get("iss") == issuer
    except TokenRejected:
        return False


def _decode_part(token: str, index: int) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3 or len(token) > MAX_TOKEN_CHARS:
        raise TokenRejected("the token is not a signed JWT")
    try:
        value = to_plain(urlsafe_b64decode(parts[index] + "=" * (-len(parts[index]) % 4)))
    except Exception:
        raise TokenRejected("the token is not a signed JWT") from None
    if not isinstance(value, dict):
        raise TokenRejected("the token is not a signed JWT")
    return value


def select_keys(keys: PublicKeys, header: Mapping[str, Any], algorithms: Collection[str]) -> PublicKeys:
    """The keys that may have signed a token with this header; none if its algorithm is not allowed."""
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise TokenRejected("the token is signed in a way that is not accepted here")
    return [key for key in keys if key.can_verify(algorithm, key_id)][:_MAX_TRIED_KEYS]


def verify_signature(token: str, keys: PublicKeys, algorithm: str) -> dict[str, Any]:
    """The claims of a token that one of these keys signed; TokenRejected if none did."""
    from joserfc.errors import JoseError

    for key in keys:
        try:
            return key.verify_token(token, algorithm)
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
    raise TokenRejected("the token's signature is not good")
