"""Public keys and the signatures they check. The only place where a token's signature is looked at; joserfc does it.

Which algorithm is used is decided by the key and an allow-list, never by the token: a token that says `none`, or that
was signed with a public key as if it were a secret, finds no key.
"""

import warnings
from base64 import urlsafe_b64decode
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from dovetail.auth.claims import Rejected
from dovetail.errors import ParseError
from dovetail.wire.codec import decode
from dovetail.wire.incoming import plain

ASYMMETRIC: Final = (
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

_KINDS: Final = {"ES": "EC", "RS": "RSA", "PS": "RSA", "Ed": "OKP"}
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_RSA_2048: Final = 340  # characters of its modulus, nearly
_MOST_KEYS: Final = 64  # of one document
_MOST_TRIED: Final = 4  # for one token that does not say which
_NO_KEYS: Final = "keys must be a JWK set, JWKs, or PEM texts of public keys"
LONGEST: Final = 16 * 1024  # characters of a token


class Key:
    """One public key, made ready when it is first used."""

    __slots__ = ("_ready", "jwk")

    def __init__(self, jwk: Mapping[str, Any]) -> None:
        self.jwk = {name: value for name, value in jwk.items() if name not in _PRIVATE}
        self._ready: Any = None

    @property
    def strong(self) -> bool:
        """Whether it is of a kind that signs, and an RSA key of at least 2048 bits."""
        modulus = self.jwk.get("n")
        return self.jwk.get("kty") in ("EC", "OKP") or (isinstance(modulus, str) and len(modulus) >= _RSA_2048)

    def fits(self, algorithm: str, name: Any) -> bool:
        """Whether it may have signed something with this algorithm, under this name."""
        jwk, curve = self.jwk, _CURVES.get(algorithm)
        return (
            jwk.get("kty") == _KINDS[algorithm[:2]]
            and (curve is None or jwk.get("crv") == curve)
            and jwk.get("alg", algorithm) == algorithm
            and (name is None or jwk.get("kid") == name)
        )

    def claims(self, token: str, algorithm: str) -> dict[str, Any]:
        """The claims of a token it signed; an error of joserfc's, ValueError or TypeError if it did not."""
        from joserfc import jwk, jws

        with _quiet(algorithm):
            if self._ready is None:
                self._ready = jwk.import_key({name: value for name, value in self.jwk.items() if name != "key_ops"})
            registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
            signed = jws.deserialize_compact(token, self._ready, algorithms=[algorithm], registry=registry)
        return _claims(signed.payload)

    def thumbprint(self) -> str:
        """RFC 7638."""
        from joserfc import jwk

        return jwk.import_key(self.jwk).thumbprint()


def _claims(payload: bytes | None) -> dict[str, Any]:
    """What was signed, by whomever that was: read as strictly as what anyone sends."""
    try:
        found = decode(payload or b"")
    except ParseError as exc:
        raise Rejected("the token's claims cannot be read", str(exc)) from None
    if not isinstance(found, dict):
        raise Rejected("the token has no claims")
    return found


Keys = list[Key]


@contextmanager
def _quiet(algorithm: str) -> Generator[None]:
    """joserfc warns of the older name of the same signature."""
    if algorithm != "EdDSA":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def allowed(algorithms: Collection[str]) -> tuple[str, ...]:
    """The allow-list, if everything in it is a signature by a private key."""
    named = (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
    wrong = [one for one in named if one not in ASYMMETRIC]
    if wrong or not named:
        raise ValueError(f"algorithms must be some of {', '.join(ASYMMETRIC)}, not {', '.join(wrong) or 'none'}")
    return named


def read(document: Mapping[str, Any]) -> Keys:
    """The keys in a JWK set that can check signatures: public ones, never a shared secret."""
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise ValueError("no JWK set: it has no list of keys")
    found = [one for one in listed[:_MOST_KEYS] if isinstance(one, dict) and one.get("use", "sig") == "sig"]
    return [key for key in map(Key, found) if key.strong]


def given(keys: "Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str]") -> Keys:
    """Keys as an author gives them: a JWK set, JWKs, or PEM texts."""
    if isinstance(keys, Mapping):
        return read(keys if "keys" in keys else {"keys": [dict(keys)]})
    if isinstance(keys, str):
        return [_from_pem(keys)]
    if not isinstance(keys, list | tuple):
        raise ValueError(_NO_KEYS)
    return [key for one in keys for key in given(one)]


def _from_pem(text: str) -> Key:
    from joserfc import jwk
    from joserfc.errors import JoseError

    for kind in ("EC", "RSA", "OKP"):
        try:
            return Key(jwk.import_key(text, kind).as_dict(private=False))
        except (JoseError, ValueError, TypeError):
            continue
    raise ValueError(_NO_KEYS)


def head(token: str) -> dict[str, Any]:
    """The header of a token, not yet believed."""
    return _part(token, 0)


def unverified(token: str) -> dict[str, Any]:
    """The claims of a token, not yet believed: only to find out who should be asked about it."""
    return _part(token, 1)


def names_issuer(token: str, issuer: str) -> bool:
    """Whether a token says that this issuer made it, not yet believed."""
    try:
        return unverified(token).get("iss") == issuer
    except Rejected:
        return False


def _part(token: str, place: int) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3 or len(token) > LONGEST:
        raise Rejected("the token is not a signed JWT")
    try:
        found = plain(urlsafe_b64decode(parts[place] + "=" * (-len(parts[place]) % 4)))
    except Exception:
        raise Rejected("the token is not a signed JWT") from None
    if not isinstance(found, dict):
        raise Rejected("the token is not a signed JWT")
    return found


def fitting(keys: Keys, header: Mapping[str, Any], algorithms: Collection[str]) -> Keys:
    """The keys that may have signed a token with this header; none if its algorithm is not allowed."""
    algorithm, name = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise Rejected("the token is signed in a way that is not accepted here")
    return [key for key in keys if key.fits(algorithm, name)][:_MOST_TRIED]


def verified(token: str, keys: Keys, algorithm: str) -> dict[str, Any]:
    """The claims of a token that one of these keys signed; Rejected if none did."""
    from joserfc.errors import JoseError

    for key in keys:
        try:
            return key.claims(token, algorithm)
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
    raise Rejected("the token's signature is not good")
