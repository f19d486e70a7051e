"""A task store in Redis or Valkey that the workers of several machines share.

Each change is one script, which Redis runs as one atomic step. Changes reach the watchers in other processes through
channels of Redis. A slow poll finds changes whose message was lost.

With secret keys, the records and the IDs are encrypted. The status and the times of a task are not. Keys and channels
contain only a digest of the ID.
"""

import asyncio
import contextlib
import hashlib
import importlib.util
import os
from collections.abc import AsyncIterator, Collection, Generator, Mapping, Sequence
from typing import Any, Final

from dovetail.cluster.envelope import hash_name
from dovetail.cluster.redis.redis_connection import parse_redis_url
from dovetail.log import ThrottledLog
from dovetail.tasks import redis_task_scripts as scripts
from dovetail.tasks.record_codec import RecordCodec
from dovetail.tasks.redis_task_link import RedisTaskLink
from dovetail.tasks.task_record import TaskLease, TaskRecord, TaskStatus, TaskStoreUnavailable, is_final
from dovetail.tasks.task_rules import claim_task, compute_due_at
from dovetail.tasks.task_store import DEFAULT_LIMITS, TaskConflict, TaskLimits, TaskStoreFull
from dovetail.tasks.task_watchers import TaskWatchers, Versions
from dovetail.wire.base import replace

_POLL_INTERVAL_S: Final = 5.0
_VERSION_BATCH: Final = 500
_LIST_BATCH: Final = 1_000
_RENEW_BATCH: Final = 100
_UNREADABLE_DELAY_S: Final = 60.0  # the delay before a worker reads an unreadable record again
_ANY_LEASE: Final = ("*", "")
_FIELDS: Final = ("version", "expires_at", "lease_holder", "lease_expires_at", "record")


