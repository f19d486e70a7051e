"""Keep the members that a newer release has added to a stored record, when this release changes the record.

During a rolling deploy, workers of two releases change the same records. The older release does not know all members.
"""

from typing import Any

import msgspec

from dovetail.wire.codec import encode


def keep_unknown_members(changed: bytes, known: bytes, stored: bytes) -> bytes:
    """Add the members of a stored record that this release does not know to a changed record.

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
