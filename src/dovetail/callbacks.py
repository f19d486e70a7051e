"""Call a function of the user. A plain function runs in a thread, so that the event loop goes on.

What is declared to the server is exactly what there are handlers for. An answer is checked against the schema it was
asked with before it leaves; a URL is never opened here, and only handed on if it is one a browser should open.
"""

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
    """Call a handler; a plain function may wait for the user, so it has a thread of its own."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return await handler(*args)
    result = await _run_in_thread(handler, *args)
    return await result if inspect.isawaitable(result) else result


async def _run_in_thread(handler: Callable[..., Any], *args: Any) -> Any:
    """In a thread of its own that keeps no program alive: one that waits for a key must not outlast an interrupt."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(resolve, value, error)

    context = contextvars.copy_context()
    # It holds on to stdin: an interpreter that ends while input() reads there would else try to close it, and abort.
    threading.Thread(target=call_handler, args=(sys.stdin,), name="dovetail-handler", daemon=True).start()
    return await future


def type_name(value: Any) -> str:
    return type(value).__name__
