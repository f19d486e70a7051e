"""The response to a session's request. The response can contain requests to the client."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from dovetail.errors import ConnectionLost
from dovetail.protocol.exchange import IncomingExchange
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession, QuestionStream
from dovetail.transports.http_server.streams.http_response import ResponseTimers, ResponseWriter, wait_for_disconnect
from dovetail.transports.spool import MemoryBudget
from dovetail.wire.jsonrpc import RequestId


class WriterOwner(Protocol):
    """The part of an endpoint that a `SessionWriter` uses."""

    timers: ResponseTimers
    budget: MemoryBudget


OwnerT = TypeVar("OwnerT", bound=WriterOwner)
StreamT = TypeVar("StreamT", bound=QuestionStream)


class SessionWriter(ResponseWriter, Generic[OwnerT, StreamT]):
    """Writes the response to a session's request. The response may be an event stream that the client can resume."""

    __slots__ = ("_ids", "_is_complete", "_owner", "_receive", "_session", "_stream", "_watch_task")

    def __init__(
        self, owner: OwnerT, request: EndpointRequest, session: HandshakeSession, ids: Sequence[RequestId]
    ) -> None:
        super().__init__(request, request.cors_headers, owner.timers, owner.budget)
        self._owner = owner
        self._receive = request.http.receive
        self._session = session
        self._ids = ids  # the IDs of the requests that this response answers
        self._stream: StreamT | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._is_complete = False  # True after the response was sent or the client disconnected

    def attach(self, exchange: IncomingExchange, is_stateful: bool) -> None:
        """Let a request handler send messages to the client through this response."""
        exchange.emit = self.emit
        if is_stateful and self._mode != "json":
            exchange.ask = self._ask_client
            if self._session.has_priming_events:  # Clients reconnect only if the stream began with a priming event.
                exchange.close_stream = self.release_connection

    async def _ask_client(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request to the client as part of this response. Wait until the client answers or disconnects."""
        if self.is_ended:
            raise ConnectionLost("The call has ended, so it can no longer ask the client for input")
        if not self.is_streaming:
            await self.open_stream()
        assert self._stream is not None
        if self._watch_task is None:
            self._watch_task = asyncio.get_running_loop().create_task(self._watch_disconnect())
        return await self._session.ask_client(self._stream, self.emit, method, params)

    async def _watch_disconnect(self) -> None:
        await wait_for_disconnect(self._receive)
        self._handle_disconnect()

    def _stop_watching(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()

    @abstractmethod
    def _handle_disconnect(self) -> None:
        """Keep the stream, because the client may resume it."""

    @abstractmethod
    async def release_connection(self, retry_ms: int) -> None:
        """Close the connection but keep the stream.

        The client reconnects after `retry_ms` milliseconds and reads the rest of the stream.
        """

    @abstractmethod
    def drop(self) -> None:
        """End the response and its stream without sending more data."""
