"""The interface of the sessions of an endpoint, in protocol versions with a handshake.

`MemorySessions` keeps the sessions of one process, and `SharedSessions` those of a cluster. Neither knows how to run a
request: `HandshakeSessionManager` does.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from dovetail.error_context import clip
from dovetail.protocol.exchange import IncomingExchange, Service
from dovetail.protocol.handshake import HandshakeState
from dovetail.protocol.http_checks import Refusal
from dovetail.transports.http_server.handshake_session import HandshakeSession
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.session_writer import SessionWriter
from dovetail.wire.base import Result
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.revisions import is_stateless

SESSION_HEADER: Final = b"mcp-session-id"
LAST_EVENT_HEADER: Final = b"last-event-id"

CreateWriter: TypeAlias = Callable[[EndpointRequest, HandshakeSession, Sequence[RequestId]], SessionWriter[Any, Any]]


class HandshakeSessions(Protocol):
    """Finds the sessions of an endpoint, and knows what each request changes in them."""

    @property
    def create_writer(self) -> CreateWriter:
        """Return the function that creates the response for a request, or for a batch of requests with these IDs."""
        ...

    def __len__(self) -> int: ...

    @property
    def reader_count(self) -> int:
        """Return the number of streams with a reader."""
        ...

    @property
    def replay_bytes(self) -> int:
        """Return the number of bytes in the memory of this process that are stored for clients that reconnect."""
        ...

    async def start(self) -> None:
        """Prepare for the first session."""
        ...

    async def create(self, handshake: HandshakeState, address: str | None) -> HandshakeSession:
        """Open a session for a client that sent `initialize`. Raise Refusal if there are too many sessions."""
        ...

    async def find(self, request: EndpointRequest, *, is_answer: bool = False) -> HandshakeSession:
        """Return the session of a request. Raise Refusal if it is unknown or belongs to another caller.

        Call `release` when the request ends. An answer to a question needs no current state of the session.
        """
        ...

    def release(self, session: HandshakeSession) -> None:
        """Undo `find`, because the request has ended."""
        ...

    async def end(self, session: HandshakeSession) -> None:
        """End a session. Raise Refusal if that is not possible now."""
        ...

    async def handle_session_request(self, session: HandshakeSession, exchange: IncomingExchange) -> Result:
        """Return the result of a request with one of `SESSION_METHODS`. Raise Refusal if that is not possible now."""
        ...

    async def mark_ready(self, session: HandshakeSession) -> None:
        """Record that the client has completed the handshake."""
        ...

    async def handle_answer(self, session: HandshakeSession, message: dict[str, Any]) -> None:
        """Pass the client's response to the function that asked for it."""
        ...

    async def accept_progress(self, session: HandshakeSession, message: dict[str, Any]) -> bool:
        """Return whether a progress notification is for a function of this process."""
        ...

    async def cancel(self, session: HandshakeSession, id: Any) -> None:
        """Cancel a running request."""
        ...

    async def serve_stream(self, request: EndpointRequest, session: HandshakeSession) -> None:
        """Send the GET stream of a session, or resume an interrupted stream."""
        ...

    async def end_streams(self) -> None:
        """End the streams that clients can continue at other workers."""
        ...

    async def close(self) -> None:
        """End all sessions. Sessions that other workers share continue there."""
        ...


class SessionVersions:
    """The protocol versions with a handshake that a server supports."""

    def __init__(self, service: Service) -> None:
        self._supported = service.protocol_versions
        # the allowed values of the MCP-Protocol-Version header
        self.allowed = frozenset(revision.encode() for revision in self._supported if not is_stateless(revision))

    def check(self, version: bytes | None) -> None:
        """Raise Refusal if the server does not support the version of a request."""
        if version is not None and version not in self.allowed:
            raise Refusal(
                400,
                f"Unsupported protocol version {clip(version.decode('latin-1'), 64)}. MCP-Protocol-Version must be "
                f"one of {', '.join(self._supported)}",
            )


def read_session_id(request: EndpointRequest) -> str:
    """Return the session ID of a request. Raise Refusal if it is missing."""
    id = request.headers.get(SESSION_HEADER)
    if id is None:
        raise Refusal(400, "Mcp-Session-Id is required. Open a session with initialize")
    return id.decode("latin-1")


def create_unknown_error() -> Refusal:
    """Return the error for an unknown session. A session of another caller gets the same error."""
    return Refusal(404, "Unknown session. Open a session with initialize")


def check_session_version(version: bytes | None, session: HandshakeSession) -> None:
    """Raise Refusal if a request has another protocol version than its session."""
    if version is not None and version != session.revision.encode():
        raise Refusal(
            400, f"Unsupported protocol version {version.decode('latin-1')}. This session uses {session.revision}"
        )
