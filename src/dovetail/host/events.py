"""What a host tells of while it works: each event has a kind, and who listens names kinds, or a glob of them."""

from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final

from dovetail.wire.base import Struct

EVENT_KINDS: Final = (
    "server.added",
    "server.removed",
    "server.state",
    "server.log",
    "server.stderr",
    "tools.changed",
    "prompts.changed",
    "resources.changed",
    "resource.changed",
    "definitions.changed",
    "call",
    "result",
    "decision",
    "consent",
    "problem",
)


class HostEvent(Struct, frozen=True, kw_only=True):
    """Something a host tells of: its kind, the server it is about, and what there is to say."""

    kind: str
    server: str
    old: str | None = None
    new: str | None = None
    reason: str | None = None
    details: Any = None


def check_event_kind(kind: str) -> str:
    """A kind of event, or a glob of some; ValueError for one that never comes."""
    if any(fnmatchcase(event_kind, kind) for event_kind in EVENT_KINDS):
        return kind
    matches = get_close_matches(kind, EVENT_KINDS, 1)
    hint = f"; did you mean {matches[0]!r}?" if matches else f"; there are {', '.join(EVENT_KINDS)}"
    raise ValueError(f"there is no event {kind!r}{hint}")
