"""A connection to one server, in one protocol version.

It sends requests, waits for responses, sends cancellations, and enforces timeouts.

A connection does not depend on the kind of transport or on the meaning of the methods. Every failure is raised as one
exception that contains the name of the server and the failed step.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from dovetail.backoff import compute_backoff
from dovetail.client.callback_queue import CallbackQueue
from dovetail.client.deadlines import DeadlineTimer, RequestDeadline
from dovetail.client.handlers import InputHandlers
from dovetail.error_context import add_context, clip
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    HTTPStatusError,
    InputRequestError,
    InternalError,
    InvalidResult,
    MCPError,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    ServerBusy,
    TransportError,
)
from dovetail.log import log
from dovetail.protocol.client_messages import RequestEncoder, create_error, parse_progress
from dovetail.protocol.interfaces.client_transport import ClientTransport, EncodedRequest, Headers
from dovetail.protocol.uri_key import uri_key
from dovetail.wire import jsonrpc
from dovetail.wire.base import UNSET
from dovetail.wire.codec import encode
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.lifecycle import Implementation, ServerCapabilities
from dovetail.wire.meta import PROGRESS_TOKEN
from dovetail.wire.progress import CancelledParams, ProgressParams
from dovetail.wire.raw_message import RawMessage, decode_body, to_plain
from dovetail.wire.revisions import DRAFT

if TYPE_CHECKING:
    from dovetail.protocol.interfaces.message_tap import Receiver, Recorder

OnNotification = Callable[[str, Any], None]

_MAX_LOGGED_INVALID = 3
_TIMEOUT_HINTS = {
    "tools/call": "pass call_tool(..., timeout=seconds) to wait longer, or Timeouts(call=...) for all calls"
}
_DEFAULT_TIMEOUT_HINT = "pass Timeouts(request=...) to wait longer"
# At most this many replies can wait until the server reads them.
_MAX_PENDING_REPLIES = 256
# A response is sent this often, over about 7 seconds, if a worker of the server is lost or its shared state is away.
_MAX_REPLY_ATTEMPTS: Final = 8
_REPLY_RETRY_DELAY_S: Final = 0.1
_MAX_REPLY_RETRY_DELAY_S: Final = 2.0
# A proxy or a busy server sends these status codes. The same request may succeed later.
TRANSIENT_STATUS_CODES: Final = frozenset({429, 502, 503, 504})


# These methods for dialogs exist only in the draft version.
_CREATE_DIALOG: Final = "elicitation/createDialog"
_DIALOG_OPENED: Final = "notifications/elicitation/dialog_opened"
_DIALOG_CLOSED: Final = "notifications/elicitation/dialog_closed"


class Connection:
    def __init__(
        self,
        transport: ClientTransport,
        name: str,
        handlers: InputHandlers,
        callbacks: CallbackQueue,
        *,
        max_input_requests: int,
        on_notification: OnNotification,
        on_gap: Callable[[], None],
        open_deadlines: DeadlineTimer | None = None,
        recorders: "list[Recorder] | None" = None,
        on_lost: Callable[["Connection"], None] | None = None,
    ) -> None:
        self.transport = transport
        self.name = name
        self.encoder: RequestEncoder | None = None
        self.server_info: Implementation | None = None
        self.server_capabilities = ServerCapabilities()
        # These methods need a capability that the server did not declare.
        self.unsupported_methods: frozenset[str] = frozenset()
        self.instructions: str | None = None
        self.lost_error: TransportError | None = None
        self.lost_event = asyncio.Event()
        self.invalid_message_count = 0
        self.first_invalid_message: str | None = None
        self._subscriber_counts: Counter[str] = Counter()  # the number of listeners of each normalized URI
        self._subscribed_uris: dict[str, str] = {}  # maps normalized URIs to the server's spelling
        self._handlers = handlers
        self._callbacks = callbacks
        self._max_input_requests = max_input_requests
        self._on_notification = on_notification
        self._on_lost = on_lost
        self.record_gap = on_gap  # Called if notifications may have been lost.
        self._open_deadlines = open_deadlines
        self._recorders: list[Recorder] = [] if recorders is None else recorders
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._pause_count = 0  # the number of input requests that the user is answering
        self._deadlines = DeadlineTimer()
        self._reply_tasks: dict[Any, asyncio.Task[None]] = {}

    @property
    def running(self) -> int:
        """Return the number of requests that have no response yet."""
        return self._deadlines.running

    # The following methods count the subscribers of resources.
    # Subscribers may use different spellings of a URI, but the client sends only one spelling to the server.

    def get_subscribed_uri(self, uri: str) -> str:
        """Return the URI with which the client subscribed to a resource. Its spelling may differ from `uri`."""
        return self._subscribed_uris.get(uri_key(uri), uri)

    def has_subscribers(self, uri: str) -> bool:
        """Return whether a resource has a subscriber."""
        return self._subscriber_counts[uri_key(uri)] > 0

    def add_subscriber(self, uri: str) -> str:
        """Count one more subscriber of a resource. Return the URI for the subscribe request."""
        key = uri_key(uri)
        self._subscriber_counts[key] += 1
        return self._subscribed_uris.setdefault(key, uri)

    def remove_subscriber(self, uri: str) -> str | None:
        """Remove a subscriber of a resource. If none is left, return the URI for the unsubscribe request."""
        key = uri_key(uri)
        self._subscriber_counts[key] -= 1
        return None if self._subscriber_counts[key] > 0 else self._subscribed_uris.pop(key, uri)

    def request(
        self,
        method: str,
        params: Any,
        deadline: RequestDeadline,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Headers = (),
    ) -> Awaitable[Any]:
        """Send a request. Return an awaitable for the result, which is not decoded yet."""
        encoder = self.encoder
        if encoder is None:
            raise add_context(ConnectionLost("the connection is not open"), server=self.name, step=method)
        self._last_id = id = self._last_id + 1
        request = EncodedRequest(
            id,
            method,
            encoder.encode_request(id, method, params, meta),
            [*encoder.build_headers(method, params), *headers]
            if encoder.is_stateless and self.transport.has_headers
            else (),
            encoder.is_stateless,
            params,
        )
        return self.exchange(request, deadline)

    def next_id(self) -> int:
        """Return a new request ID."""
        self._last_id += 1
        return self._last_id

    async def exchange(self, request: EncodedRequest, deadline: RequestDeadline) -> Any:
        """Send a request and return its result, which is not decoded yet.

        An error response is raised as an exception.
        """
        if self.lost_error is not None:
            raise self._add_context(ConnectionLost("the connection is lost"), request.step, sent=False)
        if self._recorders:
            self._record("server", request.body, request.headers)
        self._deadlines.start(request.id, deadline)
        try:
            message = await self.transport.exchange(request)
        except asyncio.CancelledError:
            if not deadline.is_cancel_cause():
                self._cancel(request, "cancelled by the caller")
                raise
            if deadline.failure is not None:
                self._cancel(request, "the client could not answer an input request")
                raise self._add_context(deadline.failure, request.step) from deadline.failure.__cause__
            self._cancel(request, "timed out")
            error = add_context(
                RequestTimeout(deadline.describe_timeout()),
                hint=_TIMEOUT_HINTS.get(request.method, _DEFAULT_TIMEOUT_HINT),
            )
            raise self._add_context(error, request.step, since=deadline.started_at) from None
        except MCPError as exc:
            # Over HTTP, an error may be only a status code, so the recording gets a JSON-RPC message with this error.
            if self._recorders and isinstance(exc, RemoteError):
                self._record("client", jsonrpc.encode_error(request.id, exc.code, exc.message, exc.data))
            raise self._add_context(exc, request.step) from exc.__cause__
        finally:
            self._deadlines.stop(request.id)
        if self._recorders:
            self._record("client", message.encode())
        if deadline.progress_handler is not None and deadline.progress_count:
            # Slow callbacks must not delay the response beyond the deadline.
            await self._callbacks.flush(deadline.due_at - self._loop.time())
        if message.error is not None:
            raise self._add_context(create_error(self.revision, request.method, message.error), request.step)
        if message.result is UNSET:
            raise self._add_context(InvalidResult("the response has neither a result nor an error"), request.step)
        return message.result

    @property
    def revision(self) -> str | None:
        """Return the protocol version, or None if the version is not negotiated yet."""
        return None if self.encoder is None else self.encoder.revision

    def _add_context(
        self, exc: MCPError, step: str, *, sent: bool | None = None, since: float | None = None
    ) -> MCPError:
        if sent is not None and isinstance(exc, ConnectionLost):
            exc.maybe_sent = sent
        if self.encoder is None:
            # If the connection fails while it opens, the server's stderr may explain the failure.
            since = None
        diagnostics = self.transport.get_diagnostics(since) if isinstance(exc, TransportError) else {}
        return add_context(exc, server=self.name, step=step, protocol_version=self.revision, **diagnostics)

    async def notify(self, method: str, params: Any = None, headers: Headers = ()) -> None:
        """Send a notification."""
        encoder = self.encoder
        if encoder is not None and encoder.is_stateless:
            # spec: streamable-http#standard-request-headers
            headers = encoder.build_headers(method, {})
        await self._send(jsonrpc.encode_notification(method, params), headers)

    async def send_progress(self, token: str | int, progress: float, total: float | None, message: str | None) -> None:
        """Report the progress of a request that the server sent."""
        # This import is here because few clients send progress.
        from dovetail.protocol.downgrade import encode_notification

        params = ProgressParams(progress_token=token, progress=progress, total=total, message=message)
        await self._send(encode_notification(self.revision or "", token, "notifications/progress", params))

    async def _send(self, data: bytes, headers: Headers = ()) -> None:
        if self._recorders:
            self._record("server", data, headers)
        await self.transport.send_message(data, headers)

    def _cancel(self, request: EncodedRequest, reason: str) -> None:
        notice = self.transport.cancel(request, reason)
        if notice is not None and self._recorders:
            self._record("server", notice)

    def _record(self, to: "Receiver", data: bytes, headers: Headers = ()) -> None:
        for recorder in tuple(self._recorders):
            try:
                recorder(to, data, headers)
            except Exception as exc:
                # A failing recorder must not stop the request.
                log.error("%s: a message recorder failed and is removed", self.name, exc_info=exc)
                if recorder in self._recorders:
                    self._recorders.remove(recorder)

    def receive(self, message: RawMessage, parent_id: RequestId | None = None) -> None:
        """Handle a notification or a request from the server.

        `parent_id` is the ID of the client's request that caused the message, if it is known.
        """
        if self._recorders:
            self._record("client", message.encode())
        method = message.method
        if method is None:
            return  # The response belongs to a request that is no longer open.
        if message.id is not None:
            self._handle_request(message.id, method, message.params, parent_id)
        elif method == "notifications/progress":
            self._handle_progress(message.params)
        elif method == "notifications/cancelled":
            self._handle_cancelled(message.params)
        else:
            self._on_notification(method, message.params)

    def record_activity(self, id: RequestId) -> None:
        """Restart the idle timeout of a request, because the server has sent a message about it."""
        deadline = self._deadlines.get(id)
        if deadline is not None:
            deadline.record_activity()

    def record_invalid_message(self, text: str) -> None:
        """Count an invalid message from the server, and log the first few."""
        if self._recorders:
            self._record("client", text.encode("utf-8", "replace"))
        self.invalid_message_count += 1
        self.first_invalid_message = self.first_invalid_message or text.strip()
        if self.invalid_message_count <= _MAX_LOGGED_INVALID:
            suffix = (
                " (further invalid messages are not logged)"
                if self.invalid_message_count == _MAX_LOGGED_INVALID
                else ""
            )
            log.warning("%s sent an invalid message%s: %s", self.name, suffix, clip(text, 200))

    def handle_connection_lost(self, error: TransportError) -> None:
        """Handle the loss of the connection. Cancel the responses that were not sent yet, and notify the session."""
        if self.lost_error is None:
            self.lost_error = error
            self.lost_event.set()
            for task in self._reply_tasks.values():
                task.cancel()
            if self._on_lost is not None:
                self._on_lost(self)

    def _handle_progress(self, params: Any) -> None:
        try:
            token, progress, total, text = parse_progress(params)
        except InvalidResult:
            return
        deadline = self._deadlines.get(token)
        # Once the response has arrived, progress is ignored, even if the caller has not received the response yet.
        if deadline is not None and not self.transport.is_answered(token):
            deadline.record_activity()
            if deadline.progress_handler is not None:
                self._callbacks.call(deadline.progress_handler, progress, total, text)

    def _handle_cancelled(self, params: Any) -> None:
        try:
            id = decode_body(params, CancelledParams, "notifications/cancelled").request_id
        except InvalidResult:
            return
        task = self._reply_tasks.get(id) if id is not None else None
        if task is not None:
            task.cancel()

    def _handle_request(self, id: RequestId, method: str, params: Any, parent_id: RequestId | None) -> None:
        if self.lost_error is not None:
            return  # The connection is lost, so no response can be sent.
        if self.encoder is not None and self.encoder.is_stateless:
            # In this protocol version, a server must not send requests. It asks for input in its results instead.
            # spec: streamable-http#sending-messages
            self.record_invalid_message(f"the request {method}, which servers cannot send in this protocol version")
        elif len(self._reply_tasks) >= self._max_input_requests + _MAX_PENDING_REPLIES:
            self.record_invalid_message(
                f"the request {method}, although it does not read the responses to earlier requests"
            )
        elif method == "ping":
            self._start_reply(id, self._send_reply(jsonrpc.encode_result(id, b"{}")))
        elif len(self._reply_tasks) >= self._max_input_requests:
            self._start_reply(
                None, self._send_reply(jsonrpc.encode_protocol_error(id, ServerBusy("Too many requests are open")))
            )
        else:
            self._start_reply(id, self._answer_request(id, method, params, parent_id))

    def _start_reply(self, id: RequestId | None, coroutine: Coroutine[Any, Any, None]) -> None:
        key: Any = id if id is not None and id not in self._reply_tasks else object()
        task = self._loop.create_task(coroutine)
        self._reply_tasks[key] = task
        task.add_done_callback(lambda _: self._reply_tasks.pop(key, None))

    def pause_timeouts(self) -> None:
        """Pause all timeouts while the user answers an input request."""
        self._pause_count += 1
        self._deadlines.pause()
        if self._open_deadlines is not None:
            self._open_deadlines.pause()

    def resume_timeouts(self) -> None:
        """Continue the timeouts after the user has answered all input requests."""
        self._pause_count -= 1
        if self._pause_count == 0:
            self._deadlines.resume()
            if self._open_deadlines is not None:
                self._open_deadlines.resume()

    async def _answer_request(self, id: RequestId, method: str, params: Any, parent_id: RequestId | None) -> None:
        is_dialog = method == _CREATE_DIALOG and self._handlers.capabilities().elicitation is not None
        self.pause_timeouts()
        try:
            if self.revision == DRAFT:
                params = _add_progress_token(params, id)
            if is_dialog:
                await self._send_reply(jsonrpc.encode_notification(_DIALOG_OPENED, {"requestId": id}))
            result = await self._handlers.answer(method, params)
            reply = jsonrpc.encode_result(id, encode(result))
        except ProtocolError as exc:
            reply = jsonrpc.encode_protocol_error(id, exc)
        except InputRequestError as exc:
            self._report_failure(parent_id, method, exc)
            reply = jsonrpc.encode_protocol_error(id, InternalError("The client could not handle the request"))
        except Exception as exc:
            log.error("%s sent %s: the handler failed", self.name, clip(method), exc_info=exc)
            reply = jsonrpc.encode_protocol_error(id, InternalError("The client could not handle the request"))
        finally:
            self.resume_timeouts()
        if is_dialog:
            await self._send_reply(jsonrpc.encode_notification(_DIALOG_CLOSED, {"requestId": id}))
        await self._send_reply(reply)

    def _report_failure(self, parent_id: RequestId | None, method: str, exc: InputRequestError) -> None:
        deadline = self._deadlines.find_for(parent_id)
        if deadline is not None:
            deadline.fail(exc)
        else:
            log.error("%s sent %s: %s", self.name, clip(method), exc, exc_info=exc.__cause__)

    async def _send_reply(self, data: bytes) -> None:
        """Send a response. If it may not have arrived, send it again, because servers ignore a second response."""
        for attempt in range(_MAX_REPLY_ATTEMPTS):
            try:
                await self._send(data)
                return
            except MCPError as exc:
                is_last = attempt == _MAX_REPLY_ATTEMPTS - 1
                if is_last or self.lost_error is not None or not _can_send_reply_again(exc):
                    log.warning("could not send a response to %s: %s", self.name, exc)
                    return
            await asyncio.sleep(compute_backoff(_REPLY_RETRY_DELAY_S, attempt, _MAX_REPLY_RETRY_DELAY_S))

    async def close(self) -> None:
        """Close the transport and cancel responses that were not sent."""
        if self.lost_error is None:
            self.lost_error = ConnectionLost("the client was closed")
            self.lost_event.set()
        for task in tuple(self._reply_tasks.values()):
            task.cancel()
        try:
            await self.transport.close()
        finally:
            self._deadlines.close()


def _add_progress_token(params: Any, id: RequestId) -> Any:
    """Use the request ID as the progress token, because the draft version has no progress tokens."""
    try:
        data = to_plain(params)
    except InvalidResult:
        return params  # The handler rejects invalid parameters later.
    if type(data) is not dict:
        return params
    meta = data.get("_meta")
    return data | {"_meta": (meta if type(meta) is dict else {}) | {PROGRESS_TOKEN: id}}


def _can_send_reply_again(exc: MCPError) -> bool:
    return isinstance(exc, ConnectionLost | ConnectError) or (
        isinstance(exc, HTTPStatusError) and exc.status_code in TRANSIENT_STATUS_CODES
    )
