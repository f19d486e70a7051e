"""A task engine for workers in this process. It keeps the IDs of submitted tasks in memory.

No task depends on this memory, because the worker finds every task that is due in the task store.
"""

import asyncio
from typing import Final

from dovetail.log import log
from dovetail.tasks.task_store import RunTask, StopSignal

_MAX_WAITING_IDS: Final = 10_000


class LocalEngine:
    """Runs tasks in this process.

    Args:
        max_concurrency: How many tasks run at the same time. Other tasks wait.
        drain_timeout: Seconds to wait for running tasks when the server stops. Then they are cancelled.
    """

    def __init__(self, *, max_concurrency: int = 100, drain_timeout: float = 10.0) -> None:
        self._max_concurrency = max_concurrency
        self._drain_timeout_s = drain_timeout
        self._waiting_ids: dict[str, None] = {}
        self._runs_tasks = True
        self._wake: asyncio.Event | None = None

    async def submit(self, id: str) -> None:
        """Add a task to the queue. If the queue is full, ignore the task. The worker then submits it again later."""
        if self._runs_tasks and len(self._waiting_ids) < _MAX_WAITING_IDS:
            self._waiting_ids[id] = None
            if self._wake is not None:
                self._wake.set()

    async def serve(self, run: RunTask | None, stop: StopSignal) -> None:
        """Run submitted tasks until `stop` is set. Then cancel the tasks that do not end within a limited time."""
        self._runs_tasks = run is not None
        if run is None:
            await stop.wait()
            return
        self._wake = wake = asyncio.Event()
        running: set[asyncio.Task[None]] = set()

        def forget(task: "asyncio.Task[None]") -> None:
            running.discard(task)
            wake.set()

        async with asyncio.TaskGroup() as tasks:
            stopper = tasks.create_task(_wake_at_stop(stop, wake))
            while not stop.is_set():
                while self._waiting_ids and len(running) < self._max_concurrency:
                    id = next(iter(self._waiting_ids))
                    del self._waiting_ids[id]
                    task = tasks.create_task(_run_safely(run, id))
                    running.add(task)
                    task.add_done_callback(forget)
                await wake.wait()
                wake.clear()
            stopper.cancel()
            if running:
                await asyncio.wait(running, timeout=self._drain_timeout_s)
            for task in [*running]:
                task.cancel()


async def _wake_at_stop(stop: StopSignal, wake: asyncio.Event) -> None:
    await stop.wait()
    wake.set()


async def _run_safely(run: RunTask, id: str) -> None:
    try:
        await run(id)
    except Exception:
        # When the lease of the task has expired, the task is due again.
        log.exception("a task could not be run")
