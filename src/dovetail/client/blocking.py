"""Clients without an event loop in sight: one loop in a thread of its own serves them all.

Works in scripts, notebooks, threads and inside other loops alike, because nothing here depends on the caller's.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_NAME = "dovetail-clients"

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do something on the shared loop and wait for it; interrupting the wait cancels it."""
    loop = shared_loop()
    if threading.current_thread().name == _NAME:
        work.close()
        raise RuntimeError("a SyncClient cannot be called by its own coroutine handlers; make them plain functions")
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
    if _loop is not None and _loop.is_running():
        _loop.call_soon_threadsafe(_loop.stop)
