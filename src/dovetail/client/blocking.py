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

_THREAD_NAME = "dovetail-clients"
_SHUTDOWN_TIMEOUT_S = 0.5  # for clients that were left open, when the program ends

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_is_shutting_down = False  # the program is ending


class InterpreterShutdown(RuntimeError):
    """It is too late to do anything."""


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Do something on the shared loop and wait for it; interrupting the wait cancels it."""
    if _is_shutting_down:
        coroutine.close()
        raise InterpreterShutdown("the program is ending, and with it whatever a SyncClient has started")
    loop = get_shared_loop()
    if threading.current_thread().name == _THREAD_NAME:
        coroutine.close()
        raise RuntimeError(
            "a SyncClient cannot be called where its own work is done: by progress=, on_log= or a coroutine handler; "
            "plain functions that answer questions may call it"
        )
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def get_shared_loop() -> asyncio.AbstractEventLoop:
    """The loop all blocking clients share; started by the first, and a daemon: it never keeps a program alive."""
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name=_THREAD_NAME, daemon=True).start()
        return _loop


def _reset_after_fork() -> None:
    """A forked process has the loop, but not the thread that ran it."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


@atexit.register
def _stop() -> None:
    global _is_shutting_down
    _is_shutting_down = True
    if _loop is not None and _loop.is_running():
        cleanup = asyncio.run_coroutine_threadsafe(_cancel_remaining_tasks(_loop), _loop)
        with contextlib.suppress(TimeoutError, CancelledError):
            cleanup.result(2 * _SHUTDOWN_TIMEOUT_S)


async def _cancel_remaining_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """End what clients that were left open still do; a task that is only forgotten complains."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_SHUTDOWN_TIMEOUT_S)
    loop.call_soon(loop.stop)
