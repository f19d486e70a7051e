"""Limits on the running requests of one caller that all workers of a cluster share."""

from collections import Counter
from typing import Final

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.background_work import release_place
from dovetail.keys import build_key
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable, SharedWorker

_OWN_SHARE: Final = 2  # One half of a limit is divided among the workers. The other half is shared.


class CallPlaces:
    """Limits how many requests of one caller run at all workers together.

    Each worker may run `limit / 2 / workers` requests without a message. Every further request needs one of `limit / 2`
    shared places. With the limit 256 and four workers, each worker has 32 requests of its own, and they share 128
    places. The places of a lost worker are free again as soon as the worker counts as lost.

    While the back end cannot be used, each worker allows the limit divided by the last known number of workers.
    """

    def __init__(self, cluster: SharedWorker, name: str, limit: int) -> None:
        self._cluster = cluster
        self._name = name
        self._limit = limit
        self._held: dict[str, list[str]] = {}  # the places that this worker holds, by origin
        self._pending: Counter[str] = Counter()  # the requests that wait for a place
        self._place_count = 0
        self._tasks = BackgroundTasks()

    async def acquire(self, origin: str, running: int) -> bool:
        """Return whether one more request may run. `running` is the number of requests that run at this worker."""
        own_part = self._limit // _OWN_SHARE // self._count_workers()
        needed = running + self._pending[origin] - own_part - len(self._held.get(origin, ()))
        if needed < 0:
            return True
        self._pending[origin] += 1
        try:
            return await self._take_place(origin, running)
        finally:
            self._pending[origin] -= 1
            if not self._pending[origin]:
                del self._pending[origin]

    async def _take_place(self, origin: str, running: int) -> bool:
        self._place_count += 1
        holder = f"{self._cluster.name}.{self._place_count}"
        own_parts = self._limit // _OWN_SHARE // self._count_workers() * self._count_workers()
        try:
            has_place = await self._cluster.state.acquire(self._get_name(origin), holder, self._limit - own_parts, None)
        except SharedStateUnavailable:
            self._release_later(origin, holder)
            return running < min(self._limit, max(1, self._limit // self._count_workers()))
        except BaseException:
            self._release_later(origin, holder)
            raise
        if has_place:
            self._held.setdefault(origin, []).append(holder)
        return has_place

    def release(self, origin: str, running: int) -> None:
        """Give back the places that `running` requests do not need. Call this method after each request."""
        holders = self._held.get(origin)
        if holders is None:
            return
        own_part = self._limit // _OWN_SHARE // self._count_workers()
        while holders and len(holders) > max(0, running - own_part):
            self._release_later(origin, holders.pop())
        if not holders:
            del self._held[origin]

    def _release_later(self, origin: str, holder: str) -> None:
        """Give back a place. Also call this if it is not known whether the place was taken."""
        self._tasks.start(release_place(self._cluster, self._get_name(origin), holder))

    def _get_name(self, origin: str) -> str:
        return build_key(self._name, origin)

    def _count_workers(self) -> int:
        return max(1, self._cluster.state.get_status().worker_count)
