"""Several workers of one cluster in one process, for tests. The state is in memory and can be turned off."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.protocol.change_messages import CHANGE, Change, encode_body
from dovetail.protocol.cluster_worker import ClusterWorker
from dovetail.protocol.shared_state import SharedStateUnavailable, StoredValue
from dovetail.transports.http_server.endpoint import Endpoint
from transports.fake_service import FakeService, Work, echo

KEYS = ["a secret key of the cluster"]


class Backend(MemoryBackend):
    """A back end that tests can turn off."""

    is_away = False
    is_full = False  # True if the streams of lost workers cannot be ended, because nothing can be stored

    def _open_hub(self) -> Any:
        if self.is_away:
            raise SharedStateUnavailable("away")
        return super()._open_hub()

    async def read(self, name: str) -> StoredValue | None:
        await asyncio.sleep(0)  # Other requests can run meanwhile, as with a real back end.
        return await super().read(name)

    async def write(self, name: str, data: bytes, ttl: float, *, expected: int | None = None) -> int | None:
        await asyncio.sleep(0)
        return await super().write(name, data, ttl, expected=expected)

    async def end_lost_stream(self, stream: str, data: bytes) -> bool:
        if self.is_full:
            raise SharedStateUnavailable("full")
        return await super().end_lost_stream(stream, data)


class Worker:
    """One worker: its service, its back end and its endpoint."""

    def __init__(self, other: "Worker | None", work: Work, response_mode: str, limits: Mapping[str, Any]) -> None:
        self.backend = Backend(None if other is None else other.backend)
        self.service = FakeService(work, **limits)
        self.service.cluster = self.cluster = ClusterWorker(self.backend, KEYS)
        self.app = Endpoint(self.service, response_mode=response_mode)

    async def publish(self, method: str, uri: str | None = None) -> None:
        """Publish a change, as a server of this worker does."""
        await self.backend.publish(CHANGE, encode_body(Change(method, uri)))

    async def kill(self) -> None:
        """Lose the worker: it leaves the cluster without ending its streams."""
        await self.backend.close()


class WorkerCluster:
    """The workers of a cluster."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers

    def set_away(self, is_away: bool) -> None:
        for worker in self.workers:
            worker.backend.is_away = is_away

    def __getitem__(self, index: int) -> Worker:
        return self.workers[index]


@asynccontextmanager
async def open_cluster(
    work: Work = echo, *, count: int = 2, response_mode: str = "auto", **limits: Any
) -> AsyncGenerator[WorkerCluster]:
    """Start the workers of a cluster."""
    workers: list[Worker] = []
    for _ in range(count):
        workers.append(Worker(workers[0] if workers else None, work, response_mode, limits))
        await workers[-1].cluster.start()
    cluster = WorkerCluster(workers)
    try:
        yield cluster
    finally:
        cluster.set_away(False)
        for worker in workers:
            await worker.app.close()
            await worker.cluster.close()
