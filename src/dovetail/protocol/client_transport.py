"""ClientTransport and its receiver: what a client needs of a transport, and what a transport needs of the client.

A transport carries requests and brings back their responses; everything else that comes in goes to the inbox. It knows
nothing of what the messages mean beyond that.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from dovetail.error_context import clip
from dovetail.errors import TransportError
from dovetail.wire import jsonrpc
from dovetail.wire.base import Struct
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.raw_message import RawMessage

Headers = Sequence[tuple[bytes, bytes]]


class EncodedRequest(Struct, eq=False):
    """A request on its way: the message as bytes, and the headers that mirror it where there are headers."""

    id: RequestId
    method: str
    body: bytes
    headers: Headers = ()
    is_stateless: bool = False
    params: Any = None

    @property
    def step(self) -> str:
        """What it is for, in an error."""
        return describe_request(self.method, self.params)

    def encode_cancellation(self, reason: str) -> bytes:
        """The notice that its answer is no longer wanted. spec: cancellation#cancellation-flow"""
        return jsonrpc.encode_notification("notifications/cancelled", {"requestId": self.id, "reason": reason})


def describe_request(method: str, params: Any) -> str:
    """A request as an error names it: the method, and which tool, prompt or resource it is about."""
    fields: dict[str, Any] = params if type(params) is dict else {}
    if type(fields.get("ref")) is dict:  # of completion/complete
        fields = fields["ref"]
    target = fields.get("name") or fields.get("uri")
    return f"{method} {clip(target, 200)}" if isinstance(target, str) else method


class MessageReceiver(Protocol):
    """Where a channel puts what nobody asked for."""

    def receive(self, message: RawMessage, parent_id: RequestId | None = None) -> None:
        """A notification, or a request of the server; `of` is the request whose reply brought it, where one did."""
        ...

    def record_activity(self, id: RequestId) -> None:
        """Something came that belongs to this request, though not its answer."""
        ...

    def record_invalid_message(self, text: str) -> None:
        """Something came that is no message."""
        ...

    def record_gap(self) -> None:
        """What the server said unasked may not all have come."""
        ...

    def pause_timeouts(self) -> None:
        """A user is busy with a login: no limit of time counts until `go_on`."""
        ...

    def resume_timeouts(self) -> None:
        """The user is done."""
        ...

    def handle_connection_lost(self, error: TransportError) -> None:
        """The channel is gone; nothing more will come."""
        ...


class Authorizer(Protocol):
    """Whoever knows the credentials of requests."""

    async def get_headers(self, method: str, url: str) -> list[tuple[bytes, bytes]]:
        """The credentials of one request."""
        ...

    async def handle_challenge(
        self, status: int, header: str, nonce: str | None, sent_token: str | None, attempt: int
    ) -> bool:
        """A request was refused; whether it is worth sending again with other credentials."""
        ...

    async def close(self) -> None:
        """A channel that used it is closed, others may go on."""
        ...


@runtime_checkable
class ClientTransport(Protocol):
    """One way to a server."""

    @property
    def has_headers(self) -> bool:
        """Whether requests are accompanied by headers."""
        ...

    async def open(self, receiver: MessageReceiver) -> None:
        """Start or reach the server; ProcessStartError or ConnectError if that fails."""
        ...

    async def exchange(self, request: EncodedRequest) -> RawMessage:
        """Send a request and wait for its response; TransportError or AuthError if none will come."""
        ...

    def cancel(self, request: EncodedRequest, reason: str) -> bytes | None:
        """The answer is no longer wanted: tell the server, without waiting; what it was told, if anything."""
        ...

    async def send_message(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification with the headers that mirror it, or the answer to a request of the server."""
        ...

    async def complete_handshake(self, revision: str) -> None:
        """The handshake is over: from now on this revision is spoken."""
        ...

    async def wait_until_listening(self) -> bool:
        """Wait until what the server says unasked would be heard, not for long, since some never confirm it.

        False if it never will be.
        """
        ...

    async def close(self) -> None:
        """End it; safe to call twice and from any task."""
        ...

    def create_fallback(self) -> "ClientTransport | None":
        """The same server by an older transport, where there is one to fall back to."""
        ...

    def suggest_fix(self) -> str | None:
        """What to try if the server ended before it could be used."""
        ...

    def get_diagnostics(self, since: float | None = None) -> dict[str, Any]:
        """What is known that helps to understand a failure: `exit_code`, `stderr`; of words, those since a time."""
        ...


class ServerConnection(Protocol):
    """The server's end of a connection in memory."""

    def receive(self, data: bytes) -> None:
        """Take one message of the client."""
        ...

    async def close(self, grace: float = 0.0) -> None:
        """Close the connection. Running requests may finish within `grace` seconds."""
        ...


@runtime_checkable
class InProcessServer(Protocol):
    """A server in this process that a client can connect to. `Server` is one."""

    @property
    def name(self) -> str:
        """The name of the server."""
        ...

    async def start(self, user: object = None, /) -> None:
        """Start the server unless it runs. `user` identifies who needs it."""
        ...

    async def stop(self, user: object = None, /) -> None:
        """Release the server. It stops when its last user has released it."""
        ...

    def open_connection(self, send: Callable[[bytes], None], /) -> ServerConnection:
        """Open a connection whose messages to the client go to `send`."""
        ...
