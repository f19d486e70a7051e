"""Events of a host. Listeners choose them by kind, or by a glob of kinds."""

import logging
from collections.abc import Callable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, get_args

from dovetail.wire.base import Struct

log = logging.getLogger("dovetail")

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


EventCallback: TypeAlias = Callable[[HostEvent], object]


class EventEmitter:
    """Passes the events of one host to its listeners."""

    def __init__(self) -> None:
        self._listeners: list[tuple[str, EventCallback]] = []
        self._callbacks_by_kind: dict[str, tuple[EventCallback, ...]] = {}  # of the listeners there are now

    def on(self, kind: str, callback: EventCallback) -> Callable[[], None]:
        """Call a function for each event of a kind or glob. Return a function that ends this."""
        listener = (check_event_kind(kind), callback)
        self._listeners.append(listener)
        self._callbacks_by_kind.clear()

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
                self._callbacks_by_kind.clear()

        return stop

    def has_listeners(self, kind: EventKind) -> bool:
        """Return whether an event of this kind would reach a listener."""
        callbacks = self._callbacks_by_kind.get(kind)
        return bool(self._find_callbacks(kind) if callbacks is None else callbacks)

    def emit(self, event: HostEvent) -> None:
        """Call the listeners of an event. An exception of a listener is logged."""
        for callback in self._find_callbacks(event.kind):
            try:
                callback(event)
            except Exception as exc:
                log.error("a listener of the host failed", exc_info=exc)

    def _find_callbacks(self, kind: str) -> "tuple[EventCallback, ...]":
        callbacks = self._callbacks_by_kind.get(kind)
        if callbacks is None:
            callbacks = tuple(callback for glob, callback in self._listeners if fnmatchcase(kind, glob))
            self._callbacks_by_kind[kind] = callbacks
        return callbacks


def check_event_kind(kind: str) -> str:
    """Return an event kind or a glob that matches some. Raise ValueError for an unknown one."""
    if any(fnmatchcase(event_kind, kind) for event_kind in EVENT_KINDS):
        return kind
    matches = get_close_matches(kind, EVENT_KINDS, 1)
    hint = f"Did you mean {matches[0]!r}?" if matches else f"Known events: {', '.join(EVENT_KINDS)}"
    raise ValueError(f"unknown event {kind!r}. {hint}")
