"""Negotiate the era and the protocol version with a server. A pure state machine that says what to send.

A discovery goes first. Its answer, or a refusal only a stateless server gives, settles the question; any other answer,
or silence, means a handshake. Never keyed to one error code. spec: stdio#backward-compatibility
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

# What only a server of the stateless era answers.
_STATELESS_CODES: Final = frozenset(
    {HeaderMismatch.code, MissingClientCapability.code, UnsupportedProtocolVersion.code}
)


class VersionNegotiation:
    """`send` is the next request, DISCOVER or INITIALIZE, in `revision`; None when the revision is settled."""

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
        """Whether a silent server may be tried with a handshake."""
        return bool(self._handshake_revisions)

    # What came back from a discovery

    def handle_discovery(self, result: DiscoverResult, *, is_final: bool = True) -> None:
        """The server speaks the stateless era, and says which revisions; unless that settles it, it is asked again."""
        self._choose_revision(result.supported_versions, None if is_final else DISCOVER)

    def handle_discovery_error(self, code: int, data: Any) -> bool:
        """An error response to a discovery; whether it tells what to do, which only a stateless server's does."""
        if code == UnsupportedProtocolVersion.code and isinstance(data, dict):
            offered: Any = data.get("supported")
            if isinstance(offered, list):
                self._tried_revisions.append(self.revision)
                self._choose_revision(offered, DISCOVER)
                return True
        if code in _STATELESS_CODES:
            return False  # stateless, but something else is wrong
        self.fall_back()
        return True

    def fall_back(self) -> None:
        """Not a server of the stateless era: open a session."""
        if not self._handshake_revisions:
            raise add_context(
                VersionNegotiationError("the server does not speak the stateless era of the protocol"),
                hint='leave out protocol_version=, or pass protocol_version="handshake"',
            )
        self.next_method, self.revision = INITIALIZE, self._handshake_revisions[-1]

    def require_stateless(self) -> None:
        """The server has shown that it speaks the stateless era: nothing else is tried any more."""
        self._handshake_revisions = ()

    # What came back from initialize

    def handle_initialize(self, revision: str) -> None:
        """The server settled the revision of the session."""
        if revision not in HANDSHAKE_REVISIONS and revision != DRAFT:
            raise self._no_common_revision([revision])
        if self._requested_revision is not None and revision != self._requested_revision:
            raise add_context(
                VersionNegotiationError(f"the server answered in {revision}, not in {self._requested_revision}"),
                hint=f"leave out protocol_version=, or pass protocol_version={revision!r}",
            )
        self.next_method, self.revision = None, revision

    def handle_initialize_error(self, data: Any) -> bool:
        """An error response to initialize; whether it offers a revision not yet tried."""
        offered: Any = data.get("supported") if isinstance(data, dict) else None
        if not isinstance(offered, list):
            return False
        self._tried_revisions.append(self.revision)
        self._choose_revision(offered, DISCOVER)
        return True

    def _choose_revision(self, offered: Sequence[Any], stateless_method: str | None) -> None:
        """Take the best of what the server offers: the newest of the stateless era, else of the other.

        One that was refused and is offered all the same is tried again, once.
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
        theirs = ", ".join(str(revision)[:32] for revision in offered[:8]) or "none at all"
        ours = ", ".join((*self._handshake_revisions, *self._stateless_revisions))
        return add_context(
            VersionNegotiationError(f"the server speaks {theirs}; this client was to speak {ours}"),
            hint="update the older of the two" if self._is_automatic else "leave out protocol_version=",
        )


def _allowed_revisions(protocol_version: str | None, era: Era, era_revisions: Sequence[str]) -> tuple[str, ...]:
    if protocol_version is None or protocol_version == era:
        return tuple(era_revisions)
    return (protocol_version,) if protocol_version in era_revisions else ()


def check_protocol_version(protocol_version: str | None) -> None:
    """ValueError unless it is a known protocol version, "handshake", "stateless" or None."""
    known = (*HANDSHAKE_REVISIONS, *STATELESS_REVISIONS, DRAFT, *ERAS)
    if protocol_version is not None and protocol_version not in known:
        raise ValueError(f"protocol_version= must be one of {', '.join(known)}, not {protocol_version!r}")
