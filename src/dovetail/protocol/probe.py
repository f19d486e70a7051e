"""Which era does this server speak? A pure machine: it says what to send, and is told what came back.

A discovery goes first. Its answer, or a refusal only a stateless server gives, settles the question; any other answer,
or silence, means a handshake. Never keyed to one error code. spec: stdio#backward-compatibility
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from dovetail.errors import HeaderMismatch, MissingCapability, NoCommonRevision, UnsupportedRevision
from dovetail.wire.lifecycle import DiscoverResult
from dovetail.wire.revisions import DRAFT, HANDSHAKE, STATELESS

Era = Literal["stateless", "handshake"]

DISCOVER: Final = "server/discover"
INITIALIZE: Final = "initialize"

# What only a server of the stateless era answers.
_STATELESS_CODES: Final = frozenset({HeaderMismatch.code, MissingCapability.code, UnsupportedRevision.code})


class Probe:
    """`send` is the next request, DISCOVER or INITIALIZE, in `revision`; None when the revision is settled."""

    def __init__(self, revision: str | None = None, era: Era | None = None) -> None:
        self._wanted = revision
        self._tried: list[str] = []
        self._both = revision is None and era is None
        self._stateless = _choices(revision, era, STATELESS)
        self._handshake = _choices(revision, era, (DRAFT,) if revision == DRAFT else HANDSHAKE)
        self.send: str | None
        if self._stateless:
            self.send, self.revision = DISCOVER, self._stateless[-1]
        else:
            self.send, self.revision = INITIALIZE, self._handshake[-1]

    @property
    def handshake_too(self) -> bool:
        """Whether a silent server may be tried with a handshake."""
        return bool(self._handshake)

    # What came back from a discovery

    def discovered(self, result: DiscoverResult, *, settles: bool = True) -> None:
        """The server speaks the stateless era, and says which revisions; unless that settles it, it is asked again."""
        self._choose(result.supported_versions, None if settles else DISCOVER)

    def refused(self, code: int, data: Any) -> bool:
        """An error response to a discovery; whether it tells what to do, which only a stateless server's does."""
        if code == UnsupportedRevision.code and isinstance(data, dict):
            offered: Any = data.get("supported")
            if isinstance(offered, list):
                self._tried.append(self.revision)
                self._choose(offered, DISCOVER)
                return True
        if code in _STATELESS_CODES:
            return False  # stateless, but something else is wrong
        self.fall_back()
        return True

    def fall_back(self) -> None:
        """Not a server of the stateless era: open a session."""
        if not self._handshake:
            raise NoCommonRevision("the server does not speak the stateless era of the protocol").at(
                hint="leave out era= and revision=, or name a handshake revision"
            )
        self.send, self.revision = INITIALIZE, self._handshake[-1]

    def insist(self) -> None:
        """The server has shown that it speaks the stateless era: nothing else is tried any more."""
        self._handshake = ()

    # What came back from initialize

    def initialized(self, revision: str) -> None:
        """The server settled the revision of the session."""
        if revision not in HANDSHAKE and revision != DRAFT:
            raise self._none_in_common([revision])
        if self._wanted is not None and revision != self._wanted:
            raise NoCommonRevision(f"the server answered in {revision}, not in {self._wanted}").at(
                hint=f"leave out revision=, or pass revision={revision!r}"
            )
        self.send, self.revision = None, revision

    def counter_offered(self, data: Any) -> bool:
        """An error response to initialize; whether it offers a revision not yet tried."""
        offered: Any = data.get("supported") if isinstance(data, dict) else None
        if not isinstance(offered, list):
            return False
        self._tried.append(self.revision)
        self._choose(offered, DISCOVER)
        return True

    def _choose(self, offered: Sequence[Any], stateless: str | None) -> None:
        """Take the best of what the server offers: the newest of the stateless era, else of the other.

        One that was refused and is offered all the same is tried again, once.
        """
        for candidates, send in ((self._stateless, stateless), (self._handshake, INITIALIZE)):
            common = [one for one in candidates if one in offered and self._tried.count(one) < 2]
            if common:
                self.send, self.revision = send, common[-1]
                return
        raise self._none_in_common(offered)

    def _none_in_common(self, offered: Sequence[Any]) -> NoCommonRevision:
        theirs = ", ".join(str(one)[:32] for one in offered[:8]) or "none at all"
        ours = ", ".join((*self._handshake, *self._stateless))
        return NoCommonRevision(f"the server speaks {theirs}; this client was to speak {ours}").at(
            hint="update the older of the two" if self._both else "leave out era= and revision="
        )


def _choices(revision: str | None, era: Era | None, own: Sequence[str]) -> tuple[str, ...]:
    if revision is not None:
        return (revision,) if revision in own else ()
    if era is not None and (era == "stateless") != (own is STATELESS):
        return ()
    return tuple(own)


def check_wishes(revision: str | None, era: str | None) -> None:
    """Refuse a revision or an era that does not exist."""
    known = (*HANDSHAKE, *STATELESS, DRAFT)
    if revision is not None and revision not in known:
        raise ValueError(f"revision must be one of {', '.join(known)}, not {revision!r}")
    if era not in (None, "stateless", "handshake"):
        raise ValueError(f"era must be 'stateless' or 'handshake', not {era!r}")
    if revision is not None and era is not None and (revision in STATELESS) != (era == "stateless"):
        raise ValueError(f"revision {revision} is not of the {era} era")
