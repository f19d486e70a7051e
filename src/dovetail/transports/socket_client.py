"""The client side of a Unix or TCP socket.

`line_protocol` splits the bytes into lines, and `duplex_client` handles the messages.
"""

import asyncio
import os
import sys

from dovetail.error_context import add_context
from dovetail.errors import ConnectError
from dovetail.transports.line_client import LineClient

_CONNECT_HINT = "is the server running, and is the address correct?"


class SocketClient(LineClient):
    """A connection to a server on a Unix socket or a TCP address."""

    def __init__(
        self,
        max_line_bytes: int,
        *,
        path: str | None = None,
        host: str = "",
        port: int = 0,
        connect_timeout: float = 10.0,
        close_timeout: float = 5.0,
    ) -> None:
        super().__init__(max_line_bytes)
        self._connect_timeout = connect_timeout
        self._close_timeout = close_timeout
        self._close_future: asyncio.Future[None] = self._loop.create_future()
        self._path = path
        self._host = host
        self._port = port

    async def connect(self) -> None:
        """Open the socket."""
        address = self._path or f"{self._host}:{self._port}"
        timeout = asyncio.timeout(self._connect_timeout)
        try:
            async with timeout:
                await self._open_socket()
        except OSError as exc:
            if timeout.expired():
                raise add_context(
                    ConnectError(f"could not connect to {address} within {self._connect_timeout:g} seconds"),
                    hint=_CONNECT_HINT,
                ) from None
            reason = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc) or type(exc).__name__
            raise add_context(ConnectError(f"could not connect to {address}: {reason}"), hint=_CONNECT_HINT) from None

    async def _open_socket(self) -> None:
        if self._path is not None:
            if sys.platform == "win32":
                raise OSError("Unix sockets do not work on Windows")
            await self._loop.create_unix_connection(lambda: self, self._path)
        else:
            await self._loop.create_connection(lambda: self, self._host, self._port)

    async def disconnect(self) -> None:
        """Send the last messages and close the socket.

        If the server does not read them in time, abort the connection.
        """
        if self._out:
            self._flush()
        if self._writer is not None:
            self._writer.close()
            try:
                await asyncio.wait([self._close_future], timeout=self._close_timeout)
            finally:
                if not self._close_future.done():
                    self._writer.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, so that `disconnect` can return."""
        super().connection_lost(exc)
        if not self._close_future.done():
            self._close_future.set_result(None)
