"""The requests of a server to one client of the handshake era, and the futures that wait for the responses."""

import asyncio
from collections.abc import Callable
from typing import Any

from dovetail.errors import ConnectionLost, RemoteError
from dovetail.protocol.handshake import PendingRequests
from dovetail.wire import jsonrpc
from dovetail.wire.jsonrpc import RequestId


class ClientRequests:
    """The open requests to one client."""

    __slots__ = ("_end_reason", "_pending")

    def __init__(self, create_id: Callable[[], RequestId] | None = None) -> None:
        self._pending: PendingRequests[asyncio.Future[Any]] = PendingRequests(create_id)
        self._end_reason: str | None = None  # the reason why the connection has ended, or None while it is open

    @property
    def open_questions(self) -> int:
        """Return how many requests have no response yet."""
        return self._pending.open_questions

    def create(self, method: str, params: dict[str, Any]) -> tuple[RequestId, bytes, asyncio.Future[Any]]:
        """Create a request. Return its id, the encoded request, and the future for the response.

        Raises:
            ConnectionLost: The connection or session has ended.
        """
        if self._end_reason is not None:
            raise ConnectionLost(self._end_reason)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        return *self._pending.create_request(future, method, params), future

    def read_progress(self, params: dict[str, Any]) -> dict[str, Any]:
        """Convert a progress notification to the format of the newest protocol version."""
        return self._pending.read_progress(params)

    def abandon(self, id: RequestId) -> bytes | None:
        """Stop waiting for a response. If the request is still open, return the encoded cancellation for the client."""
        if self._pending.discard(id):
            return jsonrpc.encode_notification("notifications/cancelled", {"requestId": id})
        return None

    def handle_response(self, message: dict[str, Any]) -> None:
        """Wake the task that waits for this response. Ignore responses to unknown requests."""
        matched = self._pending.match_response(message)
        if matched is None or matched[0].done():
            return
        future, answer = matched
        if isinstance(answer, RemoteError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def close(self, reason: str) -> None:
        """Fail all open requests with ConnectionLost, and refuse new requests."""
        self._end_reason = reason
        for future in self._pending.drain():
            if not future.done():
                future.set_exception(ConnectionLost(reason))
