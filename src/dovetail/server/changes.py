"""Who listens, and telling them: one place for list changes and resource updates, whatever the era of the listener.

`publish` may be called from any task or thread. Each listener is reached on its own loop. A listener that is slow
holds at most one notice per topic: two changes it has not yet heard of are one change.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.protocol.exchange import Listener
from dovetail.protocol.uri_key import uri_key

if TYPE_CHECKING:
    from dovetail.protocol.mounting import Hear


class Changes:
    """The listeners of one server."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, asyncio.AbstractEventLoop] = {}
        self._followers: list[Hear] = []

    def __len__(self) -> int:
        return len(self._listeners)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Add a listener, to be reached on the running loop; call what is returned to remove it."""
        self._listeners[listener] = asyncio.get_running_loop()

        def stop() -> None:
            self._listeners.pop(listener, None)

        return stop

    def follow(self, hear: "Hear") -> Callable[[], None]:
        """Have a function called at every change, at once and in the thread that tells it; call the result to stop."""
        self._followers.append(hear)

        def stop() -> None:
            if hear in self._followers:
                self._followers.remove(hear)

        return stop

    def has_listener(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether any listener lives on this event loop."""
        return loop in self._listeners.values()

    def wanted(self, method: str, uri: str | None) -> bool:
        """Whether anybody listens to this."""
        return any(listener.wants(method, uri) for listener in tuple(self._listeners))

    def publish(self, method: str, uri: str | None = None) -> None:
        """Tell everyone who wants to know. All spellings of a URI are one topic for a listener, under its key."""
        for hear in tuple(self._followers):
            hear(method, uri)
        if uri is not None:
            uri = uri_key(uri)
        for listener, loop in tuple(self._listeners.items()):
            try:
                loop.call_soon_threadsafe(self._tell, listener, method, uri)
            except RuntimeError:
                self._listeners.pop(listener, None)  # its loop is closed

    def _tell(self, listener: Listener, method: str, uri: str | None) -> None:
        if listener in self._listeners and listener.wants(method, uri):
            listener.deliver(method, uri)


class Mailbox:
    """A listener that is awaited: what came in since it last looked, each topic once, in order of arrival."""

    def __init__(self, matches: Callable[[str, str | None], bool]) -> None:
        self._matches = matches
        self._waiting: dict[tuple[str, str | None], None] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def wants(self, method: str, uri: str | None) -> bool:
        """Whether a change is for it."""
        return self._matches(method, uri)

    def deliver(self, method: str, uri: str | None) -> None:
        """Take one change."""
        self._waiting[method, uri] = None
        self._wake.set()

    def close(self) -> None:
        """Let the one who waits go."""
        self._closed = True
        self._wake.set()

    async def take(self) -> list[tuple[str, str | None]] | None:
        """Wait for changes; None when the box is closed and empty."""
        while not self._waiting:
            if self._closed:
                return None
            self._wake.clear()
            await self._wake.wait()
        taken = list(self._waiting)
        self._waiting.clear()
        return taken
