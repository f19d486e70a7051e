"""requestState: sealed state of a server that the client carries between the rounds of one request.

AES-GCM keeps it secret and whole; the seal also binds it to the principal and to the request it was made for, and it
expires. Every reason to refuse it looks the same from outside. The time is always an argument.

spec: mrtr#server-requirements-basic-workflow
"""

import base64
import binascii
import os
from collections.abc import Sequence
from typing import Any, Final

from dovetail.errors import InvalidParams, ParseError
from dovetail.wire.base import Struct
from dovetail.wire.codec import decode, encode, encode_canonical

_NONCE_BYTES: Final = 12
_KEY_ID_BYTES: Final = 4

MAX_STATE_BYTES: Final = 1024 * 1024


class RequestState(Struct, kw_only=True):
    """What the server knows from earlier rounds."""

    input_responses: dict[str, Any]  # by the key of the question
    request_digests: dict[str, str]  # a digest of each question asked so far
    once_values: dict[str, Any]  # values made by steps that must not run twice
    author_state: str | None = None  # an author's own


def create_empty_state() -> RequestState:
    """The state of a first round."""
    return RequestState(input_responses={}, request_digests={}, once_values={})


class Sealer:
    """Seals and opens with the first of its secrets, and opens with any: that is how secrets are rotated."""

    def __init__(self, secret_keys: Sequence[str | bytes] = ()) -> None:
        secret_keys = (secret_keys,) if isinstance(secret_keys, str | bytes) else secret_keys
        key_material = [
            secret_key.encode() if isinstance(secret_key, str) else secret_key for secret_key in secret_keys
        ]
        if any(len(secret_key) < 16 for secret_key in key_material):
            raise ValueError("a secret that seals requestState needs at least 16 bytes")
        keys = [_sha256(b"dovetail requestState " + secret_key) for secret_key in key_material]
        self._keys = keys or [os.urandom(32)]

    def seal(self, request_state: RequestState, binding: bytes, expires_at: float) -> str:
        """An opaque string only this server can read back, for this request, until then."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only servers that ask pay for it

        key, nonce = self._keys[0], os.urandom(_NONCE_BYTES)
        plaintext = encode(
            [
                int(expires_at),
                request_state.input_responses,
                request_state.request_digests,
                request_state.once_values,
                request_state.author_state,
            ]
        )
        sealed = _get_key_id(key) + nonce + AESGCM(key).encrypt(nonce, plaintext, binding)
        state = base64.urlsafe_b64encode(sealed).decode("ascii")
        if len(state) > MAX_STATE_BYTES:
            raise ValueError(
                f"what is to be remembered between two rounds is larger than {MAX_STATE_BYTES} bytes when sealed"
            )
        return state

    def open(self, state: str, binding: bytes, now: float) -> RequestState:
        """What was sealed; InvalidParams, always the same, for anything else."""
        if len(state) > MAX_STATE_BYTES:
            raise _invalid_state()
        try:
            sealed = base64.b64decode(state, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid_state() from None
        # One state, one spelling: the decoder takes both alphabets and does not look at the last bits.
        plaintext = (
            self._decrypt(sealed, binding) if base64.urlsafe_b64encode(sealed).decode("ascii") == state else None
        )
        if plaintext is None:
            raise _invalid_state()
        try:
            expires_at, input_responses, request_digests, once_values, author_state = decode(plaintext)
        except ParseError:  # the author's values may be what a peer may not send; they were ours
            raise _invalid_state() from None
        if now >= expires_at:
            raise _invalid_state()
        return RequestState(
            input_responses=input_responses,
            request_digests=request_digests,
            once_values=once_values,
            author_state=author_state,
        )

    def _decrypt(self, sealed: bytes, binding: bytes) -> bytes | None:
        from hmac import compare_digest

        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key_id, nonce, ciphertext = (
            sealed[:_KEY_ID_BYTES],
            sealed[_KEY_ID_BYTES : _KEY_ID_BYTES + _NONCE_BYTES],
            sealed[_KEY_ID_BYTES + _NONCE_BYTES :],
        )
        for key in self._keys:
            if compare_digest(_get_key_id(key), key_id):
                try:
                    return AESGCM(key).decrypt(nonce, ciphertext, binding)
                except (InvalidTag, ValueError):
                    return None
        return None


def compute_binding(principal: str | None, method: str, params: dict[str, Any]) -> bytes:
    """The request a state belongs to: who asks, and what for."""
    principal_id = None if principal is None else str(principal)
    bound_values = [principal_id, method, params.get("name"), params.get("uri"), params.get("arguments")]
    return _sha256(encode_canonical(bound_values))


def hash_request(request: Any) -> str:
    """A short mark by which a question is known again."""
    return _sha256(encode_canonical(request)).hex()[:16]


def _sha256(data: bytes) -> bytes:
    import hashlib  # loads OpenSSL: only servers that ask pay for it

    return hashlib.sha256(data).digest()


def _get_key_id(key: bytes) -> bytes:
    return _sha256(b"mark" + key)[:_KEY_ID_BYTES]


def _invalid_state() -> InvalidParams:
    return InvalidParams("Invalid params: requestState is not valid for this request")
