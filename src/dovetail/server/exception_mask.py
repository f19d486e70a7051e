"""Convert unexpected exceptions to errors without details, and write the details to the log."""

import asyncio
import logging
import os
import traceback
from collections.abc import Callable
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.errors import ConnectionLost, InternalError, ProtocolError, ServerBusy
from dovetail.protocol.exchange import IncomingExchange

log = logging.getLogger("dovetail")

_MAX_TRACEBACK_CHARS: Final = 8192  # maximum length of a traceback in the log
_MAX_PART_CHARS: Final = 512

_ERROR_BY_END_REASON: Final[dict[str, Callable[[IncomingExchange], ProtocolError]]] = {
    "timeout": lambda exchange: InternalError(
        f"The call took longer than {exchange.time_limit:g} s and was abandoned. It may have had an effect"
    ),
    "unanswered": lambda _: InternalError("The user did not answer in time and the call was stopped"),
    "shutdown": lambda _: ServerBusy(
        "The server is shutting down and stopped the call. The call may have had an effect"
    ),
}


def mask_exception(
    exchange: IncomingExchange, exc: BaseException, operation: str, *, server: str, debug: bool
) -> ProtocolError:
    """Return the error to send for an exception. Most exceptions are logged, and the caller sees no details. A
    cancellation is raised again.
    """
    task = _get_current_task()
    if isinstance(exc, GeneratorExit) and task is not exchange.task:
        raise exc  # the event loop has ended, so no client is waiting
    if isinstance(exc, asyncio.CancelledError):
        if task is not None and exchange.verdict in _ERROR_BY_END_REASON:
            task.uncancel()
            return _ERROR_BY_END_REASON[exchange.verdict](exchange)
        if task is not None and task.cancelling():
            raise exc
    if isinstance(exc, ConnectionLost):
        return InternalError("The client disconnected before it answered")
    reference = os.urandom(4).hex()
    log.error("%s failed [%s]\n%s", clip(operation), reference, format_traceback(exc))
    if debug:
        return InternalError(f"{operation} failed: {type(exc).__name__}: {clip(str(exc), 1024)} [{reference}]")
    return InternalError(f"{operation} failed. The log of {server} has the details under {reference}")


def unwrap_group(exc: BaseException) -> BaseException:
    """If an exception group contains one exception, return that. Otherwise return `exc`."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def _get_current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def format_traceback(exc: BaseException) -> str:
    """Format a traceback for the log. It is shortened and indented, so that text from a caller cannot look like another
    log record.
    """
    # A part is a frame or an exception message, which may contain text from the caller.
    parts = [
        part if len(part) <= _MAX_PART_CHARS else part[:_MAX_PART_CHARS] + "…\n"
        for part in traceback.format_exception(exc, limit=30)
    ]
    return "\n".join(
        f"  {clip(line, _MAX_PART_CHARS + 1)}" for line in "".join(parts)[-_MAX_TRACEBACK_CHARS:].splitlines()
    )
