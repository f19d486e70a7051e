"""A memory of used IDs, which accepts each ID only once.

Each ID has an owner and the time when it was issued, and is valid for a limited time. If the memory is full, the oldest
IDs of the owners with the most IDs are dropped. From then on, all IDs of these owners with the same age are rejected.
So no ID is accepted twice, and no owner can use up the memory of the others.
"""

from collections.abc import Hashable
from typing import Any

from dovetail.wire.base import Struct, field

_SWEEPS_PER_LIFETIME = 4  # Sweeps are rare, because a sweep reads every ID.
_FREED_SHARE = 8  # If the memory is full, at least an eighth of the IDs is removed at once.


class _OwnerIds(Struct):
    issued_at_by_id: dict[Hashable, float] = field(default_factory=dict[Hashable, float])
    rejected_until: float = float("-inf")  # IDs that were issued at or before this time are rejected.


class ReplayMemory:
    """Remembers which IDs were used, so that each ID is accepted only once. An ID is removed when it has expired."""

    def __init__(self, lifetime_s: float, max_ids: int) -> None:
        self._lifetime_s = lifetime_s
        self._max_ids = max_ids
        self._owners: dict[Hashable, _OwnerIds] = {}
        self._id_count = 0
        self._sweep_at = float("-inf")

    def has(self, owner: Hashable, id: Any, issued_at: float) -> bool:
        """Return whether an ID was used. Also return True if the ID is so old that its use may have been forgotten."""
        ids = self._owners.get(owner)
        return ids is not None and (id in ids.issued_at_by_id or issued_at <= ids.rejected_until)

    def add(self, owner: Hashable, id: Any, issued_at: float, now: float) -> bool:
        """Record the use of an ID. Return False if the ID was already used, or is too old to be accepted."""
        if self.has(owner, id, issued_at):
            return False
        if self._id_count >= self._max_ids:
            self._make_room(now)
            if self.has(owner, id, issued_at):
                return False
        self._owners.setdefault(owner, _OwnerIds()).issued_at_by_id[id] = issued_at
        self._id_count += 1
        return True

    def _make_room(self, now: float) -> None:
        if now >= self._sweep_at:
            self._sweep_at = now + self._lifetime_s / _SWEEPS_PER_LIFETIME
            oldest_valid = now - self._lifetime_s
            for owner, ids in tuple(self._owners.items()):
                self._drop_ids(ids, oldest_valid)
                if not ids.issued_at_by_id and ids.rejected_until < oldest_valid:
                    del self._owners[owner]
        if self._id_count >= self._max_ids:
            self._drop_from_largest()

    def _drop_from_largest(self) -> None:
        """Make room for new IDs. Start with the owner that has the most IDs, and remove the older half of its IDs."""
        max_count = self._max_ids - max(1, self._max_ids // _FREED_SHARE)
        for ids in sorted(self._owners.values(), key=lambda ids: len(ids.issued_at_by_id), reverse=True):
            if self._id_count <= max_count:
                return
            issue_times = sorted(ids.issued_at_by_id.values())
            ids.rejected_until = max(ids.rejected_until, issue_times[len(issue_times) // 2])
            self._drop_ids(ids, ids.rejected_until, inclusive=True)

    def _drop_ids(self, ids: _OwnerIds, until: float, *, inclusive: bool = False) -> None:
        count = len(ids.issued_at_by_id)
        ids.issued_at_by_id = {
            id: issued_at
            for id, issued_at in ids.issued_at_by_id.items()
            if issued_at > until or (issued_at == until and not inclusive)
        }
        self._id_count -= count - len(ids.issued_at_by_id)
