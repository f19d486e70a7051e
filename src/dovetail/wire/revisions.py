"""The protocol versions, oldest first. They belong to two groups, handshake versions and stateless versions.

Handshake versions open a session with `initialize`. In stateless versions, each request contains everything the server
needs. `DRAFT` is a variant of the handshake versions, with a separate row in the tables.
"""

from typing import Final

R_2024_11_05: Final = "2024-11-05"
R_2025_03_26: Final = "2025-03-26"
R_2025_06_18: Final = "2025-06-18"
R_2025_11_25: Final = "2025-11-25"
R_2026_07_28: Final = "2026-07-28"
DRAFT: Final = "draft"

HANDSHAKE_REVISIONS: Final = (R_2024_11_05, R_2025_03_26, R_2025_06_18, R_2025_11_25)
STATELESS_REVISIONS: Final = (R_2026_07_28,)
PUBLISHED_REVISIONS: Final = HANDSHAKE_REVISIONS + STATELESS_REVISIONS
REVISIONS: Final = (*PUBLISHED_REVISIONS, DRAFT)
PROTOCOL_VERSIONS: Final = (*reversed(PUBLISHED_REVISIONS), DRAFT)  # The newest published version is first.

NEWEST_REVISION: Final = R_2026_07_28
NEWEST_HANDSHAKE_REVISION: Final = R_2025_11_25

# These versions have completion, but no server capability for it.
REVISIONS_WITHOUT_COMPLETIONS: Final = (R_2024_11_05, DRAFT)

# the version of an HTTP request without the MCP-Protocol-Version header
# spec: streamable-http#protocol-version-header
DEFAULT_HTTP_REVISION: Final = R_2025_03_26

# The draft has the features of the newest handshake version, under different names.
_ORDER: Final = {revision: place for place, revision in enumerate(PUBLISHED_REVISIONS)} | {
    DRAFT: len(HANDSHAKE_REVISIONS) - 1
}


def get_order(revision: str) -> int:
    """Return the position of a protocol version in the order of publication."""
    return _ORDER[revision]


def is_older(revision: str, other: str) -> bool:
    """Return whether a protocol version was published before another version."""
    return _ORDER[revision] < _ORDER[other]


def is_stateless(revision: str) -> bool:
    """Return whether a protocol version is stateless, which means that it has no handshake."""
    return revision in STATELESS_REVISIONS


def is_within(revision: str, since: str, until: str | None) -> bool:
    """Return whether a protocol version is `since` or later, and older than `until`."""
    position = _ORDER[revision]
    return _ORDER[since] <= position and (until is None or position < _ORDER[until])
