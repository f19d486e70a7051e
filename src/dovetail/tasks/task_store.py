"""The interfaces of task stores and task engines.

A task store keeps the records of tasks. A task engine only carries task IDs to workers.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeAlias

from dovetail.tasks.task_record import TaskRecord
from dovetail.wire.base import Struct


class TaskStoreFull(Exception):
    """Raised if a task store, or one owner in the store, already has the maximum number of tasks."""


class TaskConflict(Exception):
    """Raised if another request has changed or deleted the record.

    Args:
        id: The ID of the task.
        current: The stored record, or None if it was deleted.
    """

    def __init__(self, id: str, current: "TaskRecord | None") -> None:
        super().__init__(f"task {id} was changed by another request" if current else f"task {id} does not exist")
        self.current = current


class TaskLimits(Struct, kw_only=True, frozen=True):
    """The maximum number of tasks in a store. Tasks of anonymous callers count only toward the total."""

    max_tasks: int = 100_000  # the maximum number of tasks in the store
    max_tasks_per_owner: int = 1_000  # the maximum number of unfinished tasks of one owner
    max_bytes: int = 4096 * 1024 * 1024  # the maximum size of all records. Only `create` checks it


DEFAULT_LIMITS: Final = TaskLimits()


class TaskStore(Protocol):
    """Keeps the records of tasks. Every method raises TaskStoreUnavailable if the store cannot be used now."""

    async def create(self, record: TaskRecord, limits: TaskLimits = DEFAULT_LIMITS) -> None:
        """Store a new record. When this method returns, the record is durable and every worker can read it.

        Args:
            limits: How many tasks the store may have.

        Raises:
            TaskStoreFull: the store has the maximum number of tasks.
            TaskConflict: the store has a record with this ID.
        """
        ...

    async def get(self, id: str) -> TaskRecord | None:
        """Return the newest version of a record, or None if it does not exist."""
        ...

    async def change(self, record: TaskRecord) -> TaskRecord:
        """Store a changed record, and return it with its new version.

        If `renew` has extended the lease or the expiry time in the meantime, the later time is kept.

        Raises:
            TaskConflict: the record has another version now, or does not exist.
        """
        ...

    async def claim(self, id: str, holder: str, now: float, lease_seconds: float) -> TaskRecord | None:
        """Give the lease of a task to a worker, as `claim_task` does. Return None if the task should not run.

        Only one of several concurrent calls gets the record.
        """
        ...

    async def renew(self, holders: Mapping[str, str], now: float, lease_seconds: float) -> dict[str, bool]:
        """Extend leases. `holders` maps each task ID to the holder of its lease.

        Leases that a holder has lost are not extended. Return a dict with the IDs of the other tasks. The value is
        True if the task should be cancelled. The versions of the records do not change.
        """
        ...

    async def list_due(self, server: str, now: float, limit: int) -> list[str]:
        """Return the IDs of tasks that are due. `compute_due_at` computes when a task is due."""
        ...

    async def expire(self, now: float) -> int:
        """Delete the records that have expired and have no valid lease. Return their number."""
        ...

    def watch(self, ids: Collection[str]) -> AbstractContextManager[AsyncIterator[str]]:
        """Watch task records. The iterator yields each ID immediately, and again after each change or deletion.

        The iterator may yield an ID although nothing changed, and several changes may yield it once. Read the record.
        """
        ...

    async def close(self) -> None:
        """Release all files and connections."""
        ...


class StopSignal(Protocol):
    """An event that is set when a server stops, such as `asyncio.Event`."""

    def is_set(self) -> bool:
        """Return whether the server is stopping."""
        ...

    async def wait(self) -> object:
        """Wait until the server stops."""
        ...


# A function that runs a task if it is due. It returns when the task has ended or waits for an answer.
RunTask: TypeAlias = Callable[[str], Awaitable[None]]


class TaskEngine(Protocol):
    """Sends task IDs to workers. The task store contains all other data of a task.

    An ID may be lost or delivered several times: lost tasks are submitted again, and `TaskStore.claim` decides which
    worker runs a task. A worker learns from the store that it should cancel a task.
    """

    async def submit(self, id: str) -> None:
        """Send the ID of a task to a worker. The record is already stored."""
        ...

    async def serve(self, run: RunTask | None, stop: StopSignal) -> None:
        """Call `run` for submitted tasks until `stop` is set. Then wait for running tasks, and cancel the rest.

        `run` is None in a process that only submits tasks.
        """
        ...


async def change_task(store: TaskStore, id: str, edit: Callable[[TaskRecord], TaskRecord]) -> TaskRecord | None:
    """Apply a function to the newest version of a record, and store the result. Return None if the record is missing.

    The function runs again if another request changes the record at the same time.
    """
    record = await store.get(id)
    while record is not None:
        changed = edit(record)
        if changed is record:
            return record
        try:
            return await store.change(changed)
        except TaskConflict as conflict:
            record = conflict.current
    return None
