"""The client side of a two-way connection, which sends messages and matches each response to its request.

A subclass moves the bytes. It only implements `connect`, `write` and `disconnect`.
"""

import asyncio
from typing import Any

from dovetail.error_context import add_context, clip
from dovetail.errors import ConnectionLost, InvalidRequest, InvalidResult, MCPError, ParseError, TransportError
from dovetail.protocol.interfaces.client_transport import ClientTransport, EncodedRequest, Headers, MessageReceiver
from dovetail.transports.line_splitter import OversizedMessage
from dovetail.wire.base import UNSET, Struct
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.raw_message import RawMessage, find_answered_ids, read_messages

_MAX_EXCERPT_BYTES = 200
_UNREADABLE_CODES = (ParseError.code, InvalidRequest.code)
# An in-memory server may answer immediately, so a loop of requests would block other tasks.
# After this many immediate responses, the client lets other tasks run once.
_RESPONSES_PER_YIELD = 16


class PendingRequest(Struct, eq=False):
    """A request to the server. `response` is None until the response arrives."""

    request: EncodedRequest
    response: RawMessage | MCPError | None = None
    future: asyncio.Future[None] | None = None  # `wait` creates this future if there is no response yet.

    def settle(self, response: RawMessage | MCPError) -> None:
        """Set the response or the error of a request. A second call is ignored."""
        if self.response is None:
            self.response = response
            if self.future is not None and not self.future.done():
                self.future.set_result(None)

    async def wait(self) -> RawMessage:
        """Wait for the response. Raise an error if the connection ends first."""
        if self.response is None:
            self.future = asyncio.get_running_loop().create_future()
            await self.future
        response = self.response
        assert response is not None
        if isinstance(response, MCPError):
            raise response
        return response


