"""Call functions of users and listeners.

`run_callback` runs a function that is not async in a thread, so it does not block the event loop. `call_all` calls the
listeners for a change directly.
"""

import asyncio
import contextlib
import contextvars
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dovetail.errors import InputRequestError
from dovetail.log import log

T = TypeVar("T")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function or a callable object is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


async def run_callback(handler: Callable[..., Any], *args: Any) -> Any:
    """Call a handler. A function that is not async runs in a new thread, because it may wait for the user."""
    if is_async(handler):
        return await handler(*args)
    result = await _run_in_thread(handler, *args)
    return await result if inspect.isawaitable(result) else result


async def _run_in_thread(handler: Callable[..., Any], *args: Any) -> Any:
    """Run a handler in a daemon thread. The program can then exit while the handler waits for input."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def resolve(value: Any, exc: BaseException | None) -> None:
        if not future.done():
            future.set_result(value) if exc is None else future.set_exception(exc)

    def call_handler(_stdin: Any) -> None:
        value, error = None, None
        try:
            value = context.run(handler, *args)
        except BaseException as exc:
            error = exc if isinstance(exc, Exception) else InputRequestError(f"the handler ended with {type_name(exc)}")
        # After the event loop is closed, no task waits for the result.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, value, error)

    context = contextvars.copy_context()
    # The thread keeps a reference to stdin. Python would abort if stdin were closed while input() reads from it.
    threading.Thread(target=call_handler, args=(sys.stdin,), name="dovetail-handler", daemon=True).start()
    return await future


def type_name(value: Any) -> str:
    return type(value).__name__


def get_callback_name(callback: Callable[..., Any]) -> str:
    """Return a callback's name for use in messages."""
    return getattr(callback, "__qualname__", None) or repr(callback)


def add_callback(callbacks: dict[object, T], callback: T) -> Callable[[], None]:
    """Add a callback, and return a function that removes it."""
    key = object()
    callbacks[key] = callback

    def stop() -> None:
        callbacks.pop(key, None)

    return stop


def call_all(callbacks: Mapping[object, Callable[..., object]], *args: Any) -> None:
    """Call all callbacks. If a callback raises an exception, log the exception and call the others."""
    for callback in tuple(callbacks.values()):
        try:
            callback(*args)
        except Exception as exc:
            log.error("the callback %s failed for %s", get_callback_name(callback), args, exc_info=exc)
