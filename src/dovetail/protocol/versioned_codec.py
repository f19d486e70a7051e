"""Encode records with a format version. Workers store these records, send them to each other, or seal them.

A newer release can write a newer format. `decode` returns None for a record in an unknown format.

A new optional member does not need a new format, because older releases ignore the member. If an older release changes
the record, it passes the stored record to `encode`, which keeps the member. Any other change takes two releases. The
first release reads both formats. The second release writes the new format.
"""

from typing import Any, Final, Generic, TypeVar

import msgspec

from dovetail.wire.codec import encode

_FORMAT: Final = b"\x01"

T = TypeVar("T")


class VersionedCodec(Generic[T]):
    """Encodes and decodes records of one type. All record types share one format version."""

    __slots__ = ("_decode",)

    def __init__(self, record_type: type[T]) -> None:
        self._decode = msgspec.json.Decoder(record_type).decode

    def encode(self, record: T, stored: bytes | None = None) -> bytes:
        """Encode a record, with the version of its format.

        Args:
            record: The record to encode.
            stored: The encoded record before this change. The result keeps its members that this release does not know.
        """
        data = encode(record)
        previous = None if stored is None else self.decode(stored)
        if stored is None or previous is None:
            return add_format(data)
        return add_format(keep_unknown_members(data, encode(previous), stored[1:]))

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


def keep_unknown_members(changed: bytes, known: bytes, stored: bytes) -> bytes:
    """Add the members of a stored record that this release does not know to a changed record.

    During a rolling deploy, workers of two releases change the same records. The older release does not know all
    members.

    Objects inside the record keep their unknown members, too. An object in a list keeps them unless it was changed. A
    struct that is encoded as an array keeps the values at its end.

    Args:
        changed: The changed record as JSON.
        known: The stored record, decoded and encoded again by this release.
        stored: The stored record as JSON.
    """
    if known == stored:
        return changed
    decode = msgspec.json.decode
    return encode(_merge(decode(changed), decode(known), decode(stored)))


def _merge(changed: Any, known: Any, stored: Any) -> Any:
    if isinstance(changed, dict) and isinstance(known, dict) and isinstance(stored, dict):
        unknown = {name: value for name, value in stored.items() if name not in known}
        merged = {
            name: _merge(value, known[name], stored[name]) if name in known and name in stored else value
            for name, value in changed.items()
        }
        return unknown | merged
    if isinstance(changed, list) and isinstance(known, list) and isinstance(stored, list):
        if len(stored) > len(known):  # Only structs that are encoded as arrays lose values when they are decoded.
            merged_values = [_merge(*values) for values in zip(changed, known, stored, strict=False)]
            return merged_values + stored[len(known) :]
        pairs = [pair for pair in zip(known, stored, strict=False) if pair[0] != pair[1]]
        return [next((newer for older, newer in pairs if older == item), item) for item in changed]
    return changed
