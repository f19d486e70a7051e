"""Events of a host. Listeners choose them by kind, or by a glob of kinds."""

from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, get_args

from dovetail.wire.base import Struct

EventKind: TypeAlias = Literal[
    "server.added",
    "server.removed",
    "server.state",
    "server.log",
    "server.stderr",
    "tools.changed",
    "prompts.changed",
    "resources.changed",
    "resource.updated",
    "definitions.changed",
    "tool.call",
    "tool.result",
    "decision",
    "consent",
    "config.problem",
]
EVENT_KINDS: Final[tuple[str, ...]] = get_args(EventKind)


class HostEvent(Struct, frozen=True, kw_only=True):
    """One event of a host. `message` is a short text, such as a line of stderr or the name of the called tool."""

    kind: EventKind
    server: str
    previous_state: str | None = None  # of server.state
    state: str | None = None  # of server.state
    message: str | None = None
    reason: str | None = None
    details: Any = None  # depends on the kind


def check_event_kind(kind: str) -> str:
    """Return an event kind or a glob that matches some. Raise ValueError for an unknown one."""
    if any(fnmatchcase(event_kind, kind) for event_kind in EVENT_KINDS):
        return kind
    matches = get_close_matches(kind, EVENT_KINDS, 1)
    hint = f"Did you mean {matches[0]!r}?" if matches else f"Known events: {', '.join(EVENT_KINDS)}"
    raise ValueError(f"unknown event {kind!r}. {hint}")
