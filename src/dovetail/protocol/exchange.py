"""Exchange, Caller and Service: one request with its caller, in the shape that both eras share.

Everything above the protocol layer deals in these. A transport gives an exchange two things, `emit` and, only where
the peer can be asked directly, `ask`; it knows of the server only what `Service` says.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dovetail.errors import InternalError, InvalidParams
from dovetail.protocol.downgrade import encode_notification
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.wire.base import Result, Struct
from dovetail.wire.codec import convert, encode
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.lifecycle import ClientCapabilities, Implementation, ServerCapabilities
from dovetail.wire.meta import PROGRESS_TOKEN

if TYPE_CHECKING:
    from dovetail.protocol.recording_format import Recorder

NO_CAPABILITIES = ClientCapabilities()

Emit = Callable[[bytes], Awaitable[None]]
Ask = Callable[[str, dict[str, Any]], Coroutine[Any, Any, Any]]


class Caller(Struct):
    """Who asks, in which revision, with which capabilities, log level and principal."""

    protocol_version: str
    is_stateless: bool
    client_capabilities: ClientCapabilities = NO_CAPABILITIES
    log_level: int | None = None  # the least severity wanted; None: no log messages at all
    principal: Principal | None = None
    client_info: Implementation | None = None
    session_id: str = ""  # a mark of the handshake or connection that is this caller's alone; empty where there is none


class Exchange(Struct, eq=False):
    """One request and everything that is said in reply to it."""

    is_outgoing: ClassVar[bool] = False  # whether this side asks

    id: RequestId
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]
    caller: Caller
    headers: Mapping[bytes, bytes] | None = None  # where the transport has any
    size: int = 0  # bytes of the message that brought it
    origin: str | None = None  # whose share of the limits it uses, where callers can be told apart
    emit: Emit | None = None
    ask: Ask | None = None
    close_stream: Callable[[int], Awaitable[None]] | None = None
    wraps: bool = False  # whether its structured result stands under `result` where only objects are allowed
    task: Any = None  # whatever runs it; its owner may cancel it
    deadline: float | None = None
    questions: list[float] | None = None  # when each question without an answer was asked, oldest first
    paused_at: float = 0.0  # since when at least one question has been open
    verdict: str | None = None  # why its task was cancelled: "cancelled", "gone", "timeout", "unanswered", "shutdown"
    check: Callable[["Exchange"], Awaitable[None]] | None = None  # raises as the work would if its caller may not ask
    exception: BaseException | None = (
        None  # what an author's function raised, where the result only says that it failed
    )
    held: dict[str, Any] | None = None  # see `extra`

    @property
    def extra(self) -> dict[str, Any]:
        """What middleware hands on, to other middleware and to the function, for as long as the request lasts."""
        if self.held is None:
            self.held = {}
        return self.held

    async def notify(self, method: str, params: Any = None) -> None:
        """Say something on the way to the result."""
        if self.emit is not None:
            await self.emit(encode_notification(self.caller.protocol_version, self.id, method, params))

    def end(self, verdict: str) -> None:
        """Stop whatever runs it, for a reason its answer may give; the first reason stands."""
        if self.task is not None and self.verdict is None:
            self.verdict = verdict
            self.emit = None  # nothing more is said but, perhaps, the answer
            self.task.cancel()

    def pause(self, now: float) -> None:
        """Stop the call's own time while its caller is asked a question."""
        if not self.questions:
            self.questions = []
            self.paused_at = now
        self.questions.append(now)

    def resume(self, asked_at: float, now: float) -> None:
        """Close the question that was asked then. Count the call's own time again if no other question is open."""
        assert self.questions is not None
        self.questions.remove(asked_at)
        if not self.questions and self.deadline is not None:
            self.deadline += now - self.paused_at

    @property
    def progress_token(self) -> RequestId | None:
        """The token the caller wants progress under, if any."""
        # spec: progress#progress-flow
        token = self.meta.get(PROGRESS_TOKEN)
        if token is not None and type(token) is not int and type(token) is not str:
            raise InvalidParams("Invalid params: progressToken must be a string or an integer")
        return token


class ForwardedResult(bytes):
    """A result as another server of the same revision said it: nothing is to be added."""


class ChangeListener(Protocol):
    """Someone who wants to hear of changes."""

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        """Whether this change is for it."""
        ...

    def deliver(self, method: str, uri: str | None) -> None:
        """Take one change; called on the listener's own loop, must not block."""
        ...


class Service(Protocol):
    """What a transport knows of the server behind it."""

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
        """The function that records every message, if there is one."""
        ...

    def capabilities(self) -> ServerCapabilities:
        """What the server offers now."""
        ...

    def can_subscribe(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may subscribe to a resource. InsufficientScope if it needs more scopes."""
        ...

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, Result | bytes]:
        """The result of an exchange, as a value or already encoded for the caller's revision."""
        ...

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Deliver change notices to a listener. Call the returned function to stop."""
        ...


def convert_params(exchange: Exchange, params_type: type[Any]) -> Any:
    """The exchange's parameters as their struct."""
    return convert(exchange.params, params_type)


def check_meta_size(exchange: Exchange, max_bytes: int) -> None:
    """Refuse a `_meta` that is out of all proportion."""
    if len(encode(exchange.meta)) > max_bytes:
        raise InvalidParams(f"Invalid params: _meta is larger than {max_bytes} bytes")


def check_result_size(exchange: Exchange, result: Result | bytes, max_bytes: int) -> None:
    """Refuse to send what a tool gave if it is too large; what is put around it does not count."""
    size = len(result if isinstance(result, bytes) else encode(result))
    if size > max_bytes and exchange.method == "tools/call":
        raise InternalError(f"The result is larger than {max_bytes} bytes")
