"""Connect a client and a server in memory. Messages are encoded and decoded as on other transports."""

from collections.abc import Awaitable, Callable

from dovetail.errors import MCPError, ProcessStartError
from dovetail.protocol.interfaces.client_transport import ServerConnection
from dovetail.transports.duplex_client import DuplexClient


class MemoryClient(DuplexClient):
    """The client side of an in-memory connection."""

    def __init__(
        self,
        open_connection: Callable[[Callable[[bytes], None]], ServerConnection],
        start: Callable[[object], Awaitable[None]] | None = None,
        stop: Callable[[object], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__()
        self._open_connection = open_connection
        self._start = start
        self._stop = stop
        self._server: ServerConnection | None = None

    async def connect(self) -> None:
        """Start the server if needed, and open its side of the connection."""
        if self._start is not None:
            try:
                await self._start(self)
            except MCPError:
                raise
            except Exception as exc:
                raise ProcessStartError(f"the server could not start: {type(exc).__name__}: {exc}") from exc
        self._server = self._open_connection(self.receive_message)

    def write(self, data: bytes) -> None:
        """Send a message to the server."""
        if self._server is not None:
            self._server.receive(data)

    async def disconnect(self) -> None:
        """Close the server side of the connection. The server stops after its last client has disconnected."""
        try:
            if self._server is not None:
                await self._server.close()
                self._server = None
        finally:
            if self._stop is not None:
                await self._stop(self)
