"""Call a user's function. A function that is not async runs in a thread, so it does not block the event loop."""

import asyncio
import contextlib
import contextvars
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

from dovetail.errors import (
    InputRequestError,
)


async def run_callback(handler: Callable[..., Any], *args: Any) -> Any:
    """Call a handler. A function that is not async runs in a new thread, because it may wait for the user."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return await handler(*args)
    result = await _run_in_thread(handler, *args)
    return await result if inspect.isawaitable(result) else result


async def _run_in_thread(handler: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a daemon thread, so that a handler that waits for a key does not keep the program alive."""
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
        # If the event loop is closed, no task waits for the result.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, value, error)

    context = contextvars.copy_context()
    # The thread keeps a reference to stdin, because Python would abort if stdin is closed while input() reads from it.
    threading.Thread(target=call_handler, args=(sys.stdin,), name="dovetail-handler", daemon=True).start()
    return await future


def type_name(value: Any) -> str:
    return type(value).__name__
