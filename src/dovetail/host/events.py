"""Events of a host. A listener selects events by a kind or by a glob pattern for kinds."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, get_args

from dovetail.callbacks import add_callback, get_callback_name, is_async
from dovetail.error_context import suggest_match
from dovetail.log import log
from dovetail.wire.base import Struct

# A change in a host.
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
_EVENT_KINDS: Final[tuple[str, ...]] = get_args(EventKind)


class HostEvent(Struct, frozen=True, kw_only=True):
    """One event of a host.

    The type of `details` depends on the kind:

    - `server.state`: the `MCPError` that caused the state, or None
    - `server.log`: the `LoggingMessageNotificationParams` of the server, with secrets masked. Very large `data` that is
      not a text is None
    - `tools.changed`, `prompts.changed`, `resources.changed`, `resource.updated`: a `ChangeEvent`, or None if the host
      found the change itself
    - `definitions.changed`: the previous and the new items, as two dicts by name or URI
    - `tool.call`, `consent`: a `PolicyRequest`
    - `tool.result`: an object with `request`, `outcome`, `duration_ms`, `error` and `result_bytes`
    - `decision`: an object with `request`, a `PolicyRequest`, and `decision`, a `Decision`
    - `config.problem`: a `ConfigProblem`
    - other kinds: None
    """

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
        self._listeners: dict[object, tuple[str, EventCallback]] = {}
        # The callbacks are cached for each kind of event.
        self._callbacks_by_kind: dict[str, tuple[EventCallback, ...]] = {}

    def on(self, kind: str, callback: EventCallback) -> Callable[[], None]:
        """Call a function for each event whose kind matches a name or glob. The returned function removes the
        callback.
        """
        if is_async(callback):
            raise TypeError(
                f"the listener {get_callback_name(callback)} must not be async, because nothing would await it. "
                "Start a task in a plain function instead"
            )
        remove = add_callback(self._listeners, (_check_event_kind(kind), callback))
        self._callbacks_by_kind.clear()

        def stop() -> None:
            remove()
            self._callbacks_by_kind.clear()

        return stop

    def has_listeners(self, kind: EventKind) -> bool:
        """Return whether a listener receives events of this kind."""
        # This method runs for every request, so avoid a function call in the usual case.
        callbacks = self._callbacks_by_kind.get(kind)
        return bool(self._find_callbacks(kind) if callbacks is None else callbacks)

    def emit(self, event: HostEvent) -> None:
        """Call the listeners for an event. Log the exception if a listener fails."""
        for callback in self._find_callbacks(event.kind):
            try:
                callback(event)
            except Exception as exc:
                log.error(
                    "the listener %s failed for the event %s", get_callback_name(callback), event.kind, exc_info=exc
                )

    def _find_callbacks(self, kind: str) -> "tuple[EventCallback, ...]":
        callbacks = self._callbacks_by_kind.get(kind)
        if callbacks is None:
            callbacks = tuple(callback for glob, callback in self._listeners.values() if fnmatchcase(kind, glob))
            self._callbacks_by_kind[kind] = callbacks
        return callbacks


def _check_event_kind(kind: str) -> str:
    if any(fnmatchcase(event_kind, kind) for event_kind in _EVENT_KINDS):
        return kind
    hint = suggest_match(kind, _EVENT_KINDS) or f". Known events: {', '.join(_EVENT_KINDS)}"
    raise ValueError(f"unknown event {kind!r}{hint}")
