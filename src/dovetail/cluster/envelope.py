"""The format of shared data: a format version, an expiry time, and the data, which is encrypted with secret keys.

A reader gets None for data that it cannot read. Encrypted data is bound to its place, such as the name of a value, so
nobody can move it to another place.
"""

import base64
import hashlib
import os
import time
from collections.abc import Sequence
from typing import Final

from dovetail.log import ThrottledLog
from dovetail.protocol.interfaces.shared_state import MAX_MESSAGE_BYTES, Message
from dovetail.protocol.sealer import Sealer, UnsealError

# Each release also reads the format of the previous release.
# When a new format is introduced, the first release can only read the format. The next release also writes it.
FORMAT: Final = 1

NO_KEY_ID: Final = "none"
_PLAIN: Final = bytes([FORMAT, 0])
_SEALED: Final = bytes([FORMAT, 1])
_EXPIRY_BYTES: Final = 8
_DATA_START: Final = len(_PLAIN) + _EXPIRY_BYTES
# Data is accepted for this time after it has expired, because the clocks of two machines may differ.
_CLOCK_TOLERANCE_S: Final = 60.0
_NAME_BYTES: Final = 18
_WORKER_NAME_BYTES: Final = 6
_MAX_CURSOR_DIGITS: Final = 15

_unreadable_warning: Final = ThrottledLog()


class Envelope:
    """Encodes and decodes the data of one deployment."""

    def __init__(self, secret_keys: Sequence[str | bytes] = ()) -> None:
        self._sealer = Sealer(secret_keys, purpose="cluster") if secret_keys else None

    @property
    def key_ids(self) -> list[str]:
        """Return the IDs of the secret keys, newest first. Data that is not encrypted has the key ID "none"."""
        return [NO_KEY_ID] if self._sealer is None else self._sealer.key_ids

    def encode(self, data: bytes, place: str, ttl: float) -> bytes:
        """Encode data for storage at `place`. To decode the data, pass the same `place`."""
        expires_at = int(time.time() + ttl) + 1
        if self._sealer is None:
            return _PLAIN + expires_at.to_bytes(_EXPIRY_BYTES) + data
        return _SEALED + self._sealer.seal(data, place.encode(), expires_at)

    def decode(self, encoded: bytes, place: str) -> bytes | None:
        """Decode data. Return None if the data has expired, has another format, or was encoded for another `place`."""
        now = time.time() - _CLOCK_TOLERANCE_S
        start = encoded[: len(_PLAIN)]
        if start == _PLAIN and self._sealer is None:
            if now < int.from_bytes(encoded[len(_PLAIN) : _DATA_START]):
                return encoded[_DATA_START:]
            problem = "it has expired"
        elif start == _SEALED and self._sealer is not None:
            try:
                return self._sealer.open(encoded[len(_SEALED) :], place.encode(), now)
            except UnsealError as exc:
                problem = str(exc)
        elif start in (_PLAIN, _SEALED):
            problem = "some workers have secret keys and others do not"
        else:
            problem = f"unknown format version {encoded[0] if encoded else 'none'}. The supported version is {FORMAT}"
        _unreadable_warning.log("ignored data of another worker: %s", problem)
        return None

    def decode_message(self, encoded: bytes, place: str, cursor: str | None = None) -> Message | None:
        """Decode a message that `pack_message` has packed. Return None if it cannot be read."""
        data = self.decode(encoded, place)
        try:
            return None if data is None else unpack_message(data, cursor)
        except ValueError as exc:
            _unreadable_warning.log("ignored a message of another worker: %s", exc)
            return None


def hash_name(name: str) -> str:
    """Return a digest of a name. The digest is short and does not reveal the name."""
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).digest()
    return base64.urlsafe_b64encode(digest[:_NAME_BYTES]).decode("ascii")


def pack_message(kind: str, sender: str, body: bytes) -> bytes:
    """Return a message as bytes."""
    return f"{kind}\n{sender}\n".encode() + body


def unpack_message(data: bytes, cursor: str | None = None) -> Message:
    """Return a message that `pack_message` has packed."""
    kind, sender, body = data.split(b"\n", 2)
    return Message(kind.decode(), body, sender.decode(), cursor)


def parse_cursor(cursor: str, epoch: str) -> int | None:
    """Return the number in a cursor `epoch.number`. Return None if the cursor is invalid or has another epoch."""
    start, _, number = cursor.rpartition(".")
    is_valid = start == epoch and number.isascii() and number.isdecimal() and len(number) <= _MAX_CURSOR_DIGITS
    return int(number) if is_valid else None


def check_message(kind: str, body: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
    """Raise ValueError if a message cannot be sent."""
    if "\n" in kind:
        raise ValueError(f"the kind of a message must be one line, not {kind!r}")
    check_size(body, max_bytes)


def check_size(data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
    """Raise ValueError if data is too large to share."""
    if len(data) > max_bytes:
        raise ValueError(f"the data has {len(data)} bytes. The maximum is {max_bytes}")


def create_worker_name() -> str:
    """Return a new random name for a worker. Clients see the name, so it does not contain an address."""
    return os.urandom(_WORKER_NAME_BYTES).hex()


def is_worker_name(text: str) -> bool:
    """Check a worker name from a client. This is a security check, because the name becomes part of a path."""
    return len(text) == 2 * _WORKER_NAME_BYTES and all(character in "0123456789abcdef" for character in text)
