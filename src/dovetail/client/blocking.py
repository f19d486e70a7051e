"""Clients without an event loop in sight: one loop in a thread of its own serves them all.

Works in scripts, notebooks, threads and inside other loops alike, because nothing here depends on the caller's.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")

_NAME = "dovetail-clients"
_LAST = 0.5  # for clients that were left open, when the program ends

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_over = False  # the program is ending


class Ending(RuntimeError):
    """It is too late to do anything."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do something on the shared loop and wait for it; interrupting the wait cancels it."""
    if _over:
        work.close()
        raise Ending("the program is ending, and with it whatever a SyncClient has started")
    loop = shared_loop()
    if threading.current_thread().name == _NAME:
        work.close()
        raise RuntimeError(
            "a SyncClient cannot be called where its own work is done: by progress=, on_log= or a coroutine handler; "
            "plain functions that answer questions may call it"
        )
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def shared_loop() -> asyncio.AbstractEventLoop:
    """The loop all blocking clients share; started by the first, and a daemon: it never keeps a program alive."""
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name=_NAME, daemon=True).start()
        return _loop


def _forget() -> None:
    """A forked process has the loop, but not the thread that ran it."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@atexit.register
def _stop() -> None:
    global _over
    _over = True
    if _loop is not None and _loop.is_running():
        ending = asyncio.run_coroutine_threadsafe(_wind_up(_loop), _loop)
        with contextlib.suppress(TimeoutError, CancelledError):
            ending.result(2 * _LAST)


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """End what clients that were left open still do; a task that is only forgotten complains."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_LAST)
    loop.call_soon(loop.stop)
