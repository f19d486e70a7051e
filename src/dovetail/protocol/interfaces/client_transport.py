"""The interfaces between a client and its transport.

A transport sends requests and returns their responses. It passes all other messages to the receiver and does not
interpret them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from dovetail.error_context import clip
from dovetail.errors import TransportError
from dovetail.wire import jsonrpc
from dovetail.wire.base import Struct
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.raw_message import RawMessage

Headers = Sequence[tuple[bytes, bytes]]


class EncodedRequest(Struct, eq=False):
    """An encoded request and its HTTP headers."""

    id: RequestId
    method: str
    body: bytes
    headers: Headers = ()
    is_stateless: bool = False
    params: Any = None

    @property
    def step(self) -> str:
        """Return a short description of the request for error messages."""
        return describe_request(self.method, self.params)

    def encode_cancellation(self, reason: str) -> bytes:
        """Encode the notification that cancels this request. spec: cancellation#cancellation-flow"""
        return jsonrpc.encode_notification("notifications/cancelled", {"requestId": self.id, "reason": reason})


def describe_request(method: str, params: Any) -> str:
    """Return the method of a request and the name of the requested item, for use in error messages."""
    fields: dict[str, Any] = params if type(params) is dict else {}
    if type(fields.get("ref")) is dict:  # Only completion/complete has a `ref`.
        fields = fields["ref"]
    target = fields.get("name") or fields.get("uri")
    return f"{method} {clip(target, 200)}" if isinstance(target, str) else method


class MessageReceiver(Protocol):
    """Receives all messages from a transport except responses."""

    def receive(self, message: RawMessage, parent_id: RequestId | None = None) -> None:
        """Handle a notification or a request from the server.

        `parent_id` is the ID of the client's request on whose stream the message arrived, or None if it is unknown.
        """
        ...

    def record_activity(self, id: RequestId) -> None:
        """Record that the server sent a message about an open request."""
        ...

    def record_invalid_message(self, text: str) -> None:
        """Record that the server sent an invalid message."""
        ...

    def record_gap(self) -> None:
        """Record that notifications may have been lost."""
        ...

    def pause_timeouts(self) -> None:
        """Pause all timeouts while the user logs in."""
        ...

    def resume_timeouts(self) -> None:
        """Resume all timeouts after the user has logged in."""
        ...

    def handle_connection_lost(self, error: TransportError) -> None:
        """Handle the loss of the connection. No more messages will arrive."""
        ...


class Authorizer(Protocol):
    """Adds credentials to HTTP requests."""

    async def get_headers(self, method: str, url: str) -> list[tuple[bytes, bytes]]:
        """Return the headers with the credentials for one request."""
        ...

    async def handle_challenge(
        self, status: int, header: str, nonce: str | None, sent_token: str | None, attempt: int
    ) -> bool:
        """Handle the server's rejection of a request. Return True if the client should repeat the request."""
        ...

    async def close(self) -> None:
        """Stop using this authorizer. Other transports can continue to use it."""
        ...


@runtime_checkable
class ClientTransport(Protocol):
    """A client's connection to a server."""

    @property
    def has_headers(self) -> bool:
        """Return whether this transport can send HTTP headers with a request."""
        ...

    async def open(self, receiver: MessageReceiver) -> None:
        """Start the server or connect to it. Raise ProcessStartError or ConnectError on failure."""
        ...

    async def exchange(self, request: EncodedRequest) -> RawMessage:
        """Send a request and return its response. Raise TransportError or AuthError on failure."""
        ...

    def is_answered(self, id: RequestId) -> bool:
        """Return whether the response to a request has arrived, even if `exchange` has not returned it yet."""
        ...

    def cancel(self, request: EncodedRequest, reason: str) -> bytes | None:
        """Cancel a request without waiting. If a notification was sent to the server, return the notification."""
        ...

    async def send_message(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification or a response to the server."""
        ...

    async def complete_handshake(self, revision: str) -> None:
        """Switch to the negotiated protocol version after the handshake."""
        ...

    async def wait_until_listening(self) -> bool:
        """Wait until the server can send messages to the client at any time. Give up after a short time.

        Return False if the transport does not support this. The wait is short, because some servers never confirm
        the stream.
        """
        ...

    async def close(self) -> None:
        """Close the transport. You can call this method several times and from any task."""
        ...

    def create_fallback(self) -> "ClientTransport | None":
        """Return an older kind of transport for the same server. Return None if there is none."""
        ...

    def suggest_fix(self) -> str | None:
        """If the server exited while it was starting, return a hint for the user. Otherwise return None."""
        ...

    def get_diagnostics(self, since: float | None = None) -> dict[str, Any]:
        """Return details about a failure, such as `exit_code` and `stderr`. Leave out stderr lines from before
        `since`.
        """
        ...


class CustomConnection(Protocol):
    """An open connection of a custom transport."""

    def send(self, data: bytes, /) -> object:
        """Send one message without blocking. Raise an exception if the connection is lost.

        This method must not be async, so that the messages keep their order.
        """
        ...

    async def close(self) -> None:
        """Close the connection. The client calls this method once."""
        ...


# A function that opens a connection. The function must call `receive` with each message from the server.
# The function must call `lose` with a reason when the connection ends.
OpenCustomConnection: TypeAlias = Callable[
    [Callable[[bytes], None], Callable[[str], None]], Awaitable[CustomConnection]
]


class ServerConnection(Protocol):
    """The server's end of an in-memory connection."""

    def receive(self, data: bytes) -> None:
        """Receive a message from the client."""
        ...

    async def close(self, grace: float = 0.0) -> None:
        """Close the connection. Running requests have `grace` seconds to finish."""
        ...


@runtime_checkable
class InProcessServer(Protocol):
    """A server in the same process, such as a `Server`."""

    @property
    def name(self) -> str:
        """The name of the server."""
        ...

    async def start(self, user: object = None, /) -> None:
        """Start the server if it is not running. Every `user` that starts the server must also stop it."""
        ...

    async def stop(self, user: object = None, /) -> None:
        """Stop the server, unless another user still needs it."""
        ...

    def open_connection(self, send: Callable[[bytes], None], /) -> ServerConnection:
        """Open a connection. `send` is called with each message for the client."""
        ...
