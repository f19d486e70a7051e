"""A request with its caller, in a form that all protocol versions share.

All code above the protocol layer uses these types. A transport sets `emit` on each exchange, and also `ask` if it can
send requests to the client. A transport uses the server only through the `Service` interface.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from dovetail.errors import InternalError, InvalidParams
from dovetail.protocol.downgrade import encode_notification
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.wire.base import UNSET, Result, Struct
from dovetail.wire.codec import convert, encode
from dovetail.wire.jsonrpc import MAX_ID_BYTES, RequestId
from dovetail.wire.lifecycle import ClientCapabilities, Implementation, ServerCapabilities
from dovetail.wire.meta import PROGRESS_TOKEN
from dovetail.wire.methods import Method

if TYPE_CHECKING:
    from dovetail.protocol.interfaces.message_tap import Recorder
    from dovetail.protocol.interfaces.shared_state import SharedWorker
    from dovetail.protocol.request_state import RequestState
    from dovetail.wire.input_required import InputRequest

NO_CAPABILITIES = ClientCapabilities()

LARGE_RESULT_BYTES = 64 * 1024
_MAX_MEASURED_VALUES = 1000  # Results with more values than this count as large.

Emit = Callable[[bytes], Awaitable[None]]
Ask = Callable[[str, dict[str, Any]], Coroutine[Any, Any, Any]]

# A function that is called with the method of a change notification, and with the URI if one resource changed.
ChangeCallback: TypeAlias = Callable[[str, str | None], None]


class Caller(Struct):
    """The sender of a request, with its protocol version, capabilities, log level and identity."""

    protocol_version: str  # the protocol version of the request
    is_stateless: bool  # True if the protocol version has no handshake
    client_capabilities: ClientCapabilities = NO_CAPABILITIES  # the capabilities that the client declares
    # The minimum severity of log messages to send, where 0 is "debug" and None means no messages.
    log_level: int | None = None
    principal: Principal | None = None  # the authenticated identity, or None
    client_info: Implementation | None = None  # the name and version that the client sent, which are not verified
    session_id: str = ""  # the ID of the session or connection, or ""


class Exchange(Struct, eq=False):
    """One request with its caller, parameters and HTTP headers. Middleware receives it as `exchange`."""

    is_outgoing: ClassVar[bool] = False

    id: RequestId  # the JSON-RPC ID, or 0 if the request was not sent yet
    method: str  # the method, such as "tools/call"
    params: dict[str, Any]  # the parameters as JSON, which middleware may change
    meta: dict[str, Any]  # the `_meta` of the parameters, which middleware may change
    caller: Caller  # the sender of the request
    # The HTTP headers with names in lower case, or None on other transports.
    headers: Mapping[bytes, bytes] | None = None
    exception: BaseException | None = None  # the exception that the tool raised, or None
    client_address: str | None = None  # the IP address of the client over HTTP, or None
    _extra: dict[str, Any] | None = None

    @property
    def extra(self) -> dict[str, Any]:
        """A dict in which middleware can store values. Tools, resources and prompts can read it as `Context.extra`."""
        if self._extra is None:
            self._extra = {}
        return self._extra

    @property
    def progress_token(self) -> RequestId | None:
        """Return the token for progress notifications, or None if the caller did not ask for progress."""
        # spec: progress#progress-flow
        token = self.meta.get(PROGRESS_TOKEN)
        if token is not None and type(token) is not int and type(token) is not str:
            raise InvalidParams(
                "Invalid params: progressToken must be a string or an integer", {"field": f"_meta.{PROGRESS_TOKEN}"}
            )
        return token

    @property
    def is_task(self) -> bool:
        """Return whether the request runs as a task.

        Middleware wraps the request that creates a task, and later each run of the task.
        """
        return False

    async def notify(self, method: str, params: object = None) -> None:
        """Send a notification to the caller before the result. On the client side, this does nothing.

        `method` must start with "notifications/".

        Args:
            params: The parameters, as a dict or a protocol object.
        """


class IncomingExchange(Exchange, eq=False, weakref=True):
    """A request that a server received, and the state of the request."""

    size: int = 0  # the size of the message in bytes
    origin: str | None = None  # the key for counting the calls of this caller, or None if the caller is unknown
    # The names and prefixes of the servers in this process that have forwarded the request.
    mount_path: tuple[str, ...] = ()
    buffer: "ResponseBuffer | None" = None  # the buffer of the transport for large responses
    emit: Emit | None = None
    ask: Ask | None = None
    close_stream: Callable[[int], Awaitable[None]] | None = None
    wraps: bool = False  # True if older protocol versions need the structured content as `{"result": ...}`
    loop: Any = None  # the event loop that runs the request, or None if the transport does not know it
    task: Any = None  # the task that runs the request
    deadline: float | None = None
    time_limit: float | None = None  # the time limit in seconds, or None for the server's default limit
    questions: list[float] | None = None  # the times at which the open input requests were sent, oldest first
    paused_at: float = 0.0  # when the oldest open input request was sent
    waiting_calls: "WaitingCalls | None" = None  # This object counts the call while an input request is open.
    verdict: str | None = None  # Why the call was stopped: "cancelled", "gone", "timeout", "unanswered" or "shutdown".
    # A function that raises an error if the caller may not make this call.
    check: Callable[["IncomingExchange"], Awaitable[None]] | None = None
    parent: "IncomingExchange | None" = None  # the request whose function sent this request, or None
    task_call: "TaskCall | None" = None  # the task that runs the request, or None
    # True if `headers` do not repeat the arguments in `params`, because a server in this process has set `params`.
    skips_param_headers: bool = False
    last_progress: float | None = None  # the progress that was sent last
    context: Any = None  # the Context of the running call, or None if no function has used it

    @property
    def is_task(self) -> bool:
        """Return whether the request runs as a task.

        Middleware wraps the request that creates a task, and later each run of the task.
        """
        return self.task_call is not None and self.task_call.is_task

    @property
    def is_forwarded(self) -> bool:
        """Return whether the request was forwarded by another server in this process."""
        return bool(self.mount_path)

    async def notify(self, method: str, params: object = None) -> None:
        """Send a notification to the caller before the result."""
        if not method.startswith("notifications/"):
            raise ValueError(f"invalid notification {method!r}: the name must start with 'notifications/'")
        if self.emit is not None:
            await self.emit(encode_notification(self.caller.protocol_version, self.id, method, params))

    def end(self, verdict: str) -> None:
        """Stop the request and set the reason. If the request was stopped before, keep the first reason."""
        if self.task is not None and self.verdict is None:
            self.verdict = verdict
            self.emit = None  # A stopped request sends only its response.
            self.task.cancel()

    def create_nested(self, method: str, params: dict[str, Any]) -> "IncomingExchange":
        """Create a request from the running function to the same server.

        The nested request has the same caller, and its messages belong to this request.
        """

        async def emit(message: bytes) -> None:
            if self.emit is not None:
                await self.emit(message)

        return IncomingExchange(
            self.id,
            method,
            params,
            {},
            self.caller,
            self.headers,
            _extra=None if self._extra is None else dict(self._extra),
            client_address=self.client_address,
            origin=self.origin,
            mount_path=self.mount_path,
            emit=emit,
            ask=self.ask,
            close_stream=self.close_stream,
            parent=self,
            skips_param_headers=True,
        )

    def create_detached(self, task_call: "TaskCall") -> "IncomingExchange":
        """Create a copy of this request. The copy can continue to run after this request was answered.

        Messages are sent as long as this request is open.
        """

        async def emit(message: bytes) -> None:
            if self.emit is not None:
                await self.emit(message)

        return IncomingExchange(
            self.id,
            self.method,
            self.params,
            self.meta,
            self.caller,
            self.headers,
            client_address=self.client_address,
            size=self.size,
            emit=emit,
            task_call=task_call,
            skips_param_headers=self.skips_param_headers,
        )

    def pause(self, now: float) -> None:
        """Pause the time limits of a call and its parents while the client answers an input request."""
        if self.parent is not None:
            self.parent.pause(now)
        if not self.questions:
            self.questions = []
            self.paused_at = now
            if self.waiting_calls is not None:
                self.waiting_calls.add(self.origin)
        self.questions.append(now)

    def resume(self, asked_at: float, now: float) -> None:
        """Remove the input request that was sent at `asked_at`. Resume the time limits if no other input request is
        open.
        """
        if self.parent is not None:
            self.parent.resume(asked_at, now)
        assert self.questions is not None
        self.questions.remove(asked_at)
        if self.questions:
            return
        if self.deadline is not None:
            self.deadline += now - self.paused_at
        if self.waiting_calls is not None:
            self.waiting_calls.remove(self.origin)


class WaitingCalls:
    """Counts the calls that wait for a user's answer, in total and for each caller."""

    def __init__(self) -> None:
        self.total = 0
        self.by_origin: Counter[str | None] = Counter()

    def add(self, origin: str | None) -> None:
        self.total += 1
        self.by_origin[origin] += 1

    def remove(self, origin: str | None) -> None:
        self.total -= 1
        self.by_origin[origin] -= 1
        if not self.by_origin[origin]:
            del self.by_origin[origin]


