"""Convert task records to the bytes in a task store, and back. With secret keys, the bytes are encrypted."""

import time
from collections.abc import Sequence
from typing import Final

from dovetail.protocol.sealer import Sealer, UnsealError
from dovetail.protocol.task_record import TaskEncrypted, TaskRecord, decode_record, encode_record

_SEALED_START: Final = b"\x01"  # Encrypted records start with this byte. Other records start with {


class RecordCodec:
    """Encodes and decodes the records of one store. An encrypted record is valid only for its own task ID."""

    def __init__(self, secret_keys: Sequence[str | bytes]) -> None:
        self._sealer = Sealer(secret_keys, purpose="tasks") if secret_keys else None

    def encode(self, record: TaskRecord) -> bytes:
        """Return a record as bytes."""
        data = encode_record(record)
        return data if self._sealer is None else self._sealer.seal(data, record.id.encode())

    def decode(self, id: str, data: bytes) -> TaskRecord:
        """Return the record of a task. Raise TaskEncrypted if the keys do not fit the data."""
        if data.startswith(_SEALED_START):
            if self._sealer is None:
                raise TaskEncrypted("the task is encrypted. Pass the secret keys with which it was encrypted")
            try:
                data = self._sealer.open(data, id.encode(), time.time())
            except UnsealError as exc:
                raise TaskEncrypted(f"the task cannot be decrypted: {exc}") from None
        elif self._sealer is not None:
            # An attacker who can write to the store could add an unencrypted task with the rights of any caller.
            raise TaskEncrypted("the task is not encrypted, but the store has secret keys")
        return decode_record(data)
