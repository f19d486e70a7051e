"""requestState: what a server must remember between two rounds of one request, carried by the client, sealed.

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
from dovetail.wire.codec import canonical, decode, encode
from dovetail.wire.shape import Struct

_NONCE: Final = 12
_KEY_MARK: Final = 4

MAX_STATE: Final = 1024 * 1024


class Remembered(Struct, kw_only=True):
    """What the server knows from earlier rounds."""

    answers: dict[str, Any]  # by the key of the question
    questions: dict[str, str]  # a digest of each question asked so far
    once: dict[str, Any]  # values made by steps that must not run twice
    state: str | None = None  # an author's own


def nothing() -> Remembered:
    """The state of a first round."""
    return Remembered(answers={}, questions={}, once={})


class Sealer:
    """Seals and opens with the first of its secrets, and opens with any: that is how secrets are rotated."""

    def __init__(self, given: Sequence[str | bytes] = ()) -> None:
        given = (given,) if isinstance(given, str | bytes) else given
        material = [secret.encode() if isinstance(secret, str) else secret for secret in given]
        if any(len(secret) < 16 for secret in material):
            raise ValueError("a secret that seals requestState needs at least 16 bytes")
        keys = [_sha256(b"dovetail requestState " + secret) for secret in material]
        self._keys = keys or [os.urandom(32)]

    def seal(self, remembered: Remembered, binding: bytes, expires: float) -> str:
        """An opaque string only this server can read back, for this request, until then."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only servers that ask pay for it

        key, nonce = self._keys[0], os.urandom(_NONCE)
        text = encode([int(expires), remembered.answers, remembered.questions, remembered.once, remembered.state])
        sealed = _mark(key) + nonce + AESGCM(key).encrypt(nonce, text, binding)
        state = base64.urlsafe_b64encode(sealed).decode("ascii")
        if len(state) > MAX_STATE:
            raise ValueError(
                f"what is to be remembered between two rounds is larger than {MAX_STATE} bytes when sealed"
            )
        return state

    def open(self, state: str, binding: bytes, now: float) -> Remembered:
        """What was sealed; InvalidParams, always the same, for anything else."""
        if len(state) > MAX_STATE:
            raise _refused()
        try:
            sealed = base64.b64decode(state, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _refused() from None
        # One state, one spelling: the decoder takes both alphabets and does not look at the last bits.
        text = self._decrypt(sealed, binding) if base64.urlsafe_b64encode(sealed).decode("ascii") == state else None
        if text is None:
            raise _refused()
        try:
            expires, answers, questions, once, own = decode(text)
        except ParseError:  # the author's values may be what a peer may not send; they were ours
            raise _refused() from None
        if now >= expires:
            raise _refused()
        return Remembered(answers=answers, questions=questions, once=once, state=own)

    def _decrypt(self, sealed: bytes, binding: bytes) -> bytes | None:
        from hmac import compare_digest

        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        mark, nonce, text = sealed[:_KEY_MARK], sealed[_KEY_MARK : _KEY_MARK + _NONCE], sealed[_KEY_MARK + _NONCE :]
        for key in self._keys:
            if compare_digest(_mark(key), mark):
                try:
                    return AESGCM(key).decrypt(nonce, text, binding)
                except (InvalidTag, ValueError):
                    return None
        return None


def binding(principal: str | None, method: str, params: dict[str, Any]) -> bytes:
    """The request a state belongs to: who asks, and what for."""
    who = None if principal is None else str(principal)
    salient = [who, method, params.get("name"), params.get("uri"), params.get("arguments")]
    return _sha256(canonical(salient))


def digest(question: Any) -> str:
    """A short mark by which a question is known again."""
    return _sha256(canonical(question)).hex()[:16]


def _sha256(data: bytes) -> bytes:
    import hashlib  # loads OpenSSL: only servers that ask pay for it

    return hashlib.sha256(data).digest()


def _mark(key: bytes) -> bytes:
    return _sha256(b"mark" + key)[:_KEY_MARK]


def _refused() -> InvalidParams:
    return InvalidParams("Invalid params: requestState is not valid for this request")
