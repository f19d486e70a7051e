"""The limit on the open streams of one caller, at all workers of a cluster together."""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Final

from dovetail.protocol.cluster_worker import ClusterWorker
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.principal import Principal
from dovetail.protocol.session_id import hash_principal
from dovetail.protocol.shared_state import SharedStateUnavailable

_RETRY_DELAY_S: Final = 1.0


class StreamPlaces:
    """Counts the open streams of each caller. The places of a worker are free again when the worker ends."""

    def __init__(self, cluster: ClusterWorker, limit: int) -> None:
        self._cluster = cluster
        self._state = cluster.state
        self._limit = limit
        self._counts: Counter[str] = Counter()  # the open streams of each caller at this worker
        self._tasks: set[asyncio.Task[None]] = set()  # the tasks that free places later

    @contextlib.asynccontextmanager
    async def take(self, principal: Principal | None, address: str | None) -> AsyncGenerator[None]:
        """Count an open stream. Raise Refusal if the caller has too many. Callers on this machine have no limit."""
        owner = address if principal is None else hash_principal(principal)
        if owner is None:
            yield
            return
        name, holder = f"streams of {owner}", os.urandom(8).hex()
        is_counted = False
        try:
            try:
                is_allowed = await self._state.acquire(name, holder, self._limit, None)
            except SharedStateUnavailable:  # The place may have been taken nevertheless.
                is_allowed = self._counts[owner] < get_share(self._state.get_status().worker_count, self._limit)
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
        """Free a place. If the back end is away, free the place later."""
        try:
            await self._state.release(name, holder)
        except BaseException as exc:
            task = asyncio.get_running_loop().create_task(self._release_later(name, holder))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if not isinstance(exc, SharedStateUnavailable):
                raise

    async def _release_later(self, name: str, holder: str) -> None:
        while self._cluster.is_started:
            with contextlib.suppress(SharedStateUnavailable):
                await self._state.release(name, holder)
                return
            await asyncio.sleep(_RETRY_DELAY_S)


def get_share(worker_count: int, limit: int) -> int:
    """Return the part of a limit that one worker may use while it cannot ask the others."""
    return max(1, limit // max(1, worker_count))
