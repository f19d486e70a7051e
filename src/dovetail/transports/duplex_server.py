"""The server side of a two-way connection, for all protocol versions. Other modules read and write the bytes.

To write a transport, pass whole messages to `receive` and pass a function that sends bytes as `write`. Requests run
concurrently, and the server answers each one when it finishes. Every message gets a response unless the protocol
defines none for it.
"""

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from dovetail.eager_tasks import EagerTaskStarter
from dovetail.errors import InternalError, InvalidRequest, ParseError, ProtocolError
from dovetail.log import log
from dovetail.protocol import downgrade, handshake, stateless
from dovetail.protocol.exchange import IncomingExchange, ResponseBuffer, Service, check_meta_size
from dovetail.protocol.limits import CallerBusy
from dovetail.protocol.principal import Principal, as_principal
from dovetail.protocol.subscription_filter import RESOURCE_UPDATED, get_declared_list_methods
from dovetail.transports.client_requests import ClientRequests
from dovetail.wire import jsonrpc
from dovetail.wire.base import replace
from dovetail.wire.codec import decode
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.meta import PROTOCOL_VERSION
from dovetail.wire.revisions import DRAFT

if TYPE_CHECKING:  # This module is slow to import, and few programs record messages.
    from dovetail.protocol.interfaces.message_tap import Recorder


def wrap_with_recorder(
    receive: Callable[[bytes], None], write: Callable[[bytes], None], recorder: "Recorder"
) -> tuple[Any, Any]:
    """Wrap a connection so that the messages in both directions are recorded."""

    def record_received(data: bytes) -> None:
        recorder("server", data, ())
        receive(data)

    def record_written(data: bytes) -> None:
        recorder("client", data, ())
        write(data)

    return record_received, record_written


Write = Callable[[bytes], None]
Drain = Callable[[], Coroutine[Any, Any, None]]