class ForwardedResult(bytes):
    """A result that another server encoded for the same protocol version. It is sent unchanged."""


class ResponseBuffer(Protocol):
    """The buffer of a transport for large responses."""

    is_crowded: bool  # True if a large result must wait before it is encoded

    async def wait_for_turn(self, size: int) -> None:
        """Wait until the transport has room for a result of about this size."""
        ...

    def count_encoded(self, size: int) -> None:
        """Report how many bytes an encoded large response has."""
        ...


class TaskCall(Protocol):
    """A call that runs as a task, or that may become a task."""

    starts_in_foreground: bool  # whether the function was started by the request itself
    round_state: "RequestState | None"  # The answers and step results of the call. None if no function has read them.

    @property
    def is_task(self) -> bool:
        """Return whether the call is a task now."""
        ...

    @property
    def attempt(self) -> int:
        """Return how many times the function was started. Continuing after an answer does not count as a start."""
        ...

    async def ask(self, requests: "Mapping[str, InputRequest]") -> dict[str, Any] | None:
        """Ask the client, and return the answers by key. Return None if the function should stop and run again."""
        ...

    async def save_once_value(self, key: str, value: Any) -> None:
        """Store the result of a step that must not run twice."""
        ...

    async def save_round(self, responses: Mapping[str, Any], author_state: str | None) -> None:
        """Store the client's answers to an `InputRequired` result, and the state that the server's author passed."""
        ...

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Store the progress of the call in the status of its task."""
        ...


class ChangeListener(Protocol):
    """Receives the change notifications of a server."""

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        """Return whether the listener has subscribed to this change."""
        ...

    def deliver(self, method: str, uri: str | None) -> None:
        """Receive one change. This method runs in the listener's event loop and must not block."""
        ...

    def deliver_all(self) -> None:
        """Report every change to which the listener has subscribed, because the listener may have missed changes.

        This method runs in the listener's event loop and must not block.
        """
        ...

    def send_to_session(self, session_id: str, method: str, message: bytes) -> bool:
        """Send a notification if it is for this listener's session. Return False if it is for another session.

        This method must not block.
        """
        ...


