"""Faults: what an exception nobody meant for the caller becomes, and what the log says of it."""

import asyncio
import logging
import os
import traceback
from collections.abc import Callable
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.errors import ConnectionLost, InternalError, ProtocolError, ServerBusy
from dovetail.protocol.exchange import Exchange

log = logging.getLogger("dovetail")

_MAX_TRACEBACK_CHARS: Final = 8192  # characters of a traceback in the log
_MAX_PART_CHARS: Final = 512

_ERROR_BY_END_REASON: Final[dict[str, Callable[[], ProtocolError]]] = {
    "timeout": lambda: InternalError("The call took too long and was stopped"),
    "unanswered": lambda: InternalError("The question to the user was not answered in time and the call was stopped"),
    "shutdown": lambda: ServerBusy("The server is shutting down; the call was stopped, perhaps after it had an effect"),
}


def mask_exception(
    exchange: Exchange, exc: BaseException, operation: str, *, server: str, debug: bool
) -> ProtocolError:
    """The error to answer with; genuine cancellation is raised again, everything else is logged and masked."""
    task = _get_current_task()
    if isinstance(exc, GeneratorExit) and task is not exchange.task:
        raise exc  # its loop is gone, and nobody waits for an answer
    if isinstance(exc, asyncio.CancelledError):
        if task is not None and exchange.verdict in _ERROR_BY_END_REASON:
            task.uncancel()
            return _ERROR_BY_END_REASON[exchange.verdict]()
        if task is not None and task.cancelling():
            raise exc
    if isinstance(exc, ConnectionLost):
        return InternalError("The client left before it answered")
    reference = os.urandom(4).hex()
    log.error("%s failed [%s]\n%s", clip(operation), reference, format_traceback(exc))
    if debug:
        return InternalError(f"{operation} failed: {type(exc).__name__}: {clip(str(exc), 1024)} [{reference}]")
    return InternalError(f"{operation} failed; the log of {server} has the details under {reference}")


def unwrap_group(exc: BaseException) -> BaseException:
    """What a task group of one failed task raised, without the group around it."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def _get_current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def format_traceback(exc: BaseException) -> str:
    """A traceback fit for a log: bounded, no control characters, and no line that could pose as a record of its own."""
    # A part is a frame or the words of an exception, which may be the caller's.
    parts = [
        part if len(part) <= _MAX_PART_CHARS else part[:_MAX_PART_CHARS] + "…\n"
        for part in traceback.format_exception(exc, limit=30)
    ]
    return "\n".join(
        f"  {clip(line, _MAX_PART_CHARS + 1)}" for line in "".join(parts)[-_MAX_TRACEBACK_CHARS:].splitlines()
    )
