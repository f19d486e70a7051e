"""Check DPoP proofs, which show that a caller has the key to which its token is bound. RFC 9449, section 4.3

A proof is valid only once, for one method and URL, and for a short time. The checker remembers used proofs during this
time. If its memory is full, only the key with the most proofs is affected. In a cluster, the back end remembers the
used proofs of all workers.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.oauth.flow import Await, Flow
from dovetail.oauth.guard import keys as signing
from dovetail.oauth.guard.claims import TokenRejected, VerificationUnavailable, parse_timestamp
from dovetail.oauth.guard.keys import ASYMMETRIC_ALGORITHMS, PublicKey
from dovetail.oauth.proofs import sha256_base64url
from dovetail.oauth.replay_memory import ReplayMemory
from dovetail.protocol.interfaces.shared_state import HistoryLost, SharedStateUnavailable, SharedWorker, use_with_retry
from dovetail.wire.base import Struct

DPOP_ALGORITHMS: Final = tuple(algorithm for algorithm in ASYMMETRIC_ALGORITHMS if algorithm != "EdDSA")

_MAX_PROOF_AGE_S: Final = 60.0  # The time of a proof and the server's time may differ by this many seconds.
MAX_REMEMBERED_PROOFS: Final = 100_000
_MAX_JTI_CHARS: Final = 256
_NONCE_INTERVAL_S: Final = 300.0  # The nonce changes after this many seconds.
_MAX_CLUSTER_NONCE_AGE_S: Final = 600.0
_CLUSTER_NONCE_CHARS: Final = 41  # A nonce is a time in 8 hexadecimal digits, a dot and a MAC.


class NonceRequired(TokenRejected):
    """Raised if the DPoP proof must contain a nonce from this server."""


class VerifiedProof(Struct, frozen=True, kw_only=True):
    """A valid DPoP proof that may have been used before."""

    thumbprint: str
    id: bytes  # a digest of the `jti` claim
    issued_at: float
    epoch: str = ""  # the epoch of the shared state when the nonce was created, or "" without a nonce


class DPoPChecker:
    """Checks DPoP proofs. Each proof is accepted only once."""

    def __init__(self, *, require_nonce: bool = False, secret: str | bytes | None = None) -> None:
        secret_bytes = secret.encode() if isinstance(secret, str) else secret
        if secret_bytes is not None and len(secret_bytes) < 16:
            raise ValueError("a secret key must have at least 16 bytes")
        self._require_nonce = require_nonce
        self._has_secret = secret_bytes is not None
        self._secret = secrets.token_bytes(32) if secret_bytes is None else secret_bytes
        # Each key can use only a part of the memory, so that one caller cannot lock out other callers.
        self._used_proofs = ReplayMemory(_MAX_PROOF_AGE_S, MAX_REMEMBERED_PROOFS)

    def check(
        self,
        proof: str | None,
        *,
        method: str,
        url: str,
        token: str | None,
        now: float,
        token_claims: Mapping[str, Any] | None = None,
    ) -> str:
        """Check a DPoP proof and return the thumbprint of its key.

        The proof must be recent, unused and for this request. If `token_claims` is set, the token must be bound to the
        key.
        """
        verified = self._verify(proof, method, url, token, now, token_claims, None)
        if not self._used_proofs.add(verified.thumbprint, verified.id, verified.issued_at, now):
            raise TokenRejected("the DPoP proof was already used")
        return verified.thumbprint

    def check_in_cluster(
        self,
        cluster: SharedWorker,
        proof: str | None,
        *,
        method: str,
        url: str,
        token: str | None,
        now: float,
        token_claims: Mapping[str, Any] | None = None,
    ) -> Flow[str]:
        """Check a DPoP proof like `check`. After this call, no worker of the cluster accepts the same proof.

        Raises:
            NonceRequired: the back end has lost its records, so the client must create a new proof.
            VerificationUnavailable: the back end cannot be used now.
        """
        verified = self._verify(proof, method, url, token, now, token_claims, cluster)
        yield Await(_use_in_cluster(cluster, verified, now))
        return verified.thumbprint

    def _verify(
        self,
        proof: str | None,
        method: str,
        url: str,
        token: str | None,
        now: float,
        token_claims: Mapping[str, Any] | None,
        cluster: SharedWorker | None,
    ) -> VerifiedProof:
        if not proof:
            raise TokenRejected("a DPoP proof is required")
        header = signing.read_header(proof)
        key = _read_proof_key(header)
        claims = signing.verify_signature(
            proof, signing.select_keys([key], {"alg": header.get("alg")}, DPOP_ALGORITHMS), header["alg"]
        )
        if claims.get("htm") != method or not _is_same_url(claims.get("htu"), url):
            raise TokenRejected("the DPoP proof is for another request")
        issued_at, proof_id = parse_timestamp(claims, "iat"), claims.get("jti")
        if issued_at is None or not abs(now - issued_at) <= _MAX_PROOF_AGE_S:
            raise TokenRejected("the time of the DPoP proof is too old or in the future")
        if not isinstance(proof_id, str) or not 0 < len(proof_id) <= _MAX_JTI_CHARS:
            raise TokenRejected("the DPoP proof has no valid `jti` claim")
        if token is not None and claims.get("ath") != sha256_base64url(token):
            raise TokenRejected("the DPoP proof is for another token")
        nonce = claims.get("nonce")
        has_nonce = (
            nonce in (self.current_nonce(now), self.current_nonce(now - _NONCE_INTERVAL_S))
            if cluster is None
            else self._is_cluster_nonce(nonce, cluster, now)
        )
        if self._require_nonce and not has_nonce:
            raise NonceRequired("the DPoP proof must contain the server's nonce")
        thumbprint = key.thumbprint()
        if token_claims is not None:
            # Check the key before the proof is stored, so that a proof with a wrong key is not stored.
            check_confirmation(token_claims, thumbprint)
        return VerifiedProof(
            thumbprint=thumbprint,
            id=hashlib.sha256(proof_id.encode()).digest(),
            issued_at=issued_at,
            # A proof cannot be older than its nonce.
            epoch=cluster.state.get_status().epoch if cluster is not None and has_nonce else "",
        )

    def current_nonce(self, now: float, cluster: SharedWorker | None = None) -> str:
        """Return the current nonce. The server computes the nonce from the time and does not store it.

        In a cluster, every worker can check the nonce, until the back end loses records.
        """
        if cluster is None:
            return hmac.digest(self._secret, b"dpop nonce %d" % int(now // _NONCE_INTERVAL_S), "sha256").hex()[:32]
        key, epoch = self._list_nonce_keys(cluster)[0], cluster.state.get_status().epoch
        return _compute_cluster_nonce(key, f"{int(now):08x}", epoch)

    def _is_cluster_nonce(self, nonce: Any, cluster: SharedWorker, now: float) -> bool:
        if not isinstance(nonce, str) or len(nonce) != _CLUSTER_NONCE_CHARS or not nonce.isascii():
            return False
        time_text, epoch = nonce[:8], cluster.state.get_status().epoch
        keys = self._list_nonce_keys(cluster)
        is_authentic = any(hmac.compare_digest(nonce, _compute_cluster_nonce(key, time_text, epoch)) for key in keys)
        return is_authentic and abs(now - int(time_text, 16)) <= _MAX_CLUSTER_NONCE_AGE_S

    def _list_nonce_keys(self, cluster: SharedWorker) -> Sequence[bytes]:
        if self._has_secret:
            return (self._secret,)
        return [key.encode() if isinstance(key, str) else key for key in cluster.secret_keys]


async def _use_in_cluster(cluster: SharedWorker, proof: VerifiedProof, now: float) -> None:
    name, ttl = f"dpop:{proof.thumbprint}:{proof.id.hex()}", proof.issued_at + _MAX_PROOF_AGE_S - now
    try:
        # The time in a proof may be in the future, so the proof may have been used before that time.
        valid_from = proof.issued_at - _MAX_PROOF_AGE_S
        is_first = await use_with_retry(cluster.state, name, valid_from, ttl, proof.epoch)
    except HistoryLost:
        raise NonceRequired(
            "the DPoP proof may have been used before. Create a new proof with the nonce of this response"
        ) from None
    except SharedStateUnavailable as exc:
        raise VerificationUnavailable("the shared state of the workers cannot be used", str(exc)) from exc
    if not is_first:
        raise TokenRejected("the DPoP proof was already used")


def _compute_cluster_nonce(key: bytes, time_text: str, epoch: str) -> str:
    return f"{time_text}.{hmac.digest(key, f'dpop nonce {time_text} {epoch}'.encode(), 'sha256').hex()[:32]}"


def check_confirmation(claims: Any, thumbprint: str | None) -> None:
    """Raise TokenRejected unless a token and a DPoP proof belong together. RFC 9449, section 7.1

    A token that is bound to a key needs a proof of this key. Any other token must come without a proof.
    """
    confirmation = claims.get("cnf")
    if confirmation is None:
        if thumbprint is not None:
            raise TokenRejected("the token is not bound to a key")
        return
    expected = confirmation.get("jkt") if isinstance(confirmation, dict) else None
    if not isinstance(expected, str):
        raise TokenRejected("the token has a `cnf` claim that this server cannot check")
    if thumbprint is None or not hmac.compare_digest(expected.encode(), thumbprint.encode()):
        raise TokenRejected("the token is bound to a key, but the request contains no DPoP proof")


def _read_proof_key(header: dict[str, Any]) -> PublicKey:
    jwk = header.get("jwk")
    if str(header.get("typ", "")).lower() != "dpop+jwt" or not isinstance(jwk, dict) or "d" in jwk or "k" in jwk:
        raise TokenRejected("the DPoP proof is invalid")
    key = PublicKey({name: value for name, value in jwk.items() if name not in ("alg", "kid", "use", "key_ops")})
    if not key.is_strong:
        raise TokenRejected("the DPoP proof is signed with an unsupported key")
    return key


def _is_same_url(claimed_url: Any, url: str) -> bool:
    return isinstance(claimed_url, str) and _normalize_url(claimed_url) == _normalize_url(url)


def _normalize_url(url: str) -> tuple[str, str, int | None, str]:
    """Remove the query and fragment of a URL, and normalize the host and port. RFC 9449, section 4.3"""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return "", "", None, ""
    return parts.scheme, (parts.hostname or "").lower(), port, parts.path.rstrip("/")
