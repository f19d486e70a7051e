"""Proofs of possession, checked: that whoever shows a bound token holds the key it is bound to. RFC 9449, section 4.3

A proof is good once, for one method and address, for a short while. What has been seen is remembered that long; when
there is no more room to remember, proofs are refused rather than let through twice.
"""

import hashlib
import hmac
import secrets
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.auth import keys as signing
from dovetail.auth.claims import Rejected, Unavailable, moment
from dovetail.auth.keys import ASYMMETRIC, Key
from dovetail.auth.proofs import digest

ALGORITHMS: Final = tuple(one for one in ASYMMETRIC if one != "EdDSA")

_WINDOW: Final = 60.0  # seconds a proof may be old, or early
MAX_REMEMBERED_PROOFS: Final = 100_000
_LONGEST_ID: Final = 256
_SLOT: Final = 300.0  # seconds after which another nonce is given out


class UseNonce(Rejected):
    """The proof must repeat a nonce of ours."""


class Possession:
    """Checks proofs, and remembers those it has seen."""

    def __init__(self, *, nonces: bool = False, secret: str | bytes | None = None) -> None:
        material = secret.encode() if isinstance(secret, str) else secret
        if material is not None and len(material) < 16:
            raise ValueError("a secret needs at least 16 bytes")
        self._nonces = nonces
        self._secret = secrets.token_bytes(32) if material is None else material
        self._seen: dict[bytes, float] = {}

    def check(self, proof: str | None, *, method: str, url: str, token: str | None, now: float) -> str:
        """The thumbprint of the key whose holder made this proof for this request, just now and never before."""
        if not proof:
            raise Rejected("a DPoP proof is required")
        header = signing.head(proof)
        key = _key(header)
        claims = signing.verified(proof, signing.fitting([key], {"alg": header.get("alg")}, ALGORITHMS), header["alg"])
        if claims.get("htm") != method or not _same(claims.get("htu"), url):
            raise Rejected("the DPoP proof is for another request")
        made, name = moment(claims, "iat"), claims.get("jti")
        if made is None or not abs(now - made) <= _WINDOW:
            raise Rejected("the DPoP proof is not of this moment")
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_ID:
            raise Rejected("the DPoP proof has no usable jti")
        if token is not None and claims.get("ath") != digest(token):
            raise Rejected("the DPoP proof is for another token")
        if self._nonces and claims.get("nonce") not in (self.nonce(now), self.nonce(now - _SLOT)):
            raise UseNonce("the DPoP proof must repeat the nonce")
        thumbprint = key.thumbprint()
        self._once(f"{thumbprint} {name}", now)
        return thumbprint

    def nonce(self, now: float) -> str:
        """The nonce of this moment; it needs no memory."""
        return hmac.digest(self._secret, b"dpop nonce %d" % int(now // _SLOT), "sha256").hex()[:32]

    def _once(self, name: str, now: float) -> None:
        mark = hashlib.sha256(name.encode()).digest()
        if self._seen.get(mark, now) > now:
            raise Rejected("the DPoP proof was used before")
        if len(self._seen) >= MAX_REMEMBERED_PROOFS:
            self._seen = {one: until for one, until in self._seen.items() if until > now}
        if len(self._seen) >= MAX_REMEMBERED_PROOFS:
            raise Unavailable("too many DPoP proofs at once")
        self._seen[mark] = now + 2 * _WINDOW


def confirmed(claims: Any, thumbprint: str | None) -> None:
    """A token bound to a key is shown with proof of that key, and one that is not with none. RFC 9449, section 7.1"""
    bound = claims.get("cnf")
    if bound is None:
        if thumbprint is not None:
            raise Rejected("the token is not bound to a key")
        return
    wanted = bound.get("jkt") if isinstance(bound, dict) else None
    if not isinstance(wanted, str):
        raise Rejected("the token is bound in a way that cannot be checked here")
    if thumbprint is None or not hmac.compare_digest(wanted.encode(), thumbprint.encode()):
        raise Rejected("the token is bound to a key, of which there is no proof")


def _key(header: dict[str, Any]) -> Key:
    jwk = header.get("jwk")
    if str(header.get("typ", "")).lower() != "dpop+jwt" or not isinstance(jwk, dict) or "d" in jwk or "k" in jwk:
        raise Rejected("the DPoP proof is none")
    key = Key({name: value for name, value in jwk.items() if name not in ("alg", "kid", "use", "key_ops")})
    if not key.strong:
        raise Rejected("the DPoP proof is signed with a key that is not accepted")
    return key


def _same(said: Any, url: str) -> bool:
    return isinstance(said, str) and _plain(said) == _plain(url)


def _plain(url: str) -> tuple[str, str, int | None, str]:
    """An address without query and fragment, its host in lower case, its port said. RFC 9449, section 4.3"""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return "", "", None, ""
    return parts.scheme, (parts.hostname or "").lower(), port, parts.path.rstrip("/")
