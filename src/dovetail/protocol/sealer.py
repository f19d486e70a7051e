"""Encrypt values with AES-GCM. Others can store and return an encrypted value, but cannot read or change it.

An encrypted value consists of a format version, the ID of its key, a nonce, and the encrypted expiry time and data.
"""

import base64
import os
from collections.abc import Sequence
from typing import Any, Final

from dovetail.wire.base64url import decode_base64url

_VERSION: Final = b"\x01"
_KEY_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_EXPIRY_BYTES: Final = 8
_NONCE_START: Final = len(_VERSION) + _KEY_ID_BYTES
_DATA_START: Final = _NONCE_START + _NONCE_BYTES
MIN_SECRET_BYTES: Final = 16
_NEVER: Final = 2 ** (8 * _EXPIRY_BYTES) - 1


class UnsealError(ValueError):
    """Raised if an encrypted value cannot be decrypted."""


class Sealer:
    """Encrypts values with its first secret key, and decrypts them with any key. Without keys, it creates a random key.

    A value can only be decrypted for the purpose and in the context for which it was encrypted.
    """

    def __init__(self, secret_keys: Sequence[str | bytes] | str | bytes = (), *, purpose: str) -> None:
        keys = (secret_keys,) if isinstance(secret_keys, str | bytes) else secret_keys
        secrets = [key.encode() if isinstance(key, str) else key for key in keys]
        if any(len(secret) < MIN_SECRET_BYTES for secret in secrets):
            raise ValueError(f"a secret key must have at least {MIN_SECRET_BYTES} bytes")
        self._secrets = secrets or [os.urandom(32)]
        self._purpose = purpose.encode()
        self._ciphers: dict[bytes, Any] = {}  # ciphers by key ID, newest first

    @property
    def key_ids(self) -> list[str]:
        """Return the IDs of the keys, newest first. Each encrypted value contains the ID of its key as plain text."""
        return [key_id.hex() for key_id in self._ciphers or self._create_ciphers()]

    def seal(self, data: bytes, context: bytes, expires_at: float | None = None) -> bytes:
        """Encrypt data. To decrypt the data, pass the same `context`."""
        key_id, cipher = next(iter((self._ciphers or self._create_ciphers()).items()))
        nonce = os.urandom(_NONCE_BYTES)
        expiry = (_NEVER if expires_at is None else int(expires_at)).to_bytes(_EXPIRY_BYTES)
        return _VERSION + key_id + nonce + cipher.encrypt(nonce, expiry + data, context)

    def open(self, sealed: bytes, context: bytes, now: float) -> bytes:
        """Decrypt a value. Raise UnsealError if the value was changed, has expired or belongs to another context."""
        from cryptography.exceptions import InvalidTag

        if sealed[:1] != _VERSION:
            version = sealed[0] if sealed else "none"
            raise UnsealError(
                f"unknown format version {version} of an encrypted value. The supported version is {_VERSION[0]}"
            )
        cipher = (self._ciphers or self._create_ciphers()).get(sealed[len(_VERSION) : _NONCE_START])
        if cipher is None:
            raise UnsealError("the value was encrypted with another secret key")
        try:
            data = cipher.decrypt(sealed[_NONCE_START:_DATA_START], sealed[_DATA_START:], context)
        except (InvalidTag, ValueError):
            raise UnsealError("the encrypted value was changed, or was encrypted for another purpose") from None
        if now >= int.from_bytes(data[:_EXPIRY_BYTES]):
            raise UnsealError("the encrypted value has expired")
        return data[_EXPIRY_BYTES:]

    def seal_text(self, data: bytes, context: bytes, expires_at: float | None = None) -> str:
        """Encrypt data as URL-safe text."""
        return base64.urlsafe_b64encode(self.seal(data, context, expires_at)).decode("ascii")

    def open_text(self, text: str, context: bytes, now: float) -> bytes:
        """Decrypt a text from `seal_text`. Raise UnsealError if it is invalid."""
        try:
            sealed = decode_base64url(text)
        except ValueError:
            raise UnsealError("the text is not an encrypted value") from None
        # Several base64 texts can decode to the same value. Accept only the text that the encoder creates.
        if base64.urlsafe_b64encode(sealed).decode("ascii") != text:
            raise UnsealError("the text is not an encrypted value")
        return self.open(sealed, context, now)

    def _create_ciphers(self) -> dict[bytes, Any]:
        import hashlib
        import hmac

        # This import is here because the library is slow to import, and few servers need it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        keys = [hmac.digest(secret, b"dovetail " + self._purpose, "sha256") for secret in self._secrets]
        ciphers: dict[bytes, Any] = {}
        for key in keys:
            ciphers.setdefault(hashlib.sha256(b"key id" + key).digest()[:_KEY_ID_BYTES], AESGCM(key))
        self._ciphers = ciphers
        return ciphers
