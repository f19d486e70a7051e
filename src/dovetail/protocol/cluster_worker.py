"""This process as one worker of a cluster: its shared state, its keys, and the handlers of messages."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dovetail.log import log
from dovetail.protocol.shared_state import Message, SharedState

MessageHandler: TypeAlias = Callable[[Message], None]


class ClusterWorker:
    """One worker of a cluster.

    All workers have the same secret keys. A worker belongs to the event loop that starts it.
    """

    def __init__(self, state: SharedState, secret_keys: Sequence[str | bytes]) -> None:
        self.state = state
        self.secret_keys = secret_keys
        self._handlers: dict[str, MessageHandler] = {}
        self._gap_handlers: dict[object, Callable[[], None]] = {}
        self._unknown_kinds: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start_lock = asyncio.Lock()

    @property
    def name(self) -> str:
        """Return the random name of this worker. It is known after `start`."""
        return self.state.worker

    @property
    def is_started(self) -> bool:
        """Return whether this worker has joined the cluster."""
        return self._loop is not None

    async def start(self) -> None:
        """Join the cluster. If the worker has already joined it, do nothing.

        Raises:
            RuntimeError: the worker has joined the cluster in another event loop.
            SharedStateUnavailable: the back end cannot be used.
        """
        async with self._start_lock:
            loop = asyncio.get_running_loop()
            if self._loop is None:
                await self.state.start(self)
                self._loop = loop
            elif self._loop is not loop:
                raise RuntimeError("a server with cluster= can only run in one event loop")

    async def close(self) -> None:
        """Leave the cluster. Other workers learn at once that this worker has ended."""
        async with self._start_lock:
            if self._loop is asyncio.get_running_loop():
                self._loop = None
                await self.state.close()

    def add_handler(self, kind: str, handler: MessageHandler) -> None:
        """Handle all messages of one kind. Messages can arrive twice."""
        if kind in self._handlers:
            raise ValueError(f"messages of kind {kind!r} already have a handler")
        self._handlers[kind] = handler

    def add_gap_handler(self, handler: Callable[[], None]) -> Callable[[], None]:
        """Call a function after a gap in the change log. Return a function that removes it."""
        key = object()
        self._gap_handlers[key] = handler

        def remove() -> None:
            self._gap_handlers.pop(key, None)

        return remove

    # The methods of SharedStateListener.

    def receive(self, message: Message) -> None:
        """Pass a message to the handler of its kind."""
        handler = self._handlers.get(message.kind)
        if handler is not None:
            handler(message)
        elif message.kind not in self._unknown_kinds and len(self._unknown_kinds) < 100:
            # A worker with a newer release may send messages that this release does not know.
            self._unknown_kinds.add(message.kind)
            log.warning("ignored a message of unknown kind %r from another worker", message.kind)

    def handle_gap(self) -> None:
        """Call all gap handlers."""
        for handler in tuple(self._gap_handlers.values()):
            try:
                handler()
            except Exception as exc:  # The other handlers must run despite this error.
                log.error("could not handle a gap in the change log", exc_info=exc)
