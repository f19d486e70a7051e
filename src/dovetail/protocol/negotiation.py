"""Negotiate the protocol version with a server. A pure state machine returns the next request to send.

The client sends `server/discover` first. If it succeeds, or fails with an error that only stateless servers send, the
client uses a stateless protocol version. Any other response, or no response, leads to a handshake. No single error code
decides. spec: stdio#backward-compatibility
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from dovetail.error_context import add_context
from dovetail.errors import HeaderMismatch, MissingClientCapability, UnsupportedProtocolVersion, VersionNegotiationError
from dovetail.wire.lifecycle import DiscoverResult
from dovetail.wire.revisions import DRAFT, HANDSHAKE_REVISIONS, STATELESS_REVISIONS

Era = Literal["stateless", "handshake"]

ERAS: Final[tuple[Era, ...]] = get_args(Era)

DISCOVER: Final = "server/discover"
INITIALIZE: Final = "initialize"

# Only servers with a stateless protocol version send these error codes.
_STATELESS_CODES: Final = frozenset(
    {HeaderMismatch.code, MissingClientCapability.code, UnsupportedProtocolVersion.code}
)


class VersionNegotiation:
    """Negotiates the protocol version with a server.

    `next_method` is the next request to send, DISCOVER or INITIALIZE. It is None when the client and the server
    have agreed on the version `revision`.
    """

    def __init__(self, protocol_version: str | None = None) -> None:
        self._requested_revision = None if protocol_version in ERAS else protocol_version
        self._tried_revisions: list[str] = []
        self._is_automatic = protocol_version is None
        self._stateless_revisions = _allowed_revisions(protocol_version, "stateless", STATELESS_REVISIONS)
        self._handshake_revisions = _allowed_revisions(
            protocol_version, "handshake", (DRAFT,) if protocol_version == DRAFT else HANDSHAKE_REVISIONS
        )
        self.next_method: str | None
        if self._stateless_revisions:
            self.next_method, self.revision = DISCOVER, self._stateless_revisions[-1]
        else:
            self.next_method, self.revision = INITIALIZE, self._handshake_revisions[-1]

    @property
    def can_fall_back(self) -> bool:
        """Return whether the client should try a handshake if the server does not respond."""
        return bool(self._handshake_revisions)

    def handle_discovery(self, result: DiscoverResult, *, is_final: bool = True) -> None:
        """Choose a protocol version from the result of `server/discover`.

        If `is_final` is False, the client sends `server/discover` again in that version.
        """
        self._choose_revision(result.supported_versions, None if is_final else DISCOVER)

    def handle_discovery_error(self, code: int, data: Any) -> bool:
        """Handle an error of `server/discover`. Return whether the negotiation can continue."""
        if code == UnsupportedProtocolVersion.code and isinstance(data, dict):
            offered: Any = data.get("supported")
            if isinstance(offered, list):
                self._tried_revisions.append(self.revision)
                self._choose_revision(offered, DISCOVER)
                return True
        if code in _STATELESS_CODES:
            return False  # The server has only stateless versions, so a handshake would fail, too.
        self.fall_back()
        return True

    def fall_back(self) -> None:
        """Switch to the protocol versions with a handshake."""
        if not self._handshake_revisions:
            raise add_context(
                VersionNegotiationError("the server does not support the stateless protocol versions"),
                hint='remove protocol_version=, or pass protocol_version="handshake"',
            )
        self.next_method, self.revision = INITIALIZE, self._handshake_revisions[-1]

    def require_stateless(self) -> None:
        """Offer only stateless protocol versions, because the server does not support `initialize`."""
        self._handshake_revisions = ()

    def handle_initialize(self, revision: str) -> None:
        """Check the version that the server chose for the session."""
        if revision not in HANDSHAKE_REVISIONS and revision != DRAFT:
            raise self._no_common_revision([revision])
        if self._requested_revision is not None and revision != self._requested_revision:
            raise add_context(
                VersionNegotiationError(f"the server chose version {revision} instead of {self._requested_revision}"),
                hint=f"leave out protocol_version=, or pass protocol_version={revision!r}",
            )
        self.next_method, self.revision = None, revision

    def handle_initialize_error(self, data: Any) -> bool:
        """Handle an error response to `initialize`. Return True if the client should try another version."""
        offered: Any = data.get("supported") if isinstance(data, dict) else None
        if not isinstance(offered, list):
            return False
        self._tried_revisions.append(self.revision)
        self._choose_revision(offered, DISCOVER)
        return True

    def _choose_revision(self, offered: Sequence[Any], stateless_method: str | None) -> None:
        """Choose the newest stateless version that the server supports, or else the newest handshake version.

        If the server rejected a version but offers it, the client tries that version once more.
        """
        for candidates, next_method in (
            (self._stateless_revisions, stateless_method),
            (self._handshake_revisions, INITIALIZE),
        ):
            common_revisions = [
                revision for revision in candidates if revision in offered and self._tried_revisions.count(revision) < 2
            ]
            if common_revisions:
                self.next_method, self.revision = next_method, common_revisions[-1]
                return
        raise self._no_common_revision(offered)

    def _no_common_revision(self, offered: Sequence[Any]) -> VersionNegotiationError:
        theirs = ", ".join(str(revision)[:32] for revision in offered[:8]) or "no version"
        ours = ", ".join((*self._handshake_revisions, *self._stateless_revisions))
        return add_context(
            VersionNegotiationError(
                f"no common protocol version: the server supports {theirs}, and this client accepts {ours}"
            ),
            hint="update the server or this client, whichever is older"
            if self._is_automatic
            else "remove protocol_version=",
        )


def _allowed_revisions(protocol_version: str | None, era: Era, era_revisions: Sequence[str]) -> tuple[str, ...]:
    if protocol_version is None or protocol_version == era:
        return tuple(era_revisions)
    return (protocol_version,) if protocol_version in era_revisions else ()


def check_protocol_version(protocol_version: str | None) -> None:
    """Raise ValueError unless the value is a known protocol version, "handshake", "stateless" or None."""
    known = (*HANDSHAKE_REVISIONS, *STATELESS_REVISIONS, DRAFT, *ERAS)
    if protocol_version is not None and protocol_version not in known:
        raise ValueError(f"protocol_version= must be one of {', '.join(known)}, not {protocol_version!r}")
