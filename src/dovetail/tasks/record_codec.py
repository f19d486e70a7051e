"""Convert task records to the bytes in a task store, and back. With secret keys, the bytes are encrypted."""

import time
from collections.abc import Sequence
from typing import Final

from dovetail.protocol.sealer import Sealer, UnsealError
from dovetail.tasks.task_record import TaskEncrypted, TaskRecord, decode_record, encode_record

_ID_PLACE: Final = b"task-id"
_SEALED_START: Final = b"\x01"  # Only encrypted data starts with this byte.


class RecordCodec:
    """Encodes and decodes the records of one store. An encrypted record is valid only for its own task ID."""

    def __init__(self, secret_keys: Sequence[str | bytes]) -> None:
        self._sealer = Sealer(secret_keys, purpose="tasks") if secret_keys else None

    def encode(self, record: TaskRecord) -> bytes:
        """Return a record as bytes."""
        data = encode_record(record)
        return data if self._sealer is None else self._sealer.seal(data, record.id.encode())

    def encode_id(self, id: str) -> bytes:
        """Return a task ID as bytes. With secret keys, the bytes are encrypted."""
        return id.encode() if self._sealer is None else self._sealer.seal(id.encode(), _ID_PLACE)

    def decode_id(self, data: bytes) -> str:
        """Return a task ID. Raise TaskEncrypted if the secret keys do not fit the data."""
        return self._open(data, _ID_PLACE).decode()

    def decode(self, id: str, data: bytes) -> TaskRecord:
        """Return the record of a task. Raise TaskEncrypted if the secret keys do not fit the data."""
        return decode_record(self._open(data, id.encode()))

    def _open(self, data: bytes, place: bytes) -> bytes:
        if data.startswith(_SEALED_START):
            if self._sealer is None:
                raise TaskEncrypted("the task is encrypted. Pass the secret keys with which it was encrypted")
            try:
                return self._sealer.open(data, place, time.time())
            except UnsealError as exc:
                raise TaskEncrypted(f"the task cannot be decrypted: {exc}") from None
        if self._sealer is not None:
            # An attacker who can write to the store could add an unencrypted task with the rights of any caller.
            raise TaskEncrypted("the task is not encrypted, but the store has secret keys")
        return data
