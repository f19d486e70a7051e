"""Who listens, and telling them: one place for list changes and resource updates, whatever the era of the listener.

`publish` may be called from any task or thread. Each listener is reached on its own loop. A listener that is slow
holds at most one notice per topic: two changes it has not yet heard of are one change.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.protocol.exchange import ChangeListener
from dovetail.protocol.uri_key import uri_key

if TYPE_CHECKING:
    from dovetail.protocol.mountable import ChangeCallback


class Subscriptions:
    """The listeners of one server."""

    def __init__(self) -> None:
        self._listeners: dict[ChangeListener, asyncio.AbstractEventLoop] = {}
        self._callbacks: list[ChangeCallback] = []

    def __len__(self) -> int:
        return len(self._listeners)

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Add a listener, to be reached on the running loop; call what is returned to remove it."""
        self._listeners[listener] = asyncio.get_running_loop()

        def stop() -> None:
            self._listeners.pop(listener, None)

        return stop

    def add_callback(self, callback: "ChangeCallback") -> Callable[[], None]:
        """Have a function called at every change, at once and in the thread that tells it; call the result to stop."""
        self._callbacks.append(callback)

        def stop() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return stop

    def has_listener_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether any listener lives on this event loop."""
        return loop in self._listeners.values()

    def is_wanted(self, method: str, uri: str | None) -> bool:
        """Whether anybody listens to this."""
        return any(listener.is_subscribed(method, uri) for listener in tuple(self._listeners))

    def publish(self, method: str, uri: str | None = None) -> None:
        """Tell everyone who wants to know. All spellings of a URI are one topic for a listener, under its key."""
        for callback in tuple(self._callbacks):
            callback(method, uri)
        if uri is not None:
            uri = uri_key(uri)
        for listener, loop in tuple(self._listeners.items()):
            try:
                loop.call_soon_threadsafe(self._deliver, listener, method, uri)
            except RuntimeError:
                self._listeners.pop(listener, None)  # its loop is closed

    def _deliver(self, listener: ChangeListener, method: str, uri: str | None) -> None:
        if listener in self._listeners and listener.is_subscribed(method, uri):
            listener.deliver(method, uri)


class ChangeQueue:
    """A listener that is awaited: what came in since it last looked, each topic once, in order of arrival."""

    def __init__(self, matches: Callable[[str, str | None], bool]) -> None:
        self._matches = matches
        self._pending: dict[tuple[str, str | None], None] = {}
        self._changed_event = asyncio.Event()
        self._is_closed = False

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        """Whether a change is for it."""
        return self._matches(method, uri)

    def deliver(self, method: str, uri: str | None) -> None:
        """Take one change."""
        self._pending[method, uri] = None
        self._changed_event.set()

    def close(self) -> None:
        """Let the one who waits go."""
        self._is_closed = True
        self._changed_event.set()

    async def take(self) -> list[tuple[str, str | None]] | None:
        """Wait for changes; None when the box is closed and empty."""
        while not self._pending:
            if self._is_closed:
                return None
            self._changed_event.clear()
            await self._changed_event.wait()
        changes = list(self._pending)
        self._pending.clear()
        return changes
