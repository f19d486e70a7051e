"""The client side of a transport that the user provides. The transport moves messages, and this module matches
responses.
"""

import asyncio

from dovetail.errors import ConnectError, ConnectionLost, MCPError
from dovetail.log import log
from dovetail.protocol.interfaces.client_transport import CustomConnection, OpenCustomConnection
from dovetail.transports.duplex_client import DuplexClient


class CustomClient(DuplexClient):
    """A client connection over a transport that the user provides."""

    def __init__(self, open_connection: OpenCustomConnection) -> None:
        super().__init__()
        self._open_connection = open_connection
        self._connection: CustomConnection | None = None

    async def connect(self) -> None:
        try:
            self._connection = await self._open_connection(self.receive_message, self._lose)
        except MCPError:
            raise
        except Exception as exc:
            raise ConnectError(f"the transport could not connect: {type(exc).__name__}: {exc}") from exc

    def _lose(self, reason: str) -> None:
        self.end(ConnectionLost(reason))

    def write(self, data: bytes) -> None:
        """Send a message. If sending fails, the connection is lost."""
        if self._connection is not None:
            try:
                sent = self._connection.send(data)
            except Exception as exc:
                self._lose(f"the transport could not send: {type(exc).__name__}: {exc}")
                return
            if asyncio.iscoroutine(sent):
                sent.close()
                self._lose("the transport could not send: its method `send` is async. Make it a plain method")

    async def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close()
            except Exception as exc:
                log.warning("the transport could not close: %s: %s", type(exc).__name__, exc)
