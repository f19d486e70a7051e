"""Work of a cluster worker beside its requests: tasks without an owner, and attempts that are repeated.

Everything that waits for the shared state of a cluster to come back uses `repeat_until_available`, or has its own loop
with `wait_before_retry`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from dovetail.log import log
from dovetail.protocol.backoff import compute_backoff
from dovetail.protocol.cluster_worker import ClusterWorker
from dovetail.protocol.shared_state import SharedStateUnavailable

_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 1.0


class BackgroundTasks:
    """Starts tasks, keeps them alive, and logs their errors."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # asyncio itself keeps only a weak reference.
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("a task in the background failed: %s", type(exc).__name__, exc_info=exc)

    async def close(self, timeout: float = 0.0) -> None:
        """Wait for the tasks, and cancel those that do not end within `timeout` seconds."""
        if self._tasks and timeout:
            await asyncio.wait(self._tasks, timeout=timeout)
        for task in tuple(self._tasks):
            task.cancel()


async def repeat_until_available(
    work: Callable[[], Awaitable[Any]],
    *,
    give_up_after: float = math.inf,
    should_continue: Callable[[], bool] = lambda: True,
) -> bool:
    """Call a function again until the shared state can be used. Return whether the function has succeeded.

    The function may run twice, because the shared state may have handled an attempt that got no answer.
    """
    loop = asyncio.get_running_loop()
    give_up_at, failures = loop.time() + give_up_after, 0
    while should_continue():
        try:
            await work()
        except SharedStateUnavailable:
            if loop.time() >= give_up_at:
                return False
            await wait_before_retry(failures)
            failures += 1
        else:
            return True
    return False


async def release_place(cluster: ClusterWorker, name: str, holder: str) -> None:
    """Give back a place of `SharedState.acquire`. Try again until the back end can be used.

    Places end with their worker, so nothing is left to do after the worker has left the cluster.
    """
    await repeat_until_available(
        lambda: cluster.state.release(name, holder), should_continue=lambda: cluster.is_started
    )


async def wait_before_retry(failures: int) -> None:
    """Wait before the next attempt to use the shared state."""
    await asyncio.sleep(compute_backoff(_FIRST_DELAY_S, failures, _MAX_DELAY_S))
