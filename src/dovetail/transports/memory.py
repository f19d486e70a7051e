"""A client and a server joined in memory. Nothing is skipped: every message is encoded and decoded as elsewhere."""

from collections.abc import Callable
from typing import Any, Protocol

from dovetail.transports.talking import Talking


class Link(Protocol):
    """A server's end of a connection."""

    def receive(self, data: bytes) -> None: ...
    async def close(self, grace: float = 0.0) -> None: ...


class Memory(Talking):
    """The client's end; `link` makes the server's end, given a function that takes its messages."""

    def __init__(self, link: Callable[[Callable[[bytes], None]], Link], start: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self._link = link
        self._start = start
        self._server: Link | None = None

    async def connect(self) -> None:
        """Make the server's end."""
        if self._start is not None:
            await self._start()
        self._server = self._link(self.take)

    def write(self, data: bytes) -> None:
        """Hand a message to the server."""
        if self._server is not None:
            self._server.receive(data)

    async def disconnect(self) -> None:
        """Let go of the server's end."""
        if self._server is not None:
            await self._server.close()
            self._server = None
