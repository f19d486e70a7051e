"""Events of a host. A listener selects events by a kind or by a glob pattern for kinds."""

from collections.abc import Callable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, get_args

from dovetail.log import log
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
    """One event of a host."""

    kind: EventKind  # the kind of event, such as "server.state" or "tool.call"
    server: str  # the name of the server, or "" for events of the host
    previous_state: str | None = None  # the previous state, for "server.state" events
    state: str | None = None  # the new state, for "server.state" events
    message: str | None = None  # a short text, such as a line of stderr or a tool name
    reason: str | None = None  # the reason for the event
    details: Any = None  # more data, whose type depends on the kind of event


EventCallback: TypeAlias = Callable[[HostEvent], object]


class EventEmitter:
    """Passes the events of one host to its listeners."""

    def __init__(self) -> None:
        self._listeners: list[tuple[str, EventCallback]] = []
        # The callbacks are cached for each kind of event.
        self._callbacks_by_kind: dict[str, tuple[EventCallback, ...]] = {}

    def on(self, kind: str, callback: EventCallback) -> Callable[[], None]:
        """Call a function for each event whose kind matches a name or glob. The returned function removes the
        callback.
        """
        listener = (check_event_kind(kind), callback)
        self._listeners.append(listener)
        self._callbacks_by_kind.clear()

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
                self._callbacks_by_kind.clear()

        return stop

    def has_listeners(self, kind: EventKind) -> bool:
        """Return whether a listener receives events of this kind."""
        callbacks = self._callbacks_by_kind.get(kind)
        return bool(self._find_callbacks(kind) if callbacks is None else callbacks)

    def emit(self, event: HostEvent) -> None:
        """Call the listeners for an event. Log the exception if a listener fails."""
        for callback in self._find_callbacks(event.kind):
            try:
                callback(event)
            except Exception as exc:
                log.error("an event listener of the host failed", exc_info=exc)

    def _find_callbacks(self, kind: str) -> "tuple[EventCallback, ...]":
        callbacks = self._callbacks_by_kind.get(kind)
        if callbacks is None:
            callbacks = tuple(callback for glob, callback in self._listeners if fnmatchcase(kind, glob))
            self._callbacks_by_kind[kind] = callbacks
        return callbacks


def check_event_kind(kind: str) -> str:
    """Return the given event kind or glob pattern. Raise ValueError if it matches no known kind."""
    if any(fnmatchcase(event_kind, kind) for event_kind in EVENT_KINDS):
        return kind
    matches = get_close_matches(kind, EVENT_KINDS, 1)
    hint = f"Did you mean {matches[0]!r}?" if matches else f"Known events: {', '.join(EVENT_KINDS)}"
    raise ValueError(f"unknown event {kind!r}. {hint}")
