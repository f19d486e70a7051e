"""Limit the open sessions and streams of each caller. All workers of a cluster share these limits.

While the shared state is unavailable, each worker allows its share of a limit.
"""

import contextlib
import os
from collections import Counter
from collections.abc import AsyncGenerator

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.background_work import release_place
from dovetail.cluster.sessions.sealed_session_id import SessionIdentity, hash_principal
from dovetail.cluster.sessions.session_copies import SessionCopies
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.interfaces.shared_state import SharedState, SharedStateUnavailable, SharedWorker
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal


class SessionPlaces:
    """Counts the open sessions of each caller. Callers on this machine have no limit."""

    def __init__(self, state: SharedState, limits: ServerLimits, copies: SessionCopies) -> None:
        self._state = state
        self._limits = limits
        self._copies = copies

    async def take(self, identity: SessionIdentity) -> None:
        """Count a new session until the initialize timeout. Raise Refusal if the caller has too many sessions."""
        owner = self._get_owner(identity)
        if owner is None:
            return
        name, limit = owner
        try:
            is_allowed = await self._state.acquire(name, identity.key, limit, self._limits.initialize_timeout)
        except SharedStateUnavailable:
            is_allowed = self._copies.count_opened_here(identity) < _get_share(self._state, limit)
        if not is_allowed:
            is_principal = identity.principal_digest is not None
            message = "Too many sessions" if is_principal else "Too many sessions from this address"
            raise Refusal(429, message, [(b"retry-after", b"60")])

    async def extend(self, identity: SessionIdentity, ttl: float) -> None:
        """Count a session for `ttl` more seconds."""
        if (owner := self._get_owner(identity)) is not None:
            await self._state.acquire(owner[0], identity.key, owner[1], ttl)

    async def free(self, identity: SessionIdentity) -> None:
        """Stop counting a session."""
        if (owner := self._get_owner(identity)) is not None:
            await self._state.release(owner[0], identity.key)

    def _get_owner(self, identity: SessionIdentity) -> tuple[str, int] | None:
        """Return the owner of a session and the owner's limit. Return None if no limit applies."""
        if identity.principal_digest is not None:
            return f"sessions of principal {identity.principal_digest}", self._limits.max_sessions_per_principal
        if identity.address is not None:
            return f"sessions of address {identity.address}", self._limits.max_sessions_per_address
        return None


class StreamPlaces:
    """Counts the open streams of each caller. When a worker ends, the cluster frees the places of this worker."""

    def __init__(self, cluster: SharedWorker, limit: int) -> None:
        self._cluster = cluster
        self._state = cluster.state
        self._limit = limit
        self._counts: Counter[str] = Counter()  # the open streams of each caller at this worker
        self._tasks = BackgroundTasks()

    @contextlib.asynccontextmanager
    async def take(self, principal: Principal | None, address: str | None) -> AsyncGenerator[None]:
        """Count a stream while it is open. Raise Refusal if the caller has too many. Local callers have no limit."""
        owner = address if principal is None else hash_principal(principal)
        if owner is None:
            yield
            return
        name, holder = f"streams of {owner}", os.urandom(8).hex()
        is_counted = False
        try:
            try:
                is_allowed = await self._state.acquire(name, holder, self._limit, None)
            except SharedStateUnavailable:  # The stream may be counted although no answer arrived.
                is_allowed = self._counts[owner] < _get_share(self._state, self._limit)
            if not is_allowed:
                raise Refusal(429, "Too many streams", [(b"retry-after", b"5")])
            self._counts[owner] += 1
            is_counted = True
            yield
        finally:
            if is_counted:
                self._counts[owner] -= 1
                if not self._counts[owner]:
                    del self._counts[owner]
            await self._release(name, holder)

    async def _release(self, name: str, holder: str) -> None:
        """Free the place of a stream. If the shared state is unavailable, free the place later."""
        try:
            await self._state.release(name, holder)
        except BaseException as exc:
            self._tasks.start(release_place(self._cluster, name, holder))
            if not isinstance(exc, SharedStateUnavailable):
                raise


def _get_share(state: SharedState, limit: int) -> int:
    """Return the share of a limit that this worker may use while the shared state is unavailable."""
    return max(1, limit // max(1, state.get_status().worker_count))