class RedisTaskStore:
    """Keeps tasks in Redis or Valkey. Needs the extra `dovetail-mcp[redis]`.

    The tasks are as durable as the settings of Redis make them. With `appendonly yes` and `appendfsync always`, each
    change is on the disk before a client hears of it.

    Args:
        url: The address of Redis, such as `redis://user:password@host:6379/0`. `rediss://` uses TLS.
        secret_keys: Keys that encrypt the records, newest first. Without keys, the records are not encrypted.
        prefix: The first part of all keys in Redis. Stores with the same prefix share their tasks.
        timeout: Seconds to wait for a reply of Redis.
    """

    def __init__(
        self,
        url: str,
        *,
        secret_keys: Sequence[str | bytes] = (),
        prefix: str = "dovetail",
        timeout: float = 2.0,
    ) -> None:
        if importlib.util.find_spec("redis") is None:
            raise ImportError("a task store in Redis needs redis-py. Run: pip install 'dovetail-mcp[redis]'")
        if not prefix or "{" in prefix or "}" in prefix:
            raise ValueError(f"prefix must be a text without braces, not {prefix!r}")
        self._address = parse_redis_url(url)
        self._prefix = f"{{{prefix}}}:tasks:"  # Redis Cluster stores all keys with the same tag on the same node.
        self._codec = RecordCodec(secret_keys)
        self._timeout_s = timeout
        self._unreadable_warning = ThrottledLog()
        self._process_id: int | None = None

    @property
    def location(self) -> str:
        """The URL of Redis, without the password."""
        return str(self._address)

    async def create(self, record: TaskRecord, limits: TaskLimits = DEFAULT_LIMITS) -> None:
        """Store a new record. Raise TaskStoreFull if the store is full, or TaskConflict if the ID already exists.

        Args:
            limits: How many tasks the store may have.
        """
        outcome, *values = await self._link.run(
            scripts.CREATE,
            *(hash_name(record.id), record.created_at, record.updated_at, self._codec.encode(record)),
            *(limits.max_tasks, limits.max_tasks_per_owner, limits.max_bytes),
            *_list_fields(record),
            self._codec.encode_id(record.id),
        )
        match outcome:
            case b"conflict":
                raise TaskConflict(record.id, self._read(record.id, values[0]))
            case b"owner full":
                raise TaskStoreFull(f"this owner already has {values[0]} tasks that have not ended")
            case b"full":
                raise TaskStoreFull(f"the task store already has {values[0]} tasks")
            case b"bytes full":
                raise TaskStoreFull(f"the task store already has {values[0]} bytes")
            case _:
                pass

    async def get(self, id: str) -> TaskRecord | None:
        """Return the newest version of a record, or None if it does not exist."""
        return self._read(id, await self._link.execute("HMGET", f"{self._prefix}task:{hash_name(id)}", *_FIELDS))

    async def change(self, record: TaskRecord) -> TaskRecord:
        """Store a changed record. Raise TaskConflict if the store has a newer version of the record."""
        return await self._change(record, _ANY_LEASE)

    async def claim(self, id: str, holder: str, now: float, lease_seconds: float) -> TaskRecord | None:
        """Give the lease of a task to a worker. Return None if the task should not run."""
        values = await self._link.execute("HMGET", f"{self._prefix}task:{hash_name(id)}", *_FIELDS)
        try:
            current = self._read(id, values)
        except TaskStoreUnavailable as exc:
            await self._delay(hash_name(id), now, exc)
            return None
        while current is not None:
            record = claim_task(current, holder, now, lease_seconds)
            if record is None:
                return None
            lease = current.lease
            try:
                stored = await self._change(record, ("", 0) if lease is None else (lease.holder, lease.expires_at))
                return None if stored.lease is None else stored
            except TaskConflict as conflict:
                current = conflict.current
        return None

    async def renew(self, holders: Mapping[str, str], now: float, lease_seconds: float) -> dict[str, bool]:
        """Extend the leases of tasks. In the returned dict, True means that the task should be cancelled.

        If the lease of a task is lost, the dict does not contain the task.
        """
        held: dict[str, bool] = {}
        ids = {hash_name(id): id for id in holders}
        names = [*ids]
        for start in range(0, len(names), _RENEW_BATCH):
            words = [word for name in names[start : start + _RENEW_BATCH] for word in (name, holders[ids[name]])]
            for name, is_cancel_requested in await self._link.run(scripts.RENEW, now, now + lease_seconds, *words):
                held[ids[name.decode()]] = is_cancel_requested == b"1"
        return held

    async def list_due(self, server: str, now: float, limit: int) -> list[str]:
        """Return the IDs of tasks that a worker should claim. The task that has waited longest is first."""
        ids: list[str] = []
        for name, encoded_id in await self._link.run(scripts.LIST_DUE, hash_name(server), now, limit):
            try:
                ids.append(self._codec.decode_id(encoded_id))
            except TaskStoreUnavailable as exc:
                await self._delay(name.decode(), now, exc)
        return ids

    async def list_ids(self, *, prefix: str = "", statuses: Collection[TaskStatus] = (), limit: int = 100) -> list[str]:
        """Return the IDs of tasks, newest first. Task IDs are secrets, so show them only to operators.

        Args:
            prefix: The start of the IDs. An empty text selects all tasks.
            statuses: The statuses of the tasks. An empty collection selects all tasks.
            limit: The maximum number of IDs.
        """
        ids: list[str] = []
        first, count = 0, _LIST_BATCH
        while len(ids) < limit and count == _LIST_BATCH:
            count, encoded_ids = await self._link.run(scripts.LIST_IDS, first, _LIST_BATCH, *statuses)
            ids += [id for id in map(self._codec.decode_id, encoded_ids) if id.startswith(prefix)]
            first += count
        return ids[:limit]

    async def expire(self, now: float) -> int:
        """Delete the records that have expired and have no valid lease. Return their number."""
        total = 0
        while True:
            count = await self._link.run(scripts.EXPIRE, now)
            total += count
            if count < scripts.EXPIRE_BATCH:
                return total

    @contextlib.contextmanager
    def watch(self, ids: Collection[str]) -> Generator[AsyncIterator[str]]:
        """Watch tasks for changes. The iterator first yields every ID, and then the ID of each changed task."""
        link = self._link
        with self._watchers.watch(ids) as changed_ids:
            link.watch(ids)
            try:
                yield changed_ids
            finally:
                link.unwatch(ids)

    async def close(self) -> None:
        """Close the connections of this event loop."""
        link = self._links.pop(asyncio.get_running_loop(), None) if self._process_id == os.getpid() else None
        if link is not None:
            await link.close()

    @property
    def _link(self) -> RedisTaskLink:
        if self._process_id != os.getpid():
            # A forked process must neither use nor close the connections of its parent.
            self._inherited = getattr(self, "_links", None)
            self._links: dict[asyncio.AbstractEventLoop, RedisTaskLink] = {}
            self._watchers = TaskWatchers(self._start_poll, _POLL_INTERVAL_S)
            self._process_id = os.getpid()
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            for closed in [other for other in self._links if other.is_closed()]:
                del self._links[closed]
            link = self._links[loop] = RedisTaskLink(
                self._address, self._prefix, self._timeout_s, self._watchers.report_version
            )
        return link

    async def _change(self, record: TaskRecord, expected_lease: tuple[str, object]) -> TaskRecord:
        changed = replace(record, version=record.version + 1)
        outcome, *values = await self._link.run(
            scripts.CHANGE,
            *(hash_name(record.id), record.version, *expected_lease, record.updated_at, self._codec.encode(changed)),
            *_list_fields(changed),
        )
        if outcome == b"conflict":
            raise TaskConflict(record.id, self._read(record.id, values[0]))
        expires_at, lease_expires_at = values
        lease = changed.lease
        stored = replace(
            changed,
            expires_at=None if expires_at is None else float(expires_at),
            lease=None if lease is None else replace(lease, expires_at=float(lease_expires_at)),
        )
        self._watchers.notify(stored.id, stored.version)
        return stored

    async def _delay(self, name: str, now: float, exc: TaskStoreUnavailable) -> None:
        """Postpone a task that this process cannot read, because another process may have its key."""
        self._unreadable_warning.log("cannot run a task: %s", exc)
        await self._link.run(scripts.DELAY, name, now + _UNREADABLE_DELAY_S)

    def _read(self, id: str, values: Sequence[Any] | None) -> TaskRecord | None:
        if values is None or values[0] is None:
            return None
        version, expires_at, lease_holder, lease_expires_at, data = values
        lease = None
        if lease_holder is not None:
            lease = TaskLease(holder=lease_holder.decode(), expires_at=float(lease_expires_at))
        return replace(
            self._codec.decode(id, data),
            version=int(version),
            expires_at=None if expires_at is None else float(expires_at),
            lease=lease,
        )

    def _start_poll(self, marker: int | None, ids: list[str]) -> "asyncio.Future[tuple[int, Versions | None]]":
        return asyncio.get_running_loop().create_task(self._read_versions(ids))

    async def _read_versions(self, ids: list[str]) -> tuple[int, Versions | None]:
        versions: Versions = {}
        for start in range(0, len(ids), _VERSION_BATCH):
            batch = ids[start : start + _VERSION_BATCH]
            found = await self._link.run(scripts.READ_VERSIONS, *map(hash_name, batch))
            versions |= {id: int(version) for id, version in zip(batch, found, strict=True) if version}
        return 0, versions


def _list_fields(record: TaskRecord) -> list[Any]:
    """Return the fields of a record that the scripts need. An empty text stands for a missing value."""
    lease = record.lease
    values = (
        record.version,
        record.status,
        int(is_final(record.status)),
        int(record.is_cancel_requested),
        hash_name(record.server),
        _hash_owner(record.owner),
        record.expires_at,
        record.retention,
        compute_due_at(record),
        None if lease is None else lease.holder,
        None if lease is None else lease.expires_at,
    )
    return ["" if value is None else value for value in values]


def _hash_owner(owner: str | None) -> str:
    """Return a digest of the owner's name. It is not encrypted, so it must not contain the name."""
    return "" if owner is None else hashlib.sha256(owner.encode()).hexdigest()[:32]
