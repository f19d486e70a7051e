"""The interface of a session store, for protocol versions with a handshake.

`MemorySessions` stores the sessions of one process. `SharedSessions` stores the sessions of a cluster.
`HandshakeSessionManager` runs the requests of the sessions.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from dovetail.error_context import clip
from dovetail.protocol.exchange import IncomingExchange, Service
from dovetail.protocol.handshake import HandshakeState
from dovetail.protocol.headers import SESSION_HEADER
from dovetail.protocol.http_checks import Refusal
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.sessions.session_writer import SessionWriter
from dovetail.wire.base import Result
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.revisions import NEWEST_REVISION, is_stateless

CreateWriter: TypeAlias = Callable[[EndpointRequest, HandshakeSession, Sequence[RequestId]], SessionWriter[Any, Any]]


class HandshakeSessions(Protocol):
    """Stores the sessions of an endpoint, and applies the changes that requests make to a session."""

    @property
    def create_writer(self) -> CreateWriter:
        """Return a function that creates the response to a request or to a batch of requests."""
        ...

    def __len__(self) -> int: ...

    @property
    def reader_count(self) -> int:
        """Return the number of streams that a client is reading."""
        ...

    @property
    def replay_bytes(self) -> int:
        """Return how many bytes this process stores for clients that reconnect."""
        ...

    async def start(self) -> None:
        """Prepare for the first session."""
        ...

    async def create(self, handshake: HandshakeState, address: str | None) -> HandshakeSession:
        """Open a session for a client that sent `initialize`. Raise Refusal if there are too many sessions."""
        ...

    async def find(self, request: EndpointRequest, *, is_answer: bool = False) -> HandshakeSession:
        """Return the session of a request. Raise Refusal if the session is unknown or belongs to another caller.

        Call `release` when the request ends. If `is_answer` is true, the returned session may be outdated.
        """
        ...

    def release(self, session: HandshakeSession) -> None:
        """Mark the end of a request for which `find` returned this session."""
        ...

    async def end(self, session: HandshakeSession) -> None:
        """End a session. Raise Refusal if the session store is unavailable."""
        ...

    async def handle_session_request(self, session: HandshakeSession, exchange: IncomingExchange) -> Result:
        """Handle a request with one of `SESSION_METHODS`. Raise Refusal if the session store is unavailable."""
        ...

    async def mark_ready(self, session: HandshakeSession) -> None:
        """Record that the client has completed the handshake."""
        ...

    async def handle_answer(self, session: HandshakeSession, message: dict[str, Any]) -> None:
        """Pass the client's response to the function that sent the request."""
        ...

    async def accept_progress(self, session: HandshakeSession, message: dict[str, Any]) -> bool:
        """Return whether a progress notification belongs to a request of this process."""
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
        """End all sessions of this process. Other workers continue to serve the shared sessions."""
        ...


class SessionVersions:
    """The protocol versions with a handshake that a server supports."""

    def __init__(self, service: Service) -> None:
        self._supported = service.protocol_versions
        # The allowed values of the MCP-Protocol-Version header, and their revisions.
        self.allowed = {revision.encode(): revision for revision in self._supported if not is_stateless(revision)}

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
        raise Refusal(
            400,
            "Mcp-Session-Id is required. Open a session with initialize. A request without a session needs the header "
            f"MCP-Protocol-Version: {NEWEST_REVISION} and the same version in _meta",
        )
    return id.decode("latin-1")


def create_unknown_error() -> Refusal:
    """Return the error for an unknown session, or for a session of another caller."""
    return Refusal(404, "Unknown session. Open a session with initialize")


def check_session_version(version: bytes | None, session: HandshakeSession) -> None:
    """Raise Refusal if a request has another protocol version than its session."""
    if version is not None and version != session.revision.encode():
        raise Refusal(
            400, f"Unsupported protocol version {version.decode('latin-1')}. This session uses {session.revision}"
        )
