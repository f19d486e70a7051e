"""Tasks in the background, which nobody awaits."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from dovetail.log import log

_CANCEL_TIMEOUT_S: Final = 1.0


class BackgroundTasks:
    """Starts tasks, keeps a reference to each running task, and logs their errors."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # asyncio keeps only a weak reference to a task.
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("a task in the background failed: %s", type(exc).__name__, exc_info=exc)

    async def close(self, timeout: float = 0.0) -> None:
        """Wait up to `timeout` seconds for the tasks. Then cancel the tasks that still run, and wait for their end."""
        await self._wait(timeout)
        for task in tuple(self._tasks):
            task.cancel()
        await self._wait(_CANCEL_TIMEOUT_S)

    async def _wait(self, timeout: float) -> None:
        """Wait for all tasks, and for the tasks that these tasks start."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout
        while self._tasks and (remaining := give_up_at - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=remaining)
