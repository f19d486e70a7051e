"""The client side of a two-way connection: sends messages, and gives each response to the request that waits for it.

What carries the messages is a subclass's business: `connect`, `write` and `disconnect` are all it adds.
"""

import asyncio
from typing import Any

from dovetail.error_context import add_context, clip
from dovetail.errors import ConnectionLost, InvalidRequest, InvalidResult, ParseError, TransportError
from dovetail.protocol.client_transport import ClientTransport, EncodedRequest, Headers, MessageReceiver
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.raw_message import RawMessage, find_answered_ids, read_messages

_MAX_EXCERPT_BYTES = 200
_UNREADABLE_CODES = (ParseError.code, InvalidRequest.code)
# A server in memory may answer before anyone has waited: now and then the loop gets its turn all the same, so that
# whoever asks and asks leaves time to others, and can be cancelled.
_RESPONSES_PER_YIELD = 16


class DuplexClient:
    """One connection on which both sides may speak at any time."""

    has_headers = False

    def __init__(self) -> None:
        self._receiver: MessageReceiver | None = None
        self._pending: dict[RequestId, tuple[asyncio.Future[RawMessage], EncodedRequest]] = {}
        self._immediate_count = 0  # how many requests were answered before anyone had to wait
        self._end_error: TransportError | None = None
        self._loop = asyncio.get_running_loop()

    # What carries it

    async def connect(self) -> None:
        """Reach the other side."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Send one message."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Let go of the other side."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait while the other side does not read."""

    def get_diagnostics(self, since: float | None = None) -> dict[str, Any]:
        """What is known about the other side."""
        return {}

    def suggest_fix(self) -> str | None:
        """Nothing is known that could help."""
        return None

    def create_fallback(self) -> ClientTransport | None:
        """The same server by an older transport."""
        return None

    # A channel

    async def open(self, receiver: MessageReceiver) -> None:
        """Reach the server."""
        self._receiver = receiver
        await self.connect()

    async def exchange(self, request: EncodedRequest) -> RawMessage:
        """Send a request and wait for its response."""
        if self._end_error is not None:
            raise _copy_error(self._end_error, sent=False)
        future: asyncio.Future[RawMessage] = self._loop.create_future()
        self._pending[request.id] = future, request
        try:
            self.write(request.body)
            if future.done():
                self._immediate_count += 1
                if self._immediate_count % _RESPONSES_PER_YIELD == 0:
                    await asyncio.sleep(0)
            return await future
        finally:
            self._pending.pop(request.id, None)

    def cancel(self, request: EncodedRequest, reason: str) -> bytes | None:
        """Tell the server that a request is no longer wanted. spec: cancellation#cancellation-flow"""
        if self._end_error is not None or request.method == "initialize":
            return None
        notice = request.encode_cancellation(reason)
        self.write(notice)
        return notice

    async def send_message(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification or an answer."""
        if self._end_error is not None:
            raise _copy_error(self._end_error, sent=False)
        self.write(body)
        await self.drain()

    async def complete_handshake(self, revision: str) -> None:
        """The connection needs to know nothing of it."""

    async def wait_until_listening(self) -> bool:
        """Everything comes on the one connection."""
        return True

    async def close(self) -> None:
        """End the connection; the server need not finish what nobody waits for."""
        for _, request in tuple(self._pending.values()):
            self.cancel(request, "the client is leaving")
        self.end(ConnectionLost("the client was closed"))
        await self.disconnect()

    # What comes in

    def receive_message(self, data: bytes) -> None:
        """One message, as bytes."""
        receiver = self._receiver
        if receiver is None:
            return
        try:
            messages = read_messages(data)
        except ParseError as exc:
            self._reject_message(data, str(exc))
            return
        for message in messages:
            if message.is_response and message.id is not None:
                pending = self._pending.get(message.id)
                if pending is None and type(message.id) is str:
                    self._reject_message(
                        _get_message_bytes(message, data, messages), f"its id is the text {clip(message.id)!r}"
                    )
                elif pending is not None and not pending[0].done():
                    pending[0].set_result(message)
            elif message.is_response:
                self._handle_null_id(message, _get_message_bytes(message, data, messages))
            elif message.method is None:
                self._reject_message(
                    _get_message_bytes(message, data, messages), "it holds neither a result nor an error"
                )
            else:
                receiver.receive(message)

    def _handle_null_id(self, message: RawMessage, data: bytes) -> None:
        """A response without an id: a server that could not read a request answers so; to the only one, if it is."""
        if message.error is not None and message.error.code in _UNREADABLE_CODES and len(self._pending) == 1:
            (future, _), *_ = self._pending.values()
            if not future.done():
                future.set_result(message)
        else:
            self._reject_message(data, "its id is null")

    def _reject_message(self, data: bytes, reason: str) -> None:
        """What came is no message; if it was to be an answer, whoever waits for it need not wait longer."""
        assert self._receiver is not None
        self._receiver.record_invalid_message(data[:400].decode("utf-8", "replace"))
        self._fail_requests(find_answered_ids(data), build_response_error(data, reason))

    def reject_oversized(self, description: str, prefix: bytes = b"") -> None:
        """Something came that was too large to be taken in."""
        if self._receiver is not None:
            self._receiver.record_invalid_message(description)
        error = add_context(
            InvalidResult(f"the answer is too large: {description}"), hint="raise ClientLimits(max_response_bytes=...)"
        )
        self._fail_requests(find_answered_ids(prefix), error)

    def _fail_requests(self, ids: list[int], error: InvalidResult) -> None:
        for id in ids:
            pending = self._pending.get(id)
            if pending is not None and not pending[0].done():
                pending[0].set_exception(add_context(InvalidResult(*error.args), hint=error.hint))

    def end(self, error: TransportError) -> None:
        """The connection is over: whoever waits is told."""
        if self._end_error is not None:
            return
        self._end_error = error
        for future, _ in self._pending.values():
            if not future.done():
                future.set_exception(_copy_error(error, sent=True))
        if self._receiver is not None:
            self._receiver.handle_connection_lost(error)


def _get_message_bytes(message: RawMessage, data: bytes, messages: list[RawMessage]) -> bytes:
    """The bytes of one message of several."""
    return data if len(messages) == 1 else message.encode()


def build_response_error(data: bytes, reason: str) -> InvalidResult:
    """What to tell whoever waits for an answer that came, but not as the protocol has it."""
    excerpt = clip(data[:_MAX_EXCERPT_BYTES].decode("utf-8", "replace"), _MAX_EXCERPT_BYTES)
    return InvalidResult(f"the server broke the protocol: what it answered is no response ({reason}): {excerpt}")


def _copy_error(error: TransportError, *, sent: bool) -> ConnectionLost:
    """The same news for one more caller: an exception carries where it was raised, so each gets its own."""
    copy = add_context(ConnectionLost(*error.args), exit_code=error.exit_code, stderr=error.stderr, hint=error.hint)
    copy.maybe_sent = sent
    return copy