class DuplexServer:
    """The server side of one connection. It handles all messages from the client."""

    def __init__(
        self,
        service: Service,
        write: Write,
        *,
        drain: Drain | None = None,
        principal: str | None = None,
        on_shutdown: Callable[[], None] | None = None,
        buffer: ResponseBuffer | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self._service = service
        self._buffer = buffer
        self._limits = service.limits
        self._write = write
        self._drain = drain
        self._principal = None if principal is None else as_principal(principal)
        self._opening_principal = self._principal  # the caller that opened the connection
        self.origin: str | None = self._principal  # All calls with the same origin count toward the same limits.
        self.client_address: str | None = None  # the IP address of the client over HTTP+SSE
        self._on_shutdown = on_shutdown
        self._stateless_protocol = stateless.StatelessProtocol(
            service, service.protocol_versions, service.limits.max_result_bytes
        )
        self._session: handshake.HandshakeState | None = None
        self._session_mark = os.urandom(8).hex()
        self._client_requests = ClientRequests()
        self._running: dict[RequestId, tuple[IncomingExchange, Write]] = {}
        self._loop = asyncio.get_running_loop()
        self._starter = EagerTaskStarter(context)
        self._introductions: set[asyncio.Task[None]] = set()  # the running tasks that answer `initialize`
        self._stop_listening: Callable[[], None] | None = None
        self._pending_changes: dict[tuple[str, str | None], None] = {}
        self._notify_task: asyncio.Task[None] | None = None
        self._is_input_closed = False  # True if the client can no longer answer requests from the server
        self._is_closed = False  # True if the client has stopped reading
        if service.recorder is not None:
            self.receive, self._write = wrap_with_recorder(self.receive, self._write, service.recorder)

    @property
    def running_count(self) -> int:
        """Return the number of running requests."""
        return len(self._running)

    @property
    def open_questions(self) -> int:
        """Return the number of unanswered requests to the client."""
        return self._client_requests.open_questions

    def set_principal(self, principal: Principal | None) -> None:
        """Update the caller's principal for later messages, because the caller's scopes may have changed."""
        if principal is not self._principal:
            self._principal = principal
            if self._session is not None:
                self._session.caller = replace(self._session.caller, principal=principal)

    def receive(self, data: bytes) -> None:
        """Handle a message or a batch from the client."""
        if self._is_input_closed:
            return
        try:
            message = decode(data)
        except ParseError as exc:
            self._write(jsonrpc.encode_protocol_error(None, exc))
            return
        if type(message) is list:
            self._handle_batch(message, len(data))
        else:
            self._handle_message(message, self._write, len(data))

    def send_refusal(self, exc: ProtocolError) -> None:
        """Send an error response for data that is not a message."""
        self._write(jsonrpc.encode_protocol_error(None, exc))

    async def close(self, grace: float = 0.0) -> None:
        """Close the connection.

        Calls that finish within `grace` seconds get a response, and the others are stopped.
        """
        self._is_input_closed = True
        self._starter.close()
        if self._session is not None:
            self._session.close()
        if self._stop_listening is not None:
            self._stop_listening()
        if self._notify_task is not None:
            self._notify_task.cancel()
        self._client_requests.close("The client closed the connection")
        for exchange, _ in tuple(self._running.values()):
            if exchange.method == "subscriptions/listen":
                exchange.end("gone")  # A subscription does not end by itself.
        introductions = tuple(self._introductions)
        tasks = [*introductions, *(exchange.task for exchange, _ in self._running.values())]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        self._is_closed = True
        for exchange, _ in tuple(self._running.values()):
            exchange.end("gone")
        for task in introductions:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        self._running.clear()  # If the task was cancelled before it started, it has not removed its entry.

    def _handle_message(self, message: Any, reply: Write, size: int) -> bool:
        """Handle one message. Return True if its response will be sent later."""
        try:
            kind = jsonrpc.classify(message)
            if kind == "request":
                return self._handle_request(message, reply, size)
            if kind == "notice":
                self._handle_notification(message, size)
            else:
                self._client_requests.handle_response(message)
        except ProtocolError as exc:
            reply(self._refuse_unadmitted(jsonrpc.read_id(message), exc))
        return False

    def _handle_request(self, message: dict[str, Any], reply: Write, size: int) -> bool:
        session = None
        if self._stateless_protocol.is_served and stateless.is_stateless_message(message):
            exchange = self._stateless_protocol.admit(message, None, self._principal)
            exchange.caller.session_id = self._session_mark
        elif message["method"] == handshake.INITIALIZE and not isinstance(reply, _Batch):
            self._initialize(message, reply)
            return False
        else:
            session = self._session or _default_session(message)
            exchange = session.admit(message, self._service.requests)
            exchange.ask = self._ask_client
        exchange.origin = self.origin
        exchange.client_address = self.client_address
        if exchange.id in self._running:
            code = downgrade.DRAFT_DUPLICATE_ID if self._is_draft(exchange) else InvalidRequest.code
            problem = "Invalid request: this id is already in use by a running request"
            reply(jsonrpc.encode_error(exchange.id, code, problem))
            return False
        if session is not None and exchange.method in handshake.SESSION_METHODS:
            session_result = session.handle_session_request(exchange, self._service)
            reply(handshake.seal(exchange, session_result, self._limits.max_result_bytes))
            if exchange.method == "shutdown":
                self._end_session()
            return False
        exchange.size = size
        if size > self._limits.max_meta_bytes:
            check_meta_size(exchange, self._limits.max_meta_bytes)
        if len(self._running) >= self._limits.max_calls_per_connection:
            raise CallerBusy(
                f"More than {self._limits.max_calls_per_connection} requests are running on this connection"
            )
        exchange.loop = self._loop
        exchange.emit = self._emit
        exchange.buffer = self._buffer
        self._running[exchange.id] = (exchange, reply)
        exchange.task = self._starter.start(self._run(exchange, reply))
        return True

    def _initialize(self, message: dict[str, Any], reply: Write) -> None:
        """Open a session. A second `initialize` starts a new session, but running requests still get their responses.

        A program may share one pipe between several clients, and then each client sends `initialize`.
        """
        session = handshake.open_session(message, self._service, self._principal)
        if self._session is not None:
            self._session.close()
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        self._session = session
        self._pending_changes.clear()
        refresh_description = self._service.refresh_description
        if refresh_description is None:
            reply(handshake.encode_introduction(message["id"], session, self._service))
        else:
            task = self._loop.create_task(self._introduce(message["id"], session, reply, refresh_description))
            self._introductions.add(task)
            task.add_done_callback(self._introductions.discard)

    async def _introduce(
        self,
        id: RequestId,
        session: handshake.HandshakeState,
        reply: Write,
        refresh_description: Callable[[], Awaitable[None]],
    ) -> None:
        await refresh_description()
        if not self._is_closed:
            reply(handshake.encode_introduction(id, session, self._service))

    def _end_session(self) -> None:
        """End the session after a `shutdown` request. Also close the connection if the transport supports it."""
        if self._on_shutdown is not None:
            self._on_shutdown()
            return
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        for exchange, _ in tuple(self._running.values()):
            if not exchange.caller.is_stateless:
                exchange.end("gone")

    async def _run(self, exchange: IncomingExchange, reply: Write) -> None:
        response: bytes | None = None
        try:
            result = await self._service.handle(exchange)
            if exchange.caller.is_stateless:
                response = self._stateless_protocol.seal(exchange, result)
            else:
                response = handshake.seal(exchange, result, self._limits.max_result_bytes)
        except ProtocolError as exc:
            response = self._refuse(exchange, exc)
        except asyncio.CancelledError:
            # If the handler itself raised CancelledError, the client still needs a response.
            if exchange.verdict is None and not self._is_closed:
                response = self._refuse(exchange, InternalError("The call was cancelled by the server"))
        except Exception as exc:
            log.error("the result of %s could not be sent: %s", exchange.method, type(exc).__name__)
            response = self._refuse(exchange, InternalError("The result could not be encoded"))
        self._finish(exchange, reply, response)

    def _finish(self, exchange: IncomingExchange, reply: Write, response: bytes | None) -> None:
        entry = self._running.get(exchange.id)
        if entry is None or entry[0] is not exchange:
            return  # The request was cancelled and already has its response.
        del self._running[exchange.id]
        if response is not None and not self._is_closed:
            reply(response)
        if reply is not self._write:
            self._settle_batch(reply)

    def _refuse(self, exchange: IncomingExchange, exc: ProtocolError) -> bytes:
        if exchange.caller.is_stateless:
            return self._stateless_protocol.refuse(exchange.id, exc)
        return handshake.refuse(exchange.caller.protocol_version, exchange.id, exc)

    def _refuse_unadmitted(self, id: RequestId | None, exc: ProtocolError) -> bytes:
        if self._session is None:
            return jsonrpc.encode_protocol_error(id, exc)
        return handshake.refuse(self._session.caller.protocol_version, id, exc)

    def _is_draft(self, exchange: IncomingExchange) -> bool:
        return exchange.caller.protocol_version == DRAFT

    async def _emit(self, data: bytes) -> None:
        self._write(data)
        if self._drain is not None:
            await self._drain()

    def _handle_notification(self, message: dict[str, Any], size: int) -> None:
        match message["method"]:
            case "notifications/cancelled":
                params: Any = message.get("params") or {}
                self._cancel(params.get("requestId"))
            case "notifications/initialized" | "initialized":  # Some clients omit the prefix "notifications/".
                if self._session is not None and not self._session.is_ready:
                    self._session.is_ready = True
                    self._stop_listening = self._service.subscribe(self)
            case _:
                if self._session is not None:
                    exchange = self._session.admit_notification(message)
                    if exchange.method == "notifications/progress":
                        exchange.params = self._client_requests.read_progress(exchange.params)
                    exchange.origin, exchange.emit, exchange.ask = self.origin, self._emit, self._ask_client
                    exchange.client_address = self.client_address
                    exchange.size = size
                    self._service.receive_notification(exchange)

    def _cancel(self, id: Any) -> None:
        """Cancel a request. In the draft protocol version, also send an error response.

        spec: cancellation#behavior-requirements
        """
        entry = self._running.pop(id, None) if type(id) in (int, str) else None
        if entry is None:
            return
        exchange, reply = entry
        exchange.end("cancelled")
        if self._is_draft(exchange):
            reply(jsonrpc.encode_error(exchange.id, downgrade.DRAFT_CANCELLED, "Request cancelled"))
        self._settle_batch(reply)

    async def _ask_client(self, method: str, params: dict[str, Any]) -> Any:
        id, data, future = self._client_requests.create(method, params)
        try:
            await self._emit(data)
            return await future
        finally:
            if (cancellation := self._client_requests.abandon(id)) is not None:
                self._write(cancellation)

    # Clients of the handshake era receive change notifications without a stream, on the connection itself.

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        """Return whether the client has subscribed to a change."""
        return self._session is not None and self._session.is_subscribed(method, uri)

    def deliver(self, method: str, uri: str | None) -> None:
        """Notify the client of a change. If the client does not read, the same change is queued only once."""
        for subscribed_uri in self._session.get_subscribed_uris(uri) if self._session is not None else ():
            if self._can_receive(subscribed_uri):
                self._pending_changes[method, subscribed_uri] = None
        if self._notify_task is None or self._notify_task.done():
            self._notify_task = self._loop.create_task(self._send_changes())

    def deliver_all(self) -> None:
        """Notify the client of every change to which it has subscribed, because some changes were missed."""
        session = self._session
        if session is not None and session.is_ready:
            for method in get_declared_list_methods(self._service.capabilities()):
                self.deliver(method, None)
            for key in tuple(session.subscriptions or ()):
                self.deliver(RESOURCE_UPDATED, key)

    def send_to_session(self, session_id: str, method: str, message: bytes) -> bool:
        """Send a notification if this connection belongs to the session with this ID.

        Return whether it belongs to it.
        """
        session = self._session
        if session is None or session.caller.session_id != session_id:
            return False
        if session.accepts_notification(method) and not self._is_closed:
            self._write(message)
        return True

    def _can_receive(self, uri: str | None) -> bool:
        principal = self._opening_principal
        return uri is None or principal is None or self._service.can_receive_updates(uri, principal)

    async def _send_changes(self) -> None:
        if self._drain is not None:
            await self._drain()
        changes, self._pending_changes = self._pending_changes, {}
        for method, uri in changes if not self._is_closed else ():
            self._write(handshake.encode_change(method, uri))

    def _handle_batch(self, messages: list[Any], size: int) -> None:
        """Handle a batch of messages. spec: handshake/basic#batching"""
        problem = None
        if self._session is None or not self._session.allows_batches:
            problem = "this protocol version does not support batches"
        elif not 0 < len(messages) <= self._limits.max_calls_per_connection:
            problem = f"a batch must have 1 to {self._limits.max_calls_per_connection} messages"
        if problem is not None:
            self._write(self._refuse_unadmitted(None, InvalidRequest(f"Invalid request: {problem}")))
            return
        batch = _Batch(self._write)
        for message in messages:
            batch.open_count += 1
            if not self._handle_message(message, batch, size):
                batch.settle()
        batch.settle()

    def _settle_batch(self, reply: Write) -> None:
        if isinstance(reply, _Batch):
            reply.settle()


def _default_session(message: dict[str, Any]) -> handshake.HandshakeState:
    """Return a session for a `ping` that arrives before the handshake. Reject all other requests.

    spec: handshake/lifecycle#initialization
    """
    if message["method"] != "ping":
        raise InvalidRequest(f"Invalid request: send initialize first, or set {PROTOCOL_VERSION} in _meta")
    return handshake.create_implicit_session(None)


class _Batch:
    def __init__(self, write: Write) -> None:
        self._write = write
        self._replies: list[bytes] = []
        self.open_count = 1

    def __call__(self, data: bytes) -> None:
        self._replies.append(data)

    def settle(self) -> None:
        self.open_count -= 1
        if self.open_count == 0 and self._replies:
            self._write(b"[" + b",".join(self._replies) + b"]")
