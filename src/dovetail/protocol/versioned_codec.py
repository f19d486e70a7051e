"""Encodes the records that workers store, send to each other or seal, with the version of their format.

A newer release can write another format. A reader that does not know the format gets None, and never a wrong value.
A new optional member needs no new format, because older releases ignore it. If they change the record, they delete the
member, except in the records of sessions. Any other change takes two releases: the first one reads both formats, and
the second one writes the new format.
"""

from typing import Final, Generic, TypeVar

import msgspec

from dovetail.wire.codec import encode

_FORMAT: Final = b"\x01"

T = TypeVar("T")


class VersionedCodec(Generic[T]):
    """Encodes and decodes the records of one type. All types have the same format version."""

    __slots__ = ("_decode",)

    def __init__(self, record_type: type[T]) -> None:
        self._decode = msgspec.json.Decoder(record_type).decode

    def encode(self, record: T) -> bytes:
        """Encode a record, with the version of its format."""
        return add_format(encode(record))

    def decode(self, data: bytes) -> T | None:
        """Decode a record. Return None if its format is unknown."""
        if data[:1] == _FORMAT:
            try:
                return self._decode(data[1:])
            except msgspec.MsgspecError:
                pass
        return None


def add_format(data: bytes) -> bytes:
    """Return encoded data with the version of its format."""
    return _FORMAT + data


def remove_format(data: bytes) -> bytes | None:
    """Return encoded data without the version of its format. Return None if the format is unknown."""
    return data[1:] if data[:1] == _FORMAT else None
