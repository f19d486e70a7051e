"""Several workers of one cluster in one process, for tests. The state is in memory and can be turned off."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dovetail.cluster.change_messages import CHANGE, Change, encode_body
from dovetail.cluster.cluster_worker import ClusterWorker
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.protocol.interfaces.shared_state import SharedStateStatus, SharedStateUnavailable
from dovetail.transports.http_server.endpoint import Endpoint
from dovetail.wire.base import replace
from support.fake_service import FakeService, Work, echo

KEYS = ["a secret key of the cluster"]


class Clock:
    """A clock that tests set. It replaces the module `time`."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Backend(MemoryBackend):
    """A back end that tests can turn off."""

    is_away = False
    is_full = False  # True if nothing can be stored
    known_epoch = ""  # the epoch of the data before a loss that this worker has not noticed
    late_answers: asyncio.Event | None = None  # If set, the answers to writes arrive after this event.
    late_writes = 0
    reads = 0

    def __init__(self, other: MemoryBackend | None = None) -> None:
        super().__init__(other)
        self.sent: list[str] = []  # the kinds of the messages that this worker has sent

    @property
    def hub(self) -> Any:
        return self._hub

    @hub.setter
    def hub(self, hub: Any) -> None:
        self._hub = hub

    def _open_hub(self) -> Any:
        if self.is_away:
            raise SharedStateUnavailable("away")
        return super()._open_hub()

    def get_status(self) -> SharedStateStatus:
        status = super().get_status()
        return replace(status, epoch=self.known_epoch or status.epoch)

    async def send(self, worker: str, kind: str, body: bytes) -> bool:
        self.sent.append(kind)
        return await super().send(worker, kind, body)

    async def write(self, name: str, data: bytes, ttl: float, *, expected: int | None = None) -> Any:
        self._check_room()
        await asyncio.sleep(0)  # Other requests can run meanwhile, as with a real back end.
        version = await super().write(name, data, ttl, expected=expected)
        if self.late_answers is not None:
            self.late_writes += 1
            await self.late_answers.wait()
        return version

    async def restore(self, name: str, data: bytes, version: int, ttl: float) -> bool:
        self._check_room()
        return await super().restore(name, data, version, ttl)

    async def end_lost_stream(self, stream: str, data: bytes) -> bool:
        self._check_room()
        return await super().end_lost_stream(stream, data)

    def _check_room(self) -> None:
        if self.is_full:
            raise SharedStateUnavailable("full")

    async def read(self, name: str) -> Any:
        self.reads += 1
        await asyncio.sleep(0)
        return await super().read(name)


class Worker:
    """One worker: its service, its back end and its endpoint."""

    def __init__(
        self,
        other: "Worker | None",
        work: Work,
        options: Mapping[str, Any],
        limits: Mapping[str, Any],
        keys: Sequence[str],
    ) -> None:
        self.backend = Backend(None if other is None else other.backend)
        self.service = FakeService(work, **limits)
        self.service.cluster = self.cluster = ClusterWorker(self.backend, keys)
        self.app = Endpoint(self.service, **options)

    @property
    def streams(self) -> Any:
        """Return the part of the endpoint that has the streams of clients."""
        return self.app._sessions._sessions._streams  # pyright: ignore[reportAttributeAccessIssue]

    async def publish(self, method: str, uri: str | None = None) -> None:
        """Publish a change, as a server of this worker does."""
        await self.backend.publish(CHANGE, encode_body(Change(method, uri)))

    async def kill(self) -> None:
        """Lose the worker: it leaves the cluster without ending its streams."""
        await self.backend.close()


class WorkerCluster:
    """The workers of a cluster."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []

    def __getitem__(self, index: int) -> Worker:
        return self.workers[index]

    async def open(
        self,
        work: Work = echo,
        count: int = 2,
        options: Mapping[str, Any] | None = None,
        keys: Sequence[Sequence[str]] = (),
        **limits: Any,
    ) -> list[Endpoint]:
        for worker_keys in keys or [KEYS] * count:
            other = self.workers[0] if self.workers else None
            self.workers.append(Worker(other, work, options or {}, limits, worker_keys))
        for worker in self.workers:
            await worker.cluster.start()
        return [worker.app for worker in self.workers]

    def set_away(self, is_away: bool) -> None:
        for worker in self.workers:
            worker.backend.is_away = is_away

    def list_values(self, prefix: str) -> list[str]:
        """Return the names of the values with a prefix."""
        return [name for name in self.workers[0].backend.hub.values._entries if name.startswith(prefix)]

    def find_expiry(self, name: str) -> float:
        """Return when a value expires."""
        return self.workers[0].backend.hub.values._entries[name].expires_at

    def lose_data(self) -> None:
        """Lose all data, as a Redis server does that starts again without its data."""
        lost_hub = self.workers[0].backend.hub
        hub = type(lost_hub)()
        hub.workers = lost_hub.workers
        for worker in self.workers:
            worker.backend.hub = hub
            worker.backend.known_epoch = lost_hub.epoch

    def report_gap(self) -> None:
        """Let all workers notice the loss."""
        for worker in self.workers:
            worker.backend.known_epoch = ""
            worker.cluster.handle_gap()

    async def close(self) -> None:
        self.set_away(False)
        for worker in self.workers:
            await worker.app.close()
            await worker.cluster.close()


@asynccontextmanager
async def open_cluster(
    work: Work = echo, *, count: int = 2, response_mode: str = "auto", **limits: Any
) -> AsyncGenerator[WorkerCluster]:
    """Start the workers of a cluster."""
    cluster = WorkerCluster()
    try:
        await cluster.open(work, count, {"response_mode": response_mode}, **limits)
        yield cluster
    finally:
        await cluster.close()


async def authenticate(headers: Mapping[bytes, bytes]) -> str | None:
    given = headers.get(b"authorization")
    return given.decode() if given else None
