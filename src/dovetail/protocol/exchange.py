"""Exchange, Caller and Service: one request with its caller, in the form that both eras share.

All code above the protocol layer uses these types. A transport sets `emit` on each exchange, and also `ask` if it can
send requests to the client. A transport knows the server only as a `Service`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.errors import InternalError, InvalidParams
from dovetail.protocol.downgrade import encode_notification
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.wire.base import Result, Struct
from dovetail.wire.codec import convert, encode
from dovetail.wire.jsonrpc import MAX_ID_BYTES, RequestId
from dovetail.wire.lifecycle import ClientCapabilities, Implementation, ServerCapabilities
from dovetail.wire.meta import PROGRESS_TOKEN

if TYPE_CHECKING:
    from dovetail.protocol.recording_format import Recorder

NO_CAPABILITIES = ClientCapabilities()

Emit = Callable[[bytes], Awaitable[None]]
Ask = Callable[[str, dict[str, Any]], Coroutine[Any, Any, Any]]


class Caller(Struct):
    """The sender of a request, with its protocol version, capabilities, log level and identity."""

    protocol_version: str  # the protocol version of the request
    is_stateless: bool  # True if the protocol version has no handshake
    client_capabilities: ClientCapabilities = NO_CAPABILITIES  # what the client says it supports
    log_level: int | None = None  # minimum severity of log messages to send. 0 is "debug", None means none
    principal: Principal | None = None  # the authenticated identity, or None
    client_info: Implementation | None = None  # name and version from the client. They are not verified
    session_id: str = ""  # ID of the session or connection, or empty


class Exchange(Struct, eq=False):
    """One request, with everything that the server sends in reply. Middleware receives it."""

    is_outgoing: ClassVar[bool] = False

    id: RequestId  # the JSON-RPC ID. 0 if the request was not sent yet
    method: str  # the method, such as "tools/call"
    params: dict[str, Any]  # the parameters as JSON. Middleware may change them
    meta: dict[str, Any]  # the `_meta` of the parameters. Middleware may change the dict
    caller: Caller  # the sender of the request
    # The HTTP headers with names in lower case, or None on other transports.
    headers: Mapping[bytes, bytes] | None = None
    exception: BaseException | None = None  # the exception that the tool raised, or None
    _extra: dict[str, Any] | None = None

    @property
    def extra(self) -> dict[str, Any]:
        """A dict that middleware can use to share values. Functions see it as `Context.extra`."""
        if self._extra is None:
            self._extra = {}
        return self._extra

    @property
    def progress_token(self) -> RequestId | None:
        """Return the token for progress notifications, or None if the caller wants no progress."""
        # spec: progress#progress-flow
        token = self.meta.get(PROGRESS_TOKEN)
        if token is not None and type(token) is not int and type(token) is not str:
            raise InvalidParams(
                "Invalid params: progressToken must be a string or an integer", {"field": f"_meta.{PROGRESS_TOKEN}"}
            )
        return token

    async def notify(self, method: str, params: object = None) -> None:
        """Send a notification to the caller before the result. Does nothing for a request that a client sends.

        Args:
            params: The parameters: a struct of the protocol or a dict.
        """


class IncomingExchange(Exchange, eq=False):
    """A request that a server received, with the state that is needed to run it."""

    size: int = 0  # size of the message in bytes
    origin: str | None = None  # identifies the caller for limits. None if that is impossible
    # The name and the prefix of each server of this process that forwarded the request to a mounted server.
    mount_path: tuple[str, ...] = ()
    emit: Emit | None = None
    ask: Ask | None = None
    close_stream: Callable[[int], Awaitable[None]] | None = None
    wraps: bool = False  # True if structured content must be an object, so other values become `{"result": ...}`
    task: Any = None  # the task that runs the request
    deadline: float | None = None
    time_limit: float | None = None  # seconds until the deadline, if the limit is not that of the server
    questions: list[float] | None = None  # when each open question was asked, oldest first
    paused_at: float = 0.0  # when the oldest open question was asked
    verdict: str | None = None  # why the call was stopped: "cancelled", "gone", "timeout", "unanswered", "shutdown"
    # Checks that the caller may make this call. Raises the same error as the call.
    check: Callable[["IncomingExchange"], Awaitable[None]] | None = None

    async def notify(self, method: str, params: object = None) -> None:
        """Send a notification to the caller before the result."""
        if self.emit is not None:
            await self.emit(encode_notification(self.caller.protocol_version, self.id, method, params))

    def end(self, verdict: str) -> None:
        """Stop the request for this reason. Only the first reason counts."""
        if self.task is not None and self.verdict is None:
            self.verdict = verdict
            self.emit = None  # after the end, only the response may be sent
            self.task.cancel()

    def pause(self, now: float) -> None:
        """Pause the time limit of a call while the caller answers a question."""
        if not self.questions:
            self.questions = []
            self.paused_at = now
        self.questions.append(now)

    def resume(self, asked_at: float, now: float) -> None:
        """Remove the question that was asked at `asked_at`. If no other question is open, the time limit continues."""
        assert self.questions is not None
        self.questions.remove(asked_at)
        if not self.questions and self.deadline is not None:
            self.deadline += now - self.paused_at


class ForwardedResult(bytes):
    """The encoded result of another server with the same protocol version. It is sent unchanged."""


class ChangeListener(Protocol):
    """Receives changes of a server."""

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        """Return whether the listener wants this change."""
        ...

    def deliver(self, method: str, uri: str | None) -> None:
        """Receive one change. This method runs in the listener's event loop and must not block."""
        ...


class Service(Protocol):
    """What transports need from a server."""

    @property
    def implementation(self) -> Implementation: ...
    @property
    def instructions(self) -> str | None: ...
    @property
    def protocol_versions(self) -> tuple[str, ...]: ...
    @property
    def limits(self) -> ServerLimits: ...
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
        """Get updates of a resource from mounted servers for a handshake session. Call the returned function when the
        session no longer needs them. Return None if there is nothing to end.
        """
        ...

    def handle(self, exchange: IncomingExchange) -> Coroutine[Any, Any, Result | bytes]:
        """Run a request. Return the result as an object, or as bytes in the caller's protocol version."""
        ...

    def receive_notification(self, exchange: IncomingExchange) -> None:
        """Handle a notification of a client in a handshake session. This method must not block."""
        ...

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Send changes to a listener. The returned function stops this."""
        ...


def convert_params(exchange: IncomingExchange, params_type: type[Any]) -> Any:
    """Convert the parameters of a request to a struct."""
    return convert(exchange.params, params_type)


def create_long_token_error() -> InvalidParams:
    """Create the error for a long progress token. Each notification repeats the token, so a long one would multiply the
    size of the response.
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


def check_meta_size(exchange: IncomingExchange, max_bytes: int) -> None:
    """Raise InvalidParams if `_meta` is too large."""
    if len(encode(exchange.meta)) > max_bytes:
        raise InvalidParams(f"Invalid params: _meta is larger than {max_bytes} bytes", {"field": "_meta"})


def check_result_size(exchange: IncomingExchange, result: Result | bytes, max_bytes: int) -> None:
    """Raise InternalError if the result of a tool is too large. Only the result counts, not the whole message."""
    size = len(result if isinstance(result, bytes) else encode(result))
    if size > max_bytes and exchange.method == "tools/call":
        raise InternalError(f"The result of the tool is larger than {max_bytes} bytes")
