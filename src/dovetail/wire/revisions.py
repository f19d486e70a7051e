"""The revisions of the protocol, oldest first, and the two eras they fall into.

Handshake revisions open a session with `initialize`; stateless ones carry everything in each request.
`DRAFT` is a dialect of the handshake era: one more row, not a second implementation.
"""

from typing import Final

R_2024_11_05: Final = "2024-11-05"
R_2025_03_26: Final = "2025-03-26"
R_2025_06_18: Final = "2025-06-18"
R_2025_11_25: Final = "2025-11-25"
R_2026_07_28: Final = "2026-07-28"
DRAFT: Final = "draft"

HANDSHAKE: Final = (R_2024_11_05, R_2025_03_26, R_2025_06_18, R_2025_11_25)
STATELESS: Final = (R_2026_07_28,)
PUBLISHED: Final = HANDSHAKE + STATELESS
REVISIONS: Final = (*PUBLISHED, DRAFT)

NEWEST: Final = R_2026_07_28
NEWEST_HANDSHAKE: Final = R_2025_11_25

# A handshake HTTP request that names no revision speaks this one. spec: streamable-http#protocol-version-header
UNNAMED_HTTP: Final = R_2025_03_26

# The draft dialect has what the newest handshake revision has; only spellings differ.
_ORDER: Final = {revision: place for place, revision in enumerate(PUBLISHED)} | {DRAFT: len(HANDSHAKE) - 1}


def order(revision: str) -> int:
    """The revision's place in time, to compare with another's."""
    return _ORDER[revision]


def older(revision: str, than: str) -> bool:
    """Whether the revision was published before the other."""
    return _ORDER[revision] < _ORDER[than]


def stateless(revision: str) -> bool:
    """Whether the revision belongs to the stateless era."""
    return revision in STATELESS


def within(revision: str, since: str, until: str | None) -> bool:
    """Whether something that exists from `since` up to, not including, `until` exists in this revision."""
    place = _ORDER[revision]
    return _ORDER[since] <= place and (until is None or place < _ORDER[until])
