"""Retries while the shared state is unavailable.

Code that waits for the shared state calls `repeat_until_available`, or calls `wait_before_retry` in a loop.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from typing import Any, Final

from dovetail.backoff import compute_backoff
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable, SharedWorker

_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 1.0
_POLL_INTERVAL_S: Final = 0.005


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


async def release_place(cluster: SharedWorker, name: str, holder: str) -> None:
    """Release a place that `SharedState.acquire` reserved. Retry while the shared state is unavailable.

    The retries stop when this worker leaves the cluster, because the cluster then frees all places of the worker.
    """
    await repeat_until_available(
        lambda: cluster.state.release(name, holder), should_continue=lambda: cluster.is_started
    )


async def wait_before_retry(failures: int) -> None:
    """Sleep before a retry. The delay grows with the number of failures."""
    await asyncio.sleep(compute_backoff(_FIRST_DELAY_S, failures, _MAX_DELAY_S))
