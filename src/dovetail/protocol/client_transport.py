"""ClientTransport and MessageReceiver: the interfaces between a client and its transport.

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
    """An encoded request, and the HTTP headers that repeat its values."""

    id: RequestId
    method: str
    body: bytes
    headers: Headers = ()
    is_stateless: bool = False
    params: Any = None

    @property
    def step(self) -> str:
        """Return a short name of the request for error messages."""
        return describe_request(self.method, self.params)

    def encode_cancellation(self, reason: str) -> bytes:
        """Encode the notification that cancels this request. spec: cancellation#cancellation-flow"""
        return jsonrpc.encode_notification("notifications/cancelled", {"requestId": self.id, "reason": reason})


def describe_request(method: str, params: Any) -> str:
    """Describe a request for error messages: its method, and the name of the tool, prompt or resource."""
    fields: dict[str, Any] = params if type(params) is dict else {}
    if type(fields.get("ref")) is dict:  # only completion/complete has a `ref`
        fields = fields["ref"]
    target = fields.get("name") or fields.get("uri")
    return f"{method} {clip(target, 200)}" if isinstance(target, str) else method


class MessageReceiver(Protocol):
    """Receives everything from a transport except responses."""

    def receive(self, message: RawMessage, parent_id: RequestId | None = None) -> None:
        """Handle a notification or a request from the server. `parent_id` is the request on whose stream the message
        came, if known.
        """
        ...

    def record_activity(self, id: RequestId) -> None:
        """Record that a message for this request arrived before its response."""
        ...

    def record_invalid_message(self, text: str) -> None:
        """Record that the server sent something that is not a valid message."""
        ...

    def record_gap(self) -> None:
        """Record that notifications may have been lost."""
        ...

    def pause_timeouts(self) -> None:
        """Pause all timeouts while the user logs in."""
        ...

    def resume_timeouts(self) -> None:
        """Resume the timeouts."""
        ...

    def handle_connection_lost(self, error: TransportError) -> None:
        """Handle the loss of the connection. No more messages arrive."""
        ...


class Authorizer(Protocol):
    """Adds credentials to HTTP requests."""

    async def get_headers(self, method: str, url: str) -> list[tuple[bytes, bytes]]:
        """Return the headers with the credentials for one request."""
        ...

    async def handle_challenge(
        self, status: int, header: str, nonce: str | None, sent_token: str | None, attempt: int
    ) -> bool:
        """Handle a rejected request. Return True if the client should repeat it with new credentials."""
        ...

    async def close(self) -> None:
        """Stop using the authorizer. Other transports may still use it."""
        ...


@runtime_checkable
class ClientTransport(Protocol):
    """A client's connection to a server."""

    @property
    def has_headers(self) -> bool:
        """Return whether requests can have HTTP headers."""
        ...

    async def open(self, receiver: MessageReceiver) -> None:
        """Start the server or connect to it. Raise ProcessStartError or ConnectError if that fails."""
        ...

    async def exchange(self, request: EncodedRequest) -> RawMessage:
        """Send a request and return its response. Raise TransportError or AuthError if that fails."""
        ...

    def cancel(self, request: EncodedRequest, reason: str) -> bytes | None:
        """Cancel a request without waiting. Return the notification that was sent, if any."""
        ...

    async def send_message(self, body: bytes, headers: Headers = ()) -> None:
        """Send a notification, or the response to a request from the server."""
        ...

    async def complete_handshake(self, revision: str) -> None:
        """Switch to the negotiated protocol version after the handshake."""
        ...

    async def wait_until_listening(self) -> bool:
        """Wait briefly until messages from the server can arrive at any time.

        Return False if the transport never can. The wait is short because some servers never confirm the stream.
        """
        ...

    async def close(self) -> None:
        """Close the transport. You can call this method twice and from any task."""
        ...

    def create_fallback(self) -> "ClientTransport | None":
        """Return an older transport for the same server, or None if there is none."""
        ...

    def suggest_fix(self) -> str | None:
        """Suggest a fix if the server exited while it was starting."""
        ...

    def get_diagnostics(self, since: float | None = None) -> dict[str, Any]:
        """Return details about a failure, such as `exit_code` and `stderr`. `since` leaves out older stderr lines."""
        ...


class CustomConnection(Protocol):
    """An open connection of your own transport."""

    def send(self, data: bytes, /) -> object:
        """Send one message. Must not block. Raise an exception if the connection is lost."""
        ...

    async def close(self) -> None:
        """Close the connection. The client calls this once."""
        ...


# Opens a connection. Call `receive` with each message of the server, and `lose` with a reason when the connection ends.
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
        """Start the server if it is not running. Each `user` must later call `stop`."""
        ...

    async def stop(self, user: object = None, /) -> None:
        """Stop the server if no other user needs it."""
        ...

    def open_connection(self, send: Callable[[bytes], None], /) -> ServerConnection:
        """Open a connection. `send` is called with each message for the client."""
        ...
