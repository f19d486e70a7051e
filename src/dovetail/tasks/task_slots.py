"""Slots limit how many tasks run at the same time. A worker claims a task when the task has all its slots.

A task that waits for a slot has not started. If this process stops, another process can run the task.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from dovetail.tasks.task_record import TaskRecord


class TaskSlots:
    """Limits how many tasks run at once in one event loop. The task that has waited longest gets the next free slot."""

    def __init__(self, count: int) -> None:
        self._free_count = count
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._is_closed = False

    async def acquire(self) -> bool:
        """Wait for a slot. Return False if the server stops."""
        if self._is_closed:
            return False
        if self._free_count > 0:
            self._free_count -= 1
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.release()
            raise

    def release(self) -> None:
        """Release a slot. The next waiting task gets it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self._free_count += 1

    def close(self) -> None:
        """Give out no more slots. Tasks that wait for a slot do not start, but stay in the store."""
        self._is_closed = True
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(False)


class StartLimits(Protocol):
    """Decides which slots a task needs before it can start."""

    def list_slots(self, record: TaskRecord) -> Sequence[TaskSlots]:
        """Return the slots that a task needs, in the order in which it should wait for them."""
        ...

    def close(self) -> None:
        """Refuse all slots from now on, because the server stops."""
        ...


class NoStartLimits:
    """Lets each task start at once."""

    def list_slots(self, record: TaskRecord) -> Sequence[TaskSlots]:
        return ()

    def close(self) -> None:
        pass


async def acquire_all(slots: Sequence[TaskSlots]) -> bool:
    """Wait for all slots. If the server stops, release the slots and return False."""
    acquired: list[TaskSlots] = []
    try:
        for slot in slots:
            if not await slot.acquire():
                return False
            acquired.append(slot)
    finally:
        if len(acquired) < len(slots):
            release_all(acquired)
    return True


def release_all(slots: Sequence[TaskSlots]) -> None:
    """Release all slots."""
    for slot in slots:
        slot.release()