class Service(Protocol):
    """The interface of a server for its transports."""

    @property
    def implementation(self) -> Implementation: ...
    @property
    def instructions(self) -> str | None: ...
    @property
    def refresh_description(self) -> Callable[[], Awaitable[None]] | None:
        """An optional function that updates the server's name, version and instructions for a new client."""
        ...

    @property
    def protocol_versions(self) -> tuple[str, ...]: ...
    @property
    def requests(self) -> Mapping[str, Mapping[str, Method]]:
        """A table of all requests that clients may send. The keys are the protocol version and the method."""
        ...

    @property
    def limits(self) -> ServerLimits: ...
    @property
    def cluster(self) -> "SharedWorker | None":
        """The cluster to which this process belongs, or None."""
        ...

    @property
    def recorder(self) -> "Recorder | None":
        """The function that records every message, or None."""
        ...

    def capabilities(self) -> ServerCapabilities:
        """Return the current capabilities."""
        ...

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may receive updates of a resource."""
        ...

    def can_subscribe(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may subscribe to a resource. Raise InsufficientScope if scopes are missing."""
        ...

    def watch_resource(self, uri: str, principal: Principal | None, origin: str | None) -> Callable[[], None] | None:
        """Forward updates of a resource from mounted servers to a client session.

        Call the returned function when the session no longer needs the updates. Return None if there is nothing to end.
        """
        ...

    def handle(self, exchange: IncomingExchange) -> Coroutine[Any, Any, Result | bytes]:
        """Handle a request. Return the result as an object, or as bytes in the caller's protocol version."""
        ...

    def receive_notification(self, exchange: IncomingExchange) -> None:
        """Handle a notification from a client with a handshake protocol version. This method must not block."""
        ...

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Send change notifications to a listener. The returned function removes the listener."""
        ...


def convert_params(exchange: IncomingExchange, params_type: type[Any]) -> Any:
    """Convert the parameters of a request to a struct, and check their types."""
    return convert(exchange.params, params_type)


def create_long_token_error() -> InvalidParams:
    """Create the error for a long progress token.

    Each notification repeats the token, so a long token would multiply the size of the response.
    """
    return InvalidParams(
        f"Invalid params: progressToken is longer than {MAX_ID_BYTES} characters", {"field": f"_meta.{PROGRESS_TOKEN}"}
    )


def make_type_error(field: str, expected: str) -> InvalidParams:
    """Create the error for a parameter that has the wrong type."""
    return InvalidParams(f"Invalid params: {field} must be {expected}", {"field": field})


def make_uri_length_error(max_chars: int, field: str = "uri") -> InvalidParams:
    """Create the error for a URI that is too long."""
    return InvalidParams(f"Invalid params: uri is longer than {max_chars} characters", {"field": field})


def estimate_size(result: Result | bytes) -> int:
    """Estimate the size of a result in bytes. If the size is hard to estimate, return a large number."""
    pending: list[Any] = [result]
    size, values_left = 0, _MAX_MEASURED_VALUES
    while pending:
        value = pending.pop()
        values_left -= 1
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, Struct):
            pending += (getattr(value, name) for name in value.__struct_fields__)
        elif isinstance(value, dict | list | tuple) and len(value) <= values_left:
            pending += (*value, *value.values()) if isinstance(value, dict) else value
        elif value is not None and value is not UNSET and not isinstance(value, int | float):
            size += LARGE_RESULT_BYTES
        if values_left < 0:
            return size + LARGE_RESULT_BYTES
    return size


def check_meta_size(exchange: IncomingExchange, max_bytes: int) -> None:
    """Raise InvalidParams if `_meta` is too large."""
    if len(encode(exchange.meta)) > max_bytes:
        raise InvalidParams(f"Invalid params: _meta is larger than {max_bytes} bytes", {"field": "_meta"})


def check_result_size(exchange: IncomingExchange, result: Result | bytes, max_bytes: int) -> None:
    """Raise InternalError if a tool result is too large. The limit applies to the result, not to the whole message."""
    size = len(result if isinstance(result, bytes) else encode(result))
    if size > max_bytes and exchange.method == "tools/call":
        raise InternalError(f"The result of the tool is larger than {max_bytes} bytes")
