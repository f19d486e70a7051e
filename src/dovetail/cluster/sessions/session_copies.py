"""The copies of shared sessions in one worker. A session continues after a worker drops its copy."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from dovetail.cluster.sessions.sealed_session_id import SessionIdentity
from dovetail.cluster.sessions.session_record import SessionCopy
from dovetail.protocol.http_checks import Refusal
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession

_MAX_EVICTION_STEPS: Final = 100


def get_copy(session: HandshakeSession) -> SessionCopy:
    """Return this worker's copy of a shared session."""
    copy = session.store_data
    assert isinstance(copy, SessionCopy)
    return copy


def is_unused(session: HandshakeSession) -> bool:
    """Return whether a session has no HTTP request, call, pending question or stream reader at this worker."""
    return not get_copy(session).request_count and not session.running_exchanges and not session.readers


class SessionCopies:
    """The sessions with a copy at this worker. The least recently used session is first."""

    def __init__(self, max_copies: int) -> None:
        self._max_copies = max_copies
        self._sessions: OrderedDict[str, HandshakeSession] = OrderedDict()
        self._sessions_by_key: dict[str, HandshakeSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[HandshakeSession]:
        return iter(tuple(self._sessions.values()))

    def __contains__(self, session: HandshakeSession) -> bool:
        return self._sessions.get(session.id) is session

    def get(self, id: str) -> HandshakeSession | None:
        """Return the session with this ID, or None."""
        return self._sessions.get(id)

    def get_by_key(self, key: str) -> HandshakeSession | None:
        """Return the session with this key, or None."""
        return self._sessions_by_key.get(key)

    def add(self, session: HandshakeSession) -> None:
        """Add a copy."""
        self._sessions[session.id] = self._sessions_by_key[get_copy(session).identity.key] = session

    def mark_used(self, session: HandshakeSession) -> None:
        """Set the time at which a copy of a session was last used."""
        session.last_used_at = session.loop.time()
        if session.id in self._sessions:
            self._sessions.move_to_end(session.id)

    def drop(self, session: HandshakeSession) -> None:
        """Remove a copy, and close the session at this worker."""
        if session in self:  # Another request may have replaced this copy in the meantime.
            del self._sessions[session.id]
            del self._sessions_by_key[get_copy(session).identity.key]
        session.close()

    def make_room(self, *, is_new_session: bool) -> None:
        """Drop copies of idle sessions to make room for a new copy. Raise Refusal if too many sessions are in use.

        A worker with too many busy sessions does not open sessions, but still serves sessions of other workers.
        """
        for _ in range(min(len(self._sessions), _MAX_EVICTION_STEPS)):
            if len(self._sessions) < self._max_copies:
                return
            session = next(iter(self._sessions.values()))
            if is_unused(session):
                self.drop(session)
            else:
                self._sessions.move_to_end(session.id)
        if len(self._sessions) >= (self._max_copies if is_new_session else 2 * self._max_copies):
            raise Refusal(503, "Too many sessions", [(b"retry-after", b"60")])

    def count_opened_here(self, identity: SessionIdentity) -> int:
        """Return how many sessions the same caller has opened at this worker and not ended."""
        owner = identity.principal_digest, identity.address
        copies = (get_copy(session) for session in self._sessions.values() if not session.is_closed)
        return sum(
            copy.is_opener and (copy.identity.principal_digest, copy.identity.address) == owner
            for copy in copies
            if not copy.record.is_ended
        )