class DuplexClient:
    """Base class for client connections. Both sides can send messages at any time."""

    has_headers = False

    def __init__(self) -> None:
        self._receiver: MessageReceiver | None = None
        self._pending: dict[RequestId, PendingRequest] = {}
        self._immediate_count = 0  # the number of responses that arrived before the client had to wait for them
        self._end_error: TransportError | None = None
        self._loop = asyncio.get_running_loop()

    async def connect(self) -> None:
        """Connect to the server."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Send one message."""
        raise NotImplementedError

    def withdraw(self, data: bytes) -> bool:
        """Drop a message that waits to be sent. Return False if it was already sent."""
        return False

    async def disconnect(self) -> None:
        """Close the connection to the server."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait until more data can be sent to the server."""

    def get_diagnostics(self, since: float | None = None) -> dict[str, Any]:
        """Return details about the server for error messages."""
        return {}

    def suggest_fix(self) -> str | None:
        """Return a hint for a failed connection, or None."""
        return None

    def create_fallback(self) -> ClientTransport | None:
        """Return a transport of an older kind for the same server, or None if no older kind exists."""
        return None

    async def open(self, receiver: MessageReceiver) -> None:
        """Connect to the server."""
        self._receiver = receiver
        await self.connect()

    async def exchange(self, request: EncodedRequest) -> RawMessage:
        """Send a request and wait for its response."""
        if self._end_error is not None:
            raise _copy_error(self._end_error, sent=False)
        self._pending[request.id] = pending = PendingRequest(request)
        try:
            self.write(request.body)
            if pending.response is not None:
                self._immediate_count += 1
                if self._immediate_count % _RESPONSES_PER_YIELD == 0:
                    await asyncio.sleep(0)
            return await pending.wait()
        finally:
            self._pending.pop(request.id, None)

    def is_answered(self, id: RequestId) -> bool:
        """Return whether the response to a request has arrived, even if `exchange` has not returned it yet."""
        return id not in self._pending

    def cancel(self, request: EncodedRequest, reason: str) -> bytes | None:
        """Tell the server to cancel a request. spec: cancellation#cancellation-flow"""
        if self._end_error is not None or request.method == "initialize":
            return None
        if self.withdraw(request.body):
            return None  # The server has not received the request.
        notice = request.encode_cancellation(reason)
        self.write(notice)
        return notice

    async def send_message(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification or a response."""
        if self._end_error is not None:
            raise _copy_error(self._end_error, sent=False)
        self.write(body)
        await self.drain()

    async def complete_handshake(self, revision: str) -> None:
        """Do nothing, because this transport does not change after the handshake."""

    async def wait_until_listening(self) -> bool:
        """Return True, because the server can send messages at any time on this connection."""
        return True

    async def close(self) -> None:
        """Cancel all open requests and close the connection."""
        for pending in tuple(self._pending.values()):
            self.cancel(pending.request, "the client is closing")
        self.end(ConnectionLost("the client was closed"))
        await self.disconnect()

    def receive_message(self, data: bytes | OversizedMessage) -> None:
        """Handle a message or a batch from the server."""
        receiver = self._receiver
        if receiver is None:
            return
        if type(data) is OversizedMessage:
            self._reject_oversized(data)
            return
        try:
            messages = read_messages(data)
        except ParseError as exc:
            self._reject_message(data, str(exc))
            return
        for message in messages:
            is_response = message.method is None and (message.result is not UNSET or message.error is not None)
            if is_response and message.id is not None:
                pending = self._pending.pop(message.id, None)
                if pending is None and type(message.id) is str:
                    self._reject_message(
                        _get_message_bytes(message, data, messages), f"its id is the string {clip(message.id)!r}"
                    )
                elif pending is not None:
                    pending.settle(message)
            elif is_response:
                self._handle_null_id(message, _get_message_bytes(message, data, messages))
            elif message.method is None:
                self._reject_message(
                    _get_message_bytes(message, data, messages), "it has neither a result nor an error"
                )
            else:
                receiver.receive(message)

    def _handle_null_id(self, message: RawMessage, data: bytes) -> None:
        """Handle a response without an ID, which a server sends if it cannot read a request.

        If several requests are open, it is unclear which request the server could not read.
        """
        if message.error is not None and message.error.code in _UNREADABLE_CODES and len(self._pending) == 1:
            (pending,) = self._pending.values()
            pending.settle(message)
        else:
            self._reject_message(data, "its id is null")

    def _reject_message(self, data: bytes, reason: str) -> None:
        """Record an invalid message. If the message looks like a response, fail its request."""
        assert self._receiver is not None
        self._receiver.record_invalid_message(data[:400].decode("utf-8", "replace"))
        self._fail_requests(find_answered_ids(data), build_response_error(data, reason))

    def _reject_oversized(self, message: OversizedMessage) -> None:
        """Record a message that is too large. If the message looks like a response, fail its request."""
        assert self._receiver is not None
        self._receiver.record_invalid_message(message.description)
        error = add_context(
            InvalidResult(f"the response is too large: {message.description}"),
            hint="raise ClientLimits(max_response_bytes=...)",
        )
        self._fail_requests(find_answered_ids(message.prefix), error)

    def _fail_requests(self, ids: list[int], error: InvalidResult) -> None:
        for id in ids:
            pending = self._pending.get(id)
            if pending is not None:
                pending.settle(add_context(InvalidResult(*error.args), hint=error.hint))

    def end(self, error: TransportError) -> None:
        """End the connection and fail all open requests."""
        if self._end_error is not None:
            return
        self._end_error = error
        for pending in self._pending.values():
            pending.settle(_copy_error(error, sent=True))
        if self._receiver is not None:
            self._receiver.handle_connection_lost(error)


def _get_message_bytes(message: RawMessage, data: bytes, messages: list[RawMessage]) -> bytes:
    return data if len(messages) == 1 else message.encode()


def build_response_error(data: bytes, reason: str) -> InvalidResult:
    """Return the error for a request that got an invalid response."""
    excerpt = clip(data[:_MAX_EXCERPT_BYTES].decode("utf-8", "replace"), _MAX_EXCERPT_BYTES)
    return InvalidResult(f"the server sent an invalid response ({reason}): {excerpt}")


def _copy_error(error: TransportError, *, sent: bool) -> ConnectionLost:
    """Copy an error, so that each caller gets an exception with a separate traceback."""
    copy = add_context(ConnectionLost(*error.args), exit_code=error.exit_code, stderr=error.stderr, hint=error.hint)
    copy.maybe_sent = sent
    return copy
