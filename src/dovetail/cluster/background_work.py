"""Background tasks of a cluster worker, and retries while the shared state is unavailable.

Code that waits for the shared state calls `repeat_until_available`, or calls `wait_before_retry` in a loop.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Sized
from contextlib import suppress
from typing import Any, Final

from dovetail.cluster.cluster_worker import CloseHandler, ClusterWorker
from dovetail.log import log
from dovetail.protocol.backoff import compute_backoff
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable

_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 1.0
_CANCEL_TIMEOUT_S: Final = 1.0
_POLL_INTERVAL_S: Final = 0.005


class BackgroundTasks:
    """Starts tasks, keeps them alive, and logs their errors."""

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
        """Wait for all tasks, and for the tasks that they start."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout
        while self._tasks and (remaining := give_up_at - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=remaining)


async def run_close_handlers(handlers: Sequence[CloseHandler]) -> None:
    """Call handlers at the same time. If some of them fail, the others continue, and then their errors are raised."""
    outcomes = await asyncio.gather(*(handler() for handler in handlers), return_exceptions=True)
    errors = [outcome for outcome in outcomes if outcome is not None]
    if errors:
        raise BaseExceptionGroup("could not finish the work in the background", errors)


async def wait_until_empty(collection: Sized, timeout: float) -> None:
    """Wait up to `timeout` seconds until a collection is empty. Its changes set no event, so this function polls."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            while len(collection):  # noqa: ASYNC110 - the end of a response sets no event
                await asyncio.sleep(_POLL_INTERVAL_S)


async def repeat_until_available(
    work: Callable[[], Awaitable[Any]],
    *,
    give_up_after: float = math.inf,
    should_continue: Callable[[], bool] = lambda: True,
) -> bool:
    """Call `work` until it does not raise SharedStateUnavailable. Return whether `work` succeeded.

    `work` must be safe to repeat. The shared state may have handled a request although no answer arrived.
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
    """Release a place that `SharedState.acquire` reserved. Retry while the shared state is unavailable.

    The retries stop when this worker leaves the cluster, because the cluster then frees all places of the worker.
    """
    await repeat_until_available(
        lambda: cluster.state.release(name, holder), should_continue=lambda: cluster.is_started
    )


async def wait_before_retry(failures: int) -> None:
    """Sleep before a retry. The delay grows with the number of failures."""
    await asyncio.sleep(compute_backoff(_FIRST_DELAY_S, failures, _MAX_DELAY_S))
